//! What Quartz itself answers is in `tests/vectors_cron.rs`; here is what can be tested without it.

mod describe;
