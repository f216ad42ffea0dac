//! Are we an instance? Writes configuration, server and instance in one transaction (protocol 2.1, 12), again in
//! each new session, and notices when somebody else removed us.
//!
//! Who has a name writes that down, too, and waits if somebody else has it (`names`).
//!
//! Must not: turn a DISABLED server into an ENABLED one (H15), overwrite a configuration without being told to, or
//! come back after an operator's stop (protocol 2.3).

use std::sync::Arc;
use std::time::Duration;

use crate::elasticjob::path::Folder;
use crate::elasticjob::{config_yaml, instance_yaml};
use crate::job::{InstanceId, JobConfiguration};
use crate::mutants::mutant;
use crate::tree::{NodeKind, Operation, Transaction};

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::EndReason;
use crate::coordination::job::frame::phase::{Phase, Session};
use crate::coordination::job::participant::Participant;
use crate::coordination::job::picture::nodes::{ConfigView, ItemView};

/// How long the removal of a whole job takes, node by node.
pub(in crate::coordination) const REMOVAL_TAKES: Duration = Duration::from_millis(500);

impl Participant {
    /// Registers, unless we are registered.
    pub(in crate::coordination) fn register(&mut self) {
        if !matches!(self.cx.phase, Phase::Joining | Phase::Active) || !self.cx.is_connected() {
            return;
        }
        let missing_server = self.cx.view.server(self.cx.identity.server_ip).is_none();
        if self.cx.is_registered() && !missing_server {
            return;
        }
        if let Some(reason) = self.cx.objection() {
            // An attempt whose outcome was unknown may have created it.
            if self.cx.has_instance() {
                self.leave(reason);
            } else {
                self.end(reason);
            }
            return;
        }
        // Our earlier session may have left something there, too.
        if !self.cx.fleet.is_loaded() || (!self.cx.is_registered() && self.waits_for_name()) {
            return;
        }
        if !self.out.may_commit(&self.cx, Purpose::Register) {
            return;
        }
        let mut transaction = Transaction::new();
        self.write_configuration(&mut transaction);
        self.write_presence(&mut transaction);
        self.out.commit(Purpose::Register, transaction);
    }

    /// Our registration is in the registry, and its changes are in the view.
    pub(in crate::coordination) fn registered_now(&mut self) {
        let now = self.cx.now;
        if let Session::Connected(id) | Session::Suspended(id) = self.cx.session {
            self.cx.registered = Some(id);
            self.names.registered(id);
            self.cx.name_taken = false;
            self.handoff.registered(self.cx.fleet.revision(), now);
            // What was divided before we knew that we are registered was not told.
            self.told.look_again();
            self.overwritten = true;
        }
        if self.cx.phase == Phase::Joining {
            self.cx.phase = Phase::Active;
        }
    }

    /// Somebody removed our instance's node: a command to stop (protocol 2.3).
    pub(in crate::coordination) fn notice_removal(&mut self) {
        let now = self.cx.now;
        let settled = self.removal_settles().is_some_and(|at| now.mono >= at);
        if settled && self.cx.is_connected() {
            self.removed_at = None;
        }
        if self.cx.is_registered() {
            self.seen = true;
            // It is there after all: a network had changed what we read. Nobody else can create it in our session.
            let stops = Phase::Draining { deadline: None, reason: EndReason::Stopped, cancelled: false };
            if self.removed_at.take().is_some() && self.cx.phase == stops {
                self.cx.phase = Phase::Active;
            }
            return;
        }
        // Only who was seen can have been removed: a snapshot may be older than our registration.
        if !self.seen || !self.cx.is_connected() || mutant!(StopIgnored) {
            return;
        }
        let is_gone = self.cx.view.class().is_none() || *self.cx.view.config() == ConfigView::Absent;
        let reason = if is_gone { EndReason::JobRemoved } else { EndReason::Stopped };
        match &self.cx.phase {
            Phase::Active => {
                self.removed_at = Some(now.mono);
                self.cx.phase = Phase::Draining { deadline: None, reason, cancelled: false };
            }
            // The rest of the job may go after our node.
            Phase::Draining { reason: EndReason::Stopped, deadline, cancelled } => {
                self.cx.phase = Phase::Draining { reason, deadline: *deadline, cancelled: *cancelled };
            }
            // Who executes may be on its way back, and is waited for as it would have been.
            Phase::Away { .. } if self.is_heir() => {}
            Phase::Away { .. } if self.has_come_back() => self.turn_away(reason),
            // There is nobody who could end what runs.
            Phase::Away { .. } => self.leave(reason),
            Phase::Joining | Phase::Draining { .. } | Phase::Leaving(_) | Phase::Ended => {}
        }
    }

    /// Until when (monotonic) the end waits, so that the removal of the whole job is known from that of our node, and so
    /// is the end of our session: a client that closes it removes our node, too, and then its connection breaks.
    pub(in crate::coordination) fn removal_settles(&self) -> Option<Duration> {
        self.removed_at.map(|at| at.saturating_add(REMOVAL_TAKES))
    }

