//! The state that every decision may read: the time, the instance, the known state of its job, and the phase.
//!
//! Rooms are lent the context to read. Only `notices` and `lifecycle`, the two upper rooms, change a part of it: the
//! assignment in force, and the phase.
//!
//! Many transactions check the version of `leader/sharding` ([`Context::not_resharded`]), because a late request cannot
//! tell a new node from the one before: both have version 0. Each resharding of a sidecar raises that version, and so
//! does each registration after a session that may still live. The check is in every transaction that assigns or hands
//! over items, starts or completes executions, or removes the instance.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::effect::EndReason;
use crate::coordination::job::contract::event::{AssignedItem, Assignment};
use crate::coordination::job::contract::request::Request;
use crate::coordination::job::frame::limits::{FIRE_BYTES_MAX, TRANSACTION_BYTES_MAX};
use crate::coordination::job::frame::phase::{Phase, Session};
use crate::coordination::job::picture::Picture;
use crate::coordination::job::picture::fleet_view::FleetView;
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::job::picture::nodes::ConfigView;
use crate::coordination::job::picture::settings::{Rescheduled, Settings};
use crate::coordination::time::Now;
use crate::elasticjob::path::JobPaths;
use crate::extension::execution_policy::ExecutionPolicy;
use crate::extension::name_record::NameRecord;
use crate::extension::once_listener::OnceListener;
use crate::extension::path::ExtensionPaths;
use crate::job::{FencingToken, Generation, InstanceId, InstanceName, Item, JobName, ShardingStrategy};
use crate::mutants::mutant;
use crate::tree::{Operation, SessionId};

/// The identity of the participant; fixed for its life.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The job.
    pub job: JobName,
    /// The instance.
    pub instance: InstanceId,
    /// The name at the end of its id, if the application gave one; it is the same after a restart.
    pub name: Option<InstanceName>,
    /// The address of its server.
    pub server_ip: Ipv4Addr,
    /// The paths of its job's nodes.
    pub paths: JobPaths,
    /// The paths of our own nodes of the job.
    pub own_paths: ExtensionPaths,
    /// The beginning of the ids of its executions; unique.
    pub execution_prefix: String,
}

/// The assignment in force: the last one that was sent to the application.
#[derive(Debug, Default)]
pub(crate) struct Assigned {
    /// Whether `Attached` was sent to the application.
    pub(crate) attached: bool,
    pub(crate) assignment: Option<Assignment>,
    /// The newest generation that the application acknowledged.
    pub(crate) acknowledged: Generation,
}

impl Assigned {
    /// Forgets the messages to an earlier stream. Acknowledgements stay.
    pub(crate) fn renew(&mut self) {
        *self = Self { acknowledged: self.acknowledged, ..Self::default() };
    }

    /// The generation of the last assignment that was sent.
    pub(crate) fn generation(&self) -> Generation {
        self.assignment.as_ref().map(|assignment| assignment.generation).unwrap_or_default()
    }

    /// The items of the assignment in force that may be executed.
    pub(crate) fn executable(&self) -> impl Iterator<Item = &AssignedItem> {
        self.assignment.iter().flat_map(|assignment| &assignment.items).filter(|item| !item.disabled)
    }

    /// The item, if the assignment in force has it and it may be executed.
    pub(crate) fn executable_item(&self, item: Item) -> Option<&AssignedItem> {
        let items = &self.assignment.as_ref()?.items;
        let index = items.binary_search_by_key(&item, |assigned| assigned.item).ok()?;
        items.get(index).filter(|assigned| !assigned.disabled)
    }
}

#[derive(Debug)]
pub(crate) struct Context {
    /// The time of the step.
    pub(crate) now: Now,
    pub(crate) identity: Identity,
    pub(crate) request: Request,
    /// The known state of the job's nodes. Empty between two steps.
    pub(crate) view: Arc<JobView>,
    /// The published state of the other sidecars. Empty between two steps.
    pub(crate) fleet: Arc<FleetView>,
    /// A picture without any node.
    unknown: Picture,
    pub(crate) session: Session,
    /// The session in which this instance was registered.
    pub(crate) registered: Option<SessionId>,
    pub(crate) phase: Phase,
    /// Until when (monotonic) an application without a stream may go on with its executions; no message can stop it.
    /// `None`: it has a stream, or had none.
    pub(crate) unattended: Option<Duration>,
    pub(crate) settings: Option<Settings>,
    /// The revision of the nodes from which the settings were compiled.
    settings_revision: u64,
    /// The largest size of a transaction that can be split.
    pub(crate) transaction_bytes: usize,
    pub(crate) assigned: Assigned,
    /// Whether another session is known to have this instance's name: then the nodes under its id belong to that
    /// session.
    pub(crate) name_taken: bool,
    /// The instances that get no items yet.
    pub(crate) unready: BTreeSet<InstanceId>,
}

