//! The edge to the applications: translation between gRPC and the domain, no decisions. Shell.

pub mod convert;
