//! The state that an application brings to its next stream, and that a sidecar's process leaves for the next process.

use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::event::CancelReason;
use crate::coordination::job::contract::plan::Source;
use crate::coordination::job::contract::request::Request;
use crate::job::FencingToken;
use crate::tree::SessionId;

/// An instance of a former process of this sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Former {
    /// The session of its nodes.
    pub session: SessionId,
    /// That session's timeout.
    pub timeout: Duration,
    /// Since when fires may have been missed: the session proves that the former process was alive before, and so was
    /// the instance.
    pub since: Timestamp,
}

/// An execution that the application reports as open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenExecution {
    /// Its id, which contains its item.
    pub execution_id: String,
    /// The token that came with it.
    pub token: FencingToken,
    /// Its cause; `None`: a failover if the item was taken over, else the schedule.
    pub source: Option<Source>,
    /// The instant of its fire; `None`: the one in the ledger.
    pub scheduled: Option<Timestamp>,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// Its deadline; `None`: the job's timeout from now.
    pub deadline: Option<Timestamp>,
    /// Why it was cancelled; `None`: it was not.
    pub cancelled: Option<CancelReason>,
}

/// The state that an application brings to its next stream.
#[derive(Debug, Clone)]
pub struct Return {
    /// Its request.
    pub request: Request,
    /// The executions that are open, or whose result was not recorded.
    pub open: Vec<OpenExecution>,
}
