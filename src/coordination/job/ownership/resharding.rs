//! Who owns what? The leader compares the assignment with what the strategy says, and divides the items anew when
//! they differ or somebody asks for it (protocol 4, 5; P1, P7).
//!
//! One transaction does all of it (split only where the server's size limit forces it). It fails, and is thought over
//! again, if we lead no more, if somebody else has sharded, or if an item that moves has begun to run meanwhile.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::frame::phase::{Phase, Session};
use crate::coordination::job::membership::liveness::is_leftover;
use crate::coordination::job::ownership::allocation::Rule;
use crate::coordination::job::ownership::former_rule;
use crate::coordination::job::ownership::handoff::{Mode, StockReason};
use crate::coordination::job::ownership::reservation::Absences;
use crate::coordination::job::participant::Participant;
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::job::picture::nodes::ItemView;
use crate::coordination::job::picture::settings::Settings;
use crate::coordination::time::Now;
use crate::elasticjob::path::{Folder, JobPaths};
use crate::elasticjob::strategy;
use crate::job::{InstanceId, Item, Problem, ShardingStrategy};
use crate::mutants::mutant;
use crate::tree::{NodeKind, Operation, Transaction};

/// How long a resharding may wait for executions before that is reported as a problem.
const WAIT_REPORTED_AFTER: Duration = Duration::from_secs(10);

/// What a division was made from, and what came out: for each item its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    available: Vec<InstanceId>,
    total: u32,
    /// Whether only what has no owner online is assigned; the rest is handed over.
    gentle: bool,
    owners: Vec<InstanceId>,
}

impl Plan {
    fn is_for(&self, available: &[InstanceId], total: u32, gentle: bool) -> bool {
        self.available == available && self.total == total && self.gentle == gentle
    }
}

/// A division that takes several transactions.
#[derive(Debug)]
struct Progress {
    plan: Plan,
    /// How many items are done.
    done: usize,
    /// How many will be when the commit in flight has ended well.
    done_next: usize,
    finished_next: bool,
}

/// A look at the assignment.
#[derive(Debug, Clone, Copy)]
struct Checked {
    /// The view's and the absences'.
    revision: (u64, u64),
    gentle: bool,
    rule: Rule,
    /// Whether the assignment differed from that of the strategy.
    stale: bool,
}

/// The leader's memory of shardings.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Sharding {
    progress: Option<Progress>,
    /// Instances and total count of the last sharding that we made; strategies with a clock cannot be compared.
    membership: Option<(Vec<InstanceId>, u32)>,
    /// What the last look at the assignment found.
    checked: Option<Checked>,
    wait: Wait,
}

/// A resharding that waits.
#[derive(Debug, Default)]
struct Wait {
    /// Since when one has been flagged, as far as we have seen; by whomever, and whoever led.
    flagged_since: Option<Duration>,
    /// For which items, while we lead.
    items: Vec<Item>,
    since: Option<Duration>,
    report: bool,
}

impl Sharding {
    /// Our transaction has taken effect.
    pub(in crate::coordination) fn committed(&mut self) {
        if let Some(mut progress) = self.progress.take() {
            if progress.finished_next {
                self.membership = Some((progress.plan.available, progress.plan.total));
            } else {
                progress.done = progress.done_next;
                self.progress = Some(progress);
            }
        }
    }

    /// Somebody else leads, or may: what is flagged is.
    pub(in crate::coordination) fn forget(&mut self) {
        let flagged_since = self.wait.flagged_since;
        *self = Self { wait: Wait { flagged_since, ..Wait::default() }, ..Self::default() };
    }

    /// Nothing is known for a moment: what is to be done is thought over then, and what waited waits.
    fn pause(&mut self) {
        *self = Self { wait: std::mem::take(&mut self.wait), ..Self::default() };
    }

    /// Our transaction has failed: think it over from the start.
    pub(in crate::coordination) fn failed(&mut self) {
        self.progress = None;
        self.checked = None;
    }

