//! The job's subtree, typed, fed by the changes of one watch. Decides nothing; every node that it could not read is a
//! [`Problem`], never an error (protocol 1). Of a folder full of such nodes the first are named, and the rest is
//! counted.
//!
//! A watch reads data only for decisions that need it: running nodes, misfire flags and resharding flags are known
//! without data, so a fire costs no reads (`Place::wants_data`). Their data is known from snapshots, which come at the
//! start and after every interruption.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use jiff::Timestamp;

use crate::coordination::job::picture::nodes::{
    ConfigView, InstanceView, ItemView, LeaderView, NextServer, Ownership, Running, ServerStatus, Taker,
    stat_time,
};
use crate::coordination::job::picture::registry_clock::RegistryClock;
use crate::coordination::time::Now;
use crate::elasticjob::path::{Barrier, Folder, Place};
use crate::elasticjob::{config_yaml, instance_yaml};
use crate::excerpt::Excerpt;
use crate::findings::problem::{Problem, ProblemCode};
use crate::job::{Generation, InstanceId, Item, JobConfiguration};
use crate::mutants::mutant;
use crate::tree::{Node, NodeChange, Path, Stat, WatchEvent, Zxid};

/// How many nodes of one folder are named as problems: enough to see what they have in common, and few enough for a
/// message and a log when an operator has filled the folder.
pub const NAMED_OF_FOLDER_MAX: usize = 20;

/// A server's node.
#[derive(Debug, Clone, Copy)]
struct ServerView {
    status: ServerStatus,
    version: i32,
    /// The transaction that changed it last.
    changed: Zxid,
}

/// The job's subtree.
#[derive(Debug, Clone, Default)]
pub struct JobView {
    root: Option<Path>,
    /// When the last event came.
    now: Option<Timestamp>,
    registry_clock: RegistryClock,
    loaded: bool,
    class: Option<String>,
    config: ConfigView,
    /// The configuration that is expected: an equal one is not kept twice.
    expected: Option<Arc<JobConfiguration>>,
    folders: BTreeSet<Folder>,
    servers: BTreeMap<Ipv4Addr, ServerView>,
    instances: BTreeMap<InstanceId, Box<InstanceView>>,
    /// How many of the instances are Java's.
    java_instances: usize,
    /// The departures that were seen, and the readings, between which an instance may have left unseen.
    departures: u64,
    readings: u64,
    leader: Option<LeaderView>,
    sharding_version: Option<i32>,
    sharding_changed: Option<Zxid>,
    failover_version: Option<i32>,
    necessary: bool,
    processing: bool,
    /// Boxed, as the instances: a node of the map has room for eleven, and many jobs have one item.
    items: BTreeMap<Item, Box<ItemView>>,
    running: BTreeSet<Item>,
    /// Running nodes whose data was read; few, because only snapshots have it.
    running_read: BTreeSet<Item>,
    misfired: BTreeSet<Item>,
    misfired_revision: u64,
    /// Items that wait for a takeover.
    failover_items: BTreeSet<Item>,
    /// Items with a `failover` or `failovering` node.
    taken: BTreeSet<Item>,
    triggers: BTreeSet<InstanceId>,
    registry_time: bool,
    /// The items that are registered at the barriers of a fire.
    started: BTreeSet<Item>,
    completed: BTreeSet<Item>,
    next_server: Option<NextServer>,
    config_stat: Option<Stat>,
    /// The problems by the folder of the node.
    problems: BTreeMap<Path, BTreeMap<Path, String>>,
    revision: u64,
    membership_revision: u64,
}

impl JobView {
    /// An empty view of the job at `root`, until the first snapshot.
    pub fn new(root: Path) -> Self {
        Self { root: Some(root), ..Self::default() }
    }

    /// Announces an expected configuration. Many applications may have it, and it may be large.
    pub(in crate::coordination) fn expect(&mut self, configuration: Option<Arc<JobConfiguration>>) {
        self.expected = configuration;
    }

