//! The wire, and nothing else: the only place that spells a path or a byte of ElasticJob's protocol. Pure.

pub mod path;
