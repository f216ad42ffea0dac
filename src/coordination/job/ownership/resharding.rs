//! Which instance owns which item? The leader compares the assignment with the result of the strategy, and reshards the
//! items when they differ or a resharding was asked for (protocol 4, 5; P1, P7).
//!
//! A resharding is one transaction that deletes and creates all `instance` nodes, so that each has a new token (P3); it
//! is split only where the server's size limit forces it. It creates and deletes the `running` node of every item that
//! moves: so it fails if the item has begun to run in the meantime, and then no node changes. It also fails, and is
//! decided again, if this instance leads no more, or another one has resharded. It waits only for running items that
//! move, where Java leaders wait for all. It raises and lowers the `necessary` flag within itself, so that a peer that
//! sees the changes one by one knows when they are complete; beside Java instances the flag stays up for a while
//! (`java_peers`).
//!
//! The version of `leader/sharding` orders starts and reshardings: a sidecar that leads sets that node's (empty) data
//! with each resharding and with each flag, and the transaction that creates running nodes checks the version.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::execution::Executions;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Session;
use crate::coordination::job::membership::liveness::{Liveness, is_leftover};
use crate::coordination::job::ownership::allocation::{Rule, former_rule};
use crate::coordination::job::ownership::java_peers::{JavaPeers, is_flag_answered, keeps_flag};
use crate::coordination::job::ownership::mode::{AllAtOnceReason, Mode, Modes};
use crate::coordination::job::ownership::reservation::{Reservations, end_reservations};
use crate::coordination::job::ownership::settling::Settling;
use crate::coordination::job::ownership::targets::{Targets, owners};
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::job::picture::nodes::ItemView;
use crate::coordination::job::picture::settings::Settings;
use crate::coordination::time::Now;
use crate::elasticjob::path::{Folder, JobPaths};
use crate::findings::problem::{Problem, ProblemCode};
use crate::job::{InstanceId, Item, ShardingStrategy};
use crate::mutants::mutant;
use crate::tree::{NodeKind, Operation, Transaction};

/// How long a resharding may wait for executions before that is reported as a problem.
const WAIT_REPORTED_AFTER: Duration = Duration::from_secs(10);

/// The input of a resharding, and its result: for each item its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    available: Vec<InstanceId>,
    total: u32,
    /// Whether only items without an online owner are assigned; the others are handed over.
    one_by_one: bool,
    owners: Vec<InstanceId>,
}

impl Plan {
    fn is_for(&self, available: &[InstanceId], total: u32, one_by_one: bool) -> bool {
        self.available == available && self.total == total && self.one_by_one == one_by_one
    }
}

/// A resharding that takes several transactions.
#[derive(Debug)]
struct Progress {
    plan: Plan,
    /// How many items are assigned.
    done: usize,
    /// How many items are assigned when the commit in flight has succeeded.
    done_next: usize,
    finished_next: bool,
}

/// A look at the assignment.
#[derive(Debug, Clone, Copy)]
struct Checked {
    /// The revisions of the view and of the reservations.
    revision: (u64, u64),
    one_by_one: bool,
    rule: Rule,
    /// Whether the assignment differed from the result of the strategy.
    stale: bool,
}

/// The leader's state of reshardings.
#[derive(Debug, Default)]
pub(crate) struct Resharding {
    progress: Option<Progress>,
    /// The instances and the total count of this leader's last resharding: results of strategies that read the clock
    /// cannot be compared.
    membership: Option<(Vec<InstanceId>, u32)>,
    /// The last look at the assignment.
    checked: Option<Checked>,
    wait: Wait,
}

/// A resharding that waits.
#[derive(Debug, Default)]
struct Wait {
    /// Since when a resharding has been flagged, according to the views; whatever instance flagged it or led.
    flagged_since: Option<Duration>,
    /// The items for which it waits, while this instance leads.
    items: Vec<Item>,
    since: Option<Duration>,
    report: bool,
}

