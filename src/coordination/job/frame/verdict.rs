//! The wish of a decision about the life of the instance. Only `lifecycle` carries it out.

use crate::coordination::job::contract::effect::EndReason;

/// The wish of a decision about the life of the instance.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(in crate::coordination) enum Verdict {
    /// It goes on.
    Continue,
    /// Its application has a stream that is closed, and then it leaves.
    Disconnect(EndReason),
    /// It leaves without waiting.
    Leave(EndReason),
    /// It ends, without touching the registry.
    End(EndReason),
}
