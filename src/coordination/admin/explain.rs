//! Why the items of a job run or do not run: the nodes of one moment, read as findings of the catalogue ([`crate::findings`]).
//!
//! An item is blocked if a finding says that it does not run until somebody does something, and waits if one says that it will run
//! by itself. A finding that concerns the whole job concerns each item. A state that is normal for a moment, such as a resharding, is a
//! finding too: the operator who asks has seen an item that does not run.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::coordination::admin::status::{Ending, ItemStatus, JobStatus, LastExecution};
use crate::coordination::job::picture::Picture;
use crate::coordination::job::picture::disabling;
use crate::coordination::job::picture::nodes::{ConfigView, ItemView, NoteView, ServerStatus, stat_time};
use crate::coordination::job::picture::settings::Settings;
use crate::coordination::time::Now;
use crate::elasticjob::path::{Folder, JobPaths};
use crate::extension::note::Note;
use crate::extension::path::{ExtensionPaths, Noted};
use crate::findings::problem::Problem;
use crate::findings::{Cause, DisabledBy, Effect, Finding, Severity, Text};
use crate::job::{InstanceId, Item};
use crate::tree::{Node, Path, WatchEvent};

/// The most nodes of one finding: more than a person reads.
const PATHS_MAX: usize = 20;
/// A server that has had no instance for so long is one that does not come back.
const IDLE: SignedDuration = SignedDuration::from_hours(30 * 24);
/// A leader that can reshard does it earlier.
const RESHARDS_WITHIN: Duration = Duration::from_secs(10);

/// Whether an item runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing keeps it from being executed when it is due.
    Runs,
    /// It will be executed without anybody's help.
    Waits,
    /// It is not executed until somebody does something.
    Blocked,
}

/// Why an item runs or does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemExplanation {
    /// The item.
    pub item: Item,
    /// Whether it runs.
    pub verdict: Verdict,
    /// The findings about the item alone, the worst first.
    pub because: Vec<Finding>,
    /// The owner.
    pub owner: Option<InstanceId>,
    /// Whether an instance executes it.
    pub running: bool,
    /// Since when, by the registry's clock.
    pub running_since: Option<Timestamp>,
    /// How its owner executed it last, if this sidecar knows it.
    pub last: Option<LastExecution>,
}

/// An item or a server that is disabled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disabling {
    /// The item or the server.
    pub about: Noted,
    /// Since when, by the registry's clock, as far as is known.
    pub since: Option<Timestamp>,
    /// The author and the reason. `None`: not known.
    pub note: Option<Note>,
}

fn disabled_by(known: &NoteView) -> DisabledBy {
    let Note { author, reason, until, .. } = known.note.clone();
    DisabledBy { author, reason, until }
}

/// Why a job runs or does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The items, ascending. Empty: their number is not known.
    pub items: Vec<ItemExplanation>,
    /// The findings about the whole job, the worst first.
    pub findings: Vec<Finding>,
    /// The instances that are online.
    pub instances: BTreeSet<InstanceId>,
    /// The leader.
    pub leader: Option<InstanceId>,
    /// The next fire.
    pub next_fire: Option<Timestamp>,
    /// The number of items. 0: it is not known.
    pub total: u32,
}

impl Explanation {
    /// The explanation of a job that was removed, and of which our own nodes below this one are left.
    pub fn of_left(own_root: Path) -> Self {
        Self {
            items: Vec::new(),
            findings: vec![Finding::at(Cause::JobNodesLeft, own_root)],
            instances: BTreeSet::new(),
            leader: None,
            next_fire: None,
            total: 0,
        }
    }

    /// The same without texts that may quote parameters.
    pub fn without_texts(self) -> Self {
        let hide = |findings: Vec<Finding>| findings.into_iter().map(Finding::without_texts).collect();
        let items = self.items.into_iter();
        let hide_message = |last: LastExecution| LastExecution { message: String::new(), ..last };
        let items = items.map(|item| ItemExplanation {
            because: hide(item.because),
            last: item.last.map(hide_message),
            ..item
        });
        let items = items.collect();
        Self { items, findings: hide(self.findings), ..self }
    }
}

/// The known state of a job at one moment.
pub struct Evidence {
    paths: JobPaths,
    picture: Picture,
    settings: Option<Settings>,
    /// When each node was written last, by the registry's clock.
    written: BTreeMap<Path, Timestamp>,
    now: Timestamp,
    /// The job's status, to which the sidecar adds the last outcomes and the waits for locks.
    pub status: JobStatus,
}

