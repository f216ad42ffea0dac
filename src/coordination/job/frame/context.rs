//! What every decision may read: the time, the instance, what is known of its job, and where it is in its life.
//!
//! Rooms are lent it to read. Only `notices` and `lifecycle`, the two on top, change a part of it: what the application was
//! told that is ours, and the phase.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::effect::EndReason;
use crate::coordination::job::contract::event::{AssignedItem, Assignment};
use crate::coordination::job::contract::request::Request;
use crate::coordination::job::frame::limits::TRANSACTION_BYTES_MAX;
use crate::coordination::job::frame::phase::{Phase, Session};
use crate::coordination::job::picture::Picture;
use crate::coordination::job::picture::fleet_view::{FleetView, NameView};
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::job::picture::nodes::ConfigView;
use crate::coordination::job::picture::settings::Settings;
use crate::coordination::time::Now;
use crate::elasticjob::execution_policy::ExecutionPolicy;
use crate::elasticjob::once_listener::OnceListener;
use crate::elasticjob::path::JobPaths;
use crate::job::{Generation, InstanceId, InstanceName, Item, JobName, ShardingStrategy};
use crate::mutants::mutant;
use crate::tree::{Operation, SessionId};

/// The identity of the participant; fixed for its life.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The job.
    pub job: JobName,
    /// The instance.
    pub instance: InstanceId,
    /// The name with which its id ends, if somebody chose one; it is the same after a restart.
    pub name: Option<InstanceName>,
    /// The instance's server.
    pub server_ip: Ipv4Addr,
    /// Its job's nodes.
    pub paths: JobPaths,
    /// The beginning of the ids of its executions; unique.
    pub execution_prefix: String,
}

/// The assignment in force: the application was told it last.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Assigned {
    /// Whether the application was told `Attached`.
    pub(in crate::coordination) attached: bool,
    /// The assignment.
    pub(in crate::coordination) assignment: Option<Assignment>,
    /// The newest generation that the application acknowledged.
    pub(in crate::coordination) acknowledged: Generation,
}

impl Assigned {
    /// Forgets the messages of a stream: there is another one. Acknowledgements stay.
    pub(in crate::coordination) fn renew(&mut self) {
        *self = Self { acknowledged: self.acknowledged, ..Self::default() };
    }

    /// The generation that was told last.
    pub(in crate::coordination) fn generation(&self) -> Generation {
        self.assignment.as_ref().map(|assignment| assignment.generation).unwrap_or_default()
    }

    /// The items that were told and may be executed.
    pub(in crate::coordination) fn executable(&self) -> impl Iterator<Item = &AssignedItem> {
        self.assignment.iter().flat_map(|assignment| &assignment.items).filter(|item| !item.disabled)
    }

    /// An item that was told and may be executed.
    pub(in crate::coordination) fn executable_item(&self, item: Item) -> Option<&AssignedItem> {
        let items = &self.assignment.as_ref()?.items;
        let index = items.binary_search_by_key(&item, |assigned| assigned.item).ok()?;
        items.get(index).filter(|assigned| !assigned.disabled)
    }
}

/// The state that every decision may read.
#[derive(Debug)]
pub(in crate::coordination) struct Context {
    /// The time of the step.
    pub(in crate::coordination) now: Now,
    pub(in crate::coordination) identity: Identity,
    pub(in crate::coordination) request: Request,
    /// What is known of the job's nodes. Nothing, between two steps.
    pub(in crate::coordination) view: Arc<JobView>,
    /// What the sidecars tell each other. Nothing, between two steps.
    pub(in crate::coordination) fleet: Arc<FleetView>,
    /// The picture of which nothing is known.
    unknown: Picture,
    pub(in crate::coordination) session: Session,
    /// The session in which our nodes were registered.
    pub(in crate::coordination) registered: Option<SessionId>,
    pub(in crate::coordination) phase: Phase,
    /// Until when (monotonic) an application whose stream has broken may go on with what it executes; nobody can tell it
    /// to stop. `None`: it has a stream, or had none.
    pub(in crate::coordination) unattended: Option<Duration>,
    pub(in crate::coordination) settings: Option<Settings>,
    /// How large a transaction may be that can be split.
    pub(in crate::coordination) transaction_bytes: usize,
    pub(in crate::coordination) assigned: Assigned,
    /// Whether another session has our name, as far as is known: then the nodes under our id belong to that session.
    pub(in crate::coordination) name_taken: bool,
    /// The instances that are not to be given items yet.
    pub(in crate::coordination) unready: BTreeSet<InstanceId>,
}

