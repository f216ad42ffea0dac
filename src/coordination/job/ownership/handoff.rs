//! How do items change hands? When everybody is a sidecar, gently: the leader writes down which items are to go where,
//! each owner lets go of its own when it executes them no more, and gives them on itself; nobody else waits (P1, P2).
//! With a Java instance in the job, by ElasticJob's rules: all at once, in [`crate::coordination::job::ownership::resharding`].
//!
//! Decides which of the two is in force, what the leader plans, and when an owner lets go. An item always has an owner:
//! the old one until the transaction that makes it the new one's. What nobody online owns is not handed over but
//! assigned, as by any sharding.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::phase::{Phase, Session};
use crate::coordination::job::ownership::allocation::{Held, Member, Rule, self};
use crate::coordination::job::ownership::reservation::Absences;
use crate::coordination::job::ownership::{former_rule, resharding};
use crate::coordination::job::participant::Participant;
use crate::coordination::job::picture::fleet_view::{FleetView, HandoffPlan, Profile};
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::job::picture::nodes::ItemView;
use crate::coordination::job::picture::settings::Settings;
use crate::coordination::time::Now;
use crate::elasticjob::handoff_policy::Handoff as Policy;
use crate::elasticjob::path::JobPaths;
use crate::elasticjob::{java, rendezvous};
use crate::job::{FencingToken, Generation, InstanceId, Item, ShardingStrategy};
use crate::mutants::mutant;
use crate::tree::{NodeKind, Operation, Transaction};

/// How long an instance may be online before it has said what it can. It does so right after it has registered; who is
/// silent for longer is no sidecar that hands items over.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// By which rules items change hands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// One by one, each when its owner lets go.
    Gentle,
    /// All at once, as in ElasticJob; why.
    Stock(StockReason),
    /// These have not said yet what they can.
    Undecided(InstanceId),
}

/// Why items change hands all at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StockReason {
    /// The job's configuration asks for it.
    Configured(&'static str),
    /// This instance is ElasticJob's own.
    Java(InstanceId),
    /// This instance does not say how it hands items over.
    Silent(InstanceId),
}

impl StockReason {
    /// The steps that fail if this is no reason any more: a division may take effect seconds after it was decided.
    pub(in crate::coordination) fn still_holds(&self, paths: &JobPaths) -> Transaction {
        let is_there = |id| Operation::Check { path: paths.instance(id), version: None };
        match self {
            Self::Configured(_) => Transaction::new(),
            Self::Java(id) => vec![is_there(id)],
            Self::Silent(_) if mutant!(SilenceNotChecked) => Transaction::new(),
            Self::Silent(id) => {
                // Fails if it has spoken; leaves nothing.
                let word = paths.fleet().member(id);
                let speak = Operation::create(word.clone(), NodeKind::Ephemeral, "");
                vec![is_there(id), speak, Operation::delete(word)]
            }
        }
    }
}

impl fmt::Display for StockReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configured(reason) => f.write_str(reason),
            Self::Java(id) => write!(f, "instance {id} is ElasticJob's own"),
            Self::Silent(id) => write!(f, "instance {id} does not say how it hands items over"),
        }
    }
}

impl Mode {
    /// What the nodes of a job say.
    pub fn of(view: &JobView, fleet: &FleetView, settings: &Settings) -> Self {
        if settings.handoff.handoff == Policy::Off {
            return Self::Stock(StockReason::Configured("`sidekeeper.handoff` is `off`"));
        }
        if settings.configuration.static_sharding {
            let reason = "the job's first assignment stays for good (`staticSharding`)";
            return Self::Stock(StockReason::Configured(reason));
        }
        if settings.strategy == ShardingStrategy::SingleShardingBalance {
            return Self::Stock(StockReason::Configured("the job's single item walks over the servers"));
        }
        if view.has_java_instances()
            && let Some(java) = view.instances().keys().find(|id| id.is_java())
        {
            return Self::Stock(StockReason::Java(java.clone()));
        }
        fleet.first_silent(view.instances().keys()).cloned().map_or(Self::Gentle, Self::Undecided)
    }
}

/// An item that was taken from the application and not given to the next owner yet.
#[derive(Debug)]
struct Revoked {
    since: Duration,
    /// With which generation the application was told.
    told: Generation,
}

