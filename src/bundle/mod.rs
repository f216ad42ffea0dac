//! The files of a diagnostic bundle: what may be in it, in which form. Pure.
//!
//! An allow-list decides. Each field of a file has a class, and a field that nobody has classified is left out and counted. So a field that is
//! new elsewhere cannot carry a secret into a bundle: where a type has the fields, the code takes the whole type apart and does not compile before
//! the new one has a class; where a table has them, an unknown field is dropped. [`pseudonyms`] has the words in place of addresses and names.
//!
//! Must not read anything: `src/api/bundle/` brings the facts.

pub mod archive;
pub mod log;
pub mod metrics;
pub mod nodes;
pub mod pseudonyms;
pub mod settings;
