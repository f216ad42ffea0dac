//! An execution whose running node is being created.

use crate::coordination::job::contract::plan::Planned;
use crate::coordination::job::contract::records::LedgerNode;

/// An execution whose running node is being created.
#[derive(Debug, Clone, Copy)]
pub(in crate::coordination) struct Starting {
    pub(in crate::coordination) planned: Planned,
    /// The index of the node's creation in the transaction.
    pub(in crate::coordination) index: usize,
    /// What the transaction makes of the item's node in the ledger.
    pub(in crate::coordination) entry: Option<LedgerNode>,
}