impl Resharding {
    /// The transaction has succeeded.
    pub(crate) fn committed(&mut self) {
        if let Some(mut progress) = self.progress.take() {
            if progress.finished_next {
                self.membership = Some((progress.plan.available, progress.plan.total));
            } else {
                progress.done = progress.done_next;
                self.progress = Some(progress);
            }
        }
    }

    /// Another instance leads, or may lead: only the flag counts.
    pub(crate) fn forget(&mut self) {
        let flagged_since = self.wait.flagged_since;
        *self = Self { wait: Wait { flagged_since, ..Wait::default() }, ..Self::default() };
    }

    /// The nodes are not known for a moment: the resharding is decided again later, and its wait goes on.
    fn pause(&mut self) {
        *self = Self { wait: std::mem::take(&mut self.wait), ..Self::default() };
    }

    /// The transaction has failed: the resharding is decided again from the start.
    pub(crate) fn failed(&mut self) {
        self.progress = None;
        self.checked = None;
    }

    /// Other instances than before may get items: the leader decides again whether a resharding is due.
    pub(crate) fn look_again(&mut self) {
        self.checked = None;
    }

    /// The problem that a resharding has waited for long.
    pub(crate) fn problem(&self, paths: &JobPaths) -> Option<Problem> {
        self.wait.report.then(|| Problem {
            path: paths.necessary(),
            message: format!(
                "a resharding waits for items {:?}, which are being executed; nothing starts until they end",
                self.wait.items
            ),
            code: ProblemCode::ReshardingWaitsForRunning,
        })
    }

    fn wait_for(&mut self, now: Duration, items: Vec<Item>) {
        let wait = &mut self.wait;
        wait.items = items;
        if wait.items.is_empty() {
            wait.since = None;
            wait.report = false;
        } else {
            let since = *wait.since.get_or_insert(wait.flagged_since.unwrap_or(now));
            wait.report = now >= since.saturating_add(WAIT_REPORTED_AFTER);
        }
    }

    /// Reshards the items, if this instance leads and a resharding is due.
    #[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
    pub(crate) fn shard(
        &mut self,
        cx: &Context,
        liveness: &Liveness,
        executions: &mut Executions,
        reservations: &Reservations,
        java_peers: &mut JavaPeers,
        modes: &mut Modes,
        settling: &Settling,
        targets: &mut Targets,
        out: &mut Outbox,
    ) {
        let now = cx.now;
        if !cx.view.is_loaded() || matches!(cx.session, Session::Suspended(_)) {
            return self.pause();
        }
        let since = self.wait.flagged_since.unwrap_or(now.mono);
        self.wait.flagged_since = cx.view.necessary().then_some(since);
        let leads = cx.is_registered() && cx.is_leader() && cx.is_enabled();
        if !leads || !cx.phase.is_there() {
            self.forget();
            return;
        }
        let at_once = match modes.now(cx) {
            Mode::OneByOne => None,
            Mode::AllAtOnce(reason) => Some(reason),
            Mode::Undecided(_) => return,
        };
        let one_by_one = at_once.is_none();
        let in_flight = out.is_in_flight(Purpose::Shard);
        let begun = in_flight || self.progress.as_ref().is_some_and(|progress| progress.done > 0);
        let asked = cx.view.necessary() && (one_by_one || !is_flag_answered(cx));
        let settles = one_by_one && settling.is_first_waiting(now.mono);
        if !asked && !begun && (settles || !self.is_stale(cx, reservations, one_by_one)) {
            // A resharding that had to wait may not be needed any more.
            self.progress = None;
            self.wait_for(now.mono, Vec::new());
            java_peers.lower_flag(cx, out);
            return;
        }
        let kept = if one_by_one { targets.owners_at_once(cx, reservations) } else { Vec::new() };
        let Some(settings) = &cx.settings else { return };
        let available = cx.assignable();
        let total = settings.configuration.sharding_total_count;
        if available.is_empty() || in_flight {
            return;
        }
        let plan = match self.progress.take() {
            Some(mut progress) if progress.plan.is_for(&available, total, one_by_one) => {
                if one_by_one {
                    // Items may have been handed over since.
                    progress.plan.owners = kept;
                }
                progress
            }
            Some(_) | None => {
                let rule = former_rule::rule(&cx.view, &cx.fleet);
                let owners = if one_by_one { kept } else { owners(settings, &available, rule, now) };
                let plan = Plan { available, total, one_by_one, owners };
                Progress { plan, done: 0, done_next: 0, finished_next: false }
            }
        };
        if java_peers.waits_for_fire(cx, &plan.plan.owners) {
            return;
        }
        let waiting_for = moving_and_running(cx, liveness, executions, &plan.plan);
        let must_wait = !waiting_for.is_empty();
        self.wait_for(now.mono, waiting_for);
        self.progress = Some(plan);
        if must_wait {
            for item in self.wait.items.clone() {
                executions.suspect(cx, item);
            }
            self.progress = None;
            flag_resharding(cx, out);
        } else if out.may_commit(cx, Purpose::Shard) {
            let transaction = self.sharding_transaction(cx, liveness, at_once.as_ref());
            out.commit(Purpose::Shard, transaction);
        }
    }

