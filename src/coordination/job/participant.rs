//! One instance of one job: the state, and the one step that looks at all of it.
//!
//! Decides in which order the decisions are taken; takes none itself. One participant exists for each application
//! stream; [`Participant::step`] is called by the runner with everything that happened since the last call.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use crate::coordination::job::contract::answer::{Answer, Refusal, Ticket};
use crate::coordination::job::contract::commit::{CommitId, Purpose};
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::event::{CancelReason, Event, SessionStatus};
use crate::coordination::job::contract::input::Input;
use crate::coordination::job::execution::checkpoint::Checkpoints;
use crate::coordination::job::execution::retry::Retries;
use crate::coordination::job::execution::slow::Slow;
use crate::coordination::job::execution::state::Executions;
use crate::coordination::job::failover::takeover::Failover;
use crate::coordination::job::firing::schedule::Fires;
use crate::coordination::job::firing::trigger::Trigger;
use crate::coordination::job::frame::limits::TRANSACTION_BYTES_MAX;
use crate::coordination::job::frame::pending::Pending;
use crate::coordination::job::frame::phase::{Phase, Session};
use crate::coordination::job::ledger::Ledger;
use crate::coordination::job::lifecycle::restart::Heritage;
use crate::coordination::job::membership::clock_skew::ClockCheck;
use crate::coordination::job::membership::instance_name::Names;
use crate::coordination::job::membership::leadership::Election;
use crate::coordination::job::membership::liveness::Crash;
use crate::coordination::job::notices::assignment::Told;
use crate::coordination::job::notices::waiting::Waiting;
use crate::coordination::job::once::round::Guarantee;
use crate::coordination::job::ownership::former_rule;
use crate::coordination::job::ownership::handoff::Handoff;
use crate::coordination::job::ownership::java_peers::JavaPeers;
use crate::coordination::job::ownership::leader_reminder::Nudge;
use crate::coordination::job::ownership::reservation::Absences;
use crate::coordination::job::ownership::resharding::Sharding;
use crate::coordination::job::picture::fleet_view::{FleetView, Profile};
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::job::picture::nodes::ConfigView;
use crate::coordination::job::picture::settings::Settings;
use crate::coordination::job::picture::{Picture, difference};
use crate::coordination::job::rotation::Relay;
use crate::coordination::lease::Lease;
use crate::coordination::time::{Now, Wakeup};
use crate::elasticjob::path::JobPaths;
use crate::job::{Generation, InstanceId, InstanceName, JobConfiguration, JobName, Problem};
use crate::mutants::mutant;
use crate::tree::{CommitResult, Error, SessionId, Transaction};

/// Who the participant is; fixed for its life.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The job.
    pub job: JobName,
    /// The instance.
    pub instance: InstanceId,
    /// What its id ends with, if somebody chose that; it is the same after a restart.
    pub name: Option<InstanceName>,
    /// The instance's server.
    pub server_ip: Ipv4Addr,
    /// Its job's nodes.
    pub paths: JobPaths,
    /// What the ids of its executions begin with; unique.
    pub execution_prefix: String,
}

/// What the application asked for when it attached.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Its configuration; `None`: the registry's.
    pub configuration: Option<Arc<JobConfiguration>>,
    /// The Java class or type of the job; `None`: the registry's.
    pub class: Option<String>,
    /// What the other sidecars are to know of it.
    pub profile: Profile,
    /// Whether another stream of the same application can be known as the next one of this.
    pub resumable: bool,
}