impl Context {
    /// The context of a participant that has not joined yet.
    pub(crate) fn new(identity: Identity, request: Request) -> Self {
        let unknown = Picture::of_nothing(&identity.own_paths);
        Self {
            now: Now { wall: Timestamp::UNIX_EPOCH, mono: Duration::ZERO },
            identity,
            request,
            view: Arc::clone(&unknown.nodes),
            fleet: Arc::clone(&unknown.fleet),
            unknown,
            session: Session::None,
            registered: None,
            phase: Phase::Joining,
            unattended: None,
            settings: None,
            settings_revision: 0,
            transaction_bytes: TRANSACTION_BYTES_MAX,
            assigned: Assigned::default(),
            name_taken: false,
            unready: BTreeSet::new(),
        }
    }

    /// The largest size of a transaction that starts or ends executions.
    pub(crate) fn fire_bytes(&self) -> usize {
        self.transaction_bytes.min(FIRE_BYTES_MAX)
    }

    /// Reads from this picture until the end of the step.
    pub(crate) fn see(&mut self, picture: &Picture) {
        (self.view, self.fleet) = (Arc::clone(&picture.nodes), Arc::clone(&picture.fleet));
    }

    /// No decision of this step rests on the job's nodes any more.
    pub(crate) fn forget_nodes(&mut self) {
        self.view = Arc::clone(&self.unknown.nodes);
    }

    /// No decision of this step rests on any node any more.
    pub(crate) fn forget(&mut self) {
        (self.view, self.fleet) = (Arc::clone(&self.unknown.nodes), Arc::clone(&self.unknown.fleet));
    }

    /// Compiles the configuration in force, if it has changed. Returns the change of the schedule.
    pub(crate) fn compile_settings(&mut self) -> Option<Rescheduled> {
        let now = self.now;
        let revision = self.view.membership_revision();
        let known = revision == self.settings_revision && self.settings.is_some();
        if !self.view.is_loaded() || known {
            return None;
        }
        self.settings_revision = revision;
        let configuration = match self.view.config() {
            ConfigView::Valid(configuration) => Some(Arc::clone(configuration)),
            // The configuration in force stays; at the start the application's own is better than none.
            ConfigView::Unreadable if self.settings.is_none() => self.request.configuration.clone(),
            ConfigView::Unreadable | ConfigView::Absent => None,
        };
        let configuration = configuration?;
        let current = self.settings.as_ref();
        if current.is_some_and(|current| current.configuration == configuration) {
            return None;
        }
        let settings = Settings::compile(configuration, current);
        let since = self.view.config_since().and_then(|since| self.view.registry_clock().here(since, now));
        let before = self.settings.replace(settings).and_then(|before| before.schedule);
        Some(Rescheduled { before, since })
    }

