//! What is the application to know? Compares the view with what was told, and tells the difference: the assignment,
//! leadership, the session, the configuration and its problems (design 3, P1, P3).
//!
//! Must not tell a half-done resharding: while one goes on, what was told stays in force, but for what is somebody else's
//! already.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::event::{
    AssignedItem, Assignment, AssignmentReason, Event, SessionStatus,
};
use crate::coordination::job::contract::plan::Source;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::membership::instance_name::is_to_be_renewed;
use crate::coordination::job::ownership::mode::Mode;
use crate::coordination::job::participant::Participant;
use crate::coordination::job::rotation::Turn;
use crate::coordination::time::Now;
use crate::job::{Generation, Item, JobConfiguration, Problem};
use crate::mutants::mutant;

/// What the application was told last.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Told {
    session: Option<SessionStatus>,
    enabled: bool,
    leader: bool,
    configuration: Option<Arc<JobConfiguration>>,
    problems: Vec<Problem>,
    /// How often problems have been told.
    problems_told: u64,
    /// When all words of the burst may be used again, monotonic.
    problems_rested: Duration,
    /// When those that have come or gone since are told, monotonic. `None`: they are the same.
    problems_due: Option<Duration>,
    revision: Option<(u64, u64)>,
}

/// The pause between two times at which problems are told, on average: when somebody fills a folder with nodes that mean
/// nothing, each of them is news.
const PROBLEMS_PAUSE: Duration = Duration::from_secs(1);
/// How long that pause may be left out: the first eight changes are told at once.
const PROBLEMS_BURST: Duration = Duration::from_secs(7);

impl Told {
    /// What was told may be out of date though the view has not changed.
    pub(in crate::coordination) fn look_again(&mut self) {
        self.revision = None;
    }

    /// Forgets what a stream was told: there is another one.
    pub(in crate::coordination) fn renew(&mut self) {
        let (session, problems_rested) = (self.session, self.problems_rested);
        let problems = std::mem::take(&mut self.problems);
        *self = Self { session, problems, problems_rested, ..Self::default() };
    }

    /// When there is something to tell though nothing else happens; monotonic.
    pub(in crate::coordination) fn next_word(&self) -> Option<Duration> {
        self.problems_due
    }

    /// Takes note of the problems that there are, unless very many were told just before. Gives those that are new.
    fn take_problems(&mut self, now: Now, problems: Vec<Problem>) -> Vec<Problem> {
        let due = self.problems_rested.saturating_sub(PROBLEMS_BURST);
        self.problems_due = (problems != self.problems && due > now.mono).then_some(due);
        if problems == self.problems || self.problems_due.is_some() {
            return Vec::new();
        }
        self.problems_told += 1;
        self.problems_rested = self.problems_rested.max(now.mono).saturating_add(PROBLEMS_PAUSE);
        let before = std::mem::replace(&mut self.problems, problems);
        self.problems.iter().filter(|problem| !before.contains(problem)).cloned().collect()
    }
}

impl Participant {
    /// Tells what has changed.
    pub(in crate::coordination) fn tell(&mut self) {
        let now = self.cx.now;
        if !self.cx.view.is_loaded()
            || !matches!(self.cx.phase, Phase::Active | Phase::Away { .. } | Phase::Draining { .. })
        {
            return;
        }
        let Some(settings) = &self.cx.settings else { return };
        let configuration = Arc::clone(&settings.configuration);
        let problems = self.problems();
        let before = self.told.problems_told;
        let fresh = self.told.take_problems(now, problems);
        self.out.extend(fresh.into_iter().map(Effect::Warn));
        let job_changed =
            self.told.configuration.as_ref() != Some(&configuration) || self.told.problems_told != before;
        self.told.configuration = Some(Arc::clone(&configuration));
        // What was the name's is told together with the rest; so is what started before the stream broke.
        if !self.cx.assigned.attached && (self.out.is_in_flight(Purpose::Renew) || self.starts_what_goes()) {
            return;
        }
        if !self.cx.assigned.attached {
            self.cx.assigned.attached = true;
            let instance = self.cx.identity.instance.clone();
            let (resumed, grace) = (self.resumable_executions(), self.cx.grace());
            let lease_renewal_interval = self.lease.renewal_interval(now.mono);
            self.out.tell(
                &self.cx,
                Event::Attached {
                    instance,
                    configuration: Arc::clone(&configuration),
                    resumed,
                    grace,
                    lease_renewal_interval,
                },
            );
            self.tell_assignment(Some(AssignmentReason::Attached));
            self.tell_open_executions();
            let problems = self.told.problems.clone();
            if !problems.is_empty() {
                self.out.tell(&self.cx, Event::JobChanged { configuration, problems, grace });
            }
            return;
        }
        if job_changed {
            let problems = self.told.problems.clone();
            let grace = self.cx.grace();
            self.out.tell(&self.cx, Event::JobChanged { configuration, problems, grace });
        }
        let leader = self.cx.is_leader();
        if leader != self.told.leader {
            self.told.leader = leader;
            self.out.tell(&self.cx, Event::LeadershipChanged(leader));
        }
        let revision = (self.cx.view.membership_revision(), self.cx.fleet.revision());
        let changed = self.told.revision != Some(revision) || self.is_to_be_revoked();
        if self.cx.view.is_resharding() {
            self.tell_losses();
        } else if changed && !self.starts_what_goes() {
            self.told.revision = Some(revision);
            self.tell_assignment(None);
        }
    }

