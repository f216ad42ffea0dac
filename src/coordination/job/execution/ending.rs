//! How an execution ended. Decides nothing.

use crate::coordination::job::contract::event::CancelReason;
use crate::coordination::job::contract::plan::Planned;
use crate::coordination::job::contract::report::Outcome;

/// How an execution ended that was recorded.
#[derive(Debug, Clone, Copy)]
pub(in crate::coordination) struct Ended {
    pub(in crate::coordination) number: u64,
    pub(in crate::coordination) planned: Planned,
    pub(in crate::coordination) ending: Ending,
    pub(in crate::coordination) cancelled: Option<CancelReason>,
}

/// An [`Outcome`] without its words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::coordination) enum Ending {
    Success,
    Failure,
    Rejection,
}

impl From<&Outcome> for Ending {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Success => Self::Success,
            Outcome::Failure(_) => Self::Failure,
            Outcome::Rejected(_) => Self::Rejection,
        }
    }
}
