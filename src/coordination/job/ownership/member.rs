//! The members among which items are divided, and the items, as far as balance is concerned. Decides nothing.

use std::collections::BTreeSet;

/// An instance that may own items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::coordination) struct Member {
    /// How many items it gets in proportion to others; at least 1.
    pub(in crate::coordination) weight: u32,
    /// The labels it has.
    pub(in crate::coordination) labels: BTreeSet<String>,
    /// Its draw for the job.
    pub(in crate::coordination) draw: u64,
    /// Whether it is away, and keeps what it has.
    pub(in crate::coordination) absent: bool,
}

/// An item, as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::coordination) struct Held {
    /// Its owner's place among the members; `None`: nobody who stays.
    pub(in crate::coordination) owner: Option<usize>,
    /// When it came to its owner, in any unit that grows.
    pub(in crate::coordination) since: i64,
    /// The label that it asks for.
    pub(in crate::coordination) label: Option<String>,
}

/// Which members get the seats beyond the whole parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::coordination) enum Rule {
    /// To the members that rank first for the job.
    Rendezvous,
    /// To members that have more than their whole part already.
    Former,
}
