//! The application's view of its job. Compares the picture with the last messages, and tells the difference: the assignment,
//! leadership, the session, the configuration and its problems (design 3, P1, P3).
//!
//! Must not tell a half-done resharding: while one goes on, the told assignment stays in force, but for items that another
//! instance owns already.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::event::{
    AssignedItem, Assignment, AssignmentReason, Event, SessionStatus,
};
use crate::coordination::job::contract::plan::Source;
use crate::coordination::job::execution::checkpoint::Checkpoints;
use crate::coordination::job::execution::state::Executions;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::ledger::Ledger;
use crate::coordination::job::membership::instance_name::is_to_be_renewed;
use crate::coordination::job::notices::open_executions::{resumable_executions, tell_open_executions};
use crate::coordination::job::ownership::handoff_release::Handoff;
use crate::coordination::job::ownership::mode::{Mode, Modes};
use crate::coordination::job::rotation::{Relay, Turn};
use crate::coordination::lease::Lease;
use crate::coordination::time::Now;
use crate::job::{Generation, Item, JobConfiguration, Problem};
use crate::mutants::mutant;

/// The last messages to the application.
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
    /// The told assignment may be out of date though the view has not changed.
    pub(in crate::coordination) fn look_again(&mut self) {
        self.revision = None;
    }

    /// Forgets the messages of a stream: there is another one.
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

    /// Tells the changes.
    #[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
    pub(in crate::coordination) fn tell(
        &mut self,
        cx: &mut Context,
        ledger: &mut Ledger,
        relay: &Relay,
        executions: &Executions,
        checkpoints: &Checkpoints,
        handoff: &Handoff,
        lease: &Lease,
        modes: &mut Modes,
        out: &mut Outbox,
        problems: Vec<Problem>,
    ) {
        let now = cx.now;
        let Some(settings) = &cx.settings else { return };
        let configuration = Arc::clone(&settings.configuration);
        let before = self.problems_told;
        let fresh = self.take_problems(now, problems);
        out.extend(fresh.into_iter().map(Effect::Warn));
        let job_changed = self.configuration.as_ref() != Some(&configuration) || self.problems_told != before;
        self.configuration = Some(Arc::clone(&configuration));
        // The items that were the name's are told together with the rest; so are executions that started before the stream broke.
        if !cx.assigned.attached
            && (out.is_in_flight(Purpose::Renew) || starts_what_goes(cx, relay, executions, handoff))
        {
            return;
        }
        if !cx.assigned.attached {
            cx.assigned.attached = true;
            let instance = cx.identity.instance.clone();
            let (resumed, grace) = (resumable_executions(executions), cx.grace());
            let lease_renewal_interval = lease.renewal_interval(now.mono);
            out.tell(
                cx,
                Event::Attached {
                    instance,
                    configuration: Arc::clone(&configuration),
                    resumed,
                    grace,
                    lease_renewal_interval,
                },
            );
            self.tell_assignment(
                cx,
                ledger,
                relay,
                executions,
                handoff,
                modes,
                out,
                Some(AssignmentReason::Attached),
            );
            tell_open_executions(cx, executions, checkpoints, out);
            let problems = self.problems.clone();
            if !problems.is_empty() {
                out.tell(cx, Event::JobChanged { configuration, problems, grace });
            }
            return;
        }
        if job_changed {
            let problems = self.problems.clone();
            let grace = cx.grace();
            out.tell(cx, Event::JobChanged { configuration, problems, grace });
        }
        let leader = cx.is_leader();
        if leader != self.leader {
            self.leader = leader;
            out.tell(cx, Event::LeadershipChanged(leader));
        }
        let revision = (cx.view.membership_revision(), cx.fleet.revision());
        let changed = self.revision != Some(revision) || is_to_be_revoked(cx, executions, handoff);
        if cx.view.is_resharding() {
            self.tell_losses(cx, ledger, relay, executions, out);
        } else if changed && !starts_what_goes(cx, relay, executions, handoff) {
            self.revision = Some(revision);
            self.tell_assignment(cx, ledger, relay, executions, handoff, modes, out, None);
        }
    }

    /// Tells of items that somebody else has by now, and may work on, though the rest is not to be told yet: another
    /// resharding may be due, and wait for what is executed.
    fn tell_losses(
        &mut self,
        cx: &mut Context,
        ledger: &mut Ledger,
        relay: &Relay,
        executions: &Executions,
        out: &mut Outbox,
    ) {
        let Some(told) = cx.assigned.assignment.as_ref().filter(|_| relay.turn(cx) == Turn::Assigned) else {
            return;
        };
        let is_lost = |told: &AssignedItem| {
            let owner = cx.view.item(told.item).and_then(|view| view.owner.as_ref());
            owner.is_some_and(|owner| owner.instance != cx.identity.instance)
                && !executions.is_starting(told.item)
        };
        if told.items.iter().any(is_lost) {
            let items = told.items.iter().filter(|told| !is_lost(told)).cloned().collect();
            let assignment = Assignment { items, ..told.clone() };
            self.put_assignment(cx, ledger, out, assignment, AssignmentReason::Resharded);
        }
    }

    /// Tells the assignment, if it differs from the one told or a reason says that it has to be told.
    #[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
    fn tell_assignment(
        &mut self,
        cx: &mut Context,
        ledger: &mut Ledger,
        relay: &Relay,
        executions: &Executions,
        handoff: &Handoff,
        modes: &mut Modes,
        out: &mut Outbox,
        reason: Option<AssignmentReason>,
    ) {
        let gentle = !matches!(modes.now(cx), Mode::Stock(_));
        let assignment = current_assignment(cx, relay, executions, handoff);
        let enabled = cx.is_enabled();
        let reason = reason.or_else(|| {
            let told = cx.assigned.assignment.as_ref()?;
            let same = told.items == assignment.items && told.total == assignment.total;
            // An item that a disabled server took is to go to another instance: that needs a message that can be acknowledged.
            let goes = handoff.revocation(cx, executions).is_some_and(|revoked| revoked > told.generation);
            if same && ((gentle && !goes) || told.generation == assignment.generation) {
                // Handoffs between other instances do not concern the application.
                None
            } else if relay.turn(cx) != Turn::Assigned {
                Some(AssignmentReason::Relayed)
            } else if told.generation != assignment.generation {
                Some(if gentle { AssignmentReason::HandedOff } else { AssignmentReason::Resharded })
            } else if self.enabled != enabled {
                Some(AssignmentReason::ServerStatus)
            } else {
                Some(AssignmentReason::ItemChanged)
            }
        });
        self.enabled = enabled;
        if let Some(reason) = reason {
            self.put_assignment(cx, ledger, out, assignment, reason);
        }
    }

    fn put_assignment(
        &mut self,
        cx: &mut Context,
        ledger: &mut Ledger,
        out: &mut Outbox,
        assignment: Assignment,
        reason: AssignmentReason,
    ) {
        let before = item_set(cx.assigned.assignment.as_ref());
        let after = item_set(Some(&assignment));
        // An item that is ours by another token may have been somebody else's in between.
        let told = cx.assigned.assignment.iter().flat_map(|told| &told.items);
        let told: BTreeSet<_> = told.map(|assigned| (assigned.item, assigned.token)).collect();
        if assignment.items.iter().any(|assigned| !told.contains(&(assigned.item, assigned.token))) {
            ledger.look_again();
        }
        let leader = cx.is_leader();
        self.leader = leader;
        cx.assigned.assignment = Some(assignment.clone());
        out.tell(
            cx,
            Event::AssignmentChanged {
                assignment,
                added: after.difference(&before).copied().collect(),
                revoked: before.difference(&after).copied().collect(),
                leader,
                reason,
            },
        );
    }

    /// Tells that nothing is ours any more.
    pub(in crate::coordination) fn tell_nothing_assigned(
        &mut self,
        cx: &mut Context,
        ledger: &mut Ledger,
        out: &mut Outbox,
        reason: AssignmentReason,
    ) {
        let Some(told) = &cx.assigned.assignment else { return };
        if told.items.is_empty() {
            return;
        }
        let nothing = Assignment { items: Vec::new(), ..told.clone() };
        self.put_assignment(cx, ledger, out, nothing, reason);
        self.revision = None;
    }

    /// Tells the session's state, once the application is attached.
    pub(in crate::coordination) fn tell_session(
        &mut self,
        cx: &Context,
        lease: &mut Lease,
        out: &mut Outbox,
        status: SessionStatus,
    ) {
        let now = cx.now;
        if self.session.replace(status) != Some(status) && cx.assigned.attached {
            let lease_end = lease.tell(now.mono);
            out.tell(cx, Event::SessionChanged { status, lease_end });
        }
    }

    /// Tells that the session is lost, and everything with it.
    pub(in crate::coordination) fn tell_session_lost(
        &mut self,
        cx: &mut Context,
        ledger: &mut Ledger,
        out: &mut Outbox,
    ) {
        self.revision = None;
        if self.session.replace(SessionStatus::Lost) != Some(SessionStatus::Lost) && cx.assigned.attached {
            out.tell(cx, Event::SessionChanged { status: SessionStatus::Lost, lease_end: None });
        }
        self.tell_nothing_assigned(cx, ledger, out, AssignmentReason::SessionLost);
    }
}

