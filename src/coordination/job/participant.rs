//! One instance of one job: the state, and the one step that looks at all of it.
//!
//! Decides in which order the decisions are taken; takes none itself. One participant exists for each attached
//! application; the runner calls [`Participant::step`] with all inputs since the last call.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::agenda::{Agenda, Awaited};
use crate::coordination::job::contract::answer::{Answer, Refusal, Ticket};
use crate::coordination::job::contract::commit::{CommitId, Purpose, Room};
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::event::{AssignmentReason, CancelReason, Execute, SessionStatus};
use crate::coordination::job::contract::input::Input;
use crate::coordination::job::contract::plan::Source;
use crate::coordination::job::contract::reattach::Former;
use crate::coordination::job::contract::request::Request;
use crate::coordination::job::execution::Executions;
use crate::coordination::job::execution::checkpoint::Checkpoints;
use crate::coordination::job::execution::retry::Retries;
use crate::coordination::job::execution::slow::Slow;
use crate::coordination::job::failover::takeover::Failover;
use crate::coordination::job::firing::{Firing, resolve, start_failed, started};
use crate::coordination::job::frame::context::{Context, Identity};
use crate::coordination::job::frame::limits::TRANSACTION_BYTES_MAX;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::{Phase, Session, Verdict};
use crate::coordination::job::item_lock::ItemLocks;
use crate::coordination::job::ledger::Ledger;
use crate::coordination::job::lifecycle::Lifecycle;
use crate::coordination::job::lifecycle::departure::{application_left, end};
use crate::coordination::job::lifecycle::restart::notify_anew;
use crate::coordination::job::membership::Membership;
use crate::coordination::job::notices::assignment::{Notified, may_notify};
use crate::coordination::job::notices::lease::{answer_lease, notify_lease};
use crate::coordination::job::notices::problems::{Comparison, request_limit};
use crate::coordination::job::notices::waiting::Waiting;
use crate::coordination::job::once::Once;
use crate::coordination::job::ownership::Ownership;
use crate::coordination::job::ownership::allocation::former_rule;
use crate::coordination::job::ownership::disabling_end::{end_disablings, next_end};
use crate::coordination::job::picture::Picture;
use crate::coordination::job::picture::settings::Settings;
use crate::coordination::job::rotation::{Rotation, repair_rotation};
use crate::coordination::lease::Lease;
use crate::coordination::time::{Now, Wakeup};
use crate::findings::problem::Problem;
use crate::job::{Generation, Item};
use crate::mutants::mutant;
use crate::tree::{CommitError, CommitResult, Error, OperationResult};

/// The wait before a step that only looks again.
const SOON: Duration = Duration::from_millis(1);

/// The state machine of one instance of one job.
#[derive(Debug)]
pub struct Participant {
    cx: Context,
    out: Outbox,
    lease: Lease,
    agenda: Agenda,
    membership: Membership,
    rotation: Rotation,
    ledger: Ledger,
    executions: Executions,
    retries: Retries,
    checkpoints: Checkpoints,
    slow: Slow,
    locks: ItemLocks,
    ownership: Ownership,
    once: Once,
    firing: Firing,
    failover: Failover,
    notified: Notified,
    waiting: Waiting,
    comparison: Comparison,
    lifecycle: Lifecycle,
    /// Whether an execution has ended after this step has looked for starts.
    freed: bool,
    /// When the last step wants the next one.
    wakeup: Wakeup,
}

impl Participant {
    /// A participant that has not joined yet.
    pub fn new(identity: Identity, request: Request) -> Self {
        let executions = Executions::new(identity.execution_prefix.clone());
        Self {
            cx: Context::new(identity, request),
            out: Outbox::default(),
            lease: Lease::default(),
            agenda: Agenda::default(),
            membership: Membership::default(),
            rotation: Rotation::default(),
            ledger: Ledger::default(),
            executions,
            retries: Retries::default(),
            checkpoints: Checkpoints::default(),
            slow: Slow::default(),
            locks: ItemLocks::default(),
            ownership: Ownership::default(),
            once: Once::default(),
            firing: Firing::default(),
            failover: Failover::default(),
            notified: Notified::default(),
            waiting: Waiting::default(),
            comparison: Comparison::default(),
            lifecycle: Lifecycle::default(),
            freed: false,
            wakeup: Wakeup::default(),
        }
    }

