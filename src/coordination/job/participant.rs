//! One instance of one job: the state, and the one step that looks at all of it.
//!
//! Decides in which order the decisions are taken; takes none itself. One participant exists for each application
//! stream; [`Participant::step`] is called by the runner with everything that happened since the last call.

use std::sync::Arc;

use jiff::Timestamp;

use crate::coordination::job::agenda::{Agenda, Awaited};
use crate::coordination::job::contract::answer::{Answer, Refusal, Ticket};
use crate::coordination::job::contract::commit::{CommitId, Purpose};
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::event::{CancelReason, SessionStatus};
use crate::coordination::job::contract::input::Input;
use crate::coordination::job::contract::plan::Source;
use crate::coordination::job::contract::request::Request;
use crate::coordination::job::execution::checkpoint::Checkpoints;
use crate::coordination::job::execution::retry::Retries;
use crate::coordination::job::execution::slow::Slow;
use crate::coordination::job::execution::state::Executions;
use crate::coordination::job::failover::takeover::Failover;
use crate::coordination::job::firing::misfire::Misfires;
use crate::coordination::job::firing::schedule::Fires;
use crate::coordination::job::firing::start::{resolve, start, start_failed, started};
use crate::coordination::job::firing::trigger::Trigger;
use crate::coordination::job::frame::context::{Context, Identity};
use crate::coordination::job::frame::limits::TRANSACTION_BYTES_MAX;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::{Phase, Session};
use crate::coordination::job::frame::verdict::Verdict;
use crate::coordination::job::ledger::Ledger;
use crate::coordination::job::lifecycle::removal::Removal;
use crate::coordination::job::lifecycle::restart::Heritage;
use crate::coordination::job::membership::announcement::Announcement;
use crate::coordination::job::membership::clock_skew::ClockCheck;
use crate::coordination::job::membership::instance_name::Names;
use crate::coordination::job::membership::leadership::Election;
use crate::coordination::job::membership::liveness::Crash;
use crate::coordination::job::membership::registration::Registration;
use crate::coordination::job::notices::assignment::{Told, may_tell};
use crate::coordination::job::notices::lease::{answer_lease, tell_lease};
use crate::coordination::job::notices::waiting::Waiting;
use crate::coordination::job::once::state::Guarantee;
use crate::coordination::job::ownership::former_rule;
use crate::coordination::job::ownership::handoff_release::Handoff;
use crate::coordination::job::ownership::java_peers::JavaPeers;
use crate::coordination::job::ownership::leader_reminder::Nudge;
use crate::coordination::job::ownership::mode::Modes;
use crate::coordination::job::ownership::reservation::Absences;
use crate::coordination::job::ownership::resharding::Sharding;
use crate::coordination::job::ownership::targets::Targets;
use crate::coordination::job::picture::nodes::ConfigView;
use crate::coordination::job::picture::settings::Settings;
use crate::coordination::job::picture::{Picture, difference};
use crate::coordination::job::rotation::{Relay, repair_relay};
use crate::coordination::lease::Lease;
use crate::coordination::time::{Now, Wakeup};
use crate::job::{Generation, Item, JobConfiguration, Problem};
use crate::mutants::mutant;
use crate::tree::{CommitResult, Error};