impl Evidence {
    /// The evidence in the nodes of a job and in those that its sidecars publish, which were read at this time.
    pub fn new(
        paths: &JobPaths,
        own_paths: &ExtensionPaths,
        nodes: Vec<Node>,
        fleet: Vec<Node>,
        now: Now,
    ) -> Self {
        let time = |node: &Node| Timestamp::from_millisecond(node.stat.modified_ms).ok();
        let written = nodes.iter().filter_map(|node| Some((node.path.clone(), time(node)?))).collect();
        let mut picture = Picture::unknown(paths, own_paths);
        picture.apply_nodes(WatchEvent::Snapshot(nodes), now);
        picture.apply_fleet(WatchEvent::Snapshot(fleet));
        let mut evidence = Self { written, ..Self::of(paths, picture, now.wall) };
        for item in evidence.status.items.iter_mut().filter(|item| item.running) {
            item.running_since = evidence.written.get(&paths.item_running(item.item)).copied();
        }
        evidence
    }

    /// The evidence in a picture at this time. Without the times at which nodes were written: no finding has a beginning, and none is
    /// that an execution or a resharding takes too long.
    pub fn of(paths: &JobPaths, picture: Picture, now: Timestamp) -> Self {
        let mut settings = None;
        let status = JobStatus::of(&picture.nodes, &picture.fleet, &mut settings, &paths.config(), now);
        Self { paths: paths.clone(), picture, settings, written: BTreeMap::new(), now, status }
    }

    /// The next fire after another one.
    pub fn fire_after(&self, fire: Timestamp) -> Option<Timestamp> {
        self.settings.as_ref()?.schedule.as_ref()?.next_after(fire)
    }

    /// The servers of the job: the address, whether it is disabled, and how many of its instances are online.
    pub fn servers(&self) -> Vec<(Ipv4Addr, bool, usize)> {
        let view = &self.picture.nodes;
        let online = |ip| view.instances().keys().filter(|id| id.server_ip() == Some(ip)).count();
        view.servers().map(|ip| (ip, !view.is_enabled(ip), online(ip))).collect()
    }

    /// The items and servers that are disabled.
    pub fn disablings(&self) -> Vec<Disabling> {
        let Picture { nodes: view, fleet } = &self.picture;
        let disabled = view.items().filter(|(_, known)| known.disabled).map(|(item, _)| item);
        let of_item = |item| Disabling {
            about: Noted::Item(item),
            since: self.written.get(&self.paths.item_child(item, "disabled")).copied(),
            note: disabling::of_item(view, fleet, item).map(|known| known.note.clone()),
        };
        let of_server = |server| Disabling {
            about: Noted::Server(server),
            since: self.written.get(&self.paths.server(server)).copied(),
            note: disabling::of_server(view, fleet, server).map(|known| known.note.clone()),
        };
        let servers = view.servers().filter(|server| !view.is_enabled(*server));
        disabled.map(of_item).chain(servers.map(of_server)).collect()
    }

    fn item_disabled_by(&self, item: Item) -> Option<DisabledBy> {
        disabling::of_item(&self.picture.nodes, &self.picture.fleet, item).map(disabled_by)
    }

    fn server_disabled_by(&self, server: Ipv4Addr) -> Option<DisabledBy> {
        disabling::of_server(&self.picture.nodes, &self.picture.fleet, server).map(disabled_by)
    }

    /// Explains these items, or all.
    pub fn explain(&self, wanted: &BTreeSet<Item>) -> Explanation {
        let mut findings = self.of_job();
        worst_first(&mut findings);
        let of_job = findings.iter().map(|finding| finding.cause.effect()).max().unwrap_or(Effect::None);
        let total = self.settings.as_ref().map_or(0, |settings| settings.configuration.sharding_total_count);
        let items = (0..total).map(Item).filter(|item| wanted.is_empty() || wanted.contains(item));
        let items = items.map(|item| self.of_item(item, of_job)).collect();
        let view = &self.picture.nodes;
        Explanation {
            items,
            findings,
            instances: view.instances().keys().cloned().collect(),
            leader: view.leader().map(|leader| leader.instance.clone()),
            next_fire: self.status.next_fire,
            total,
        }
    }