    /// Tells of items that somebody else has by now, and may work on, though the rest is not to be told yet: another
    /// resharding may be due, and wait for what is executed.
    fn tell_losses(&mut self) {
        let Some(told) =
            self.cx.assigned.assignment.as_ref().filter(|_| self.relay.turn(&self.cx) == Turn::Assigned)
        else {
            return;
        };
        let is_lost = |told: &AssignedItem| {
            let owner = self.cx.view.item(told.item).and_then(|view| view.owner.as_ref());
            owner.is_some_and(|owner| owner.instance != self.cx.identity.instance)
                && !self.executions.is_starting(told.item)
        };
        if told.items.iter().any(is_lost) {
            let items = told.items.iter().filter(|told| !is_lost(told)).cloned().collect();
            let assignment = Assignment { items, ..told.clone() };
            self.put_assignment(assignment, AssignmentReason::Resharded);
        }
    }

    /// Whether an item that was told, on this stream or an earlier one, and is ours no more is being started: the
    /// application has to hear of the execution first, and whether there is one, the result of the start tells.
    fn starts_what_goes(&self) -> bool {
        let mut starting = self.starting().peekable();
        if starting.peek().is_none() {
            return false;
        }
        let items = item_set(Some(&self.current_assignment()));
        let told = self.cx.assigned.assignment.as_ref().map(|told| item_set(Some(told)));
        // What is taken over belongs to no assignment.
        let was_told = |item: &Item, source: Source| match &told {
            Some(told) => told.contains(item),
            None => source != Source::Failover,
        };
        starting.any(|(item, source, _)| was_told(&item, source) && !items.contains(&item))
    }

    /// Whether an item that was told is to be somebody else's, and nothing of ours prevents it from being told any more.
    fn is_to_be_revoked(&self) -> bool {
        let told = self.cx.assigned.assignment.iter().flat_map(|told| &told.items);
        self.cx.fleet.plan().is_some()
            && told
                .map(|assigned| assigned.item)
                .any(|item| self.handoff.is_revoked(&self.cx, &self.executions, item))
    }

    /// Tells the assignment, if it differs from the one told or a reason says that it has to be told.
    fn tell_assignment(&mut self, reason: Option<AssignmentReason>) {
        let gentle = !matches!(self.modes.now(&self.cx), Mode::Stock(_));
        let assignment = self.current_assignment();
        let enabled = self.cx.is_enabled();
        let reason = reason.or_else(|| {
            let told = self.cx.assigned.assignment.as_ref()?;
            let same = told.items == assignment.items && told.total == assignment.total;
            // What a disabled server took is to be somebody else's: that needs a word that can be acknowledged.
            let goes = self
                .handoff
                .revocation(&self.cx, &self.executions)
                .is_some_and(|revoked| revoked > told.generation);
            if same && ((gentle && !goes) || told.generation == assignment.generation) {
                // What others hand to each other is none of the application's business.
                None
            } else if self.relay.turn(&self.cx) != Turn::Assigned {
                Some(AssignmentReason::Relayed)
            } else if told.generation != assignment.generation {
                Some(if gentle { AssignmentReason::HandedOff } else { AssignmentReason::Resharded })
            } else if self.told.enabled != enabled {
                Some(AssignmentReason::ServerStatus)
            } else {
                Some(AssignmentReason::ItemChanged)
            }
        });
        self.told.enabled = enabled;
        if let Some(reason) = reason {
            self.put_assignment(assignment, reason);
        }
    }