    /// A participant for an instance whose nodes a former process has left. `request`: the known part of the
    /// application's request.
    pub fn restored(identity: Identity, request: Request, former: Former) -> Self {
        let mut restored = Self::new(identity, request);
        restored.cx.phase = Phase::Restored;
        restored.firing = Firing::since(former.since);
        restored.lifecycle = Lifecycle::restored(former);
        restored
    }

    /// Whether the instance may leave in favour of another one with its name: not before its nodes were looked for.
    pub fn may_release_name(&self) -> bool {
        self.lifecycle.may_release_name()
    }

    /// Whether another stream of the application may reattach to this participant.
    pub fn may_reattach(&self) -> bool {
        self.lifecycle.may_reattach(&self.cx)
    }

    /// Takes the inputs, looks at the whole state, and returns the effects, in this order.
    ///
    /// The picture belongs to the present session, or it is empty: after the session has resumed, and after an
    /// [`Effect::Refresh`] that asks for it, until the nodes are read. It contains the changes of each commit among the
    /// inputs.
    pub fn step(
        &mut self,
        now: Now,
        picture: &Picture,
        inputs: impl IntoIterator<Item = Input>,
    ) -> Vec<Effect> {
        // Without a session no picture counts.
        if self.cx.session != Session::None {
            self.cx.see(picture);
        }
        self.cx.now = now;
        self.firing.begin(now.wall);
        for input in inputs {
            if !matches!(input, Input::Leased { .. }) && !mutant!(LeaseSeenLate) {
                self.check_lease();
            }
            self.take(picture, input);
        }
        self.check_lease();
        if self.cx.phase != Phase::Ended {
            self.join();
            self.notify();
            self.lead();
            self.fire();
            let open = self.executions.count();
            self.finish();
            self.freed = self.executions.count() < open;
        }
        self.wakeup = self.find_wakeup();
        self.cx.forget();
        self.out.take()
    }

    /// The decisions about the instance itself: its settings, its stream, its registration.
    fn join(&mut self) {
        if let Some(change) = self.cx.compile_settings() {
            self.firing.reschedule(&self.cx, change);
        }
        self.comparison.compare(&self.cx);
        self.check_detached();
        let verdict = self.lifecycle.check_removal(&mut self.cx);
        self.apply_verdict(verdict);
        let verdict = self.membership.register(&self.cx, &mut self.out);
        self.apply_verdict(verdict);
        let Self { cx, out, membership, ownership, .. } = self;
        cx.name_taken = membership.is_name_taken();
        membership.announce(cx, out);
        membership.renew_items(cx, out, |item| ownership.is_given(cx, item));
    }

    /// The messages to the application. Executions of unknown outcome are resolved first.
    fn notify(&mut self) {
        if self.rotation.update_turn(&self.cx) {
            self.notified.look_again();
        }
        let Self { cx, out, agenda, ledger, executions, checkpoints, locks, .. } = self;
        resolve(cx, executions, ledger, checkpoints, locks, agenda, out);
        if self.ownership.forget_given(cx) {
            self.notified.look_again();
        }
        self.waiting.notify_waiting(cx, out, self.lifecycle.has_come_back(cx));
        if may_notify(&self.cx) {
            let problems = self.problems();
            let Self { cx, out, lease, rotation, ledger, executions, checkpoints, .. } = self;
            let (notified, ownership) = (&mut self.notified, &mut self.ownership);
            notified.notify(cx, ledger, rotation, executions, checkpoints, ownership, lease, out, problems);
        }
        notify_lease(&self.cx, &mut self.lease, &mut self.out);
    }

