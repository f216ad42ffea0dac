//! The items of crashed instances: the room flags them, takes them over, and recognises flags that come too late.

mod late_flags;
pub(super) mod takeover;
