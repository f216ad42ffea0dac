//! The record of what operators have done: who called what, about what, and how it ended. Decides nothing.

use std::fmt::Display;

use tonic::{Code, Status};

use crate::listen::caller::Caller;

/// The target of these lines, for log filters.
const TARGET: &str = "sidekeeper::audit";

/// Records an operator's call. `subject`: the job or the lock that it is about.
pub(super) fn record<T>(caller: &Caller, method: &str, subject: impl Display, result: &Result<T, Status>) {
    let code = result.as_ref().err().map_or(Code::Ok, Status::code);
    tracing::info!(target: TARGET, %caller, method, %subject, ?code, "an operator has called");
}