/// What a participant remembers of handing over. None of it is needed to be right.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Handoff {
    undecided_since: Option<Duration>,
    /// Who should own each item, and for which state of the job that was worked out.
    targets: Option<((u64, u64, u64), Vec<InstanceId>)>,
    revoked: BTreeMap<Item, Revoked>,
    /// Items that we have given to others, with the tokens under which they were ours. They are not ours any more, also
    /// when the plan is seen to be gone before the items are seen to have others.
    given: BTreeMap<Item, FencingToken>,
    /// Whether it is not known if the last request to give items has taken effect.
    in_doubt: bool,
    deadline: Option<Duration>,
}

impl Handoff {
    /// The items that are ours until the next owner has them, though the application was told to let go.
    pub(in crate::coordination) fn revoked_items(&self) -> impl Iterator<Item = Item> + '_ {
        self.revoked.keys().copied()
    }

    /// Whether we have given an item to somebody else, and do not see it yet.
    pub(in crate::coordination) fn is_given(&self, cx: &Context, item: Item) -> bool {
        let owner = cx.view.item(item).and_then(|view| view.owner.as_ref());
        let given = self.given.get(&item).filter(|_| !mutant!(GivenForgotten));
        owner.is_some_and(|owner| given == Some(&owner.token))
    }

    /// The request to give items has failed. If it is not known whether it took effect, the next snapshot tells.
    pub(in crate::coordination) fn give_failed(&mut self) {
        self.in_doubt = true;
    }

    /// What is known of the others is old: who was silent may have spoken since.
    pub(in crate::coordination) fn look_again(&mut self) {
        self.undecided_since = None;
    }

    /// When silence becomes an answer, or an item goes whatever its owner does.
    pub(in crate::coordination) fn next_retry(&self, now: Duration) -> Option<Duration> {
        let silence = self.undecided_since.map(|since| since.saturating_add(SILENCE_MAX));
        [silence, self.deadline].into_iter().flatten().filter(|at| *at > now).min()
    }
}

impl Participant {
    /// By which rules items change hands now.
    pub(in crate::coordination) fn handoff_mode(&mut self) -> Mode {
        let now = self.cx.now;
        let Some(settings) = &self.cx.settings else {
            return Mode::Stock(StockReason::Configured("the job's configuration is not known"));
        };
        let mode = Mode::of(&self.cx.view, &self.cx.fleet, settings);
        let Mode::Undecided(silent) = mode else {
            self.handoff.undecided_since = None;
            return mode;
        };
        let since = *self.handoff.undecided_since.get_or_insert(now.mono);
        if now.mono < since.saturating_add(SILENCE_MAX) {
            return Mode::Undecided(silent);
        }
        Mode::Stock(StockReason::Silent(silent))
    }

    /// Who should own each item in the end, if items change hands gently.
    pub(in crate::coordination) fn targets(&mut self) -> Vec<InstanceId> {
        let now = self.cx.now;
        let state = (self.cx.view.membership_revision(), self.cx.fleet.revision(), self.absences.revision());
        if let Some((known, targets)) = &self.handoff.targets
            && *known == state
        {
            return targets.clone();
        }
        let Some(settings) = &self.cx.settings else { return Vec::new() };
        let targets = targets(&self.cx.view, &self.cx.fleet, &self.absences, settings, now);
        self.handoff.targets = Some((state, targets.clone()));
        targets
    }

    /// Who is to own each item at once: who does, if it is online or waited for; else who should in the end.
    pub(in crate::coordination) fn owners_at_once(&mut self) -> Vec<InstanceId> {
        let targets = self.targets();
        let owner = |(item, target): (u32, &InstanceId)| {
            let owner = self.cx.view.item(Item(item)).and_then(|view| view.owner.as_ref());
            let online = owner.filter(|owner| {
                self.cx.view.instances().contains_key(&owner.instance)
                    || self.absences.stays_with(&owner.instance).is_some()
            });
            online.map_or_else(|| target.clone(), |owner| owner.instance.clone())
        };
        (0..).zip(&targets).map(owner).collect()
    }