/// One instance of one job.
#[derive(Debug)]
pub struct Participant {
    pub(in crate::coordination) cx: Context,
    pub(in crate::coordination) out: Outbox,
    pub(in crate::coordination) lease: Lease,
    pub(in crate::coordination) removal: Removal,
    /// Whether our nodes have been removed because we leave.
    pub(in crate::coordination) gone: bool,
    pub(in crate::coordination) registration: Registration,
    settings_revision: u64,
    pub(in crate::coordination) election: Election,
    pub(in crate::coordination) sharding: Sharding,
    pub(in crate::coordination) crash: Crash,
    pub(in crate::coordination) modes: Modes,
    pub(in crate::coordination) targets: Targets,
    pub(in crate::coordination) handoff: Handoff,
    pub(in crate::coordination) names: Names,
    pub(in crate::coordination) announcement: Announcement,
    pub(in crate::coordination) absences: Absences,
    pub(in crate::coordination) nudge: Nudge,
    pub(in crate::coordination) java_peers: JavaPeers,
    pub(in crate::coordination) relay: Relay,
    pub(in crate::coordination) failover: Failover,
    pub(in crate::coordination) told: Told,
    pub(in crate::coordination) ledger: Ledger,
    pub(in crate::coordination) agenda: Agenda,
    pub(in crate::coordination) fires: Fires,
    pub(in crate::coordination) misfires: Misfires,
    pub(in crate::coordination) trigger: Trigger,
    pub(in crate::coordination) guarantee: Guarantee,
    pub(in crate::coordination) executions: Executions,
    pub(in crate::coordination) retries: Retries,
    pub(in crate::coordination) checkpoints: Checkpoints,
    pub(in crate::coordination) clock_check: ClockCheck,
    pub(in crate::coordination) slow: Slow,
    pub(in crate::coordination) waiting: Waiting,
    /// The fields in which the application's configuration differs from the one in force. Empty: none, or it gave no configuration.
    ignored: String,
    /// The configurations that were compared.
    compared: (Option<Arc<JobConfiguration>>, Option<Arc<JobConfiguration>>),
    pub(in crate::coordination) heritage: Option<Heritage>,
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
            removal: Removal::default(),
            gone: false,
            registration: Registration::default(),
            settings_revision: 0,
            election: Election::default(),
            sharding: Sharding::default(),
            crash: Crash::default(),
            modes: Modes::default(),
            targets: Targets::default(),
            handoff: Handoff::default(),
            names: Names::default(),
            announcement: Announcement::default(),
            absences: Absences::default(),
            nudge: Nudge::default(),
            java_peers: JavaPeers::default(),
            relay: Relay::default(),
            failover: Failover::default(),
            told: Told::default(),
            ledger: Ledger::default(),
            agenda: Agenda::default(),
            fires: Fires::default(),
            misfires: Misfires::default(),
            trigger: Trigger::default(),
            guarantee: Guarantee::default(),
            executions,
            retries: Retries::default(),
            checkpoints: Checkpoints::default(),
            clock_check: ClockCheck::default(),
            slow: Slow::default(),
            waiting: Waiting::default(),
            ignored: String::new(),
            compared: Default::default(),
            heritage: None,
            wakeup: Wakeup::default(),
        }
    }

    /// Takes the inputs in, looks at the whole state, and gives the effects, in this order.
    ///
    /// The picture is of the present session, or nothing is known of the nodes: after a return of the session, and after an
    /// [`Effect::Refresh`] that asks for it, until they are read. It has the changes of each commit among the inputs.
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
        self.fires.begin(now.wall);
        for input in inputs {
            if !matches!(input, Input::Leased { .. }) && !mutant!(LeaseSeenLate) {
                self.mind_lease();
            }
            self.take(picture, input);
        }
        self.mind_lease();
        if self.cx.phase != Phase::Ended {
            self.compile_settings();
            self.compare_configurations();
            self.mind_grace();
            self.notice_removal();
            let verdict = self.registration.register(&self.cx, &mut self.names, &mut self.out);
            self.obey(verdict);
            self.cx.name_taken = self.names.is_taken();
            self.announcement.announce(&self.cx, &self.names, &mut self.out);
            self.names.renew_items(&self.cx, &mut self.out, |item| self.handoff.is_given(&self.cx, item));
            if self.relay.mind_turn(&self.cx) {
                self.told.look_again();
            }
            resolve(
                &self.cx,
                &mut self.executions,
                &mut self.ledger,
                &self.checkpoints,
                &mut self.agenda,
                &mut self.out,
            );
            if self.handoff.forget_given(&self.cx) {
                self.told.look_again();
            }
            let is_back = self.has_come_back();
            self.waiting.tell_waiting(&self.cx, &mut self.out, is_back);
            if may_tell(&self.cx) {
                let problems = self.problems();
                self.told.tell(
                    &mut self.cx,
                    &mut self.ledger,
                    &self.relay,
                    &self.executions,
                    &self.checkpoints,
                    &self.handoff,
                    &self.lease,
                    &mut self.modes,
                    &mut self.out,
                    problems,
                );
            }
            tell_lease(&self.cx, &mut self.lease, &mut self.out);
            self.election.elect(&self.cx, &mut self.out);
            self.crash.look_for_crashes(&self.cx, |item| self.executions.has_open(item), &mut self.out);
            self.absences.mind_absences(&self.cx, &mut self.out);
            let unready = self.java_peers.find_unready(&self.cx);
            if unready != self.cx.unready {
                self.cx.unready = unready;
                self.sharding.look_again();
            }
            self.sharding.shard(
                &self.cx,
                &self.crash,
                &mut self.executions,
                &self.absences,
                &mut self.java_peers,
                &mut self.modes,
                &mut self.targets,
                &mut self.out,
            );
            self.targets.plan_handoff(&self.cx, &self.absences, &mut self.modes, &mut self.out);
            self.nudge.nudge_leader(&self.cx, &self.crash, &mut self.out);
            self.retries.take_back_retries(&self.cx, &self.executions, &mut self.agenda);
            self.failover.fail_over(
                &self.cx,
                &self.crash,
                &mut self.executions,
                &mut self.agenda,
                &mut self.out,
            );
            repair_relay(&self.cx, &mut self.out);
            self.ledger.note_company(&self.cx);
            if self.ledger.consult_ledger(&self.cx, &mut self.out) {
                self.fires.catch_up(
                    &self.cx,
                    &self.ledger,
                    &mut self.names,
                    &self.executions,
                    &self.guarantee,
                    &mut self.agenda,
                    &mut self.out,
                );
            }
            self.guarantee.pass_gate(&self.cx, &self.executions, &self.retries, &self.agenda);
            self.fires.fire(
                &self.cx,
                &self.ledger,
                &self.relay,
                &mut self.executions,
                &self.handoff,
                &self.guarantee,
                &self.misfires,
                &mut self.agenda,
                &mut self.out,
            );
            self.trigger.obey_trigger(
                &self.cx,
                &self.ledger,
                &mut self.executions,
                &self.guarantee,
                &self.fires,
                &mut self.agenda,
                &mut self.out,
            );
            let is_gate_open = self.guarantee.is_gate_open(&self.cx);
            self.retries.retry(
                &self.cx,
                &mut self.executions,
                &mut self.checkpoints,
                &mut self.agenda,
                &mut self.out,
                is_gate_open,
            );
            self.misfires.flag_misfires(
                &self.cx,
                &self.ledger,
                &self.executions,
                &mut self.agenda,
                &mut self.out,
            );
            self.guarantee.guard(
                &self.cx,
                &self.ledger,
                &self.executions,
                &mut self.retries,
                &mut self.agenda,
                &mut self.out,
            );
            start(
                &self.cx,
                &mut self.executions,
                &mut self.ledger,
                &self.relay,
                &mut self.retries,
                &self.checkpoints,
                &self.guarantee,
                &self.fires,
                &self.misfires,
                &mut self.agenda,
                &mut self.out,
            );
            self.clock_check.check_clock(&self.cx, self.executions.last_number, &mut self.out);
            self.checkpoints.write_checkpoints(&self.cx, &self.executions, &mut self.out);
            self.executions.complete(&self.cx, &self.crash, &self.checkpoints, &mut self.out);
            self.handoff.release(&self.cx, &self.executions, &mut self.out);
            while let verdict @ Verdict::Disconnect(_) =
                self.executions.enforce_deadlines(&self.cx, &mut self.out)
            {
                self.obey(verdict);
            }
            self.slow.look_for_slow(&self.cx, &self.executions);
            self.retries.note_failures(&self.cx, &mut self.executions, &mut self.checkpoints, &mut self.out);
            self.depart();
            self.executions.investigate(&self.cx, &mut self.out);
        }
        self.wakeup = self.find_wakeup();
        self.cx.forget();
        self.out.take()
    }

    fn obey(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Continue => {}
            Verdict::Disconnect(reason) => self.turn_away(reason),
            Verdict::Leave(reason) => self.leave(reason),
            Verdict::End(reason) => self.end(reason),
        }
    }

    /// When to call [`Self::step`] again if nothing happens before. An alarm that is due since the last step is told as well.
    pub fn next_wakeup(&self) -> Wakeup {
        self.wakeup
    }

    fn find_wakeup(&self) -> Wakeup {
        let now = self.cx.now;
        if self.cx.phase == Phase::Ended {
            return Wakeup::default();
        }
        let drain = match &self.cx.phase {
            Phase::Draining { deadline, .. } => *deadline,
            Phase::Joining | Phase::Active | Phase::Away { .. } | Phase::Leaving(_) | Phase::Ended => None,
        };
        let retries = [
            self.out.pending.next_retry(now.mono),
            self.election.next_retry(now.mono),
            self.crash.next_retry(now.mono),
            self.modes.next_retry(now.mono),
            self.handoff.next_retry(now.mono),
            self.names.next_retry(now.mono),
            self.announcement.next_retry(now.mono),
            self.absences.next_retry(now.mono),
            self.nudge.next_retry(now.mono),
            self.java_peers.next_retry(now.mono),
            self.failover.next_retry(now.mono),
            self.agenda.awaited().ends().filter(|at| *at > now.mono).min(),
            self.ledger.next_retry(now.mono),
            self.guarantee.next_retry(now.mono),
            self.executions.deadlines.next_retry(now.mono),
            self.retries.next_retry(now.mono),
            self.checkpoints.next_retry(now.mono),
            self.removal_settles(),
            self.relay.settles(),
            self.lease.end(),
            self.grace_ends(),
            self.lease.next_word(),
            self.waiting.next_word(),
            self.slow.next_look_at_slow(&self.cx, &self.executions),
            self.told.next_word(),
            drain,
        ];
        let mono = retries.into_iter().flatten().filter(|at| *at > now.mono).min();
        let wall = if self.cx.follows_schedule() { self.fires.next() } else { None };
        Wakeup { wall, mono }
    }

    /// What the start that was asked for last is to begin, as long as nobody knows what has become of it: the item, why, and
    /// for which instant.
    pub fn starting(&self) -> impl Iterator<Item = (Item, Source, Timestamp)> + '_ {
        self.executions.starting().map(|(item, planned)| (item, planned.source, planned.scheduled))
    }

    /// How many items the job has, as far as is known: the bound of executions that can be open at once.
    pub fn items_max(&self) -> usize {
        let total =
            self.cx.settings.as_ref().map_or(0, |settings| settings.configuration.sharding_total_count);
        usize::try_from(total).unwrap_or(usize::MAX)
    }

    /// Whether the participant is about to end, and has told everything.
    pub fn is_leaving(&self) -> bool {
        matches!(self.cx.phase, Phase::Leaving(_) | Phase::Ended)
    }

    /// Whether the participant has ended; nothing is to be expected of it any more.
    pub fn has_ended(&self) -> bool {
        self.cx.phase == Phase::Ended
    }

    fn take(&mut self, picture: &Picture, input: Input) {
        let now = self.cx.now;
        match input {
            Input::SessionOpened(id) => {
                self.cx.session = Session::Connected(id);
                self.cx.see(picture);
                self.told.tell_session(&self.cx, &mut self.lease, &mut self.out, SessionStatus::Connected);
            }
            Input::SessionSuspended => {
                if let Session::Connected(id) = self.cx.session {
                    self.cx.session = Session::Suspended(id);
                    self.told.tell_session(
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
                    self.modes.look_again();
                    self.told.tell_session(
                        &self.cx,
                        &mut self.lease,
                        &mut self.out,
                        SessionStatus::Connected,
                    );
                }
            }
            Input::Leased { until } => self.lease.renew(until),
            Input::RequestLimit(bytes) => {
                // Sizes are estimates, and the last step of a transaction may go beyond.
                self.cx.transaction_bytes = TRANSACTION_BYTES_MAX.min(bytes / 2);
            }
            Input::SessionLost => self.lose_session(),
            Input::WasRead => {
                self.out.was_read();
                self.crash.was_read();
            }
            Input::Committed(id, result) => self.committed(id, result),
            Input::Elected(result) => self.election.ended(now.mono, result.is_ok()),
            Input::TookOver(read) => {
                self.failover.taken(&self.cx, &mut self.checkpoints, &mut self.agenda, read)
            }
            Input::LatchHeld(gate) => self.guarantee.latch_held(&self.cx, &mut self.out, gate),
            Input::LatchLeft(gate, result) => self.guarantee.latch_left(now, gate, result),
            Input::ListenerReport(ticket, call, outcome) => self.guarantee.listener_reported(
                &self.cx,
                &mut self.agenda,
                &mut self.out,
                ticket,
                &call,
                outcome,
            ),
            Input::Checkpoints(found) => self.checkpoints.checkpoints_found(&self.cx, found),
            Input::Progress(ticket, report) => {
                self.checkpoints.progress(&self.cx, &mut self.executions, &mut self.out, ticket, report)
            }
            Input::Ledger(read) => {
                self.instants_read(&read);
                let revoked: Vec<_> = self.handoff.revoked_items().collect();
                if let Some(reread) = self.ledger.ledger_read(&self.cx, revoked.into_iter(), read) {
                    self.fires.forget_overtaken(
                        &self.cx,
                        &self.ledger,
                        &self.executions,
                        &mut self.agenda,
                        &reread,
                    );
                    self.fires.catch_up(
                        &self.cx,
                        &self.ledger,
                        &mut self.names,
                        &self.executions,
                        &self.guarantee,
                        &mut self.agenda,
                        &mut self.out,
                    );
                }
            }
            Input::Report(ticket, results) => self.executions.report(&mut self.out, ticket, &results),
            Input::Cancel(ticket, items) => self.executions.cancel_by_operator(
                &self.cx,
                &mut self.retries,
                &mut self.checkpoints,
                &mut self.out,
                ticket,
                items.as_ref(),
            ),
            Input::Acknowledge(ticket, generation) => self.acknowledge(ticket, generation),
            Input::AskLease(ticket) => {
                answer_lease(&self.cx, &mut self.lease, &self.executions, &mut self.out, ticket)
            }
            Input::Detached => self.detach(),
            Input::Reattached(back) => self.reattach(*back),
            Input::Left => self.go_away(),
            Input::ForGood => self.names.leaves_for_good(),
            Input::Drain { deadline } => self.drain(deadline),
        }
    }

    /// Gives the session up if it cannot be proven alive any more.
    pub(in crate::coordination) fn mind_lease(&mut self) {
        let now = self.cx.now;
        let over = self.lease.is_over(now.mono);
        if over && self.cx.session != Session::None && !mutant!(LeaseIgnored) {
            self.out.push(Effect::GiveUpSession);
            self.lose_session();
        }
    }

    pub(in crate::coordination) fn lose_session(&mut self) {
        if self.cx.session == Session::None {
            return;
        }
        self.cx.session = Session::None;
        self.lease = Lease::default();
        self.cx.registered = None;
        self.removal.forget_session();
        self.forget_removal();
        self.out.forget();
        self.cx.forget();
        self.election = Election::default();
        self.sharding.forget();
        self.crash = Crash::default();
        self.modes = Modes::default();
        self.targets = Targets::default();
        self.handoff = Handoff::default();
        self.announcement = Announcement::default();
        self.nudge = Nudge::default();
        self.relay = Relay::default();
        self.failover = Failover::default();
        self.ledger.forget();
        self.fires.forget();
        self.agenda.forget();
        self.misfires = Misfires::default();
        *self.agenda.awaited_mut() = Awaited::default();
        self.retries.drop_retries(&mut self.checkpoints, &mut self.out, "the session is lost");
        self.checkpoints.forget_checkpoints(&self.executions, &mut self.out);
        self.trigger = Trigger::default();
        self.clock_check.forget();
        self.guarantee.forget();
        self.lose_heritage();
        if !mutant!(LostSessionKeepsExecutions) {
            self.executions.cancel_executions(&self.cx, &mut self.out, CancelReason::LeaseLost);
        }
        self.told.tell_session_lost(&mut self.cx, &mut self.ledger, &mut self.out);
        if self.cx.unattended.take().is_some() {
            self.settle_lost();
        }
        if let Phase::Leaving(reason) = &self.cx.phase {
            // The registry removes our nodes.
            let reason = reason.clone();
            self.end(reason);
        }
    }

    /// Our registration is in the registry, and its changes are in the view.
    fn registered_now(&mut self) {
        if let Session::Connected(id) | Session::Suspended(id) = self.cx.session {
            self.cx.registered = Some(id);
            self.names.registered(id);
            self.cx.name_taken = false;
            self.announcement.registered(&self.cx);
            // A resharding before we knew of our registration was not told.
            self.told.look_again();
            self.registration.was_written();
        }
        if self.cx.phase == Phase::Joining {
            self.cx.phase = Phase::Active;
        }
    }

    fn committed(&mut self, id: CommitId, result: CommitResult) {
        let now = self.cx.now;
        let Some(purpose) = self.out.pending.end(id) else { return };
        match result {
            Ok(results) => {
                self.out.pending.succeeded(purpose);
                match purpose {
                    Purpose::Register => self.registered_now(),
                    Purpose::Shard => self.sharding.committed(),
                    Purpose::Start => started(
                        &self.cx,
                        &mut self.executions,
                        &mut self.ledger,
                        &self.checkpoints,
                        &mut self.out,
                        &results,
                    ),
                    Purpose::Complete => self.executions.completed(&mut self.out),
                    Purpose::Checkpoint => self.checkpoints.checkpoints_written(&mut self.out),
                    Purpose::FlagMisfire => self.misfires.flagged(&mut self.ledger),
                    Purpose::CheckClock => {
                        self.clock_check.clock_checked(&self.cx, self.executions.last_number, &results)
                    }
                    Purpose::Guarantee => self.guarantee.committed(),
                    Purpose::Leave => self.removed(),
                    Purpose::Abdicate
                    | Purpose::FlagResharding
                    | Purpose::RepairRelay
                    | Purpose::Nudge
                    | Purpose::Announce
                    | Purpose::PlanHandoff
                    | Purpose::HandOff
                    | Purpose::Renew
                    | Purpose::ForgetNames
                    | Purpose::TakeTrigger
                    | Purpose::FlagFailover => {}
                }
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
                match purpose {
                    Purpose::Start => {
                        let (executions, ledger) = (&mut self.executions, &mut self.ledger);
                        if start_failed(executions, ledger, &mut self.agenda, &error, unknown) {
                            self.out.forget_and_read(&mut self.cx);
                        }
                    }
                    Purpose::Complete => self.executions.complete_failed(
                        &self.cx,
                        &mut self.checkpoints,
                        &mut self.out,
                        &error,
                    ),
                    Purpose::Checkpoint => self.checkpoints.checkpoints_failed(&mut self.out, &error),
                    Purpose::FlagMisfire => self.misfires.flag_failed(&mut self.ledger),
                    Purpose::CheckClock => {
                        self.clock_check.clock_check_failed(&self.cx, self.executions.last_number, &error)
                    }
                    Purpose::Guarantee => self.guarantee.failed(),
                    Purpose::HandOff => self.handoff.give_failed(),
                    Purpose::Leave => self.leave_failed(&error),
                    Purpose::Shard => self.sharding.failed(),
                    Purpose::Register
                    | Purpose::Abdicate
                    | Purpose::FlagResharding
                    | Purpose::RepairRelay
                    | Purpose::Nudge
                    | Purpose::Announce
                    | Purpose::PlanHandoff
                    | Purpose::Renew
                    | Purpose::ForgetNames
                    | Purpose::TakeTrigger
                    | Purpose::FlagFailover => {}
                }
            }
        }
    }

    pub(in crate::coordination) fn compile_settings(&mut self) {
        let now = self.cx.now;
        let revision = self.cx.view.membership_revision();
        let known = revision == self.settings_revision && self.cx.settings.is_some();
        if !self.cx.view.is_loaded() || known {
            return;
        }
        self.settings_revision = revision;
        let configuration = match self.cx.view.config() {
            ConfigView::Valid(configuration) => Some(Arc::clone(configuration)),
            // The configuration in force stays; at the start the application's own is better than none.
            ConfigView::Unreadable if self.cx.settings.is_none() => self.cx.request.configuration.clone(),
            ConfigView::Unreadable | ConfigView::Absent => None,
        };
        let Some(configuration) = configuration else { return };
        let current = self.cx.settings.as_ref();
        if current.is_some_and(|current| current.configuration == configuration) {
            return;
        }
        let settings = Settings::compile(configuration, current);
        let before = current.and_then(|current| current.schedule.as_ref());
        let since =
            self.cx.view.config_since().and_then(|since| self.cx.view.registry_clock().here(since, now));
        self.fires.reschedule(before, settings.schedule.as_ref(), since);
        self.cx.settings = Some(settings);
    }

    /// The problem that the servers take small requests only.
    fn request_limit_problem(&self) -> Option<Problem> {
        (self.cx.transaction_bytes < TRANSACTION_BYTES_MAX).then(|| Problem {
            path: self.cx.identity.paths.root().clone(),
            message: format!(
                "the servers break the connection for requests of about {} bytes, so what the sidecar writes at once is \
                 split: raise `jute.maxbuffer` of the servers",
                self.cx.transaction_bytes.saturating_mul(2)
            ),
        })
    }

    /// Looks whether the application's own configuration is the one in force.
    fn compare_configurations(&mut self) {
        let in_force = self.cx.settings.as_ref().map(|settings| Arc::clone(&settings.configuration));
        let compared = (self.cx.request.configuration.clone(), in_force);
        let same =
            |one: &Option<Arc<JobConfiguration>>, other: &Option<Arc<JobConfiguration>>| match (one, other) {
                (Some(one), Some(other)) => Arc::ptr_eq(one, other),
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
        if same(&self.compared.0, &compared.0) && same(&self.compared.1, &compared.1) {
            return;
        }
        self.ignored = match &compared {
            (Some(given), Some(in_force)) => difference::in_words(in_force, given),
            (Some(_) | None, _) => String::new(),
        };
        self.compared = compared;
    }

    /// The problem that the application's configuration is not the one in force.
    fn ignored_problem(&self) -> Option<Problem> {
        // A configuration that is to be written is not ignored.
        let is_ignored =
            !self.ignored.is_empty() && self.registration.configuration_to_write(&self.cx).is_none();
        is_ignored.then(|| Problem {
            path: self.cx.identity.paths.config(),
            message: format!(
                "the application's configuration is ignored, because the registry has another one: {}. Set `overwrite` to \
                 replace that, or give the same, or none",
                self.ignored
            ),
        })
    }

    /// What is wrong with the job's nodes.
    pub(in crate::coordination) fn problems(&self) -> Vec<Problem> {
        let mut problems: Vec<_> = self.cx.view.problems().collect();
        if let Some(settings) = &self.cx.settings {
            let path = self.cx.identity.paths.config();
            let wrong = settings.problems.iter();
            problems.extend(wrong.map(|m| Problem { path: path.clone(), message: m.clone() }));
            problems.extend(former_rule::problem(&self.cx.view, &self.cx.fleet, settings));
            problems.extend(self.ignored_problem());
            if settings.schedule.is_some() && self.fires.is_over() {
                problems.push(Settings::never_fires(path));
            }
        }
        problems.extend(self.slow.slow_problem(&self.cx));
        problems.extend(self.request_limit_problem());
        problems.extend(self.election.problem(&self.cx.identity.paths));
        problems.extend(self.sharding.problem(&self.cx.identity.paths));
        problems.extend(self.failover.problem(&self.cx.identity.paths));
        problems.extend(self.clock_check.clock_problem(&self.cx));
        problems.extend(self.guarantee.problem(&self.cx.identity.paths));
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