    /// Applies an event of the watch.
    pub fn apply(&mut self, event: WatchEvent, now: Now) {
        self.revision += 1;
        self.now = Some(now.wall);
        self.registry_clock.record(&event, now.mono);
        match event {
            WatchEvent::Snapshot(nodes) => {
                let (revision, membership_revision) = (self.revision, self.membership_revision + 1);
                let (root, before) = (self.root.take(), std::mem::take(&mut self.items));
                let expected = self.expected.take();
                let registry_clock = std::mem::take(&mut self.registry_clock);
                let (now, departures, readings) = (self.now, self.departures, self.readings + 1);
                let fresh = Self { departures, readings, loaded: true, ..Self::default() };
                *self = Self { root, expected, now, registry_clock, revision, membership_revision, ..fresh };
                for Node { path, data, stat } in nodes {
                    self.put(&path, Some((data, stat)));
                }
                for (item, before) in before {
                    let Some(view) = self.items.get_mut(&item) else { continue };
                    // An item that was running before has not begun to run because the nodes were read again.
                    if before.running.is_some() || view.running.is_none() {
                        view.ran_at = before.ran_at;
                    }
                }
            }
            WatchEvent::Changes(changes) => {
                for change in changes {
                    match change {
                        NodeChange::Put { path, content } => self.put(&path, content),
                        NodeChange::Removed { path } => self.remove(&path),
                    }
                }
            }
        }
    }

    /// Forgets everything until the next snapshot.
    pub fn forget(&mut self) {
        let (revision, membership_revision) = (self.revision + 1, self.membership_revision + 1);
        let (departures, readings) = (self.departures, self.readings + 1);
        let (root, expected) = (self.root.take(), self.expected.take());
        let registry_clock = std::mem::take(&mut self.registry_clock);
        let nothing = Self { departures, readings, registry_clock, ..Self::default() };
        *self = Self { root, expected, revision, membership_revision, ..nothing };
    }

    /// By how many milliseconds this machine's clock is ahead of the registry's, late by the travel of a change; negative: behind. `None`: no
    /// change has arrived yet.
    pub fn ahead_ms(&self, now: Now) -> Option<i64> {
        let here = self.registry_clock.here(now.wall, now)?;
        Some(here.as_millisecond().saturating_sub(now.wall.as_millisecond()))
    }

    /// The difference between this clock and the registry's.
    pub(in crate::coordination) fn registry_clock(&self) -> &RegistryClock {
        &self.registry_clock
    }

    fn relative(&self, path: &Path) -> Option<String> {
        self.root.as_ref().and_then(|root| path.relative_to(root)).map(str::to_owned)
    }

    fn put(&mut self, path: &Path, content: Option<(Arc<[u8]>, Stat)>) {
        let Some(relative) = self.relative(path) else { return };
        let place = Place::of(&relative);
        self.forget_problem(path);
        match (place, content) {
            (Place::Folder(folder), content) => {
                self.folders.insert(folder);
                if folder == Folder::FailoverItems {
                    self.failover_version = content.map(|(_, stat)| stat.version);
                }
            }
            (Place::Necessary, _) => self.necessary = true,
            (Place::Processing, _) => self.processing = true,
            (Place::Item(item), content) => {
                let view = self.item_mut(item);
                view.exists = true;
                view.since = content.and_then(|(_, stat)| stat_time(stat)).or(view.since);
            }
            (Place::Running(item), content) => self.put_running(item, content),
            (Place::Misfire(item), _) => {
                self.item_mut(item).misfire = true;
                self.misfired.insert(item);
                self.misfired_revision += 1;
            }
            (Place::Disabled(item), content) => {
                let view = self.item_mut(item);
                view.disabled = true;
                view.disabled_in = content.map(|(_, stat)| stat.created).or(view.disabled_in);
                self.membership_revision += 1;
            }
            (Place::FailoverItem(item), _) => {
                self.failover_items.insert(item);
                self.membership_revision += 1;
            }
            (Place::Trigger(id), _) => {
                self.triggers.insert(InstanceId::from_registry(id));
            }
            (Place::RegistryTime, _) => self.registry_time = true,
            (Place::Registered(barrier, item), _) => {
                self.registered_mut(barrier).insert(item);
            }
            (Place::ItemChild(item, name), _) => {
                self.item_mut(item).others.insert(name.to_owned());
            }
            (Place::NotAnItem(name), _) => {
                let name = Excerpt::of(name);
                let text = format!("`{name}` is not an item number; Java instances fail on it, so delete it");
                self.record_problem(path, text);
            }
            (Place::Other, _) => {}
            (_, Some((data, stat))) => self.put_content(path, place, &data, stat),
            // All other places are read with their content; a change without it says nothing.
            (_, None) => {}
        }
    }