    /// Writes down which items are to change hands, if we lead.
    pub(in crate::coordination) fn plan_handoff(&mut self) {
        let leads = self.cx.is_registered() && self.cx.is_leader() && self.cx.is_enabled();
        if !leads
            || !matches!(self.cx.phase, Phase::Active | Phase::Away { .. } | Phase::Draining { .. })
            || self.cx.view.is_resharding()
        {
            return;
        }
        let mode = self.handoff_mode();
        let wanted = match mode {
            Mode::Gentle => self.moves(),
            Mode::Stock(_) => BTreeMap::new(),
            Mode::Undecided(_) => return,
        };
        let Session::Connected(session) = self.cx.session else { return };
        let path = self.cx.identity.paths.fleet().handoff();
        let mut transaction = Transaction::new();
        if let Some(leader) = self.cx.view.leader() {
            transaction.push(Operation::Check {
                path: self.cx.identity.paths.leader(),
                version: Some(leader.version),
            });
        }
        let data = HandoffPlan::write(&wanted);
        match self.cx.fleet.plan() {
            None if wanted.is_empty() => return,
            Some(plan) if plan.targets == wanted && !wanted.is_empty() && plan.session == Some(session) => {
                return;
            }
            Some(plan) if plan.session == Some(session) && !wanted.is_empty() => {
                let version = Some(plan.version);
                transaction.push(Operation::Set { path, data: data.as_bytes().into(), version });
            }
            plan => {
                // One of an earlier leader is ephemeral in its session; ours has to be in ours.
                let version = plan.map(|plan| plan.version);
                transaction.extend(plan.map(|_| Operation::Delete { path: path.clone(), version }));
                if !wanted.is_empty() {
                    transaction.push(Operation::create(path, NodeKind::Ephemeral, data));
                }
            }
        }
        if self.out.may_commit(&self.cx, Purpose::PlanHandoff) {
            self.out.commit(Purpose::PlanHandoff, transaction);
        }
    }

    /// The items that are with one instance that is online, and should be with another, or with nobody.
    fn moves(&mut self) -> BTreeMap<Item, Option<InstanceId>> {
        let targets = self.targets();
        let total = self.cx.settings.as_ref().map_or(u32::MAX, |s| s.configuration.sharding_total_count);
        let surplus = self.cx.view.items().range(Item(total)..).map(|(item, _)| (*item, None));
        let moves = |(item, target): &(Item, Option<InstanceId>)| {
            let owner = self.cx.view.online_owner(*item);
            owner.is_some_and(|owner| target.as_ref() != Some(owner))
        };
        (0..).map(Item).zip(targets.into_iter().map(Some)).chain(surplus).filter(moves).collect()
    }

    /// Whether an item of ours is to be somebody else's, so that the application is to let go of it. Not while it is
    /// being started: the application is told in the order in which things happen; nor while nobody can be told.
    pub(in crate::coordination) fn is_revoked(&self, item: Item) -> bool {
        if self.handoff.is_given(&self.cx, item) {
            return true;
        }
        if self.is_deaf() {
            return false;
        }
        self.cx.fleet.is_to_leave(item, &self.cx.identity.instance) && !self.executions.is_starting(item)
    }

    /// Whether nobody can tell the application to let go of what it works on. Who leaves without a stream gives away
    /// what it does not execute, unless the application works on it without that.
    fn is_deaf(&self) -> bool {
        let deaf = self.cx.unattended.is_some() && self.cx.is_continuous();
        deaf || matches!(self.cx.phase, Phase::Away { .. })
    }

    /// Forgets what was given as soon as it is seen, or seen not to have taken effect.
    pub(in crate::coordination) fn forget_given(&mut self) {
        if !self.cx.view.is_loaded() {
            return;
        }
        if std::mem::take(&mut self.handoff.in_doubt) {
            self.handoff.given.clear();
            self.told.look_again();
        }
        let mut given = std::mem::take(&mut self.handoff.given);
        let ours = |item: &Item, token: &FencingToken| {
            let owner = self.cx.view.item(*item).and_then(|view| view.owner.as_ref());
            owner.is_some_and(|owner| owner.token == *token)
        };
        given.retain(|item, token| ours(item, token));
        self.handoff.given = given;
    }

    /// The latest plan that takes an item from us, as a generation.
    pub(in crate::coordination) fn revocation(&self) -> Option<Generation> {
        let plan = self.cx.fleet.plan()?;
        let mine = |item: &Item| {
            let owner = self.cx.view.item(*item).and_then(|view| view.owner.as_ref());
            owner.is_some_and(|owner| owner.instance == self.cx.identity.instance)
        };
        plan.targets
            .keys()
            .any(|item| mine(item) && self.is_revoked(*item))
            .then_some(Generation(plan.changed))
    }

