//! From the running node to the recorded completion: executions that are open, their results, deadlines, further attempts
//! and checkpoints.

pub mod checkpoint;
pub mod completion;
pub(super) mod deadline;
pub(in crate::coordination) mod ending;
pub(in crate::coordination) mod limit;
pub(super) mod retry;
pub(super) mod slow;
pub mod state;