    /// The session is lost. If our node went just before, it went with the session, and nobody wants us to stop.
    pub(in crate::coordination) fn forget_removal(&mut self) {
        if self.removed_at.take().is_none() {
            return;
        }
        if let Phase::Draining { reason: reason @ EndReason::Stopped, deadline, cancelled } =
            &mut self.cx.phase
        {
            if deadline.is_some() || *cancelled {
                *reason = EndReason::Drained;
            } else {
                self.cx.phase = Phase::Active;
            }
        }
    }

    /// The configuration that we have to write, if any.
    pub(in crate::coordination) fn configuration_to_write(&self) -> Option<Arc<JobConfiguration>> {
        let ours = self.cx.request.configuration.as_ref()?;
        let overwrite = ours.overwrite && !self.overwritten;
        let write = match self.cx.view.config() {
            // A restart must not bring back what an operator removed under a running job.
            ConfigView::Absent => self.cx.registered.is_none(),
            ConfigView::Valid(theirs) => overwrite && theirs != ours,
            ConfigView::Unreadable => overwrite,
        };
        write.then(|| Arc::clone(ours))
    }

    fn write_configuration(&self, transaction: &mut Transaction) {
        let paths = &self.cx.identity.paths;
        let configuration = self.configuration_to_write();
        let class = self.cx.request.class.as_deref().unwrap_or_default();
        match self.cx.view.class() {
            None => transaction.push(Operation::create(paths.root().clone(), NodeKind::Persistent, class)),
            Some(found) if configuration.is_some() && !class.is_empty() && found != class => {
                transaction.push(Operation::set(paths.root().clone(), class));
            }
            Some(_) => {}
        }
        let Some(configuration) = configuration else { return };
        let mut written = (*configuration).clone();
        if let ConfigView::Valid(theirs) = self.cx.view.config() {
            // Requests cannot carry them; they must not be lost.
            written.job_extra_configurations.clone_from(&theirs.job_extra_configurations);
        }
        let yaml = config_yaml::write(&written);
        transaction.push(match self.cx.view.config() {
            ConfigView::Absent => Operation::create(paths.config(), NodeKind::Persistent, yaml),
            // What somebody else writes meanwhile is not lost: the next attempt sees it (H29).
            ConfigView::Valid(_) | ConfigView::Unreadable => {
                let (path, version) = (paths.config(), self.cx.view.config_version());
                Operation::Set { path, data: yaml.as_bytes().into(), version }
            }
        });
    }

    /// Whether items are still ours, from our earlier session or from who had our name.
    fn owns_items(&self) -> bool {
        let me = &self.cx.identity.instance;
        let name = self.cx.identity.name.as_ref();
        let is_ours = |id: &InstanceId| id == me || name.is_some_and(|name| id.has_name(name.as_str()));
        let owns = |view: &ItemView| view.owner.as_ref().is_some_and(|owner| is_ours(&owner.instance));
        self.cx.view.sharding_version().is_some() && self.cx.view.items().values().any(owns)
    }

    /// Server and instance in one transaction, so that no peer's start-up can strike between them (H16), and what we say of
    /// ourselves, so that no leader takes us for Java's.
    fn write_presence(&self, transaction: &mut Transaction) {
        let paths = &self.cx.identity.paths;
        for folder in [Folder::Servers, Folder::Instances, Folder::Leader] {
            if !self.cx.view.has_folder(folder) {
                transaction.push(Operation::create(paths.folder(folder), NodeKind::Persistent, ""));
            }
        }
        if self.cx.view.sharding_version().is_none() {
            transaction.push(Operation::create(paths.leader_sharding(), NodeKind::Persistent, ""));
        }
        if self.cx.view.server(self.cx.identity.server_ip).is_none() {
            let disabled = self.cx.settings.as_ref().map(|settings| &settings.configuration);
            let disabled = disabled.or(self.cx.request.configuration.as_ref()).is_some_and(|c| c.disabled);
            let status = if disabled { "DISABLED" } else { "ENABLED" };
            transaction.push(Operation::create(
                paths.server(self.cx.identity.server_ip),
                NodeKind::Persistent,
                status,
            ));
        }
        if mutant!(ServerEnabledAgain) && self.cx.view.server(self.cx.identity.server_ip).is_some() {
            transaction.push(Operation::set(paths.server(self.cx.identity.server_ip), "ENABLED"));
        }
        if self.cx.is_registered() {
            return;
        }
        let instance = paths.instance(&self.cx.identity.instance);
        let is_left = self.cx.view.instances().contains_key(&self.cx.identity.instance);
        if is_left || (self.owns_items() && !self.cx.is_name_written()) {
            // What our earlier session has asked for, and comes after this, fails; so does a division that gives our items to
            // others, because we were gone. One that gives those of a name that is written down to others changes the
            // name's node, as we do.
            transaction.push(Operation::set(paths.leader_sharding(), ""));
        }
        if is_left {
            // Left by our earlier session; the id is ours alone.
            transaction.push(Operation::delete(instance.clone()));
        }
        transaction.extend(self.take_name());
        transaction.extend(self.first_word());
        let yaml = instance_yaml::write(&self.cx.identity.instance);
        transaction.push(Operation::create(instance, NodeKind::Ephemeral, yaml));
    }
}