    /// A finding that began when its node was written.
    fn written(&self, cause: Cause, path: Path) -> Finding {
        let since = self.written.get(&path).copied();
        Finding::at(cause, path).since(since)
    }

    /// The findings about the whole job.
    fn of_job(&self) -> Vec<Finding> {
        let (view, paths) = (&self.picture.nodes, &self.paths);
        let mut found = self.of_configuration();
        let instances = view.instances();
        let is_enabled = |id: &InstanceId| id.server_ip().is_some_and(|ip| view.is_enabled(ip));
        let disabled: BTreeSet<_> =
            instances.keys().filter(|id| !is_enabled(id)).filter_map(InstanceId::server_ip).collect();
        let all_are_disabled = !instances.is_empty() && !instances.keys().any(is_enabled);
        for server in disabled.iter().filter(|_| !all_are_disabled) {
            let found_server = self.written(Cause::ServerDisabled(*server), paths.server(*server));
            found.push(found_server.disabled_by(self.server_disabled_by(*server)));
        }
        if instances.is_empty() {
            found.push(Finding::at(Cause::JobNoInstances, paths.folder(Folder::Instances)));
        } else if all_are_disabled {
            let cause = Cause::JobServersDisabled;
            let paths = disabled.iter().map(|server| paths.server(*server)).collect();
            found.push(Finding { paths, ..Finding::of(cause) });
        } else if view.leader().is_none() {
            found.push(Finding::at(Cause::LeaderMissing, paths.leader()));
        }
        found.extend(self.of_resharding().or_else(|| self.of_leader()));
        found.extend(self.of_idle_servers());
        for instance in view.triggers() {
            found.push(self.written(Cause::TriggerWaits(instance.clone()), paths.trigger(instance)));
        }
        found
    }

    /// The enabled servers without instances, in a job that has some: without any, all of them wait.
    fn of_idle_servers(&self) -> Option<Finding> {
        let (view, paths) = (&self.picture.nodes, &self.paths);
        let used: BTreeSet<_> = view.instances().keys().filter_map(InstanceId::server_ip).collect();
        let is_old =
            |path: &Path| self.written.get(path).is_some_and(|since| self.now.duration_since(*since) >= IDLE);
        let is_idle =
            |ip: &Ipv4Addr| !used.contains(ip) && view.is_enabled(*ip) && is_old(&paths.server(*ip));
        let idle: Vec<_> = view.servers().filter(is_idle).collect();
        if idle.is_empty() || used.is_empty() {
            return None;
        }
        let nodes = idle.iter().take(PATHS_MAX).map(|server| paths.server(*server)).collect();
        Some(Finding { paths: nodes, ..Finding::of(Cause::ServersIdle(idle)) })
    }

    fn of_configuration(&self) -> Vec<Finding> {
        let (view, paths) = (&self.picture.nodes, &self.paths);
        let mut found = Vec::new();
        let is_of_config = |problem: &Problem| problem.path == paths.config();
        match view.config() {
            ConfigView::Absent => found.push(Finding::at(Cause::JobNotConfigured, paths.root().clone())),
            ConfigView::Unreadable => {
                let texts = view.problems().filter(is_of_config).map(|problem| problem.message);
                let text = Text::Shown(texts.collect::<Vec<_>>().join("; "));
                found.push(self.written(Cause::JobConfigUnreadable(text), paths.config()));
            }
            ConfigView::Valid(_) => {
                let settings = self.settings.iter().flat_map(|settings| settings.problems.iter().cloned());
                let read = view.problems().filter(is_of_config).map(|problem| problem.message);
                let parameters =
                    self.settings.as_ref().and_then(|settings| settings.parameters.as_ref().err());
                for text in settings.chain(read) {
                    let is_of_parameters = Some(&text) == parameters;
                    let text = Text::Shown(text);
                    let cause = if is_of_parameters {
                        Cause::JobParametersUnreadable(text)
                    } else {
                        Cause::JobSettingWrong(text)
                    };
                    found.push(self.written(cause, paths.config()));
                }
            }
        }
        if let Some(settings) = &self.settings {
            if settings.schedule.is_some() && self.status.next_fire.is_none() {
                found.push(Finding::at(Cause::JobNeverFiresAgain, paths.config()));
            }
            let has_expression = settings.configuration.cron.as_deref().is_some_and(|cron| !cron.is_empty());
            let has_zone = settings.configuration.time_zone.as_deref().is_some_and(|zone| !zone.is_empty());
            let (java, ours): (Vec<_>, Vec<_>) = view.instances().keys().partition(|id| id.is_java());
            if settings.schedule.is_some() && !has_zone && !java.is_empty() && !ours.is_empty() {
                found.push(Finding::at(Cause::JobZoneDiffers, paths.config()));
            }
            if !has_expression && !settings.handoff.continuous {
                found.push(Finding::at(Cause::JobNoSchedule, paths.config()));
            }
        }
        // A server's node that cannot be read counts as disabled, and is a finding of its own.
        for problem in view.problems().filter(|problem| !is_of_config(problem)) {
            let Problem { path, message, code: _ } = problem;
            found.push(self.written(Cause::NodeUnreadable(Text::Shown(message)), path));
        }
        found
    }