    fn put_assignment(&mut self, assignment: Assignment, reason: AssignmentReason) {
        let before = item_set(self.cx.assigned.assignment.as_ref());
        let after = item_set(Some(&assignment));
        // An item that is ours by another token may have been somebody else's in between.
        let told = self.cx.assigned.assignment.iter().flat_map(|told| &told.items);
        let told: BTreeSet<_> = told.map(|assigned| (assigned.item, assigned.token)).collect();
        if assignment.items.iter().any(|assigned| !told.contains(&(assigned.item, assigned.token))) {
            self.ledger.look_again();
        }
        let leader = self.cx.is_leader();
        self.told.leader = leader;
        self.cx.assigned.assignment = Some(assignment.clone());
        self.out.tell(
            &self.cx,
            Event::AssignmentChanged {
                assignment,
                added: after.difference(&before).copied().collect(),
                revoked: before.difference(&after).copied().collect(),
                leader,
                reason,
            },
        );
    }

    /// What the view says that we own.
    fn current_assignment(&self) -> Assignment {
        let settings = self.cx.settings.as_ref();
        let total = settings.map_or(0, |settings| settings.configuration.sharding_total_count);
        // A generation never goes backwards, even if somebody deleted all assignments.
        let turn = self.relay.turn(&self.cx);
        let relayed = match turn {
            Turn::Ours(token) | Turn::Others(token) => Generation(token.0),
            Turn::Assigned | Turn::Changing => Generation::default(),
        };
        let revoked = self.handoff.revocation(&self.cx, &self.executions).unwrap_or_default();
        let generation =
            self.cx.view.generation().max(relayed).max(revoked).max(self.cx.assigned.generation());
        let mut items = Vec::new();
        if self.cx.is_registered() && (self.cx.is_enabled() || mutant!(DisabledServerExecutes)) {
            for (item, view) in self.cx.view.items().range(..Item(total)) {
                let Some(owner) = &view.owner else { continue };
                let token = match turn {
                    Turn::Assigned if owner.instance == self.cx.identity.instance => {
                        if self.handoff.is_revoked(&self.cx, &self.executions, *item)
                            || is_to_be_renewed(&self.cx, owner)
                        {
                            continue;
                        }
                        owner.token
                    }
                    // A later sharding gives nothing that the turn does not.
                    Turn::Ours(token) => token.max(owner.token),
                    Turn::Assigned | Turn::Others(_) | Turn::Changing => continue,
                };
                items.push(AssignedItem {
                    item: *item,
                    parameter: settings.and_then(|s| s.parameter(*item)).map(str::to_owned),
                    token,
                    disabled: view.disabled && !mutant!(DisabledItemExecuted),
                });
            }
        }
        Assignment { generation, total, items }
    }

    /// Tells that nothing is ours any more.
    pub(in crate::coordination) fn tell_nothing_assigned(&mut self, reason: AssignmentReason) {
        let Some(told) = &self.cx.assigned.assignment else { return };
        if told.items.is_empty() {
            return;
        }
        let nothing = Assignment { items: Vec::new(), ..told.clone() };
        self.put_assignment(nothing, reason);
        self.told.revision = None;
    }

    /// Tells the session's state, once the application is attached.
    pub(in crate::coordination) fn tell_session(&mut self, status: SessionStatus) {
        let now = self.cx.now;
        if self.told.session.replace(status) != Some(status) && self.cx.assigned.attached {
            let lease_end = self.lease.tell(now.mono);
            self.out.tell(&self.cx, Event::SessionChanged { status, lease_end });
        }
    }

    /// Tells that the session is lost, and everything with it.
    pub(in crate::coordination) fn tell_session_lost(&mut self) {
        self.told.revision = None;
        if self.told.session.replace(SessionStatus::Lost) != Some(SessionStatus::Lost)
            && self.cx.assigned.attached
        {
            self.out.tell(&self.cx, Event::SessionChanged { status: SessionStatus::Lost, lease_end: None });
        }
        self.tell_nothing_assigned(AssignmentReason::SessionLost);
    }
}

fn item_set(assignment: Option<&Assignment>) -> BTreeSet<Item> {
    assignment.into_iter().flat_map(|assignment| &assignment.items).map(|assigned| assigned.item).collect()
}
