//! How do we leave? Drains in peace, or clears away at once what an application left that is gone (P6, design 5).
//!
//! Everything of ours goes in one transaction if it fits: running nodes, leadership, instance. What is gone already is
//! left out and the rest tried again, so the attempts end.

use std::time::Duration;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::{Effect, EndReason};
use crate::coordination::job::contract::event::{AssignmentReason, CancelReason, Event};
use crate::coordination::job::execution::state::{Execution, State};
use crate::coordination::job::failover::takeover::{failover_folders, flags, hand_over};
use crate::coordination::job::frame::phase::{Phase, Session};
use crate::coordination::job::membership::announcement::fall_silent;
use crate::coordination::job::membership::leadership::give_up_leadership;
use crate::coordination::job::ownership::handoff_release::hands_over;
use crate::coordination::job::participant::Participant;
use crate::coordination::job::picture::nodes::ItemView;
use crate::job::Item;
use crate::mutants::mutant;
use crate::tree::{CommitError, Error, Operation, Transaction};

/// How long cancelled executions may take to report before we leave without them.
const CANCEL_GRACE: Duration = Duration::from_secs(2);

impl Participant {
    /// The sidecar is stopping. May come again: the earliest deadline counts, and who was told to stop stays told. It
    /// does not count for who may still execute and cannot be told to stop: whoever does not wait for that parts from
    /// the session without closing it.
    pub(in crate::coordination) fn drain(&mut self, deadline: Duration) {
        let now = self.cx.now;
        let reason = match &self.cx.phase {
            Phase::Joining | Phase::Active => EndReason::Drained,
            Phase::Away { .. } if self.has_come_back() => return self.turn_away(EndReason::Drained),
            // Nobody can attach any more, so nobody comes back; but who is away may still execute.
            Phase::Away { .. } => return self.leave(EndReason::Drained),
            Phase::Draining { cancelled: true, .. } | Phase::Leaving(_) | Phase::Ended => return,
            Phase::Draining { deadline: Some(known), .. } if *known <= deadline => return,
            // An operator's stop stays one: the application must not come back by itself.
            Phase::Draining { reason, .. } => reason.clone(),
        };
        if self.cx.assigned.attached {
            let remaining = deadline.saturating_sub(now.mono);
            self.out.tell(&self.cx, Event::Draining { remaining });
        }
        self.cx.phase = Phase::Draining { deadline: Some(deadline), reason, cancelled: false };
    }

    /// Leaves without waiting for anything, but for an application that nobody can tell to stop what it executes: until
    /// it has stopped by itself, that is not handed on.
    pub(in crate::coordination) fn leave(&mut self, reason: EndReason) {
        if matches!(self.cx.phase, Phase::Leaving(_) | Phase::Ended) {
            return;
        }
        self.cx.phase = self.leaves(reason);
    }

    /// Whether the application may be working on something of ours.
    fn may_work(&self) -> bool {
        let owns =
            |view: &ItemView| view.owner.as_ref().is_some_and(|of| of.instance == self.cx.identity.instance);
        let owns = || !self.cx.view.is_loaded() || self.cx.view.items().values().any(owns);
        self.executions.open.values().any(|open| open.state == State::Running)
            || (self.cx.is_continuous() && owns())
    }

    /// How to leave, as things are.
    fn leaves(&self, reason: EndReason) -> Phase {
        match self.cx.unattended.filter(|_| self.may_work()) {
            Some(until) => Phase::Draining { deadline: Some(until), reason, cancelled: true },
            None => Phase::Leaving(reason),
        }
    }

    /// The application has left, or another one takes its place. One that is waited for has gone by that; one that was to
    /// leave anyway may still go on.
    pub(in crate::coordination) fn go_away(&mut self) {
        if matches!(self.cx.phase, Phase::Away { .. }) {
            self.cx.unattended = None;
        }
        self.leave(EndReason::Detached);
    }

    /// Leaves though the application has a stream: who reads its end stops, before anything is handed on; and who does
    /// not, because it has broken just now, when the grace is over.
    pub(in crate::coordination) fn turn_away(&mut self, reason: EndReason) {
        self.cx.unattended = self.goes_on_until();
        self.out.push(Effect::CloseStream(reason.clone()));
        self.leave(reason);
    }

    /// Ends, without touching the registry.
    pub(in crate::coordination) fn end(&mut self, reason: EndReason) {
        self.cx.phase = Phase::Ended;
        self.out.push(Effect::End(reason));
    }