    fn put_content(&mut self, path: &Path, place: Place<'_>, data: &[u8], stat: Stat) {
        match place {
            Place::Root => self.class = Some(String::from_utf8_lossy(data).into_owned()),
            Place::Config => {
                self.config_stat = Some(stat);
                self.put_config(path, data);
            }
            Place::Server(ip) => self.put_server(path, ip, data, stat),
            Place::Instance(id) => self.put_instance(path, id, data, stat),
            Place::Leader => {
                let instance = InstanceId::from_registry(&String::from_utf8_lossy(data));
                self.leader = Some(LeaderView { instance, version: stat.version, created: stat.created });
            }
            Place::LeaderSharding => {
                self.sharding_version = Some(stat.version);
                self.sharding_changed = Some(stat.modified);
            }
            Place::ItemInstance(item) => {
                let instance = InstanceId::from_registry(&String::from_utf8_lossy(data));
                let (token, since) = (stat.created.into(), stat_time(stat));
                let view = self.item_mut(item);
                // A change does not say when the item was created; its first owner got it at that time.
                view.since = view.since.or(since);
                view.owner = Some(Ownership { instance, token, version: stat.version, since });
                self.membership_revision += 1;
            }
            Place::Failover(item) => {
                self.item_mut(item).failover = Some(Taker::read(data, stat));
                self.taken.insert(item);
                self.membership_revision += 1;
            }
            Place::Failovering(item) => {
                self.item_mut(item).failovering = Some(Taker::read(data, stat));
                self.taken.insert(item);
                self.membership_revision += 1;
            }
            Place::NextJobInstanceIp => {
                let ip = std::str::from_utf8(data).ok().and_then(|text| text.parse().ok());
                let token = stat.created.into();
                let known = self.next_server.take().filter(|known| known.token == token);
                let since = known.map(|known| known.since).or(self.now).unwrap_or(Timestamp::MIN);
                self.next_server = Some(NextServer { ip, token, since, version: stat.version });
                self.membership_revision += 1;
            }
            Place::Folder(_)
            | Place::Necessary
            | Place::Processing
            | Place::Item(_)
            | Place::Running(_)
            | Place::Misfire(_)
            | Place::Disabled(_)
            | Place::FailoverItem(_)
            | Place::Trigger(_)
            | Place::RegistryTime
            | Place::Registered(..)
            | Place::ItemChild(..)
            | Place::NotAnItem(_)
            | Place::Other => {}
        }
    }

    fn put_config(&mut self, path: &Path, data: &[u8]) {
        self.membership_revision += 1;
        match config_yaml::parse(data) {
            Ok(parsed) => {
                if !parsed.problems.is_empty() {
                    self.record_problem(path, parsed.problems.join("; "));
                }
                let read = parsed.configuration;
                let same = self.expected.as_ref().filter(|expected| ***expected == read);
                self.config = ConfigView::Valid(same.map(Arc::clone).unwrap_or_else(|| Arc::new(read)));
            }
            Err(problem) => {
                let text = format!("the configuration cannot be read: {problem}; write a valid one");
                self.record_problem(path, text);
                self.config = ConfigView::Unreadable;
            }
        }
    }

    fn put_server(&mut self, path: &Path, ip: &str, data: &[u8], stat: Stat) {
        let Ok(address) = ip.parse() else {
            let text = format!("`{}` is not an IPv4 address; delete the node", Excerpt::of(ip));
            self.record_problem(path, text);
            return;
        };
        let status = ServerStatus::read(data);
        if status == ServerStatus::Unreadable {
            let text = "the status is neither ENABLED nor DISABLED, and counts as not enabled; set one";
            self.record_problem(path, text.to_owned());
        }
        let (version, changed) = (stat.version, stat.modified);
        self.servers.insert(address, ServerView { status, version, changed });
        self.membership_revision += 1;
    }

    fn put_instance(&mut self, path: &Path, id: &str, data: &[u8], stat: Stat) {
        let id = InstanceId::from_registry(id);
        let problem = if id.server_ip().is_none() {
            Some("the name is not of the form {ipv4}@-@{unique}".to_owned())
        } else {
            instance_yaml::read(&id, data).problems.into_iter().next()
        };
        let readable = problem.is_none();
        if let Some(problem) = problem {
            let text = format!("{problem}; the instance gets no items, delete the node");
            self.record_problem(path, text);
        }
        let (session, since) = (stat.ephemeral_owner, stat_time(stat));
        let is_java = id.is_java();
        let view = InstanceView { session, created: stat.created, since, readable };
        let before = self.instances.insert(id, Box::new(view));
        self.java_instances += usize::from(is_java && before.is_none());
        // The instance returned before the view saw it leave.
        self.departures += u64::from(before.is_some_and(|before| before.session != session));
        self.membership_revision += 1;
    }