/// One instance of one job.
#[derive(Debug)]
pub struct Participant {
    pub(in crate::coordination) identity: Identity,
    pub(in crate::coordination) request: Request,
    /// What is known of the job's nodes. Nothing, between two steps.
    pub(in crate::coordination) view: Arc<JobView>,
    /// What the sidecars tell each other. Nothing, between two steps.
    pub(in crate::coordination) fleet: Arc<FleetView>,
    /// The picture of which nothing is known.
    unknown: Picture,
    pub(in crate::coordination) session: Session,
    pub(in crate::coordination) lease: Lease,
    /// The session in which our nodes were registered.
    pub(in crate::coordination) registered: Option<SessionId>,
    /// Whether the view has shown our instance since it was registered in this session.
    pub(in crate::coordination) seen: bool,
    /// When our node was removed; monotonic. `None`: it was not, or it is settled what that means.
    pub(in crate::coordination) removed_at: Option<Duration>,
    /// Whether the job's nodes are being read again: until then news may be missing.
    reading: bool,
    /// Whether our nodes have been removed because we leave.
    pub(in crate::coordination) gone: bool,
    /// Whether the request's `overwrite` has been carried out; once is enough.
    pub(in crate::coordination) overwritten: bool,
    pub(in crate::coordination) phase: Phase,
    /// Until when (monotonic) an application whose stream has broken may go on with what it executes; nobody can tell
    /// it to stop. `None`: it has a stream, or had none.
    pub(in crate::coordination) unattended: Option<Duration>,
    pub(in crate::coordination) settings: Option<Settings>,
    settings_revision: u64,
    pub(in crate::coordination) pending: Pending,
    /// How large a transaction may be that can be split.
    pub(in crate::coordination) transaction_bytes: usize,
    pub(in crate::coordination) election: Election,
    pub(in crate::coordination) sharding: Sharding,
    pub(in crate::coordination) crash: Crash,
    pub(in crate::coordination) handoff: Handoff,
    pub(in crate::coordination) names: Names,
    pub(in crate::coordination) absences: Absences,
    pub(in crate::coordination) nudge: Nudge,
    pub(in crate::coordination) java_peers: JavaPeers,
    pub(in crate::coordination) relay: Relay,
    pub(in crate::coordination) failover: Failover,
    pub(in crate::coordination) told: Told,
    pub(in crate::coordination) ledger: Ledger,
    pub(in crate::coordination) fires: Fires,
    pub(in crate::coordination) trigger: Trigger,
    pub(in crate::coordination) guarantee: Guarantee,
    pub(in crate::coordination) executions: Executions,
    pub(in crate::coordination) retries: Retries,
    pub(in crate::coordination) checkpoints: Checkpoints,
    pub(in crate::coordination) clock_check: ClockCheck,
    pub(in crate::coordination) slow: Slow,
    pub(in crate::coordination) waiting: Waiting,
    /// In what the application's configuration differs from the one in force. Empty: in nothing, or it gave none.
    ignored: String,
    /// The configurations that were compared.
    compared: (Option<Arc<JobConfiguration>>, Option<Arc<JobConfiguration>>),
    pub(in crate::coordination) heritage: Option<Heritage>,
    /// When the last step wants the next one.
    wakeup: Wakeup,
    /// What this step has asked for so far.
    pub(in crate::coordination) effects: Vec<Effect>,
}

impl Participant {
    /// A participant that has not joined yet.
    pub fn new(identity: Identity, request: Request) -> Self {
        let unknown = Picture::unknown(&identity.paths);
        let executions = Executions::new(identity.execution_prefix.clone());
        Self {
            identity,
            request,
            view: Arc::clone(&unknown.nodes),
            fleet: Arc::clone(&unknown.fleet),
            unknown,
            session: Session::None,
            lease: Lease::default(),
            registered: None,
            seen: false,
            removed_at: None,
            reading: false,
            gone: false,
            overwritten: false,
            phase: Phase::Joining,
            unattended: None,
            settings: None,
            settings_revision: 0,
            pending: Pending::default(),
            transaction_bytes: TRANSACTION_BYTES_MAX,
            election: Election::default(),
            sharding: Sharding::default(),
            crash: Crash::default(),
            handoff: Handoff::default(),
            names: Names::default(),
            absences: Absences::default(),
            nudge: Nudge::default(),
            java_peers: JavaPeers::default(),
            relay: Relay::default(),
            failover: Failover::default(),
            told: Told::default(),
            ledger: Ledger::default(),
            fires: Fires::default(),
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
            effects: Vec::new(),
        }
    }