    /// Gives items that are to be somebody else's to whom they are to go, as soon as the application is done with them.
    pub(in crate::coordination) fn release(&mut self) {
        let now = self.cx.now;
        self.handoff.deadline = None;
        if self.is_deaf() {
            self.handoff.revoked.clear();
            return;
        }
        let (Some(plan), Some(settings)) = (self.cx.fleet.plan().cloned(), &self.cx.settings) else {
            self.handoff.revoked.clear();
            return;
        };
        let (policy, patience) = (settings.handoff.handoff, settings.handoff.deadline);
        let told: BTreeSet<Item> = self
            .cx
            .assigned
            .assignment
            .iter()
            .flat_map(|told| &told.items)
            .map(|assigned| assigned.item)
            .collect();
        let mut transaction = Transaction::new();
        let mut targets = BTreeSet::new();
        let mut given = BTreeMap::new();
        let mut kept = BTreeMap::new();
        let mut size = 0;
        for (item, target) in &plan.targets {
            let owner = self.cx.view.item(*item).and_then(|view| view.owner.as_ref());
            let Some(owner) = owner.filter(|owner| owner.instance == self.cx.identity.instance) else {
                continue;
            };
            if target.as_ref() == Some(&self.cx.identity.instance) || told.contains(item) {
                continue;
            }
            let generation = self.cx.assigned.generation();
            let known = self.handoff.revoked.remove(item);
            let revoked = known.unwrap_or(Revoked { since: now.mono, told: generation });
            let due = revoked.since.saturating_add(patience);
            let acknowledged = policy != Policy::Drained
                || self.cx.assigned.acknowledged >= revoked.told
                || mutant!(AcknowledgementIgnored);
            let done = acknowledged && (!self.executions.has_open(*item) || mutant!(HandedOverWhileBusy));
            if (done || now.mono >= due) && size < self.cx.transaction_bytes {
                let path = self.cx.identity.paths.item_instance(*item);
                let before = transaction.len();
                match target {
                    Some(target) if mutant!(HandedOverWithSameToken) => {
                        transaction.push(Operation::set(path, target.as_str()));
                    }
                    target => {
                        let version = Some(owner.version);
                        transaction.push(Operation::Delete { path: path.clone(), version });
                        let target = target.as_ref();
                        transaction.extend(
                            target.map(|id| Operation::create(path, NodeKind::Persistent, id.as_str())),
                        );
                    }
                }
                size += transaction.iter().skip(before).map(Operation::wire_size).sum::<usize>();
                targets.extend(target);
                given.insert(*item, owner.token);
            } else if !done {
                self.handoff.deadline = Some(self.handoff.deadline.map_or(due, |known| known.min(due)));
            }
            kept.insert(*item, revoked);
        }
        self.handoff.revoked = kept;
        // What was just renewed has the version under which it was the name's before: it must be seen first.
        let writes = [Purpose::Start, Purpose::FlagMisfire, Purpose::Renew];
        let writes = writes.map(|purpose| self.out.is_in_flight(purpose));
        let ready = self.cx.is_registered() && !writes.contains(&true) && !mutant!(NeverHandedOver);
        if transaction.is_empty() || !ready || !self.out.may_commit(&self.cx, Purpose::HandOff) {
            return;
        }
        // Only as long as it is the leader's will, we are there, and so is who gets them: what somebody had who has left is
        // divided anew, by who may not have seen to whom it was given. A division that we have not seen makes the
        // items somebody else's, under the same version of their nodes: they are new.
        let (path, version) = (self.cx.identity.paths.fleet().handoff(), Some(plan.version));
        let mut steps = vec![Operation::Check { path, version }];
        steps.extend(self.cx.undivided());
        let present = |id| Operation::Check { path: self.cx.identity.paths.instance(id), version: None };
        steps.extend([&self.cx.identity.instance].into_iter().chain(targets).map(present));
        steps.push(self.cx.fleet.handed_over());
        steps.extend(transaction);
        self.handoff.given = given;
        self.out.commit(Purpose::HandOff, steps);
    }