    /// Takes the next step of leaving.
    pub(in crate::coordination) fn depart(&mut self) {
        let now = self.cx.now;
        if let Phase::Draining { deadline, reason, cancelled } = self.cx.phase.clone() {
            let settled = self.removal_settles().is_none();
            let idle = settled
                && (self.executions.is_idle() || mutant!(DrainedWithoutWaiting))
                && self.guarantee.is_round_over(&self.cx)
                && !self.out.is_in_flight(Purpose::FlagMisfire)
                && !hands_over(&self.cx, &self.announcement, &mut self.modes);
            match deadline {
                Some(deadline) if now.mono >= deadline && cancelled => {
                    self.cx.unattended = None;
                    self.leave(reason);
                }
                _ if idle => self.leave(reason),
                Some(deadline) if now.mono >= deadline => {
                    self.executions.cancel_executions(&self.cx, &mut self.out, CancelReason::DrainTimeout);
                    let deadline = Some(now.mono.saturating_add(CANCEL_GRACE));
                    self.cx.phase = Phase::Draining { deadline, reason, cancelled: true };
                }
                Some(_) | None => {}
            }
        }
        if let Phase::Leaving(reason) = &self.cx.phase {
            // Whoever says that it goes executes nothing any more; of who is drained nobody knows.
            let drained = *reason == EndReason::Drained;
            if let Some(until) = self.take_up_to_leave().filter(|_| drained) {
                self.cx.unattended = Some(until);
                self.cx.phase = self.leaves(EndReason::Drained);
            }
        }
        let Phase::Leaving(reason) = self.cx.phase.clone() else { return };
        let busy = [Purpose::Register, Purpose::Start, Purpose::Complete, Purpose::Leave]
            .into_iter()
            .any(|purpose| self.out.is_in_flight(purpose));
        match self.cx.session {
            // The session takes everything with it, or there was nothing yet.
            Session::None => self.end(reason),
            Session::Connected(_) if self.cx.name_taken => self.end(reason),
            Session::Suspended(_) => {}
            Session::Connected(_) if busy || !self.cx.view.is_loaded() => {}
            Session::Connected(_) => {
                let transaction =
                    if self.gone { self.late_nodes() } else { self.leaving_transaction(&reason) };
                if transaction.is_empty() && self.awaits_nodes() {
                    // Each of these ends.
                } else if transaction.is_empty() {
                    self.left();
                } else if self.out.may_commit(&self.cx, Purpose::Leave) {
                    // One that comes late takes nothing from who has registered under our name meanwhile.
                    let transaction = self.cx.undivided().into_iter().chain(transaction).collect();
                    self.out.commit(Purpose::Leave, transaction);
                }
            }
        }
    }

    /// Removes our nodes, the instance last: as long as it exists, the running nodes of our items are ours. What does
    /// not fit into one transaction goes into the next.
    fn leaving_transaction(&mut self, reason: &EndReason) -> Transaction {
        let paths = &self.cx.identity.paths;
        let mut transaction = Transaction::new();
        let mut size = 0;
        let mut flagging = failover_folders(&self.cx);
        let left = self.left_behind();
        if !left.is_empty() {
            flagging = flags(&self.cx, left);
            size = flagging.iter().map(Operation::wire_size).sum::<usize>();
        }
        for item in self.unfinished_items() {
            let begin = flagging.len();
            hand_over(
                &self.cx,
                &self.executions,
                &mut flagging,
                item,
                self.executions.open.contains_key(&item),
            );
            size += flagging.iter().skip(begin).map(Operation::wire_size).sum::<usize>();
            if size >= self.cx.transaction_bytes {
                return flagging;
            }
        }
        if size > 0 {
            transaction = flagging;
        }
        transaction.extend(self.guarantee.withdrawal(&self.cx));
        for item in self.ended_items() {
            let begin = transaction.len();
            self.executions.end_execution(&self.cx, &self.checkpoints, &mut transaction, item);
            size += transaction.iter().skip(begin).map(Operation::wire_size).sum::<usize>();
            if size >= self.cx.transaction_bytes {
                return transaction;
            }
        }
        if self.cx.view.triggers().contains(&self.cx.identity.instance) {
            transaction.push(Operation::delete(paths.trigger(&self.cx.identity.instance)));
        }
        if self.cx.is_leader() {
            give_up_leadership(&self.cx, &mut transaction);
        }
        transaction.extend(fall_silent(&self.cx));
        transaction.extend(self.names.give_up_name(&self.cx, reason));
        if self.cx.has_instance() && !mutant!(InstanceLeft) {
            transaction.push(Operation::delete(paths.instance(&self.cx.identity.instance)));
        }
        transaction
    }