    fn put_running(&mut self, item: Item, content: Option<(Arc<[u8]>, Stat)>) {
        let seen = self.revision;
        let running = match content {
            None => {
                self.running_read.remove(&item);
                Running { owner: None, token: None, version: None, seen }
            }
            Some((data, stat)) => {
                self.running_read.insert(item);
                Running {
                    owner: Some(InstanceId::from_registry(&String::from_utf8_lossy(&data))),
                    token: Some(stat.created.into()),
                    version: Some(stat.version),
                    seen,
                }
            }
        };
        let now = self.now;
        let view = self.item_mut(item);
        view.ran_at = now;
        view.running = Some(running);
        self.running.insert(item);
    }

    fn remove(&mut self, path: &Path) {
        let Some(relative) = self.relative(path) else { return };
        self.forget_problem(path);
        match Place::of(&relative) {
            Place::Root => self.class = None,
            Place::Config => {
                self.config = ConfigView::Absent;
                self.config_stat = None;
                self.membership_revision += 1;
            }
            Place::Folder(folder) => {
                self.folders.remove(&folder);
                if folder == Folder::FailoverItems {
                    self.failover_version = None;
                }
            }
            Place::Server(ip) => {
                if let Ok(ip) = ip.parse::<Ipv4Addr>() {
                    self.servers.remove(&ip);
                    self.membership_revision += 1;
                }
            }
            Place::Instance(id) => {
                let id = InstanceId::from_registry(id);
                let was_there = self.instances.remove(&id).is_some();
                self.java_instances -= usize::from(was_there && id.is_java());
                self.departures += 1;
                self.membership_revision += 1;
            }
            Place::Leader => self.leader = None,
            Place::LeaderSharding => {
                self.sharding_version = None;
                self.sharding_changed = None;
            }
            Place::Necessary => self.necessary = false,
            Place::Processing => self.processing = false,
            Place::Item(item) => {
                self.items.remove(&item);
                self.running.remove(&item);
                self.running_read.remove(&item);
                self.misfired.remove(&item);
                self.misfired_revision += 1;
                self.taken.remove(&item);
                self.membership_revision += 1;
            }
            Place::ItemInstance(item) => {
                self.item_mut(item).owner = None;
                self.membership_revision += 1;
            }
            Place::Running(item) => {
                self.item_mut(item).running = None;
                self.running.remove(&item);
                self.running_read.remove(&item);
            }
            Place::Misfire(item) => {
                self.item_mut(item).misfire = false;
                self.misfired.remove(&item);
                self.misfired_revision += 1;
            }
            Place::Disabled(item) => {
                let view = self.item_mut(item);
                (view.disabled, view.disabled_in) = (false, None);
                self.membership_revision += 1;
            }
            Place::Failover(item) => {
                self.item_mut(item).failover = None;
                self.release(item);
            }
            Place::Failovering(item) => {
                self.item_mut(item).failovering = None;
                self.release(item);
            }
            Place::FailoverItem(item) => {
                self.failover_items.remove(&item);
                self.membership_revision += 1;
            }
            Place::Trigger(id) => {
                self.triggers.remove(&InstanceId::from_registry(id));
            }
            Place::RegistryTime => self.registry_time = false,
            Place::Registered(barrier, item) => {
                self.registered_mut(barrier).remove(&item);
            }
            Place::NextJobInstanceIp => {
                self.next_server = None;
                self.membership_revision += 1;
            }
            Place::ItemChild(item, name) => {
                self.item_mut(item).others.remove(name);
            }
            Place::NotAnItem(_) | Place::Other => {}
        }
    }

    fn record_problem(&mut self, path: &Path, message: String) {
        let folder = path.parent().unwrap_or_else(Path::root);
        self.problems.entry(folder).or_default().insert(path.clone(), message);
    }

    fn forget_problem(&mut self, path: &Path) {
        if self.problems.is_empty() {
            return;
        }
        let folder = path.parent().unwrap_or_else(Path::root);
        if let Some(nodes) = self.problems.get_mut(&folder) {
            nodes.remove(path);
            if nodes.is_empty() {
                self.problems.remove(&folder);
            }
        }
    }

    fn release(&mut self, item: Item) {
        let view = self.item_mut(item);
        if view.failover.is_none() && view.failovering.is_none() {
            self.taken.remove(&item);
        }
        self.membership_revision += 1;
    }