    fn of_resharding(&self) -> Option<Finding> {
        let (view, paths) = (&self.picture.nodes, &self.paths);
        let leader = view.leader().map(|leader| &leader.instance);
        let goes_on = |path: Path| {
            let hung = leader.filter(|_| self.is_late(&path)).cloned();
            self.written(hung.map_or(Cause::ReshardingGoesOn, Cause::LeaderHung), path)
        };
        if view.processing() {
            return Some(goes_on(paths.processing()));
        }
        // Without instances nobody reshards.
        if !view.necessary() || view.instances().is_empty() {
            return None;
        }
        let running: Vec<_> = view.running().iter().copied().collect();
        let cause = match leader {
            _ if !running.is_empty() => Cause::ReshardingWaitsForRunning(running),
            Some(leader) if leader.is_java() => match self.has_fired_since(&paths.necessary()) {
                true => Cause::LeaderHung(leader.clone()),
                false => Cause::ReshardingWaitsForJavaFire(leader.clone()),
            },
            // Beside Java instances the flag stays when the resharding is done.
            Some(_) | None if view.instances().keys().any(InstanceId::is_java) => Cause::ReshardingGoesOn,
            Some(_) | None => return Some(goes_on(paths.necessary())),
        };
        Some(self.written(cause, paths.necessary()))
    }

    /// Whether a flag of a resharding has been there for longer than a leader that can reshard leaves it.
    fn is_late(&self, flag: &Path) -> bool {
        self.written.get(flag).is_some_and(|since| self.is_over(*since))
    }

    /// Whether a leader that can reshard has done what was due at this instant.
    fn is_over(&self, due: Timestamp) -> bool {
        let settling = self.settings.as_ref().map_or(Duration::ZERO, |settings| settings.handoff.settling);
        let limit = RESHARDS_WITHIN.saturating_add(settling);
        Duration::try_from(self.now.duration_since(due)).is_ok_and(|waited| waited > limit)
    }

    /// Whether the job has fired since the flag was raised, so that a Java leader would have resharded.
    fn has_fired_since(&self, flag: &Path) -> bool {
        let fire = self.written.get(flag).and_then(|since| self.fire_after(*since));
        fire.is_some_and(|fire| self.is_over(fire))
    }

    /// A sidecar leads, an item has no owner, and nothing has changed for so long that the leader would have given it one. Without a
    /// flag: in a fleet of sidecars only the leader raises it.
    fn of_leader(&self) -> Option<Finding> {
        let (view, paths, settings) = (&self.picture.nodes, &self.paths, self.settings.as_ref()?);
        let leader = &view.leader()?.instance;
        if view.instances().keys().any(InstanceId::is_java) || settings.configuration.static_sharding {
            return None;
        }
        // An item with a label waits for an instance that has the label.
        let is_free = |item: &Item| {
            let owner = view.item(*item).and_then(|item| item.owner.as_ref());
            owner.is_none() && !settings.handoff.item_labels.contains_key(item)
        };
        let free = (0..settings.configuration.sharding_total_count).map(Item).find(is_free)?;
        let changes = [paths.config(), paths.leader()].into_iter();
        let changes = changes.chain(view.instances().keys().map(|id| paths.instance(id)));
        let changes = changes.chain(view.servers().map(|server| paths.server(server)));
        let times: Option<Vec<_>> = changes.map(|path| self.written.get(&path).copied()).collect();
        let due = times?.into_iter().max().filter(|due| self.is_over(*due))?;
        let paths = vec![paths.leader(), paths.item(free)];
        Some(Finding { paths, since: Some(due), ..Finding::of(Cause::LeaderHung(leader.clone())) })
    }

