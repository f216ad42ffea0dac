//! Modules of several test binaries: a ZooKeeper server, a proxy that breaks connections, and a session that changes answers.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]
#![allow(clippy::panic, clippy::expect_used, clippy::indexing_slicing, reason = "tests fail by panicking")]
#![allow(clippy::disallowed_methods, reason = "real servers take real time")]

pub mod altered_session;
pub mod certificates;
pub mod proxy;
pub mod secure_zookeeper;
pub mod zookeeper;