    fn lead(&mut self) {
        let Self { cx, out, membership, executions, ownership, .. } = self;
        membership.elect(cx, out);
        membership.update_liveness(cx, |item| executions.has_open(item), out);
        ownership.update_reservations(cx, out);
        if let Some(unready) = ownership.find_unready(cx) {
            cx.unready = unready;
        }
        ownership.shard(cx, membership, executions, out);
        ownership.plan_handoff(cx, out);
        ownership.remind_leader(cx, membership, out);
        membership.remove_stale_servers(cx, out);
        end_disablings(cx, out);
    }

    /// The executions that are to begin: after failovers, fires, triggers, failed attempts.
    fn fire(&mut self) {
        let Self { cx, out, agenda, membership, rotation, ledger, executions, retries, .. } = self;
        let (checkpoints, ownership, once) = (&mut self.checkpoints, &self.ownership, &mut self.once);
        let (firing, failover, locks) = (&mut self.firing, &mut self.failover, &mut self.locks);
        locks.look(cx, executions, retries, agenda, out);
        retries.take_back_retries(cx, executions, agenda);
        executions.obey_fleet_cancels(cx, retries, checkpoints, out);
        failover.fail_over(cx, membership.liveness(), executions, agenda, out);
        repair_rotation(cx, out);
        ledger.record_peers(cx);
        if ledger.consult_ledger(cx, out) {
            firing.catch_up(cx, ledger, membership, executions, once, agenda, out);
        }
        once.pass_barrier(cx, executions, retries, agenda);
        firing.fire(cx, ledger, rotation, executions, ownership, once, agenda, out);
        firing.apply_item_triggers(cx, ledger, executions, locks, agenda);
        firing.apply_trigger(cx, ledger, executions, locks, once, agenda, out);
        let is_barrier_open = once.is_barrier_open(cx);
        retries.retry(cx, executions, checkpoints, agenda, out, is_barrier_open);
        firing.flag_misfires(cx, ledger, executions, agenda, out);
        once.guard(cx, ledger, executions, retries, agenda, out);
        firing.start(cx, executions, ledger, rotation, retries, checkpoints, locks, once, agenda, out);
        firing.end_item_triggers(cx, executions, retries, agenda, out);
    }

    fn finish(&mut self) {
        let Self { cx, out, membership, executions, retries, checkpoints, slow, ownership, .. } = self;
        membership.check_clock(cx, executions.opened(), out);
        checkpoints.write_checkpoints(cx, executions, out);
        executions.complete(cx, membership.liveness(), checkpoints, out);
        ownership.release(cx, executions, out);
        while let verdict @ Verdict::Disconnect(_) = executions.enforce_deadlines(cx, out) {
            self.lifecycle.apply_verdict(cx, &self.lease, executions, out, verdict);
        }
        slow.update_slow(cx, executions);
        retries.record_failures(cx, executions, checkpoints, out);
        self.locks.look(cx, executions, retries, &mut self.agenda, out);
        self.depart();
        self.executions.investigate(&self.cx, &mut self.out);
    }

    fn apply_verdict(&mut self, verdict: Verdict) {
        self.lifecycle.apply_verdict(&mut self.cx, &self.lease, &self.executions, &mut self.out, verdict);
    }

    /// When to call [`Self::step`] again if no input comes before. May be an alarm that is due since the last step.
    pub fn next_wakeup(&self) -> Wakeup {
        self.wakeup
    }

