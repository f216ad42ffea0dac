//! What crashed instances left: which items are flagged, who takes them over, which flags come too late.

mod late_flags;
pub(super) mod takeover;