impl Context {
    /// That of a participant that has not joined yet.
    pub(in crate::coordination) fn new(identity: Identity, request: Request) -> Self {
        let unknown = Picture::unknown(&identity.paths);
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
            transaction_bytes: TRANSACTION_BYTES_MAX,
            assigned: Assigned::default(),
            name_taken: false,
            unready: BTreeSet::new(),
        }
    }

    /// Looks at a picture.
    pub(in crate::coordination) fn see(&mut self, picture: &Picture) {
        (self.view, self.fleet) = (Arc::clone(&picture.nodes), Arc::clone(&picture.fleet));
    }

    /// For the rest of the step nothing is known of the job's nodes.
    pub(in crate::coordination) fn forget_nodes(&mut self) {
        self.view = Arc::clone(&self.unknown.nodes);
    }

    /// For the rest of the step nothing is known.
    pub(in crate::coordination) fn forget(&mut self) {
        self.see(&self.unknown.clone());
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
        self.view.leader().is_some_and(|leader| leader.instance == self.identity.instance) && !self.name_taken
    }

    /// What the job says of executions.
    pub(in crate::coordination) fn policy(&self) -> ExecutionPolicy {
        self.settings.as_ref().map(|settings| settings.policy).unwrap_or_default()
    }

    /// How long the instance may stay without its application. Zero: not at all.
    pub(in crate::coordination) fn grace(&self) -> Duration {
        let grace = self.settings.as_ref().map(|settings| settings.grace);
        // Without an id of its application no stream can be known as the next one.
        grace.filter(|_| self.request.resumable && !mutant!(GraceForgotten)).unwrap_or_default()
    }

    /// Whether the job's item walks over the servers.
    pub(in crate::coordination) fn is_relay(&self) -> bool {
        self.settings.as_ref().is_some_and(|settings| {
            settings.strategy == ShardingStrategy::SingleShardingBalance
                && settings.configuration.sharding_total_count == 1
        })
    }

    /// Whether fires that cannot be executed are made up for.
    pub(in crate::coordination) fn makes_up(&self) -> bool {
        let settings = self.settings.as_ref().filter(|_| !mutant!(MisfireDropped));
        settings.is_some_and(|settings| settings.configuration.misfire)
    }

    /// Whether the application works on its items all the time, so that there is nothing to execute.
    pub(in crate::coordination) fn is_continuous(&self) -> bool {
        self.settings.as_ref().is_some_and(|settings| settings.handoff.continuous)
    }

    /// Whether items of crashed instances are executed by others.
    pub(in crate::coordination) fn fails_over(&self) -> bool {
        let configuration = self.settings.as_ref().map(|settings| &settings.configuration);
        configuration.is_some_and(|c| c.failover && c.monitor_execution)
    }

    pub(in crate::coordination) fn has_item(&self, item: Item) -> bool {
        self.settings.as_ref().is_some_and(|s| item.0 < s.configuration.sharding_total_count)
    }

    /// Whether we have taken the item over.
    pub(in crate::coordination) fn has_taken(&self, item: Item) -> bool {
        let failover = self.view.item(item).and_then(|view| view.failover.as_ref());
        failover.is_some_and(|taker| taker.instance == self.identity.instance)
    }

    /// Whether an execution of an item was interrupted, and its failover has not ended.
    pub(in crate::coordination) fn waits_for_failover(&self, item: Item) -> bool {
        self.view.failover_items().contains(&item) || self.view.taken().contains(&item)
    }

    /// The step that fails if the items were divided anew, or are about to be, since we looked.
    pub(in crate::coordination) fn undivided(&self) -> Option<Operation> {
        let path = self.identity.paths.leader_sharding();
        self.view.sharding_version().map(|version| Operation::Check { path, version: Some(version) })
    }

    /// Whether executions have running nodes, and the job a ledger.
    pub(in crate::coordination) fn monitors(&self) -> bool {
        self.settings.as_ref().is_some_and(|settings| settings.configuration.monitor_execution)
    }

    /// Whether fires concern us. An instance that wakes for a fire without following it would wake for it for ever.
    pub(in crate::coordination) fn follows_schedule(&self) -> bool {
        self.assigned.attached
            && matches!(self.phase, Phase::Active | Phase::Away { .. } | Phase::Draining { .. })
    }

    /// Whether somebody has taken the item over from a crashed instance, and has not finished it.
    pub(in crate::coordination) fn is_taken_over(&self, item: Item) -> bool {
        self.view.taken().contains(&item) && self.view.item(item).is_some_and(|view| view.failover.is_some())
    }

    /// Whether open executions were told to stop already, or need not be, so that nothing may begin.
    pub(in crate::coordination) fn is_giving_up(&self) -> bool {
        matches!(self.phase, Phase::Draining { cancelled: true, .. } | Phase::Leaving(_) | Phase::Ended)
    }

    /// Whether our name is written down, by us or by its earlier holder.
    pub(in crate::coordination) fn is_name_written(&self) -> bool {
        let name = self.identity.name.as_ref();
        name.is_some_and(|name| self.fleet.names().contains_key(name.as_str()))
    }

    /// What is written down of our name, if that is ours.
    pub(in crate::coordination) fn name_view(&self) -> Option<&NameView> {
        let known = self.fleet.names().get(self.identity.name.as_ref()?.as_str())?;
        (known.instance == self.identity.instance).then_some(known)
    }

    /// Why we may not become an instance.
    pub(in crate::coordination) fn objection(&self) -> Option<EndReason> {
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

    pub(in crate::coordination) fn once_listener(&self) -> Option<OnceListener> {
        self.settings.as_ref().and_then(|settings| settings.once_listener)
    }

    pub(in crate::coordination) fn is_staying(&self) -> bool {
        matches!(self.phase, Phase::Active | Phase::Draining { .. })
    }

    /// The instances that may be given items by ElasticJob's rules, in the order in which strategies take them. One that is
    /// not ready is not among them, unless nobody is.
    pub(in crate::coordination) fn assignable(&self) -> Vec<InstanceId> {
        let available = self.view.available();
        let is_unready = |id: &InstanceId| self.unready.contains(id);
        if available.iter().all(is_unready) {
            return available;
        }
        available.into_iter().filter(|id| !is_unready(id)).collect()
    }
}