    /// Whether the assignment differs from the wanted one. Looks only when the views or the reservations have changed.
    fn is_stale(&mut self, cx: &Context, reservations: &Reservations, one_by_one: bool) -> bool {
        let now = cx.now;
        let revision = (cx.view.membership_revision(), reservations.revision());
        let rule = former_rule::rule(&cx.view, &cx.fleet);
        if let Some(checked) = self.checked
            && ((checked.revision, checked.one_by_one, checked.rule) == (revision, one_by_one, rule)
                || mutant!(MembershipComparedOnce))
        {
            return checked.stale;
        }
        let available = cx.assignable();
        let stale = cx.settings.as_ref().is_some_and(|settings| match one_by_one {
            true => has_orphans(&cx.view, reservations, settings),
            false => {
                let membership = self.membership.as_ref();
                is_stale(&cx.view, &available, settings, membership, rule, now)
            }
        });
        self.checked = Some(Checked { revision, one_by_one, rule, stale });
        stale
    }

    /// The steps that end the reservations of instances whose items a one-by-one resharding gives to others, before its
    /// first item.
    fn reservations_to_end(&self, cx: &Context) -> Transaction {
        let Some(progress) = self.progress.as_ref().filter(|one| one.plan.one_by_one && one.done == 0) else {
            return Transaction::new();
        };
        let moves = |(item, next): (Item, &InstanceId)| {
            let owner = &cx.view.item(item)?.owner.as_ref()?.instance;
            (owner != next && !cx.view.instances().contains_key(owner)).then_some(item)
        };
        end_reservations(cx, (0..).map(Item).zip(&progress.plan.owners).filter_map(moves))
    }