    fn registered_mut(&mut self, barrier: Barrier) -> &mut BTreeSet<Item> {
        match barrier {
            Barrier::Started => &mut self.started,
            Barrier::Completed => &mut self.completed,
        }
    }

    fn item_mut(&mut self, item: Item) -> &mut ItemView {
        self.items.entry(item).or_default()
    }

    /// Whether a snapshot was applied, so that a node that is not here does not exist.
    pub fn is_loaded(&self) -> bool {
        self.loaded
    }

    /// The content of the job's own node; `None`: the node does not exist.
    pub fn class(&self) -> Option<&str> {
        self.class.as_deref()
    }

    /// The configuration.
    pub fn config(&self) -> &ConfigView {
        &self.config
    }

    /// The version of the configuration's node; `None`: the node does not exist.
    pub fn config_version(&self) -> Option<i32> {
        self.config_stat.map(|stat| stat.version)
    }

    /// When the configuration was written, by the registry's clock.
    pub fn config_since(&self) -> Option<Timestamp> {
        self.config_stat.and_then(stat_time)
    }

    /// Whether a folder exists.
    pub fn has_folder(&self, folder: Folder) -> bool {
        self.folders.contains(&folder)
    }

    /// Counts departures of instances, as far as they were seen or cannot be ruled out.
    pub fn departures(&self) -> u64 {
        self.departures + self.readings
    }

    /// Counts departures of instances that were seen. A reading shows other departures by missing instances, and the
    /// content of all nodes that they have left.
    pub(in crate::coordination) fn seen_departures(&self) -> u64 {
        self.departures
    }