    /// The items that others are to execute in our place: the application has not reported them, or they were taken
    /// over and not begun. None, unless the job's items fail over.
    fn unfinished_items(&self) -> Vec<Item> {
        if !self.cx.fails_over() || !self.cx.is_registered() || mutant!(UnfinishedForgotten) {
            return Vec::new();
        }
        // What an earlier session of ours left is still ours to hand on, if nobody else has it by now.
        let left =
            |item: &Item| self.cx.view.running_of(&self.cx.identity.instance).any(|ours| ours == *item);
        let open = self.executions.open.iter().filter(|(item, open)| match open.state {
            // What the job does not have any more is nobody's to take over.
            State::Running => self.cx.has_item(**item),
            State::Lost => left(item),
            State::Reported => false,
        });
        let not_begun = self.cx.view.taken().iter().copied().filter(|item| self.cx.has_taken(*item));
        let not_begun = not_begun.filter(|item| !self.executions.open.contains_key(item));
        open.map(|(item, _)| *item).chain(not_begun).collect()
    }

    /// The items that an earlier session of ours has left unfinished, and that we do not execute: there may be nobody else
    /// who notices. As long as we have not become an instance again, whether or not we were told, it may still be one; and
    /// of who was stopped by an operator the others take over what is left.
    fn left_behind(&self) -> Vec<Item> {
        let me = &self.cx.identity.instance;
        let is_there = || self.cx.view.instances().contains_key(me) || self.cx.fleet.member(me).is_some();
        let may_be_another = || is_there() || !self.cx.fleet.is_loaded() || self.cx.registered.is_some();
        if !self.cx.fails_over()
            || mutant!(UnfinishedForgotten)
            || (!self.cx.has_instance() && may_be_another())
        {
            return Vec::new();
        }
        let is_ours = |item: &Item| self.cx.is_registered() && self.executions.open.contains_key(item);
        self.cx.view.running_of(me).filter(|item| !is_ours(item)).collect()
    }

    /// The items whose running nodes go with us.
    fn ended_items(&self) -> Vec<Item> {
        let handed_over = self.cx.fails_over() && !mutant!(UnfinishedForgotten);
        let ends = |(item, open): &(&Item, &Execution)| match open.state {
            State::Reported => true,
            State::Running => !handed_over || !self.cx.has_item(**item),
            State::Lost => false,
        };
        let open = self.executions.open.iter().filter(ends).map(|(item, _)| *item);
        open.chain(self.executions.left_running(&self.cx, &self.out)).collect()
    }

    /// A transaction of the departure is done; more follow while our instance is there, or late nodes of ours.
    pub(in crate::coordination) fn removed(&mut self) {
        self.gone |= !self.cx.has_instance();
    }

    /// Whether there may be nodes of ours that we do not know yet, because something is in flight that creates some, or
    /// because the nodes are being read: a node of an instance that is gone would stay as long as the sidecar's session.
    fn awaits_nodes(&self) -> bool {
        let commits = [Purpose::Announce, Purpose::PlanHandoff];
        commits.into_iter().any(|purpose| self.out.is_in_flight(purpose))
            || self.election.is_standing()
            || !self.agenda.awaited().taking().is_empty()
            || self.out.is_reading()
    }

    /// Removes what was created after we had left, and flags what an earlier session of ours has left if its instance
    /// has gone only now.
    fn late_nodes(&self) -> Transaction {
        let left = self.left_behind();
        let mut transaction = if left.is_empty() { Transaction::new() } else { flags(&self.cx, left) };
        for item in self.cx.view.taken().iter().copied().filter(|item| self.cx.has_taken(*item)) {
            if transaction.is_empty() {
                transaction = failover_folders(&self.cx);
            }
            hand_over(&self.cx, &self.executions, &mut transaction, item, false);
        }
        if self.cx.is_leader() {
            give_up_leadership(&self.cx, &mut transaction);
        }
        transaction.extend(fall_silent(&self.cx));
        transaction
    }

    /// Our nodes are gone.
    fn left(&mut self) {
        let Phase::Leaving(reason) = self.cx.phase.clone() else { return };
        self.told.tell_nothing_assigned(
            &mut self.cx,
            &mut self.ledger,
            &mut self.out,
            AssignmentReason::Draining,
        );
        self.end(reason);
    }

    /// Leaving failed because something was gone; the view tells what, and the next attempt leaves it out.
    pub(in crate::coordination) fn leave_failed(&mut self, error: &CommitError) {
        if matches!(error.error, Error::NoNode(_) | Error::NodeExists(_) | Error::BadVersion(_)) {
            self.checkpoints.doubt();
            self.out.read_again();
        }
    }
}