    /// Takes in what happened, looks at everything, and gives what is to be done, in this order.
    ///
    /// The picture is of the present session, or nothing is known of the nodes: after a return of the session, and after an
    /// [`Effect::Refresh`] that asks for it, until they are read. It has the changes of each commit among the inputs.
    pub fn step(
        &mut self,
        now: Now,
        picture: &Picture,
        inputs: impl IntoIterator<Item = Input>,
    ) -> Vec<Effect> {
        // Without a session nothing is known, whatever there is to see.
        if self.session != Session::None {
            self.see(picture);
        }
        self.fires.begin(now.wall);
        for input in inputs {
            if !matches!(input, Input::Leased { .. }) && !mutant!(LeaseSeenLate) {
                self.mind_lease(now);
            }
            self.take(now, picture, input);
        }
        self.mind_lease(now);
        if self.phase != Phase::Ended {
            self.compile_settings(now);
            self.compare_configurations();
            self.mind_grace(now);
            self.notice_removal(now);
            self.register(now);
            self.announce(now);
            self.renew_items(now);
            self.mind_turn(now);
            self.resolve(now);
            self.forget_given();
            self.tell_waiting(now);
            self.tell(now);
            self.tell_lease(now);
            self.elect(now);
            self.look_for_crashes(now);
            self.mind_absences(now);
            self.mind_java_peers(now);
            self.shard(now);
            self.plan_handoff(now);
            self.nudge_leader(now);
            self.take_back_retries(now);
            self.fail_over(now);
            self.repair_relay(now);
            self.note_company(now);
            self.consult_ledger(now);
            self.pass_gate(now);
            self.fire(now);
            self.obey_trigger(now);
            self.retry(now);
            self.flag_misfires(now);
            self.guard(now);
            self.start(now);
            self.check_clock(now);
            self.write_checkpoints(now);
            self.complete(now);
            self.release(now);
            self.enforce_deadlines(now);
            self.look_for_slow(now);
            self.note_failures(now);
            self.depart(now);
            self.investigate(now);
        }
        self.wakeup = self.find_wakeup(now);
        self.forget_nodes();
        self.fleet = Arc::clone(&self.unknown.fleet);
        std::mem::take(&mut self.effects)
    }

    fn see(&mut self, picture: &Picture) {
        (self.view, self.fleet) = (Arc::clone(&picture.nodes), Arc::clone(&picture.fleet));
    }

    /// For the rest of the step nothing is known of the job's nodes.
    pub(in crate::coordination) fn forget_nodes(&mut self) {
        self.view = Arc::clone(&self.unknown.nodes);
    }

    /// When to call [`Self::step`] again if nothing happens before. An alarm that is due since the last step is told as well.
    pub fn next_wakeup(&self) -> Wakeup {
        self.wakeup
    }

    fn find_wakeup(&self, now: Now) -> Wakeup {
        if self.phase == Phase::Ended {
            return Wakeup::default();
        }
        let drain = match &self.phase {
            Phase::Draining { deadline, .. } => *deadline,
            Phase::Joining | Phase::Active | Phase::Away { .. } | Phase::Leaving(_) | Phase::Ended => None,
        };
        let retries = [
            self.pending.next_retry(now.mono),
            self.election.next_retry(now.mono),
            self.crash.next_retry(now.mono),
            self.handoff.next_retry(now.mono),
            self.names.next_retry(now.mono),
            self.absences.next_retry(now.mono),
            self.nudge.next_retry(now.mono),
            self.java_peers.next_retry(now.mono),
            self.failover.next_retry(now.mono),
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
            self.next_look_at_slow(),
            self.told.next_word(),
            drain,
        ];
        let mono = retries.into_iter().flatten().filter(|at| *at > now.mono).min();
        let wall = if self.follows_schedule() { self.fires.next() } else { None };
        Wakeup { wall, mono }
    }

    /// How many items the job has, as far as is known: the bound of executions that can be open at once.
    pub fn items_max(&self) -> usize {
        let total = self.settings.as_ref().map_or(0, |settings| settings.configuration.sharding_total_count);
        usize::try_from(total).unwrap_or(usize::MAX)
    }

