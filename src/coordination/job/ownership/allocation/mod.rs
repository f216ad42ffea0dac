//! How are items allocated to members, so that the parts are right, and few items move?
//!
//! A function of items and members, without a state. This file has its values.

mod allocate;
#[cfg(test)]
mod balance;
pub(crate) mod former_rule;

use std::collections::BTreeSet;

/// An instance that may own items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// How many items it gets in proportion to others; at least 1.
    weight: u32,
    labels: BTreeSet<String>,
    /// Its draw for the job.
    draw: u64,
    /// Whether it is detached or its items are reserved: it keeps its items, and gets no others.
    absent: bool,
}

impl Member {
    /// A present member.
    pub(crate) fn new(weight: u32, labels: BTreeSet<String>, draw: u64) -> Self {
        Self { weight, labels, draw, absent: false }
    }

    pub(crate) fn is_absent(&self) -> bool {
        self.absent
    }

    /// The same member, absent: it keeps its items, and gets no others.
    pub(crate) fn absent(self) -> Self {
        Self { absent: true, ..self }
    }
}

/// An item and its owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Its owner's place among the members; `None`: no owner that stays.
    owner: Option<usize>,
    /// When its owner got it, in any unit that grows.
    since: i64,
    label: Option<String>,
}

impl Held {
    /// An item with the place of its owner among the members, the time since when that owner has it, and its label.
    pub(crate) fn new(owner: Option<usize>, since: i64, label: Option<String>) -> Self {
        Self { owner, since, label }
    }

    /// The place of its owner among the members; `None`: no owner that stays.
    pub(crate) fn owner(&self) -> Option<usize> {
        self.owner
    }
}

/// The rule by which members get the seats beyond the whole parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// To the members that rank first for the job.
    Rendezvous,
    /// To members that have more than their whole part already.
    Former,
}

pub(crate) use allocate::allocate;