    /// Whether a departure waits until others have our items.
    pub(in crate::coordination) fn hands_over(&mut self) -> bool {
        let now = self.cx.now;
        if !self.announcement.waits(now.mono) || !self.cx.is_registered() {
            return false;
        }
        let me = &self.cx.identity.instance;
        let owns = |view: &ItemView| view.owner.as_ref().is_some_and(|owner| owner.instance == *me);
        let stays = |id: &InstanceId| self.cx.fleet.member(id).is_some_and(|member| !member.profile.leaving);
        self.cx.view.items().values().any(owns)
            && self.cx.view.available().iter().any(|id| id != me && stays(id))
            && self.handoff_mode() == Mode::Gentle
    }
}

/// Who should own each item, if items change hands gently.
fn targets(
    view: &JobView,
    fleet: &FleetView,
    absences: &Absences,
    settings: &Settings,
    now: Now,
) -> Vec<InstanceId> {
    let mut there = view.available();
    let leaving = |id: &InstanceId| fleet.member(id).is_some_and(|member| member.profile.leaving);
    if !there.iter().all(leaving) {
        there.retain(|id| !leaving(id));
    }
    if there.is_empty() {
        return there;
    }
    // Who has no stream keeps what it has, and gets nothing new that nobody would execute.
    let is_away = |id: &InstanceId| fleet.member(id).is_some_and(|member| member.profile.away);
    let (mut away, mut present): (Vec<_>, Vec<_>) = there.into_iter().partition(is_away);
    if present.is_empty() {
        // Every item has an owner all the same.
        present = std::mem::take(&mut away);
    }
    let there = present;
    let mut everybody: Vec<_> = there.iter().chain(&away).chain(absences.away(view)).cloned().collect();
    java::sort_descending(&mut everybody);
    let places: BTreeMap<_, _> = everybody.iter().zip(0..).collect();
    let member = |id: &InstanceId| {
        let Profile { weight, labels, .. } = fleet.profile(id).cloned().unwrap_or_default();
        let absent = away.contains(id) || !view.instances().contains_key(id);
        let draw = rendezvous::draw(&settings.configuration.job_name, rendezvous::member_name(id));
        Member { weight, labels, draw, absent }
    };
    let members: Vec<_> = everybody.iter().map(member).collect();
    let place = |id: &InstanceId| {
        let id = if view.instances().contains_key(id) { id } else { absences.stays_with(id)? };
        places.get(id).copied()
    };
    let owner = |item| view.item(item).and_then(|view| view.owner.as_ref());
    let held: Vec<_> = settings
        .items()
        .map(|item| Held {
            owner: owner(item).and_then(|owner| place(&owner.instance)),
            since: owner(item).map_or(0, |owner| owner.token.0),
            label: settings.handoff.item_labels.get(&item).cloned(),
        })
        .collect();
    let rule = former_rule::rule(view, fleet);
    let formerly = rule == Rule::Former && former_rule::begins_as_elasticjob(settings, &held, &members);
    let owners = if settings.names_strategy() || formerly {
        let choose = |ids: &[InstanceId]| -> Vec<usize> {
            let owners = resharding::owners(settings, ids, rule, now);
            owners.iter().filter_map(|id| places.get(id).copied()).collect()
        };
        by_strategy(&held, &members, choose(&there), choose(&everybody))
    } else {
        allocation::allocate(&held, &members, rule)
    };
    let stays = |(item, place): (Item, usize)| match members.get(place) {
        // It may be known by another address; whoever comes back sees to that.
        Some(member) if member.absent => owner(item).map(|owner| owner.instance.clone()),
        Some(_) | None => everybody.get(place).cloned(),
    };
    settings.items().zip(owners).filter_map(stays).collect()
}

/// Who should own each item by the job's strategy, which was asked without and with those who are away. What is with them
/// stays there; what would go to them stays where it is, or goes to whom the strategy chooses without them.
fn by_strategy(held: &[Held], members: &[Member], without: Vec<usize>, with: Vec<usize>) -> Vec<usize> {
    let is_absent = |place: &usize| members.get(*place).is_some_and(|member| member.absent);
    let choose = |((held, with), without): ((&Held, usize), usize)| match held.owner {
        Some(owner) if is_absent(&owner) => owner,
        owner if is_absent(&with) => owner.unwrap_or(without),
        Some(_) | None => with,
    };
    held.iter().zip(with).zip(without).map(choose).collect()
}
