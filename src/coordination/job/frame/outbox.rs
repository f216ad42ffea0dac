//! The proposals of all decisions: transactions, effects, and the wish to have the job's nodes read again.

use crate::coordination::job::contract::commit::{CommitId, Purpose};
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::event::Event;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::pending::Pending;
use crate::coordination::job::frame::phase::Phase;
use crate::mutants::mutant;
use crate::tree::Transaction;

/// The proposals of this step, and those of earlier steps that are in flight.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Outbox {
    pub(in crate::coordination) pending: Pending,
    /// Whether the job's nodes are being read again: until then news may be missing.
    reading: bool,
    /// What this step has asked for so far.
    effects: Vec<Effect>,
}

impl Outbox {
    /// Asks for an effect.
    pub(in crate::coordination) fn push(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Asks for effects, in this order.
    pub(in crate::coordination) fn extend(&mut self, effects: impl IntoIterator<Item = Effect>) {
        self.effects.extend(effects);
    }

    /// Tells the application something.
    pub(in crate::coordination) fn tell(&mut self, cx: &Context, event: Event) {
        // A detached instance, and one whose application has just come back, is told everything when it goes on.
        if !matches!(cx.phase, Phase::Away { .. }) {
            self.push(Effect::Tell(event));
        }
    }

    /// Asks for a commit.
    pub(in crate::coordination) fn commit(&mut self, purpose: Purpose, transaction: Transaction) {
        let id: CommitId = self.pending.begin(purpose);
        self.push(Effect::Commit { id, purpose, transaction });
    }

    /// Whether a commit of this purpose may be made now: none is in flight, none pauses, and the nodes are known.
    pub(in crate::coordination) fn may_commit(&self, cx: &Context, purpose: Purpose) -> bool {
        cx.is_connected() && self.pending.may(purpose, cx.now.mono, cx.view.revision())
    }

    /// Whether a commit of this purpose is in flight.
    pub(in crate::coordination) fn is_in_flight(&self, purpose: Purpose) -> bool {
        self.pending.is_in_flight(purpose)
    }

    /// Has the job's nodes read again.
    pub(in crate::coordination) fn read_again(&mut self) {
        self.reading = true;
        self.push(Effect::Refresh { forget: false });
    }

    /// Has the job's nodes read again; until then no decision rests on the old nodes.
    pub(in crate::coordination) fn forget_and_read(&mut self, cx: &mut Context) {
        self.reading = true;
        cx.forget_nodes();
        self.push(Effect::Refresh { forget: true });
    }

    /// The job's nodes are read.
    pub(in crate::coordination) fn was_read(&mut self) {
        self.reading = false;
    }

    /// Whether the job's nodes are being read again.
    pub(in crate::coordination) fn is_reading(&self) -> bool {
        self.reading && !mutant!(EndedBeforeRead)
    }

    /// The session is gone, and so are the requests in flight.
    pub(in crate::coordination) fn forget(&mut self) {
        self.reading = false;
        self.pending.clear();
    }

    /// What this step has asked for.
    pub(in crate::coordination) fn take(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }
}