    fn of_item(&self, item: Item, of_job: Effect) -> ItemExplanation {
        let nothing = ItemView::default();
        let known = self.picture.nodes.item(item).unwrap_or(&nothing);
        let mut because: Vec<_> = self.of_owner(item, known, of_job).into_iter().collect();
        because.extend(self.of_execution(item, known));
        if known.disabled {
            let found = self.written(Cause::ItemDisabled(item), self.paths.item_child(item, "disabled"));
            because.push(found.disabled_by(self.item_disabled_by(item)));
        }
        if self.picture.nodes.failover_items().contains(&item) {
            because.push(self.written(Cause::ItemFailoverWaits(item), self.paths.failover_item(item)));
        }
        if known.misfire {
            because.push(self.written(Cause::ItemMisfired(item), self.paths.item_misfire(item)));
        }
        because.extend(self.of_triggers(item));
        let status = self.status.items.iter().find(|status| status.item == item);
        because.extend(status.into_iter().flat_map(|status| self.of_sidecar(status)));
        worst_first(&mut because);
        let own = because.iter().map(|finding| finding.cause.effect()).max().unwrap_or(Effect::None);
        let verdict = match own.max(of_job) {
            Effect::None => Verdict::Runs,
            Effect::Waits => Verdict::Waits,
            Effect::Blocks => Verdict::Blocked,
        };
        let owner = known.owner.as_ref().map(|owner| owner.instance.clone());
        ItemExplanation {
            item,
            verdict,
            because,
            owner,
            running: known.running.is_some(),
            running_since: status.and_then(|status| status.running_since),
            last: status.and_then(|status| status.last.clone()),
        }
    }

    /// The triggers of this item that no instance has taken up, the oldest first.
    fn of_triggers(&self, item: Item) -> Option<Finding> {
        let fleet = &self.picture.fleet;
        let waiting: Vec<_> = fleet.waiting_triggers(item).collect();
        let since = stat_time(waiting.first()?.stat);
        let nodes = waiting.iter().take(PATHS_MAX).map(|view| fleet.paths().trigger(&view.request, item));
        let cause = Cause::ItemTriggerWaits(item, waiting.len());
        Some(Finding { paths: nodes.collect(), ..Finding::of(cause) }.since(since))
    }

    fn of_owner(&self, item: Item, known: &ItemView, of_job: Effect) -> Option<Finding> {
        let (view, paths) = (&self.picture.nodes, &self.paths);
        let Some(owner) = &known.owner else {
            // An obstacle of the whole job leaves its items without owners.
            return (of_job == Effect::None).then(|| Finding::at(Cause::ItemUnowned(item), paths.item(item)));
        };
        let (id, path) = (owner.instance.clone(), paths.item_instance(item));
        if !view.instances().contains_key(&id) {
            // The instance finishes its executions, and its items then move.
            if self.picture.fleet.member(&id).is_some() || of_job != Effect::None {
                return None;
            }
            let cause = match self.is_reserved(&id) {
                true => Cause::ItemOwnerAway(item, id),
                false => Cause::ItemOwnerOffline(item, id),
            };
            return Some(Finding::at(cause, path));
        }
        let server = id.server_ip()?;
        let is_disabled = !view.is_enabled(server) && of_job != Effect::Blocks;
        is_disabled.then(|| {
            let found = self.written(Cause::ItemServerDisabled(item, id), paths.server(server));
            found.disabled_by(self.server_disabled_by(server))
        })
    }

    /// Whether the name of an offline instance keeps its items for the grace.
    fn is_reserved(&self, id: &InstanceId) -> bool {
        let has_grace = self.settings.as_ref().is_some_and(|settings| !settings.grace.is_zero());
        let status = id.server_ip().and_then(|ip| self.picture.nodes.server(ip));
        let is_enabled = status.is_none_or(|status| status == ServerStatus::Enabled);
        has_grace && is_enabled && self.picture.fleet.names().values().any(|known| known.instance == *id)
    }