    /// Whether the participant is about to end, and has told everything.
    pub fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving(_) | Phase::Ended)
    }

    /// Whether the participant has ended; nothing is to be expected of it any more.
    pub fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    fn take(&mut self, now: Now, picture: &Picture, input: Input) {
        match input {
            Input::SessionOpened(id) => {
                self.session = Session::Connected(id);
                self.see(picture);
                self.tell_session(now, SessionStatus::Connected);
            }
            Input::SessionSuspended => {
                if let Session::Connected(id) = self.session {
                    self.session = Session::Suspended(id);
                    self.tell_session(now, SessionStatus::Suspended);
                }
            }
            Input::SessionResumed => {
                if let Session::Suspended(id) = self.session {
                    self.session = Session::Connected(id);
                    self.handoff.look_again();
                    self.tell_session(now, SessionStatus::Connected);
                }
            }
            Input::Leased { until } => self.lease.renew(until),
            Input::RequestLimit(bytes) => {
                // Sizes are estimates, and the last step of a transaction may go beyond.
                self.transaction_bytes = TRANSACTION_BYTES_MAX.min(bytes / 2);
            }
            Input::SessionLost => self.lose_session(),
            Input::WasRead => {
                self.reading = false;
                self.crash.was_read();
            }
            Input::Committed(id, result) => self.committed(now, id, result),
            Input::Elected(result) => self.election.ended(now.mono, result.is_ok()),
            Input::TookOver(read) => self.taken(now, read),
            Input::LatchHeld(gate) => self.latch_held(now, gate),
            Input::LatchLeft(gate, result) => self.guarantee.latch_left(now, gate, result),
            Input::ListenerReport(ticket, call, outcome) => self.listener_reported(ticket, &call, outcome),
            Input::Checkpoints(found) => self.checkpoints_found(now, found),
            Input::Progress(ticket, report) => self.progress(now, ticket, report),
            Input::Ledger(read) => {
                self.instants_read(&read);
                self.ledger_read(now, read);
            }
            Input::Report(ticket, results) => self.report(ticket, &results),
            Input::Cancel(ticket, items) => self.cancel_by_operator(ticket, items.as_ref()),
            Input::Acknowledge(ticket, generation) => self.acknowledge(ticket, generation),
            Input::AskLease(ticket) => self.answer_lease(ticket),
            Input::Detached => self.detach(now),
            Input::Reattached(back) => self.reattach(now, *back),
            Input::Left => self.go_away(),
            Input::ForGood => self.names.leaves_for_good(),
            Input::Drain { deadline } => self.drain(now, deadline),
        }
    }

    pub(in crate::coordination) fn lose_session(&mut self) {
        if self.session == Session::None {
            return;
        }
        self.session = Session::None;
        self.lease = Lease::default();
        self.registered = None;
        self.seen = false;
        self.forget_removal();
        self.reading = false;
        self.forget_nodes();
        self.fleet = Arc::clone(&self.unknown.fleet);
        self.pending.clear();
        self.election = Election::default();
        self.sharding.forget();
        self.crash = Crash::default();
        self.handoff = Handoff::default();
        self.nudge = Nudge::default();
        self.relay = Relay::default();
        self.failover = Failover::default();
        self.ledger.forget();
        self.fires.forget();
        self.drop_retries("the session is lost");
        self.forget_checkpoints();
        self.trigger = Trigger::default();
        self.clock_check.forget();
        self.guarantee.forget();
        self.lose_heritage();
        if !mutant!(LostSessionKeepsExecutions) {
            self.cancel_executions(CancelReason::LeaseLost);
        }
        self.tell_session_lost();
        if self.unattended.take().is_some() {
            self.settle_lost();
        }
        if let Phase::Leaving(reason) = &self.phase {
            // The registry removes what we had.
            let reason = reason.clone();
            self.end(reason);
        }
    }

    fn committed(&mut self, now: Now, id: CommitId, result: CommitResult) {
        let Some(purpose) = self.pending.end(id) else { return };
        match result {
            Ok(results) => {
                self.pending.succeeded(purpose);
                match purpose {
                    Purpose::Register => self.registered_now(now),
                    Purpose::Shard => self.sharding.committed(),
                    Purpose::Start => self.started(now, &results),
                    Purpose::Complete => self.completed(),
                    Purpose::Checkpoint => self.checkpoints_written(),
                    Purpose::FlagMisfire => self.flagged(),
                    Purpose::CheckClock => self.clock_checked(now, &results),
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
                let doubt = self.pending.failed(purpose, now.mono, self.view.revision());
                let unknown =
                    matches!(error.error, Error::OutcomeUnknown(_)) && !mutant!(UnknownOutcomeIsFailure);
                if unknown {
                    self.forget_and_read();
                } else if doubt {
                    self.read_again();
                }
                match purpose {
                    Purpose::Start => self.start_failed(&error, unknown),
                    Purpose::Complete => self.complete_failed(&error),
                    Purpose::Checkpoint => self.checkpoints_failed(&error),
                    Purpose::FlagMisfire => self.flag_failed(),
                    Purpose::CheckClock => self.clock_check_failed(now, &error),
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

    /// Asks for a commit, unless one of its purpose is in flight or pauses. Tells whether it did.
    pub(in crate::coordination) fn commit(&mut self, purpose: Purpose, transaction: Transaction) {
        let id = self.pending.begin(purpose);
        self.effects.push(Effect::Commit { id, purpose, transaction });
    }

    /// Whether a commit of this purpose may be made now.
    pub(in crate::coordination) fn may_commit(&self, now: Now, purpose: Purpose) -> bool {
        self.is_connected() && self.pending.may(purpose, now.mono, self.view.revision())
    }

    /// Has the job's nodes read again.
    pub(in crate::coordination) fn read_again(&mut self) {
        self.reading = true;
        self.effects.push(Effect::Refresh { forget: false });
    }

    /// Has the job's nodes read again; until that has happened nothing is decided on what they were.
    pub(in crate::coordination) fn forget_and_read(&mut self) {
        self.reading = true;
        self.forget_nodes();
        self.effects.push(Effect::Refresh { forget: true });
    }

    /// Whether the job's nodes are being read again.
    pub(in crate::coordination) fn is_reading(&self) -> bool {
        self.reading && !mutant!(EndedBeforeRead)
    }

    /// Whether the session is alive and the job's nodes are known.
    pub(in crate::coordination) fn is_connected(&self) -> bool {
        matches!(self.session, Session::Connected(_)) && self.view.is_loaded()
    }

    /// Whether we are an instance in the present session, as far as the view knows.
    pub(in crate::coordination) fn is_registered(&self) -> bool {
        match self.session {
            Session::Connected(id) => {
                let ours = self.view.instances().get(&self.identity.instance);
                (self.registered == Some(id) && ours.is_some_and(|ours| ours.session == Some(id)))
                    || (ours.is_some() && mutant!(SessionChangeIgnored))
            }
            Session::None | Session::Suspended(_) => false,
        }
    }

    /// Whether the registry has our instance in the present session, also if nobody has told us that it was created, and
    /// how.
    pub(in crate::coordination) fn has_instance(&self) -> bool {
        let ours = self.view.instances().get(&self.identity.instance);
        let session = ours.and_then(|ours| ours.session);
        matches!(self.session, Session::Connected(id) if session == Some(id))
    }

    /// Whether there are Java instances.
    pub(in crate::coordination) fn has_java_peers(&self) -> bool {
        self.view.has_java_instances()
    }

    /// Whether we have been an instance in the present session, and may have been stopped since by an operator.
    pub(in crate::coordination) fn was_registered(&self) -> bool {
        matches!(self.session, Session::Connected(id) if self.registered == Some(id))
    }

    /// Whether our server is enabled.
    pub(in crate::coordination) fn is_enabled(&self) -> bool {
        self.view.is_enabled(self.identity.server_ip)
    }

    /// Whether we lead, as far as the view knows.
    pub(in crate::coordination) fn is_leader(&self) -> bool {
        self.view.leader().is_some_and(|leader| leader.instance == self.identity.instance)
            && !self.is_namesake_there()
    }

    pub(in crate::coordination) fn compile_settings(&mut self, now: Now) {
        let revision = self.view.membership_revision();
        let known = revision == self.settings_revision && self.settings.is_some();
        if !self.view.is_loaded() || known {
            return;
        }
        self.settings_revision = revision;
        let configuration = match self.view.config() {
            ConfigView::Valid(configuration) => Some(Arc::clone(configuration)),
            // What was in force stays so; at the start the application's own is better than none.
            ConfigView::Unreadable if self.settings.is_none() => self.request.configuration.clone(),
            ConfigView::Unreadable | ConfigView::Absent => None,
        };
        let Some(configuration) = configuration else { return };
        let current = self.settings.as_ref();
        if current.is_some_and(|current| current.configuration == configuration) {
            return;
        }
        let settings = Settings::compile(configuration, current);
        let before = current.and_then(|current| current.schedule.as_ref());
        let since = self.view.config_since().and_then(|since| self.view.registry_clock().here(since, now));
        self.fires.reschedule(before, settings.schedule.as_ref(), since);
        self.settings = Some(settings);
    }

    /// The problem that the servers take small requests only.
    fn request_limit_problem(&self) -> Option<Problem> {
        (self.transaction_bytes < TRANSACTION_BYTES_MAX).then(|| Problem {
            path: self.identity.paths.root().clone(),
            message: format!(
                "the servers break the connection for requests of about {} bytes, so what the sidecar writes at once is \
                 split: raise `jute.maxbuffer` of the servers",
                self.transaction_bytes.saturating_mul(2)
            ),
        })
    }

    /// Looks whether the application's own configuration is the one in force.
    fn compare_configurations(&mut self) {
        let in_force = self.settings.as_ref().map(|settings| Arc::clone(&settings.configuration));
        let compared = (self.request.configuration.clone(), in_force);
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
        let is_ignored = !self.ignored.is_empty() && self.configuration_to_write().is_none();
        is_ignored.then(|| Problem {
            path: self.identity.paths.config(),
            message: format!(
                "the application's configuration is ignored, because the registry has another one: {}. Set `overwrite` to \
                 replace that, or give the same, or none",
                self.ignored
            ),
        })
    }

    /// What is wrong with the job's nodes.
    pub(in crate::coordination) fn problems(&self) -> Vec<Problem> {
        let mut problems: Vec<_> = self.view.problems().collect();
        if let Some(settings) = &self.settings {
            let path = self.identity.paths.config();
            let wrong = settings.problems.iter();
            problems.extend(wrong.map(|m| Problem { path: path.clone(), message: m.clone() }));
            problems.extend(former_rule::problem(&self.view, &self.fleet, settings));
            problems.extend(self.ignored_problem());
            if settings.schedule.is_some() && self.fires.is_over() {
                problems.push(Settings::never_fires(path));
            }
        }
        problems.extend(self.slow_problem());
        problems.extend(self.request_limit_problem());
        problems.extend(self.election.problem(&self.identity.paths));
        problems.extend(self.sharding.problem(&self.identity.paths));
        problems.extend(self.failover.problem(&self.identity.paths));
        problems.extend(self.clock_problem());
        problems.extend(self.guarantee.problem(&self.identity.paths));
        problems.sort();
        problems
    }

    fn acknowledge(&mut self, ticket: Ticket, generation: Generation) {
        let newest = self.told.generation();
        let answer = if generation > newest || generation < Generation::default() {
            Answer::Refused(Refusal::UnknownGeneration { given: generation, newest })
        } else {
            self.told.acknowledged = self.told.acknowledged.max(generation);
            Answer::Acknowledged
        };
        self.effects.push(Effect::Answer(ticket, answer));
    }

    /// Tells the application something.
    pub(in crate::coordination) fn tell_event(&mut self, event: Event) {
        // Who is away, or was, is told everything on return.
        if !matches!(self.phase, Phase::Away { .. }) {
            self.effects.push(Effect::Tell(event));
        }
    }
}
