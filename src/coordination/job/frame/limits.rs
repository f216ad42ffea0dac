//! Limits that several decisions share.

use std::time::Duration;

use jiff::SignedDuration;

/// The largest size of a transaction, in bytes: half of ZooKeeper's default limit of 1 MiB for a request, because sizes
/// are estimates and servers may have a lower limit.
pub const TRANSACTION_BYTES_MAX: usize = 512 * 1024;

/// The largest size of a transaction that starts or ends executions, in bytes. A server keeps the last 500 transactions
/// in memory for its followers (`zookeeper.commitLogCount`), each larger than its request. With transactions of 512 KiB
/// a server with a heap of 256 MB answered ever more slowly (`docs/benchmarks.md`).
pub(crate) const FIRE_BYTES_MAX: usize = 64 * 1024;

/// How long the leader has to flag crashed items, and each instance to take its share over, before every instance may.
pub(crate) const HEAD_START: Duration = Duration::from_secs(1);

/// How late a fire may be noticed and still be an ordinary one: far above the lateness of a loaded machine's timers,
/// and below any real suspension of a process.
pub const MISFIRE_THRESHOLD: SignedDuration = SignedDuration::from_secs(1);

/// How long the removal of a whole job takes, node by node.
pub(crate) const REMOVAL_TAKES: Duration = Duration::from_millis(500);
