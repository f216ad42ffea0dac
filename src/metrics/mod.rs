//! The numbers of a sidecar, for Prometheus. Shell: shared counters. Decides names, labels, buckets, and which jobs have series
//! of their own.
//!
//! [`table`] has each metric once: its name, type, labels and meaning; the page `docs/metrics.md` is made from it. Events are counted
//! when they happen ([`meters`], [`registry`]). States, such as the items of a job, are computed at a scrape ([`state`]).
//!
//! Labels are closed lists of words, and the name of a job. Only so many jobs have a name there; further ones share [`OTHER`]. Nothing
//! that a caller or a node of the registry can choose is a label, except for the name of a job that is attached here.
//!
//! Must not know the coordination core: the runner translates its events.

pub mod meters;
pub mod process;
pub mod registry;
pub mod state;
pub mod table;
pub mod words;

/// The word for everything that has no series of its own.
pub const OTHER: &str = "_other";