    fn find_wakeup(&self) -> Wakeup {
        let now = self.cx.now.mono;
        if self.has_ended() {
            return Wakeup::default();
        }
        let waits = [
            self.cx.phase.end(),
            self.out.pending.next_retry(now),
            self.agenda.awaited().ends().filter(|at| *at > now).min(),
            self.rotation.settles(),
            self.ledger.next_retry(now),
            self.executions.next_deadline(now),
            self.executions.next_investigation(),
            self.retries.next_retry(now),
            self.checkpoints.next_retry(now),
            self.slow.next_look(&self.cx, &self.executions),
            self.locks.next_look(&self.cx),
            self.once.next_retry(now),
            self.failover.next_retry(now),
            self.notified.next_notice(),
            self.waiting.next_notice(),
            self.lease.next_notice(),
            self.lease.end(),
            self.lifecycle.removal_settles(),
            // The next trigger of an item that is free now. The completion may have no commit whose end is an input.
            (self.freed && self.cx.fleet.has_item_triggers()).then(|| now.saturating_add(SOON)),
        ];
        let waits = waits.into_iter().flatten();
        let waits = waits.chain(self.membership.waits(now)).chain(self.ownership.waits(now));
        let mono = waits.filter(|at| *at > now).min();
        let fire = if self.cx.follows_schedule() { self.firing.next(self.cx.now.wall) } else { None };
        let wall = fire.into_iter().chain(next_end(&self.cx)).min();
        Wakeup { wall, mono }
    }