    fn of_execution(&self, item: Item, known: &ItemView) -> Option<Finding> {
        let view = &self.picture.nodes;
        let running = known.running.as_ref()?;
        let path = self.paths.item_running(item);
        if let Some(owner) = &running.owner
            && !view.instances().contains_key(owner)
            && self.picture.fleet.member(owner).is_none()
        {
            return Some(self.written(Cause::ItemRunningStale(item, owner.clone()), path));
        }
        let since = self.written.get(&path).copied()?;
        let schedule = self.settings.as_ref()?.schedule.as_ref()?;
        let fired = schedule.next_after(since).is_some_and(|next| next <= self.now);
        fired.then(|| self.written(Cause::ItemRunningLong(item), path))
    }

    /// The findings that only the sidecar of the item's owner can have.
    fn of_sidecar(&self, status: &ItemStatus) -> Vec<Finding> {
        let mut found = Vec::new();
        let item = status.item;
        if let Some(wait) = &status.waiting_for_lock {
            let cause =
                Cause::ItemWaitsForLock { item, lock: wait.lock.clone(), holder: wait.holder.clone() };
            found.push(Finding::of(cause).since(Some(wait.since)));
        }
        if let Some(last) = &status.last
            && matches!(last.ending, Ending::Failure | Ending::Rejection)
        {
            let cause = Cause::ItemFailing { item, times: last.times, message: Text::of(&last.message) };
            found.push(Finding::of(cause).since(Some(last.since)));
        }
        found
    }
}

