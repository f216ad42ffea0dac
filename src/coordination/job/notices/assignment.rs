//! The application's view of its job. Compares the picture with the last messages, and sends the difference: the
//! assignment, leadership, the session, the configuration and its problems (design 3, P1, P3).
//!
//! Must not send a half-done resharding: during one, the sent assignment stays in force, but for items that another
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
use crate::coordination::job::execution::Executions;
use crate::coordination::job::execution::checkpoint::Checkpoints;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::ledger::Ledger;
use crate::coordination::job::membership::instance_name::is_to_be_renewed;
use crate::coordination::job::notices::open_executions::{notify_open_executions, resumable_executions};
use crate::coordination::job::ownership::Ownership;
use crate::coordination::job::ownership::mode::Mode;
use crate::coordination::job::rotation::{Rotation, Turn};
use crate::coordination::lease::Lease;
use crate::coordination::time::Now;
use crate::findings::problem::Problem;
use crate::job::{FencingToken, Generation, Item, JobConfiguration};
use crate::mutants::mutant;

/// The last messages to the application.
#[derive(Debug, Default)]
pub(crate) struct Notified {
    session: Option<SessionStatus>,
    enabled: bool,
    leader: Option<FencingToken>,
    configuration: Option<Arc<JobConfiguration>>,
    problems: Vec<Problem>,
    /// How often problems have been sent.
    problems_sent: u64,
    /// When a whole burst may be used again, monotonic.
    problems_rested: Duration,
    /// When problems that have come or gone since are sent, monotonic. `None`: there is no change.
    problems_due: Option<Duration>,
    revision: Option<(u64, u64)>,
}

/// The average pause between two messages with problems: if an operator fills a folder with meaningless nodes, each of
/// them is a new problem.
const PROBLEMS_PAUSE: Duration = Duration::from_secs(1);
/// The sum of pauses that may be left out: the first eight changes are sent at once.
const PROBLEMS_BURST: Duration = Duration::from_secs(7);

impl Notified {
    /// The sent assignment may be out of date though the view has not changed.
    pub(crate) fn look_again(&mut self) {
        self.revision = None;
    }

    /// Forgets the messages to an earlier stream.
    pub(crate) fn renew(&mut self) {
        let (session, problems_rested) = (self.session, self.problems_rested);
        let problems = std::mem::take(&mut self.problems);
        *self = Self { session, problems, problems_rested, ..Self::default() };
    }

    /// When there is a message to send though no input comes; monotonic.
    pub(crate) fn next_notice(&self) -> Option<Duration> {
        self.problems_due
    }

    /// Records the present problems, unless very many were sent just before. Returns the new ones.
    fn take_problems(&mut self, now: Now, problems: Vec<Problem>) -> Vec<Problem> {
        let due = self.problems_rested.saturating_sub(PROBLEMS_BURST);
        self.problems_due = (problems != self.problems && due > now.mono).then_some(due);
        if problems == self.problems || self.problems_due.is_some() {
            return Vec::new();
        }
        self.problems_sent += 1;
        self.problems_rested = self.problems_rested.max(now.mono).saturating_add(PROBLEMS_PAUSE);
        let before = std::mem::replace(&mut self.problems, problems);
        self.problems.iter().filter(|problem| !before.contains(problem)).cloned().collect()
    }