    /// The executions of the start in flight, and of starts of unknown outcome: the item, the cause and the instant.
    pub fn starting(&self) -> impl Iterator<Item = (Item, Source, Timestamp)> + '_ {
        self.executions.starting().map(|(item, planned)| (item, planned.source, planned.scheduled))
    }

    /// The messages with which the application began the executions that are open.
    pub fn begun(&self) -> impl Iterator<Item = &Execute> {
        self.executions.iter().filter_map(|(_, open)| open.sent().map(Arc::as_ref))
    }

    /// How many executions the application has not reported.
    pub fn unreported(&self) -> usize {
        self.executions.unreported()
    }

    /// How many executions are reported, and not recorded in the registry yet.
    pub fn unrecorded(&self) -> usize {
        self.executions.unrecorded()
    }

    /// The job's sharding total count, as far as it is known: the bound of executions that can be open at once.
    pub fn items_max(&self) -> usize {
        let total =
            self.cx.settings.as_ref().map_or(0, |settings| settings.configuration.sharding_total_count);
        usize::try_from(total).unwrap_or(usize::MAX)
    }

    /// Whether the participant is about to end, and sends no further message.
    pub fn is_leaving(&self) -> bool {
        self.cx.phase.is_leaving()
    }

    /// Whether the participant has ended; it needs no further step.
    pub fn has_ended(&self) -> bool {
        self.cx.phase == Phase::Ended
    }

    fn take(&mut self, picture: &Picture, input: Input) {
        let now = self.cx.now;
        match input {
            Input::SessionOpened(id) => {
                self.cx.session = Session::Connected(id);
                self.cx.see(picture);
                self.notified.notify_session(
                    &self.cx,
                    &mut self.lease,
                    &mut self.out,
                    SessionStatus::Connected,
                );
            }
            Input::SessionSuspended => {
                if let Session::Connected(id) = self.cx.session {
                    self.cx.session = Session::Suspended(id);
                    self.notified.notify_session(
                        &self.cx,
                        &mut self.lease,
                        &mut self.out,
                        SessionStatus::Suspended,
                    );
                }
            }
            Input::SessionResumed => {
                if let Session::Suspended(id) = self.cx.session {
                    self.cx.session = Session::Connected(id);
                    self.ownership.look_again();
                    self.notified.notify_session(
                        &self.cx,
                        &mut self.lease,
                        &mut self.out,
                        SessionStatus::Connected,
                    );
                }
            }
            Input::Leased { until } => self.lease.renew(until),
            Input::RequestLimit(bytes) => {
                // Sizes are estimates, and the last step of a transaction may exceed the limit.
                self.cx.transaction_bytes = TRANSACTION_BYTES_MAX.min(bytes / 2);
            }
            Input::SessionLost => self.lose_session(),
            Input::WasRead => {
                self.out.was_read();
                self.membership.was_read();
            }
            Input::Committed(id, result) => self.committed(id, result),
            Input::Elected(result) => self.membership.elected(now.mono, result.is_ok()),
            Input::TookOver(read) => {
                self.failover.taken(&self.cx, &mut self.checkpoints, &mut self.agenda, read)
            }
            Input::LatchHeld(barrier) => self.once.latch_held(&self.cx, &mut self.out, barrier),
            Input::LatchLeft(barrier, result) => self.once.latch_left(now, barrier, result),
            Input::ItemLock(number, news) => {
                self.locks.news(&self.cx, &mut self.executions, &mut self.out, number, news);
            }
            Input::ListenerReport(ticket, call, outcome) => {
                self.once.listener_reported(&self.cx, &mut self.agenda, &mut self.out, ticket, &call, outcome)
            }
            Input::Checkpoints(found) => self.checkpoints.checkpoints_found(&self.cx, found),
            Input::Progress(ticket, report) => {
                self.checkpoints.progress(&self.cx, &mut self.executions, &mut self.out, ticket, report)
            }
            Input::Ledger(read) => {
                self.lifecycle.instants_read(&read);
                let revoked: Vec<_> = self.ownership.revoked_items().collect();
                if let Some(reread) = self.ledger.ledger_read(&self.cx, revoked.into_iter(), read) {
                    self.firing.forget_overtaken(
                        &self.cx,
                        &self.ledger,
                        &self.executions,
                        &mut self.agenda,
                        &mut self.out,
                        &reread,
                    );
                    self.catch_up();
                }
            }
            Input::Report(ticket, results) => {
                self.executions.report(&self.cx, &mut self.out, ticket, &results);
            }
            Input::Cancel(ticket, wish) => self.executions.cancel_by_operator(
                &self.cx,
                &mut self.retries,
                &mut self.checkpoints,
                &mut self.out,
                ticket,
                &wish,
            ),
            Input::Acknowledge(ticket, generation) => self.acknowledge(ticket, generation),
            Input::AskLease(ticket) => {
                answer_lease(&self.cx, &mut self.lease, &self.executions, &mut self.out, ticket)
            }
            Input::Detached => self.detach(),
            Input::Reattached(back) => {
                let verdict = self.lifecycle.reattach(&mut self.cx, *back);
                self.apply_verdict(verdict);
            }
            Input::Left => application_left(&mut self.cx, &self.executions),
            Input::ForGood => self.membership.leaves_for_good(),
            Input::Drain { deadline } => {
                let verdict = self.lifecycle.drain(&mut self.cx, &self.executions, deadline);
                self.apply_verdict(verdict);
            }
        }
    }

    /// Gives the session up if it cannot be proven alive any more.
    fn check_lease(&mut self) {
        let now = self.cx.now;
        let over = self.lease.is_over(now.mono);
        if over && self.cx.session != Session::None && !mutant!(LeaseIgnored) {
            self.out.push(Effect::GiveUpSession);
            self.lose_session();
        }
    }

    fn lose_session(&mut self) {
        if self.cx.session == Session::None {
            return;
        }
        self.cx.session = Session::None;
        self.lease = Lease::default();
        self.cx.registered = None;
        self.lifecycle.forget_removal(&mut self.cx);
        self.out.forget();
        self.cx.forget();
        self.membership.lose_session();
        self.ownership.lose_session();
        self.rotation = Rotation::default();
        self.failover = Failover::default();
        self.ledger.forget();
        self.firing.lose_session();
        self.agenda.forget();
        *self.agenda.awaited_mut() = Awaited::default();
        self.retries.drop_retries(&mut self.checkpoints, &mut self.out, "the session is lost");
        self.checkpoints.forget_checkpoints(&self.executions, &mut self.out);
        self.once.forget();
        self.locks.forget(&mut self.out);
        self.lifecycle.lose_restart(&mut self.executions);
        if !mutant!(LostSessionKeepsExecutions) {
            self.executions.cancel_executions(&self.cx, &mut self.out, CancelReason::LeaseLost);
        }
        self.notified.notify_session_lost(&mut self.cx, &mut self.ledger, &mut self.out);
        if self.cx.unattended.take().is_some() {
            self.executions.settle_lost(&mut self.out);
        }
        if let Phase::Leaving(reason) = &self.cx.phase {
            // The registry removes the nodes.
            let reason = reason.clone();
            end(&mut self.cx, &mut self.out, reason);
        }
    }

    /// The registration is in the registry, and its changes are in the view.
    fn registered_now(&mut self) {
        if let Some(id) = self.cx.session.id() {
            self.cx.registered = Some(id);
            self.cx.name_taken = false;
            self.membership.registered(&self.cx, id);
            // A resharding before the participant knew of the registration was not sent.
            self.notified.look_again();
        }
        if self.cx.phase == Phase::Joining {
            self.cx.phase = Phase::Active;
        }
    }

    /// Brings a detached or a restored instance on, if its application has reattached or its time is over.
    fn check_detached(&mut self) {
        if self.lifecycle.is_restored(&self.cx) {
            let verdict = self.lifecycle.check_restart(
                &mut self.cx,
                &mut self.lease,
                &mut self.agenda,
                &self.rotation,
                &mut self.membership,
                &mut self.executions,
                &mut self.checkpoints,
                &mut self.firing,
                &mut self.notified,
                &mut self.out,
            );
            self.apply_verdict(verdict);
        } else if self.lifecycle.check_reattach_grace(&mut self.cx, &mut self.membership, &self.executions) {
            notify_anew(&mut self.cx, &mut self.lease, &mut self.notified);
        }
    }

    fn detach(&mut self) {
        let is_waited_for = self.lifecycle.detach(
            &mut self.cx,
            &self.lease,
            &mut self.agenda,
            &mut self.executions,
            &mut self.retries,
            &mut self.out,
        );
        if is_waited_for {
            self.firing.forget_trigger();
        }
    }

    /// Re-runs fires that came while the items changed hands.
    fn catch_up(&mut self) {
        self.firing.catch_up(
            &self.cx,
            &self.ledger,
            &mut self.membership,
            &self.executions,
            &self.once,
            &mut self.agenda,
            &mut self.out,
        );
    }

    fn depart(&mut self) {
        let (once, ownership, membership) = (&self.once, &mut self.ownership, &self.membership);
        let is_free = |cx: &Context| once.is_round_over(cx) && !ownership.hands_over(cx, membership);
        self.lifecycle.end_drain(&mut self.cx, &mut self.executions, &mut self.out, is_free);
        self.lifecycle.hold_before_leaving(
            &mut self.cx,
            &self.lease,
            &mut self.membership,
            &mut self.executions,
        );
        let leaves = matches!(self.cx.phase, Phase::Leaving(_)) && self.cx.is_connected();
        if leaves && self.executions.awaits_interrupted(&self.cx, &self.out) && !mutant!(InterruptedForgotten)
        {
            return;
        }
        let is_gone = self.lifecycle.depart(
            &mut self.cx,
            &self.agenda,
            &self.membership,
            &self.executions,
            &self.checkpoints,
            &self.once,
            &mut self.out,
        );
        if let Some(Phase::Leaving(reason)) = is_gone.then(|| self.cx.phase.clone()) {
            let why = AssignmentReason::Draining;
            self.notified.notify_nothing_assigned(&mut self.cx, &mut self.ledger, &mut self.out, why);
            end(&mut self.cx, &mut self.out, reason);
        }
    }

    /// Hands the result of a commit to the room that made it.
    fn committed(&mut self, id: CommitId, result: CommitResult) {
        let now = self.cx.now;
        let Some(purpose) = self.out.pending.end(id) else { return };
        match result {
            Ok(results) => {
                self.out.pending.succeeded(purpose);
                self.took_effect(purpose, &results);
            }
            Err(error) => {
                let doubt = self.out.pending.failed(purpose, now.mono, self.cx.view.revision());
                let unknown =
                    matches!(error.error, Error::OutcomeUnknown(_)) && !mutant!(UnknownOutcomeIsFailure);
                if unknown {
                    self.out.forget_and_read(&mut self.cx);
                } else if doubt {
                    self.out.read_again();
                }
                self.failed(purpose, &error, unknown);
            }
        }
    }

    fn took_effect(&mut self, purpose: Purpose, results: &[OperationResult]) {
        let opened = self.executions.opened();
        match purpose.room() {
            Room::Membership if purpose == Purpose::Register => self.registered_now(),
            Room::Membership => self.membership.committed(&self.cx, purpose, opened, results),
            Room::Ownership => self.ownership.committed(purpose),
            Room::Once => self.once.committed(),
            Room::Execution if purpose == Purpose::Complete => self.executions.completed(&mut self.out),
            Room::Execution => self.checkpoints.checkpoints_written(&mut self.out),
            Room::Firing if purpose == Purpose::Start => started(
                &self.cx,
                &mut self.executions,
                &mut self.ledger,
                &self.checkpoints,
                &mut self.locks,
                &mut self.out,
                results,
            ),
            Room::Firing if purpose == Purpose::FlagMisfire => self.firing.flagged(&mut self.ledger),
            Room::Lifecycle => self.lifecycle.removed(&self.cx),
            Room::Firing | Room::Failover | Room::Rotation => {}
        }
    }

    fn failed(&mut self, purpose: Purpose, error: &CommitError, unknown: bool) {
        let opened = self.executions.opened();
        match purpose.room() {
            Room::Membership => self.membership.failed(&self.cx, purpose, opened, error),
            Room::Ownership => self.ownership.failed(purpose),
            Room::Once => self.once.failed(),
            Room::Execution if purpose == Purpose::Complete => {
                self.executions.complete_failed(&self.cx, &mut self.checkpoints, &mut self.out, error);
            }
            Room::Execution => self.checkpoints.checkpoints_failed(&mut self.out, error),
            Room::Firing if purpose == Purpose::Start => {
                let (executions, ledger) = (&mut self.executions, &mut self.ledger);
                if start_failed(executions, ledger, &mut self.agenda, error, unknown) {
                    self.out.forget_and_read(&mut self.cx);
                }
            }
            Room::Firing if purpose == Purpose::FlagMisfire => {
                self.firing.flag_failed(&mut self.ledger, error)
            }
            Room::Lifecycle => {
                self.lifecycle.leave_failed(&self.cx, &mut self.checkpoints, &mut self.out, error)
            }
            Room::Firing | Room::Failover | Room::Rotation => {}
        }
    }

    /// The problems of all rooms.
    fn problems(&self) -> Vec<Problem> {
        let mut problems: Vec<_> = self.cx.view.problems().collect();
        if let Some(settings) = &self.cx.settings {
            let path = self.cx.identity.paths.config();
            problems.extend(settings.problems(&path));
            problems.extend(former_rule::problem(&self.cx.view, &self.cx.fleet, settings));
            problems.extend(self.comparison.problem(&self.cx, &self.membership));
            if settings.schedule.is_some() && self.firing.is_over() {
                problems.push(Settings::never_fires(path));
            }
        }
        problems.extend(self.slow.slow_problem(&self.cx));
        problems.extend(self.locks.problems(&self.cx));
        problems.extend(request_limit(&self.cx));
        problems.extend(self.membership.problems(&self.cx));
        problems.extend(self.ownership.problem(&self.cx));
        problems.extend(self.failover.problem(&self.cx.identity.paths));
        problems.extend(self.once.problem(&self.cx.identity.paths));
        problems.sort();
        problems
    }

    fn acknowledge(&mut self, ticket: Ticket, generation: Generation) {
        let newest = self.cx.assigned.generation();
        let answer = if generation > newest || generation < Generation::default() {
            Answer::Refused(Refusal::UnknownGeneration { given: generation, newest })
        } else {
            self.cx.assigned.acknowledged = self.cx.assigned.acknowledged.max(generation);
            Answer::Acknowledged
        };
        self.out.push(Effect::Answer(ticket, answer));
    }
}
