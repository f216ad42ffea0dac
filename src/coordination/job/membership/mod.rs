//! Are we an instance, who leads, which instances are gone, and is our clock right?

pub(in crate::coordination) mod announcement;
pub(super) mod clock_skew;
pub(super) mod instance_name;
pub mod leadership;
pub(in crate::coordination) mod liveness;
pub mod registration;