    /// Whether the session is alive and the job's nodes are known.
    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.session, Session::Connected(_)) && self.view.is_loaded()
    }

    /// Whether this instance is registered in the present session, according to the view.
    pub(crate) fn is_registered(&self) -> bool {
        match self.session {
            Session::Connected(id) => {
                let ours = self.view.instances().get(&self.identity.instance);
                (self.registered == Some(id) && ours.is_some_and(|ours| ours.session == Some(id)))
                    || (ours.is_some() && mutant!(SessionChangeIgnored))
            }
            Session::None | Session::Suspended(_) => false,
        }
    }

    /// Whether the view shows this instance in the present session, also if the result of the registration is unknown.
    pub(crate) fn has_instance(&self) -> bool {
        let ours = self.view.instances().get(&self.identity.instance);
        let session = ours.and_then(|ours| ours.session);
        matches!(self.session, Session::Connected(id) if session == Some(id))
    }

    pub(crate) fn has_java_peers(&self) -> bool {
        self.view.has_java_instances()
    }

    /// Whether this instance was registered in the present session; an operator may have stopped it since.
    pub(crate) fn was_registered(&self) -> bool {
        matches!(self.session, Session::Connected(id) if self.registered == Some(id))
    }

    /// Whether this instance's server is enabled.
    pub(crate) fn is_enabled(&self) -> bool {
        self.view.is_enabled(self.identity.server_ip)
    }

    /// Whether this instance leads, according to the view.
    pub(crate) fn is_leader(&self) -> bool {
        self.term().is_some()
    }

    /// The term in which this instance leads, according to the view. `None`: it does not lead.
    pub(crate) fn term(&self) -> Option<FencingToken> {
        let leader = self.view.leader().filter(|leader| leader.instance == self.identity.instance);
        leader.filter(|_| !self.name_taken).map(|leader| FencingToken::from(leader.created))
    }

    /// The job's policy of executions.
    pub(crate) fn policy(&self) -> ExecutionPolicy {
        self.settings.as_ref().map(|settings| settings.policy).unwrap_or_default()
    }

    /// `reattach_grace`: how long the instance may stay without a stream. Zero: it leaves at once.
    pub(crate) fn grace(&self) -> Duration {
        let grace = self.settings.as_ref().map(|settings| settings.grace);
        // Without an id of the application the sidecar cannot recognise its next stream.
        grace.filter(|_| self.request.resumable && !mutant!(GraceForgotten)).unwrap_or_default()
    }

    /// Whether the job's single item rotates over the servers.
    pub(crate) fn rotates(&self) -> bool {
        self.settings.as_ref().is_some_and(|settings| {
            settings.strategy == ShardingStrategy::SingleShardingBalance
                && settings.configuration.sharding_total_count == 1
        })
    }

    /// Whether the job wants misfire re-runs.
    pub(crate) fn reruns_missed(&self) -> bool {
        let settings = self.settings.as_ref().filter(|_| !mutant!(MisfireDropped));
        settings.is_some_and(|settings| settings.configuration.misfire)
    }

    /// Whether the application works on its items all the time, and gets no executions.
    pub(crate) fn is_continuous(&self) -> bool {
        self.settings.as_ref().is_some_and(|settings| settings.handoff.continuous)
    }

    /// Whether the items of crashed instances are taken over.
    pub(crate) fn fails_over(&self) -> bool {
        let configuration = self.settings.as_ref().map(|settings| &settings.configuration);
        configuration.is_some_and(|c| c.failover && c.monitor_execution)
    }

    pub(crate) fn has_item(&self, item: Item) -> bool {
        self.settings.as_ref().is_some_and(|s| item.0 < s.configuration.sharding_total_count)
    }

    /// Whether this instance has taken the item over.
    pub(crate) fn has_taken(&self, item: Item) -> bool {
        let failover = self.view.item(item).and_then(|view| view.failover.as_ref());
        failover.is_some_and(|taker| taker.instance == self.identity.instance)
    }

    /// Whether an execution of the item was interrupted, and its failover has not ended.
    pub(crate) fn waits_for_failover(&self, item: Item) -> bool {
        self.view.failover_items().contains(&item) || self.view.taken().contains(&item)
    }

    /// The step that fails if the items were resharded since this view, or are about to be.
    pub(crate) fn not_resharded(&self) -> Option<Operation> {
        let path = self.identity.paths.leader_sharding();
        self.view.sharding_version().map(|version| Operation::Check { path, version: Some(version) })
    }

    /// Whether executions have running nodes, and the job a ledger.
    pub(crate) fn monitors(&self) -> bool {
        self.settings.as_ref().is_some_and(|settings| settings.configuration.monitor_execution)
    }

    /// Whether this instance follows the schedule. An instance that wakes for a fire without following the schedule
    /// would wake for it again and again.
    pub(crate) fn follows_schedule(&self) -> bool {
        self.assigned.attached && self.phase.is_there()
    }

    /// Whether an instance has taken the item over and has not completed it.
    pub(crate) fn is_taken_over(&self, item: Item) -> bool {
        self.view.taken().contains(&item) && self.view.item(item).is_some_and(|view| view.failover.is_some())
    }

    /// Whether open executions are cancelled already, or need not be, so that none may begin.
    pub(crate) fn is_giving_up(&self) -> bool {
        self.phase.is_leaving() || matches!(self.phase, Phase::Draining { cancelled: true, .. })
    }

    /// Whether the node of this instance's name exists, of this instance or of an earlier one.
    pub(crate) fn is_name_written(&self) -> bool {
        let name = self.identity.name.as_ref();
        name.is_some_and(|name| self.fleet.names().contains_key(name.as_str()))
    }

    /// The node of this instance's name, if it is this instance's.
    pub(crate) fn name_view(&self) -> Option<&NameRecord> {
        let known = self.fleet.names().get(self.identity.name.as_ref()?.as_str())?;
        (known.instance == self.identity.instance).then_some(known)
    }

    /// The reason for which this instance may not register.
    pub(crate) fn objection(&self) -> Option<EndReason> {
        if let (Some(given), Some(found)) = (&self.request.class, self.view.class())
            && !found.trim().is_empty()
            && given != found
        {
            return Some(EndReason::ClassConflict { given: given.clone(), found: found.to_owned() });
        }
        let configured = match self.view.config() {
            ConfigView::Valid(_) => true,
            ConfigView::Absent | ConfigView::Unreadable => self.request.configuration.is_some(),
        };
        (!configured).then_some(EndReason::NotConfigured)
    }

    pub(crate) fn once_listener(&self) -> Option<OnceListener> {
        self.settings.as_ref().and_then(|settings| settings.once_listener)
    }

    pub(crate) fn is_staying(&self) -> bool {
        matches!(self.phase, Phase::Active | Phase::Draining { .. })
    }

    /// The instances that may get items by ElasticJob's rules, in the order in which strategies take them. Instances
    /// that are not ready are left out, unless all are.
    pub(crate) fn assignable(&self) -> Vec<InstanceId> {
        let available = self.view.available();
        let is_unready = |id: &InstanceId| self.unready.contains(id);
        if available.iter().all(is_unready) {
            return available;
        }
        available.into_iter().filter(|id| !is_unready(id)).collect()
    }
}