    /// Sends the changes.
    #[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
    pub(crate) fn notify(
        &mut self,
        cx: &mut Context,
        ledger: &mut Ledger,
        rotation: &Rotation,
        executions: &Executions,
        checkpoints: &Checkpoints,
        ownership: &mut Ownership,
        lease: &Lease,
        out: &mut Outbox,
        problems: Vec<Problem>,
    ) {
        let now = cx.now;
        let Some(settings) = &cx.settings else { return };
        let configuration = Arc::clone(&settings.configuration);
        let before = self.problems_sent;
        let fresh = self.take_problems(now, problems);
        out.extend(fresh.into_iter().map(Effect::Warn));
        let job_changed = self.configuration.as_ref() != Some(&configuration) || self.problems_sent != before;
        self.configuration = Some(Arc::clone(&configuration));
        // The items that the name owned are sent together with the rest; so are executions that started before the
        // stream broke.
        if !cx.assigned.attached
            && (out.is_in_flight(Purpose::Renew) || starts_lost_item(cx, rotation, executions, ownership))
        {
            return;
        }
        if !cx.assigned.attached {
            cx.assigned.attached = true;
            let instance = cx.identity.instance.clone();
            let (resumed, grace) = (resumable_executions(executions), cx.grace());
            let lease_renewal_interval = lease.renewal_interval(now.mono);
            out.notify(
                cx,
                Event::Attached {
                    instance,
                    configuration: Arc::clone(&configuration),
                    resumed,
                    grace,
                    lease_renewal_interval,
                },
            );
            self.notify_assignment(
                cx,
                ledger,
                rotation,
                executions,
                ownership,
                out,
                Some(AssignmentReason::Attached),
            );
            notify_open_executions(cx, executions, checkpoints, out);
            let problems = self.problems.clone();
            if !problems.is_empty() {
                out.notify(cx, Event::JobChanged { configuration, problems, grace });
            }
            return;
        }
        if job_changed {
            let problems = self.problems.clone();
            let grace = cx.grace();
            out.notify(cx, Event::JobChanged { configuration, problems, grace });
        }
        let leader = cx.term();
        if leader != self.leader {
            self.leader = leader;
            out.notify(cx, Event::LeadershipChanged(leader));
        }
        let revision = (cx.view.membership_revision(), cx.fleet.revision());
        let changed = self.revision != Some(revision) || is_to_be_revoked(cx, executions, ownership);
        if cx.view.is_resharding() {
            self.notify_losses(cx, ledger, rotation, executions, out);
        } else if changed && !starts_lost_item(cx, rotation, executions, ownership) {
            self.revision = Some(revision);
            self.notify_assignment(cx, ledger, rotation, executions, ownership, out, None);
        }
    }

    /// Revokes items that another instance owns by now, and may work on, though the rest of the assignment cannot be
    /// sent yet: another resharding may be due, and wait for executions.
    fn notify_losses(
        &mut self,
        cx: &mut Context,
        ledger: &mut Ledger,
        rotation: &Rotation,
        executions: &Executions,
        out: &mut Outbox,
    ) {
        let Some(sent) = cx.assigned.assignment.as_ref().filter(|_| rotation.turn(cx) == Turn::Assigned)
        else {
            return;
        };
        let is_lost = |sent: &AssignedItem| {
            let owner = cx.view.item(sent.item).and_then(|view| view.owner.as_ref());
            owner.is_some_and(|owner| owner.instance != cx.identity.instance)
                && !executions.is_starting(sent.item)
        };
        if sent.items.iter().any(is_lost) {
            let items = sent.items.iter().filter(|sent| !is_lost(sent)).cloned().collect();
            let assignment = Assignment { items, ..sent.clone() };
            self.put_assignment(cx, ledger, out, assignment, AssignmentReason::Resharded);
        }
    }