    /// The next transaction of the resharding in progress; with the reason, if it is one by ElasticJob's rules.
    fn sharding_transaction(
        &mut self,
        cx: &Context,
        liveness: &Liveness,
        at_once: Option<&AllAtOnceReason>,
    ) -> Transaction {
        let now = cx.now;
        let paths = &cx.identity.paths;
        let mut transaction = Transaction::new();
        if let Some(leader) = cx.view.leader() {
            transaction.push(Operation::Check { path: paths.leader(), version: Some(leader.version) });
        }
        if let Some(reason) = at_once {
            transaction.extend(reason.still_holds(paths, &cx.identity.own_paths));
            transaction.extend(cx.fleet.not_handed_over().filter(|_| !mutant!(HandoverUnseen)));
        }
        let version = cx.view.sharding_version();
        transaction.push(Operation::Set { path: paths.leader_sharding(), data: [].into(), version });
        if !cx.view.has_folder(Folder::Sharding) {
            transaction.push(Operation::create(paths.folder(Folder::Sharding), NodeKind::Persistent, ""));
        }
        let reservations = self.reservations_to_end(cx);
        let monitors = cx.settings.as_ref().is_some_and(|s| s.configuration.monitor_execution);
        let (fails_over, keeps_flag) = (cx.fails_over(), keeps_flag(cx));
        let bytes_max = cx.transaction_bytes;
        let Some(progress) = &mut self.progress else { return transaction };
        if !cx.view.necessary() {
            // The flag is raised with the first change and lowered with the last, so that a peer that sees the changes
            // one by one knows when they are complete; beside Java instances it is lowered later.
            transaction.push(Operation::create(paths.necessary(), NodeKind::Persistent, ""));
        }
        transaction.extend(reservations);
        let mut size: usize = transaction.iter().map(Operation::wire_size).sum();
        let surplus = cx.view.surplus(progress.plan.total);
        // The items of online owners are released first.
        let goes = |item: &Item| !progress.plan.one_by_one || cx.view.online_owner(*item).is_none();
        let beyond = surplus.filter(goes).map(|item| (item, None));
        let within = (0..).map(Item).zip(progress.plan.owners.iter().map(Some));
        let mut finished = true;
        progress.done_next = progress.done;
        for (item, owner) in within.chain(beyond).skip(progress.done) {
            let before = transaction.len();
            let view = cx.view.item(item);
            match owner {
                Some(owner) => {
                    let leftover = view.is_some_and(|view| is_leftover(liveness, view, now)) && !fails_over;
                    let keeps = progress.plan.one_by_one;
                    assign(&mut transaction, paths, view, item, owner, Rules { monitors, leftover, keeps });
                }
                None => remove_item(&mut transaction, paths, item, view),
            }
            size += transaction.iter().skip(before).map(Operation::wire_size).sum::<usize>();
            let full = size > bytes_max || mutant!(ShardingTorn);
            if full && progress.done_next > progress.done {
                transaction.truncate(before);
                finished = false;
                break;
            }
            progress.done_next += 1;
        }
        progress.finished_next = finished;
        if finished || mutant!(ShardingTorn) {
            if !keeps_flag {
                transaction.push(Operation::delete(paths.necessary()));
            }
            if cx.view.processing() {
                transaction.push(Operation::delete(paths.processing()));
            }
        }
        transaction
    }
}

/// The items that are to change hands or to be removed, and that an online instance executes.
fn moving_and_running(cx: &Context, liveness: &Liveness, executions: &Executions, plan: &Plan) -> Vec<Item> {
    let now = cx.now;
    let moves = |item: &Item| {
        let owner = cx.view.item(*item).and_then(|view| view.owner.as_ref());
        let next = usize::try_from(item.0).ok().and_then(|index| plan.owners.get(index));
        match plan.one_by_one {
            // The takeover of a dead owner's item does not hinder its next owner.
            true => next.is_none() && cx.view.online_owner(*item).is_none(),
            false => next.is_none() || owner.map(|owner| &owner.instance) != next,
        }
    };
    // The running node of a crashed instance is flagged for failover first, or else the resharding deletes it.
    let fails_over = cx.fails_over();
    let live = |item: &Item| {
        let leftover = |view| is_leftover(liveness, view, now);
        fails_over || !cx.view.item(*item).is_some_and(leftover)
    };
    let ours = executions.busy_items().filter(|_| cx.monitors());
    let running: BTreeSet<_> = cx.view.running().iter().copied().filter(live).chain(ours).collect();
    running.into_iter().filter(moves).filter(|_| !mutant!(ShardedWithoutWaiting)).collect()
}

/// Raises the flag, so that no instance starts items until the running ones have ended.
fn flag_resharding(cx: &Context, out: &mut Outbox) {
    if cx.view.necessary() || !out.may_commit(cx, Purpose::FlagResharding) {
        return;
    }
    let paths = &cx.identity.paths;
    // The raised version makes starts fail that were sent before the flag was seen.
    let transaction = vec![
        Operation::create(paths.necessary(), NodeKind::Persistent, ""),
        Operation::set(paths.leader_sharding(), ""),
    ];
    out.commit(Purpose::FlagResharding, transaction);
}

/// The rules for the assignment of one item.
#[derive(Clone, Copy)]
struct Rules {
    /// Whether executions have running nodes.
    monitors: bool,
    /// Whether an offline instance has left the running node, and no other instance will delete it (H4).
    leftover: bool,
    /// Whether the item stays as it is if its owner is right already.
    keeps: bool,
}