    /// The servers that have a node.
    pub fn servers(&self) -> impl Iterator<Item = Ipv4Addr> + '_ {
        self.servers.keys().copied()
    }

    /// A server's status; `None`: it has no node.
    pub fn server(&self, ip: Ipv4Addr) -> Option<ServerStatus> {
        self.servers.get(&ip).map(|server| server.status)
    }

    /// The version of a server's node; `None`: it has none.
    pub fn server_version(&self, ip: Ipv4Addr) -> Option<i32> {
        self.servers.get(&ip).map(|server| server.version)
    }

    /// The transaction that changed a server's node last; `None`: it has none.
    pub fn server_changed(&self, ip: Ipv4Addr) -> Option<Zxid> {
        self.servers.get(&ip).map(|server| server.changed)
    }

    /// Whether a server is enabled.
    pub fn is_enabled(&self, ip: Ipv4Addr) -> bool {
        self.server(ip) == Some(ServerStatus::Enabled)
    }

    /// The instances that are online, ascending by id.
    pub fn instances(&self) -> &BTreeMap<InstanceId, Box<InstanceView>> {
        &self.instances
    }

    /// Whether there are Java instances.
    pub fn has_java_instances(&self) -> bool {
        self.java_instances > 0
    }

    /// The instances that may be given items, in the order in which strategies take them: descending (protocol 4.2).
    pub fn available(&self) -> Vec<InstanceId> {
        let mut available: Vec<_> = self
            .instances
            .iter()
            .filter(|(id, view)| {
                let enabled = |ip| self.is_enabled(ip) || mutant!(DisabledServerGetsItems);
                view.readable && id.server_ip().is_some_and(enabled)
            })
            .map(|(id, _)| id.clone())
            .collect();
        crate::elasticjob::java::sort_descending(&mut available);
        available
    }

    /// The leader.
    pub fn leader(&self) -> Option<&LeaderView> {
        self.leader.as_ref()
    }

    /// The version of the parent of the resharding flags, which a sidecar that leads raises with each resharding.
    pub fn sharding_version(&self) -> Option<i32> {
        self.sharding_version
    }

    /// The transaction that changed that node last.
    pub fn sharding_changed(&self) -> Option<Zxid> {
        self.sharding_changed
    }

    /// The owner of an item, if it is online.
    pub fn online_owner(&self, item: Item) -> Option<&InstanceId> {
        let owner = &self.items.get(&item)?.owner.as_ref()?.instance;
        self.instances.contains_key(owner).then_some(owner)
    }

    /// The version of the parent of the items that wait for a takeover, which sidecars raise when they flag or take
    /// some over.
    pub fn failover_version(&self) -> Option<i32> {
        self.failover_version
    }

    /// Whether a resharding is due.
    pub fn necessary(&self) -> bool {
        self.necessary
    }

    /// Whether an instance is resharding.
    pub fn processing(&self) -> bool {
        self.processing
    }

    /// Whether a resharding is due or in progress, so that no execution may start.
    pub fn is_resharding(&self) -> bool {
        self.necessary || self.processing
    }

    /// All items that have a node, in their order.
    pub fn items(&self) -> impl Iterator<Item = (Item, &ItemView)> {
        self.items.iter().map(|(item, view)| (*item, view.as_ref()))
    }

    /// The known states of all items that have a node.
    pub fn item_views(&self) -> impl Iterator<Item = &ItemView> {
        self.items.values().map(Box::as_ref)
    }

    /// The items that have a node, although the job has only this many items.
    pub fn surplus(&self, total: u32) -> impl Iterator<Item = Item> {
        self.items.range(Item(total)..).map(|(item, _)| *item)
    }

    /// The known state of an item.
    pub fn item(&self, item: Item) -> Option<&ItemView> {
        self.items.get(&item).map(Box::as_ref)
    }

    /// The items that an instance executes.
    pub fn running(&self) -> &BTreeSet<Item> {
        &self.running
    }

    /// The items with a running node that is known to be this instance's.
    pub fn running_of<'a>(&'a self, instance: &'a InstanceId) -> impl Iterator<Item = Item> + 'a {
        let owner = |item: &Item| self.item(*item).and_then(|item| item.running.as_ref()?.owner.as_ref());
        self.running_read.iter().copied().filter(move |item| owner(item) == Some(instance))
    }

    /// The items with a running node whose content is known.
    pub fn running_known(&self) -> impl Iterator<Item = Item> + '_ {
        self.running_read.iter().copied()
    }

    /// The items with a missed fire.
    pub fn misfired(&self) -> &BTreeSet<Item> {
        &self.misfired
    }

    /// Grows whenever [`Self::misfired`] may change without [`Self::membership_revision`].
    pub fn misfired_revision(&self) -> u64 {
        self.misfired_revision
    }

    /// The items that wait for a takeover.
    pub fn failover_items(&self) -> &BTreeSet<Item> {
        &self.failover_items
    }

    /// The items that an instance has taken over, or had.
    pub fn taken(&self) -> &BTreeSet<Item> {
        &self.taken
    }

    /// Whether the node exists that the registry stamps with its time.
    pub fn has_registry_time(&self) -> bool {
        self.registry_time
    }

    /// The instances that an operator has triggered.
    pub fn triggers(&self) -> &BTreeSet<InstanceId> {
        &self.triggers
    }

    /// The items that are registered at a barrier.
    pub fn registered(&self, barrier: Barrier) -> &BTreeSet<Item> {
        match barrier {
            Barrier::Started => &self.started,
            Barrier::Completed => &self.completed,
        }
    }

    /// The server whose turn it is, if the job's single item rotates over the servers.
    pub fn next_server(&self) -> Option<&NextServer> {
        self.next_server.as_ref()
    }

    /// The generation of the assignment: the newest transaction that gave an item to an instance.
    pub fn generation(&self) -> Generation {
        let newest = self.items.values().filter_map(|item| item.owner.as_ref()).map(|owner| owner.token.0);
        Generation(newest.max().unwrap_or(0))
    }

    /// The nodes that could not be read: at most [`NAMED_OF_FOLDER_MAX`] of each folder, and how many more there are.
    pub fn problems(&self) -> impl Iterator<Item = Problem> + '_ {
        self.problems.iter().flat_map(|(folder, nodes)| {
            let named = nodes.iter().take(NAMED_OF_FOLDER_MAX);
            let named = named.map(|(path, message)| Problem {
                path: path.clone(),
                message: message.clone(),
                code: self.code(path),
            });
            let more = nodes.len().checked_sub(NAMED_OF_FOLDER_MAX).filter(|more| *more > 0);
            named.chain(more.map(|more| Problem {
                path: folder.clone(),
                message: format!("{more} more nodes in this folder are wrong, beside those that are named"),
                code: ProblemCode::NodeUnreadable,
            }))
        })
    }

    fn code(&self, path: &Path) -> ProblemCode {
        let is_of_config = self.relative(path).is_some_and(|relative| Place::of(&relative) == Place::Config);
        match self.config {
            _ if !is_of_config => ProblemCode::NodeUnreadable,
            ConfigView::Unreadable => ProblemCode::JobConfigUnreadable,
            ConfigView::Valid(_) | ConfigView::Absent => ProblemCode::JobSettingWrong,
        }
    }

    /// Grows with each event.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Grows whenever configuration, servers, instances or owners change; not with executions.
    pub fn membership_revision(&self) -> u64 {
        self.membership_revision
    }
}
