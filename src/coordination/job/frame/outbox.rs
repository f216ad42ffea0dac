//! The proposals of all decisions: transactions, effects, and the wish to have the job's nodes read again.

use crate::coordination::job::contract::commit::{CommitId, Purpose};
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::event::Event;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::pending::Pending;
use crate::mutants::mutant;
use crate::tree::Transaction;

/// The proposals of this step, and the commits of earlier steps that are in flight.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub(crate) pending: Pending,
    /// Whether the job's nodes are being read again: until then changes may be missing.
    reading: bool,
    /// The effects of this step so far.
    effects: Vec<Effect>,
}

impl Outbox {
    pub(crate) fn push(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    pub(crate) fn extend(&mut self, effects: impl IntoIterator<Item = Effect>) {
        self.effects.extend(effects);
    }

    /// Sends an event to the application.
    pub(crate) fn notify(&mut self, cx: &Context, event: Event) {
        // A detached instance, and one whose application has just reattached, sends everything when it goes on.
        if !cx.phase.is_detached() {
            self.push(Effect::Notify(event));
        }
    }

    pub(crate) fn commit(&mut self, purpose: Purpose, transaction: Transaction) {
        let id: CommitId = self.pending.begin(purpose);
        self.push(Effect::Commit { id, purpose, transaction });
    }

    /// Whether a commit of this purpose may be made now: none is in flight, none pauses, and the nodes are known.
    pub(crate) fn may_commit(&self, cx: &Context, purpose: Purpose) -> bool {
        cx.is_connected() && self.pending.may(purpose, cx.now.mono, cx.view.revision())
    }

    pub(crate) fn is_in_flight(&self, purpose: Purpose) -> bool {
        self.pending.is_in_flight(purpose)
    }

    pub(crate) fn read_again(&mut self) {
        self.reading = true;
        self.push(Effect::Refresh { forget: false });
    }

    /// Has the job's nodes read again; until then no decision rests on the old nodes.
    pub(crate) fn forget_and_read(&mut self, cx: &mut Context) {
        self.reading = true;
        cx.forget_nodes();
        self.push(Effect::Refresh { forget: true });
    }

    /// The job's nodes are read.
    pub(crate) fn was_read(&mut self) {
        self.reading = false;
    }

    pub(crate) fn is_reading(&self) -> bool {
        self.reading && !mutant!(EndedBeforeRead)
    }

    /// The session has ended, and the requests in flight with it.
    pub(crate) fn forget(&mut self) {
        self.reading = false;
        self.pending.clear();
    }

    /// Takes the effects of this step.
    pub(crate) fn take(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }
}