fn assign(
    transaction: &mut Transaction,
    paths: &JobPaths,
    known: Option<&ItemView>,
    item: Item,
    owner: &InstanceId,
    rules: Rules,
) {
    if known.is_none_or(|known| !known.exists) {
        transaction.push(Operation::create(paths.item(item), NodeKind::Persistent, ""));
    }
    if let Some(known) = known {
        if rules.keeps && known.owner.as_ref().is_some_and(|before| before.instance == *owner) {
            return;
        }
        if let Some(before) = &known.owner {
            let (path, version) = (paths.item_instance(item), Some(before.version));
            transaction.push(Operation::Delete { path, version });
            let guarded = rules.monitors && !mutant!(ShardedWithoutGuard);
            if guarded && before.instance != *owner && known.running.is_none() {
                // Fails if the item has begun to run in the meantime; then no node changes.
                let running = paths.item_running(item);
                transaction.push(Operation::create(running.clone(), NodeKind::Ephemeral, ""));
                transaction.push(Operation::delete(running));
            }
        }
        if let Some(running) = known.running.as_ref().filter(|_| rules.leftover) {
            transaction.push(Operation::Delete { path: paths.item_running(item), version: running.version });
        }
    }
    transaction.push(Operation::create(paths.item_instance(item), NodeKind::Persistent, owner.as_str()));
}

fn remove_item(transaction: &mut Transaction, paths: &JobPaths, item: Item, view: Option<&ItemView>) {
    let Some(view) = view else { return };
    let present = [
        (view.owner.is_some(), "instance"),
        (view.running.is_some(), "running"),
        (view.misfire, "misfire"),
        (view.disabled, "disabled"),
        (view.failover.is_some(), "failover"),
        (view.failovering.is_some(), "failovering"),
    ];
    let known = present.into_iter().filter(|(present, _)| *present).map(|(_, name)| name);
    for name in known.chain(view.others.iter().map(String::as_str)) {
        transaction.push(Operation::delete(paths.item_child(item, name)));
    }
    if view.exists {
        transaction.push(Operation::delete(paths.item(item)));
    }
}

/// Whether items have no owner that is online or has a reservation, or there are too many items.
fn has_orphans(view: &JobView, reservations: &Reservations, settings: &Settings) -> bool {
    let total = settings.configuration.sharding_total_count;
    let surplus = view.surplus(total).any(|item| view.online_owner(item).is_none());
    let is_orphan = |item| {
        let owner = view.item(item).and_then(|item| item.owner.as_ref());
        owner.is_none_or(|owner| {
            let id = &owner.instance;
            !view.instances().contains_key(id) && reservations.stays_with(id).is_none()
        })
    };
    !view.available().is_empty() && (surplus || settings.items().any(is_orphan))
}

fn is_stale(
    view: &JobView,
    available: &[InstanceId],
    settings: &Settings,
    membership: Option<&(Vec<InstanceId>, u32)>,
    rule: Rule,
    now: Now,
) -> bool {
    let configuration = &settings.configuration;
    let total = configuration.sharding_total_count;
    if available.is_empty() {
        return false;
    }
    let surplus = view.surplus(total).next().is_some();
    let owner =
        |item: Item| view.item(item).and_then(|item| item.owner.as_ref()).map(|owner| &owner.instance);
    if configuration.static_sharding && view.items().next().is_some() {
        return surplus || settings.items().any(|item| view.item(item).is_none_or(|item| !item.exists));
    }
    if surplus {
        return true;
    }
    if settings.strategy == ShardingStrategy::SingleShardingBalance {
        let joined = membership.is_some_and(|(members, _)| *members != *available);
        let orphan = |item| owner(item).is_none_or(|owner| !available.contains(owner));
        return joined || settings.items().any(orphan);
    }
    let owners = owners(settings, available, rule, now);
    settings.items().zip(&owners).any(|(item, should)| owner(item) != Some(should))
}
