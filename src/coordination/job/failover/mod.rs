//! The items of crashed instances: the room flags them, takes them over, and recognises late flags.

mod late_flags;
pub(super) mod takeover;