    /// Other instances than before may be given items: the leader decides again whether a division is due.
    pub(in crate::coordination) fn look_again(&mut self) {
        self.checked = None;
    }

    /// What is wrong, if a resharding has waited for long.
    pub(in crate::coordination) fn problem(&self, paths: &JobPaths) -> Option<Problem> {
        self.wait.report.then(|| Problem {
            path: paths.necessary(),
            message: format!(
                "a resharding waits for items {:?}, which are being executed; nothing starts until they end",
                self.wait.items
            ),
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
}

impl Participant {
    /// Divides the items, if we lead and it is due.
    pub(in crate::coordination) fn shard(&mut self) {
        let now = self.cx.now;
        if !self.cx.view.is_loaded() || matches!(self.cx.session, Session::Suspended(_)) {
            return self.sharding.pause();
        }
        let since = self.sharding.wait.flagged_since.unwrap_or(now.mono);
        self.sharding.wait.flagged_since = self.cx.view.necessary().then_some(since);
        let leads = self.cx.is_registered() && self.cx.is_leader() && self.cx.is_enabled();
        if !leads || !matches!(self.cx.phase, Phase::Active | Phase::Away { .. } | Phase::Draining { .. }) {
            self.sharding.forget();
            return;
        }
        let at_once = match self.handoff_mode() {
            Mode::Gentle => None,
            Mode::Stock(reason) => Some(reason),
            Mode::Undecided(_) => return,
        };
        let gentle = at_once.is_none();
        let in_flight = self.out.is_in_flight(Purpose::Shard);
        let begun = in_flight || self.sharding.progress.as_ref().is_some_and(|progress| progress.done > 0);
        let asked = self.cx.view.necessary() && (gentle || !self.is_flag_answered());
        if !asked && !begun && !self.is_stale(gentle) {
            // One that had to wait may not be needed any more.
            self.sharding.progress = None;
            self.sharding.wait_for(now.mono, Vec::new());
            self.lower_flag();
            return;
        }
        let kept = if gentle { self.owners_at_once() } else { Vec::new() };
        let Some(settings) = &self.cx.settings else { return };
        let available = self.cx.assignable();
        let total = settings.configuration.sharding_total_count;
        if available.is_empty() || in_flight {
            return;
        }
        let plan = match self.sharding.progress.take() {
            Some(mut progress) if progress.plan.is_for(&available, total, gentle) => {
                if gentle {
                    // Items may have been handed over since.
                    progress.plan.owners = kept;
                }
                progress
            }
            Some(_) | None => {
                let rule = former_rule::rule(&self.cx.view, &self.cx.fleet);
                let owners = if gentle { kept } else { owners(settings, &available, rule, now) };
                let plan = Plan { available, total, gentle, owners };
                Progress { plan, done: 0, done_next: 0, finished_next: false }
            }
        };
        if self.waits_for_fire(&plan.plan.owners) {
            return;
        }
        let waiting_for = self.moving_and_running(&plan.plan);
        let must_wait = !waiting_for.is_empty();
        self.sharding.wait_for(now.mono, waiting_for);
        self.sharding.progress = Some(plan);
        if must_wait {
            for item in self.sharding.wait.items.clone() {
                self.executions.suspect(&self.cx, item);
            }
            self.sharding.progress = None;
            self.flag_resharding();
        } else if self.out.may_commit(&self.cx, Purpose::Shard) {
            let transaction = self.sharding_transaction(at_once.as_ref());
            self.out.commit(Purpose::Shard, transaction);
        }
    }

    /// Whether the assignment is not what it should be. Looks only when something that matters has changed.
    fn is_stale(&mut self, gentle: bool) -> bool {
        let now = self.cx.now;
        let revision = (self.cx.view.membership_revision(), self.absences.revision());
        let rule = former_rule::rule(&self.cx.view, &self.cx.fleet);
        if let Some(checked) = self.sharding.checked
            && ((checked.revision, checked.gentle, checked.rule) == (revision, gentle, rule)
                || mutant!(MembershipComparedOnce))
        {
            return checked.stale;
        }
        let available = self.cx.assignable();
        let stale = self.cx.settings.as_ref().is_some_and(|settings| match gentle {
            true => has_orphans(&self.cx.view, &self.absences, settings),
            false => {
                let membership = self.sharding.membership.as_ref();
                is_stale(&self.cx.view, &available, settings, membership, rule, now)
            }
        });
        self.sharding.checked = Some(Checked { revision, gentle, rule, stale });
        stale
    }

    /// The items that are to change hands or to vanish, and are being executed by somebody who is online.
    fn moving_and_running(&self, plan: &Plan) -> Vec<Item> {
        let now = self.cx.now;
        let moves = |item: &Item| {
            let owner = self.cx.view.item(*item).and_then(|view| view.owner.as_ref());
            let next = usize::try_from(item.0).ok().and_then(|index| plan.owners.get(index));
            match plan.gentle {
                // Who takes over what a dead owner left does not hinder its next owner.
                true => next.is_none() && self.cx.view.online_owner(*item).is_none(),
                false => next.is_none() || owner.map(|owner| &owner.instance) != next,
            }
        };
        // What a crashed instance left is flagged for failover first, or else deleted by the sharding itself.
        let fails_over = self.cx.fails_over();
        let live = |item: &Item| {
            let leftover = |view| is_leftover(&self.crash, view, now);
            fails_over || !self.cx.view.item(*item).is_some_and(leftover)
        };
        let ours = self.executions.busy_items().filter(|_| self.cx.monitors());
        let running: BTreeSet<_> = self.cx.view.running().iter().copied().filter(live).chain(ours).collect();
        running.into_iter().filter(moves).filter(|_| !mutant!(ShardedWithoutWaiting)).collect()
    }

    /// Makes everybody hold still until the running items have ended.
    fn flag_resharding(&mut self) {
        if self.cx.view.necessary() || !self.out.may_commit(&self.cx, Purpose::FlagResharding) {
            return;
        }
        let paths = &self.cx.identity.paths;
        // Raising the version makes starts fail that were sent before the flag was seen.
        let transaction = vec![
            Operation::create(paths.necessary(), NodeKind::Persistent, ""),
            Operation::set(paths.leader_sharding(), ""),
        ];
        self.out.commit(Purpose::FlagResharding, transaction);
    }

    /// The steps that end the waiting for those whose items a gentle division gives to others, before its first item.
    fn absences_to_end(&self) -> Transaction {
        let Some(progress) = self.sharding.progress.as_ref().filter(|one| one.plan.gentle && one.done == 0)
        else {
            return Transaction::new();
        };
        let moves = |(item, next): (Item, &InstanceId)| {
            let owner = &self.cx.view.item(item)?.owner.as_ref()?.instance;
            (owner != next && !self.cx.view.instances().contains_key(owner)).then_some(item)
        };
        self.end_absences((0..).map(Item).zip(&progress.plan.owners).filter_map(moves))
    }

    /// The next transaction of the division in progress; with the reason, if it is one by ElasticJob's rules.
    fn sharding_transaction(&mut self, at_once: Option<&StockReason>) -> Transaction {
        let now = self.cx.now;
        let paths = &self.cx.identity.paths;
        let mut transaction = Transaction::new();
        if let Some(leader) = self.cx.view.leader() {
            transaction.push(Operation::Check { path: paths.leader(), version: Some(leader.version) });
        }
        if let Some(reason) = at_once {
            transaction.extend(reason.still_holds(paths));
            transaction.extend(self.cx.fleet.not_handed_over().filter(|_| !mutant!(HandoverUnseen)));
        }
        let version = self.cx.view.sharding_version();
        transaction.push(Operation::Set { path: paths.leader_sharding(), data: [].into(), version });
        if !self.cx.view.has_folder(Folder::Sharding) {
            transaction.push(Operation::create(paths.folder(Folder::Sharding), NodeKind::Persistent, ""));
        }
        let absences = self.absences_to_end();
        let monitors = self.cx.settings.as_ref().is_some_and(|s| s.configuration.monitor_execution);
        let (fails_over, keeps_flag) = (self.cx.fails_over(), self.keeps_flag());
        let bytes_max = self.cx.transaction_bytes;
        let Some(progress) = &mut self.sharding.progress else { return transaction };
        if !self.cx.view.necessary() {
            // The flag goes up with the first change and down with the last, so that whoever sees the changes one by
            // one knows when they are complete; beside Java instances some time later.
            transaction.push(Operation::create(paths.necessary(), NodeKind::Persistent, ""));
        }
        transaction.extend(absences);
        let mut size: usize = transaction.iter().map(Operation::wire_size).sum();
        let surplus = self.cx.view.items().range(Item(progress.plan.total)..).map(|(item, _)| *item);
        // What somebody online has is given up first.
        let goes = |item: &Item| !progress.plan.gentle || self.cx.view.online_owner(*item).is_none();
        let beyond = surplus.filter(goes).map(|item| (item, None));
        let within = (0..).map(Item).zip(progress.plan.owners.iter().map(Some));
        let mut finished = true;
        progress.done_next = progress.done;
        for (item, owner) in within.chain(beyond).skip(progress.done) {
            let before = transaction.len();
            let view = self.cx.view.item(item);
            match owner {
                Some(owner) => {
                    let leftover =
                        view.is_some_and(|view| is_leftover(&self.crash, view, now)) && !fails_over;
                    let keeps = progress.plan.gentle;
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
            if self.cx.view.processing() {
                transaction.push(Operation::delete(paths.processing()));
            }
        }
        transaction
    }
}

/// What is to be observed when an item is assigned.
#[derive(Clone, Copy)]
struct Rules {
    /// Executions have running nodes.
    monitors: bool,
    /// The running node is of somebody who is gone, and nobody else will delete it (H4).
    leftover: bool,
    /// What is right already stays as it is.
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
                // Fails if the item has begun to run meanwhile; leaves nothing.
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

/// Who is to own each item by the job's strategy.
pub(in crate::coordination) fn owners(
    settings: &Settings,
    available: &[InstanceId],
    rule: Rule,
    now: Now,
) -> Vec<InstanceId> {
    let configuration = &settings.configuration;
    let total = configuration.sharding_total_count;
    let now_ms = now.wall.as_millisecond();
    let shares = match (settings.strategy, rule) {
        (ShardingStrategy::ConsistentHash, Rule::Former) => former_rule::consistent_hash(settings, available),
        (strategy, _) => strategy::allocate(strategy, &configuration.job_name, total, available, now_ms),
    };
    let mut owners: Vec<_> = shares
        .into_iter()
        .flat_map(|(id, items)| items.into_iter().map(move |item| (item, id.clone())))
        .collect();
    owners.sort();
    owners.into_iter().map(|(_, id)| id).collect()
}

/// Whether items have no owner that is online or waited for, or there are too many.
fn has_orphans(view: &JobView, absences: &Absences, settings: &Settings) -> bool {
    let total = Item(settings.configuration.sharding_total_count);
    let surplus = view.items().range(total..).any(|(item, _)| view.online_owner(*item).is_none());
    let is_orphan = |item| {
        let owner = view.item(item).and_then(|item| item.owner.as_ref());
        owner.is_none_or(|owner| {
            let id = &owner.instance;
            !view.instances().contains_key(id) && absences.stays_with(id).is_none()
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
    let surplus = view.items().range(Item(total)..).next().is_some();
    let owner =
        |item: Item| view.item(item).and_then(|item| item.owner.as_ref()).map(|owner| &owner.instance);
    if configuration.static_sharding && !view.items().is_empty() {
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