/// Sorts by severity. Findings of one severity keep their order.
fn worst_first(findings: &mut [Finding]) {
    let rank = |finding: &Finding| match finding.cause.severity() {
        Severity::Error => 0,
        Severity::Warning => 1,
        Severity::Info => 2,
    };
    findings.sort_by_key(rank);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordination::time::Now;
    use crate::job::JobName;
    use crate::tree::{Stat, Zxid};

    const ONE: &str = "10.0.0.1@-@ab26cc03c7c9-dc69f77a239f";
    const TWO: &str = "10.0.0.2@-@ab26cc03c7c9-dc69f77a23a0";
    const JAVA: &str = "10.0.0.9@-@21";
    const CONFIG: &str = "jobName: orders\ncron: 0 0 0 1 1 ? *\nshardingTotalCount: 3\n";

    /// The codes for a job that instance ONE leads, with these nodes, each written at its second; at this second.
    fn codes(nodes: &[(&str, &str, i64)], at: i64) -> Vec<&'static str> {
        let (namespace, job) = (Path::parse("/jobs").unwrap(), JobName::parse("orders").unwrap());
        let (paths, own_paths) = (JobPaths::new(&namespace, &job), ExtensionPaths::new(&namespace, &job));
        let stat = |second: i64| Stat {
            created: Zxid(1),
            modified: Zxid(1),
            version: 0,
            ephemeral_owner: None,
            modified_ms: second * 1_000,
        };
        let node = |name: &str, data: &str, second| {
            let path = if name.is_empty() { paths.root().clone() } else { paths.root().child(name) };
            let id = name.strip_prefix("instances/").and_then(|id| Some((id, id.split_once("@-@")?.0)));
            let of_instance = id.map(|(id, ip)| format!("jobInstanceId: {id}\nserverIp: {ip}\n"));
            let data = of_instance.unwrap_or_else(|| data.to_owned());
            Node { path, data: data.as_bytes().into(), stat: stat(second) }
        };
        let usual = [
            ("", "", 0),
            ("leader/election/instance", ONE, 0),
            ("servers/10.0.0.1", "ENABLED", 0),
            ("servers/10.0.0.2", "ENABLED", 0),
            ("servers/10.0.0.9", "ENABLED", 0),
        ];
        let all = usual.iter().chain(nodes).map(|(name, data, second)| node(name, data, *second)).collect();
        let now = Now { wall: Timestamp::from_second(at).unwrap(), mono: Duration::from_secs(1_000) };
        let explained = Evidence::new(&paths, &own_paths, all, Vec::new(), now).explain(&BTreeSet::new());
        let of_items = explained.items.iter().flat_map(|item| &item.because);
        let mut codes: Vec<_> =
            explained.findings.iter().chain(of_items).map(|finding| finding.cause.code()).collect();
        codes.dedup();
        codes
    }

    #[test]
    fn a_leader_hangs_if_an_item_has_no_owner_long_after_the_last_change() {
        let one = format!("instances/{ONE}");
        let two = format!("instances/{TWO}");
        let owned = [("sharding/0/instance", ONE, 0), ("sharding/1/instance", TWO, 0)];
        let fleet = |config: &'static str, second| {
            let [first, other] = owned;
            [("config", config, second), (&one, "", 0), (&two, "", 2), first, other]
        };
        // Ten seconds, and one to settle.
        assert_eq!(codes(&fleet(CONFIG, 5), 16), ["ITEM_UNOWNED"]);
        assert_eq!(codes(&fleet(CONFIG, 5), 17), ["LEADER_HUNG"]);
        // An instance that has just joined is what the leader waits for.
        let joined = [fleet(CONFIG, 5).as_slice(), &[("servers/10.0.0.3", "ENABLED", 15)]].concat();
        assert_eq!(codes(&joined, 20), ["ITEM_UNOWNED"]);
        // An item with a label waits for an instance with that label.
        let label = "jobName: orders\ncron: 0 0 0 1 1 ? *\nshardingTotalCount: 3\nprops:\n  sidekeeper.item-labels: 2=gpu\n";
        assert_eq!(codes(&fleet(label, 0), 60), ["ITEM_UNOWNED"]);
        let complete = [fleet(CONFIG, 0).as_slice(), &[("sharding/2/instance", ONE, 0)]].concat();
        assert_eq!(codes(&complete, 60), Vec::<&str>::new());
        // A flag that stays.
        let flag = [complete.as_slice(), &[("leader/sharding/necessary", "", 40)]].concat();
        assert_eq!(codes(&flag, 51), ["RESHARDING_GOES_ON"]);
        assert_eq!(codes(&flag, 52), ["LEADER_HUNG"]);
        // A Java leader reshards at its fire.
        let mut java = flag.clone();
        java.push(("leader/election/instance", JAVA, 0));
        let id = format!("instances/{JAVA}");
        java.push((&id, "", 0));
        assert_eq!(codes(&java, 3_600), ["JOB_ZONE_DIFFERS", "RESHARDING_WAITS_FOR_JAVA_FIRE"]);
        let year = 366 * 86_400;
        assert_eq!(codes(&java, year), ["LEADER_HUNG", "JOB_ZONE_DIFFERS"]);
    }

    #[test]
    fn servers_without_instances_for_a_month_are_idle_unless_an_operator_has_disabled_them() {
        let one = format!("instances/{ONE}");
        let day = 86_400;
        let owned = ["sharding/0/instance", "sharding/1/instance", "sharding/2/instance"];
        let mut nodes = owned.map(|path| (path, ONE, 0)).to_vec();
        nodes.extend([("config", CONFIG, 0), ("servers/10.0.0.2", "ENABLED", 10)]);
        nodes.extend([("servers/10.0.0.9", "DISABLED", 0), ("servers/10.0.0.8", "ENABLED", 29 * day)]);
        let online = [nodes.as_slice(), &[(&one, "", 0)]].concat();
        assert_eq!(codes(&online, 30 * day + 9), Vec::<&str>::new());
        assert_eq!(codes(&online, 30 * day + 10), ["SERVERS_IDLE"]);
        // All of them wait for an instance.
        assert!(!codes(&nodes, 30 * day + 10).contains(&"SERVERS_IDLE"));
    }

    #[test]
    fn time_zones_differ_only_if_both_kinds_take_part_and_none_is_given() {
        let (one, java) = (format!("instances/{ONE}"), format!("instances/{JAVA}"));
        let job = |config: &'static str, java: &'static str| {
            let owners = ["sharding/0/instance", "sharding/1/instance", "sharding/2/instance"];
            let mut nodes = owners.map(|path| (path, ONE, 0)).to_vec();
            nodes.extend([("config", config, 0), (java, "", 0)]);
            nodes
        };
        let (one, java): (&'static str, &'static str) = (one.leak(), java.leak());
        let both = |config| [job(config, java).as_slice(), &[(one, "", 0)]].concat();
        assert_eq!(codes(&both(CONFIG), 60), ["JOB_ZONE_DIFFERS"]);
        assert_eq!(
            codes(
                &both("jobName: orders\ncron: 0 0 0 1 1 ? *\nshardingTotalCount: 3\ntimeZone: GMT+8:00\n"),
                60
            ),
            Vec::<&str>::new()
        );
        assert_eq!(codes(&both("jobName: orders\nshardingTotalCount: 3\n"), 60), ["JOB_NO_SCHEDULE"]);
        assert_eq!(codes(&job(CONFIG, one), 60), Vec::<&str>::new());
    }
}
