//! The state that an application brings along to its next stream, and a sidecar's process to the next process.

use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::event::CancelReason;
use crate::coordination::job::contract::plan::Source;
use crate::coordination::job::contract::request::Request;
use crate::job::FencingToken;
use crate::tree::SessionId;

/// What the former process has left of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Former {
    /// The session that its nodes are in.
    pub session: SessionId,
    /// That session's timeout.
    pub timeout: Duration,
    /// Since when fires may have been missed: the former process was there before, as the session proves, and so was
    /// the instance.
    pub since: Timestamp,
}

/// An execution that an application says it has open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenExecution {
    /// Its id, which names its item.
    pub execution_id: String,
    /// The token that came with it.
    pub token: FencingToken,
    /// What made it start; `None`: a failover if the item was taken over, else the schedule.
    pub source: Option<Source>,
    /// For which instant; `None`: for the one that the ledger has.
    pub scheduled: Option<Timestamp>,
    /// Which attempt it is, from 1.
    pub attempt: u32,
    /// Until when it may go on; `None`: for the job's timeout from now.
    pub deadline: Option<Timestamp>,
    /// Why it was told to stop; `None`: it was not.
    pub cancelled: Option<CancelReason>,
}

/// The state that an application brings along to its next stream.
#[derive(Debug, Clone)]
pub struct Return {
    /// What it asks for.
    pub request: Request,
    /// The executions that it has open, or has a result of.
    pub open: Vec<OpenExecution>,
}
