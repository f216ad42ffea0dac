//! What several test binaries share: a ZooKeeper server and a proxy that breaks connections.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

pub mod proxy;
pub mod zookeeper;