/// Whether there is something that can be told.
pub(in crate::coordination) fn may_tell(cx: &Context) -> bool {
    cx.view.is_loaded()
        && cx.settings.is_some()
        && matches!(cx.phase, Phase::Active | Phase::Away { .. } | Phase::Draining { .. })
}

/// Whether an item that was told, on this stream or an earlier one, and is ours no more is being started: the
/// application has to hear of the execution first, and whether there is one, the result of the start tells.
fn starts_what_goes(cx: &Context, relay: &Relay, executions: &Executions, handoff: &Handoff) -> bool {
    let mut starting = executions.starting().peekable();
    if starting.peek().is_none() {
        return false;
    }
    let items = item_set(Some(&current_assignment(cx, relay, executions, handoff)));
    let told = cx.assigned.assignment.as_ref().map(|told| item_set(Some(told)));
    // An item that is taken over belongs to no assignment.
    let was_told = |item: &Item, source: Source| match &told {
        Some(told) => told.contains(item),
        None => source != Source::Failover,
    };
    starting.any(|(item, planned)| was_told(&item, planned.source) && !items.contains(&item))
}

/// Whether an item that was told is to be somebody else's, and nothing of ours prevents it from being told any more.
fn is_to_be_revoked(cx: &Context, executions: &Executions, handoff: &Handoff) -> bool {
    let told = cx.assigned.assignment.iter().flat_map(|told| &told.items);
    cx.fleet.plan().is_some()
        && told.map(|assigned| assigned.item).any(|item| handoff.is_revoked(cx, executions, item))
}