    /// Sends the assignment, if it differs from the one sent, or a reason says that it has to be sent.
    #[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
    fn notify_assignment(
        &mut self,
        cx: &mut Context,
        ledger: &mut Ledger,
        rotation: &Rotation,
        executions: &Executions,
        ownership: &mut Ownership,
        out: &mut Outbox,
        reason: Option<AssignmentReason>,
    ) {
        let one_by_one = !matches!(ownership.mode(cx), Mode::AllAtOnce(_));
        let assignment = current_assignment(cx, rotation, executions, ownership);
        let enabled = cx.is_enabled();
        let reason = reason.or_else(|| {
            let sent = cx.assigned.assignment.as_ref()?;
            let same = sent.items == assignment.items && sent.total == assignment.total;
            // An item of a disabled server is to go to another instance: that needs a message that can be acknowledged.
            let is_leaving =
                ownership.revocation(cx, executions).is_some_and(|revoked| revoked > sent.generation);
            if same && ((one_by_one && !is_leaving) || sent.generation == assignment.generation) {
                // Handoffs between other instances do not concern the application.
                None
            } else if rotation.turn(cx) != Turn::Assigned {
                Some(AssignmentReason::Relayed)
            } else if sent.generation != assignment.generation {
                Some(if one_by_one { AssignmentReason::HandedOff } else { AssignmentReason::Resharded })
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
        // Another instance may have owned an item in between, if this one owns it with another token.
        let sent = cx.assigned.assignment.iter().flat_map(|sent| &sent.items);
        let sent: BTreeSet<_> = sent.map(|assigned| (assigned.item, assigned.token)).collect();
        if assignment.items.iter().any(|assigned| !sent.contains(&(assigned.item, assigned.token))) {
            ledger.look_again();
        }
        self.leader = cx.term();
        let leader = self.leader.is_some();
        cx.assigned.assignment = Some(assignment.clone());
        out.notify(
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

    /// Sends that this instance owns nothing any more.
    pub(crate) fn notify_nothing_assigned(
        &mut self,
        cx: &mut Context,
        ledger: &mut Ledger,
        out: &mut Outbox,
        reason: AssignmentReason,
    ) {
        let Some(sent) = &cx.assigned.assignment else { return };
        if sent.items.is_empty() {
            return;
        }
        let nothing = Assignment { items: Vec::new(), ..sent.clone() };
        self.put_assignment(cx, ledger, out, nothing, reason);
        self.revision = None;
    }

    /// Sends the session's state, once the application is attached.
    pub(crate) fn notify_session(
        &mut self,
        cx: &Context,
        lease: &mut Lease,
        out: &mut Outbox,
        status: SessionStatus,
    ) {
        let now = cx.now;
        if self.session.replace(status) != Some(status) && cx.assigned.attached {
            let lease_end = lease.notify(now.mono);
            out.notify(cx, Event::SessionChanged { status, lease_end });
        }
    }

    /// Sends that the session is lost, and all items and executions with it.
    pub(crate) fn notify_session_lost(&mut self, cx: &mut Context, ledger: &mut Ledger, out: &mut Outbox) {
        self.revision = None;
        if self.session.replace(SessionStatus::Lost) != Some(SessionStatus::Lost) && cx.assigned.attached {
            out.notify(cx, Event::SessionChanged { status: SessionStatus::Lost, lease_end: None });
        }
        self.notify_nothing_assigned(cx, ledger, out, AssignmentReason::SessionLost);
    }
}

/// Whether the nodes are known, and no resharding hides the assignment.
pub(crate) fn may_notify(cx: &Context) -> bool {
    cx.view.is_loaded() && cx.settings.is_some() && cx.phase.is_there()
}

/// Whether an execution of a sent item is starting that this instance does not own any more: the application has to get
/// the execution first, and only the result of the start says whether there is one.
fn starts_lost_item(
    cx: &Context,
    rotation: &Rotation,
    executions: &Executions,
    ownership: &Ownership,
) -> bool {
    let mut starting = executions.starting().peekable();
    if starting.peek().is_none() {
        return false;
    }
    let items = item_set(Some(&current_assignment(cx, rotation, executions, ownership)));
    let sent = cx.assigned.assignment.as_ref().map(|sent| item_set(Some(sent)));
    // An item that is taken over belongs to no assignment.
    let was_sent = |item: &Item, source: Source| match &sent {
        Some(sent) => sent.contains(item),
        None => source != Source::Failover,
    };
    starting.any(|(item, planned)| was_sent(&item, planned.source) && !items.contains(&item))
}

/// Whether a sent item is to be handed over, and no execution prevents the revocation.
fn is_to_be_revoked(cx: &Context, executions: &Executions, ownership: &Ownership) -> bool {
    let sent = cx.assigned.assignment.iter().flat_map(|sent| &sent.items);
    cx.fleet.plan().is_some()
        && sent.map(|assigned| assigned.item).any(|item| ownership.is_revoked(cx, executions, item))
}

/// The items that this instance owns, according to the view.
fn current_assignment(
    cx: &Context,
    rotation: &Rotation,
    executions: &Executions,
    ownership: &Ownership,
) -> Assignment {
    let settings = cx.settings.as_ref();
    let total = settings.map_or(0, |settings| settings.configuration.sharding_total_count);
    // A generation never goes backwards, even if an operator deleted all assignments.
    let turn = rotation.turn(cx);
    let turn_token = match turn {
        Turn::Ours(token) | Turn::Others(token) => Generation(token.0),
        Turn::Assigned | Turn::Changing => Generation::default(),
    };
    let revoked = ownership.revocation(cx, executions).unwrap_or_default();
    let generation = cx.view.generation().max(turn_token).max(revoked).max(cx.assigned.generation());
    let mut items = Vec::new();
    if cx.is_registered() && (cx.is_enabled() || mutant!(DisabledServerExecutes)) {
        for (item, view) in cx.view.items().take_while(|(item, _)| *item < Item(total)) {
            let Some(owner) = &view.owner else { continue };
            let token = match turn {
                Turn::Assigned if owner.instance == cx.identity.instance => {
                    if ownership.is_revoked(cx, executions, item) || is_to_be_renewed(cx, owner) {
                        continue;
                    }
                    owner.token
                }
                // A later resharding gives no right that the turn does not give.
                Turn::Ours(token) => token.max(owner.token),
                Turn::Assigned | Turn::Others(_) | Turn::Changing => continue,
            };
            items.push(AssignedItem {
                item,
                parameter: settings.and_then(|s| s.parameter(item)).map(str::to_owned),
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