/// The items that we own, as the view tells.
fn current_assignment(cx: &Context, relay: &Relay, executions: &Executions, handoff: &Handoff) -> Assignment {
    let settings = cx.settings.as_ref();
    let total = settings.map_or(0, |settings| settings.configuration.sharding_total_count);
    // A generation never goes backwards, even if somebody deleted all assignments.
    let turn = relay.turn(cx);
    let relayed = match turn {
        Turn::Ours(token) | Turn::Others(token) => Generation(token.0),
        Turn::Assigned | Turn::Changing => Generation::default(),
    };
    let revoked = handoff.revocation(cx, executions).unwrap_or_default();
    let generation = cx.view.generation().max(relayed).max(revoked).max(cx.assigned.generation());
    let mut items = Vec::new();
    if cx.is_registered() && (cx.is_enabled() || mutant!(DisabledServerExecutes)) {
        for (item, view) in cx.view.items().range(..Item(total)) {
            let Some(owner) = &view.owner else { continue };
            let token = match turn {
                Turn::Assigned if owner.instance == cx.identity.instance => {
                    if handoff.is_revoked(cx, executions, *item) || is_to_be_renewed(cx, owner) {
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

fn item_set(assignment: Option<&Assignment>) -> BTreeSet<Item> {
    assignment.into_iter().flat_map(|assignment| &assignment.items).map(|assigned| assigned.item).collect()
}
