//! Is this instance registered? Writes configuration, server and instance in one transaction (protocol 2.1, 12), again
//! in each new session. An instance with a name also writes the name's node, and waits if another session has the name
//! (`instance_name`).
//!
//! Must not turn a DISABLED server into an ENABLED one (H15), nor overwrite a configuration without a request for that.
//! The meaning of a removed node is in `lifecycle::removal`.

use std::sync::Arc;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::{Phase, Verdict};
use crate::coordination::job::membership::announcement::first_announcement;
use crate::coordination::job::membership::instance_name::{Names, take_name};
use crate::coordination::job::picture::nodes::{ConfigView, ItemView};
use crate::elasticjob::path::Folder;
use crate::elasticjob::{config_yaml, instance_yaml};
use crate::job::{InstanceId, JobConfiguration};
use crate::mutants::mutant;
use crate::tree::{NodeKind, Operation, Transaction};

/// The parts of the request that were carried out.
#[derive(Debug, Default)]
pub(crate) struct Registration {
    /// Whether the request's `overwrite` was carried out; once is enough.
    overwritten: bool,
    /// Whether this instance may have been registered before, and leaders may have assigned items to it.
    repeated: bool,
    /// The same before the last attempt.
    repeated_before: bool,
}

impl Registration {
    /// The configuration is in the registry.
    pub(crate) fn was_written(&mut self) {
        self.overwritten = true;
    }

    /// The nodes of a former process are this instance's.
    pub(crate) fn resumed(&mut self) {
        self.repeated = true;
    }

    /// The last attempt was refused, so it has registered nothing.
    pub(crate) fn refused(&mut self) {
        self.repeated = self.repeated_before;
    }

    pub(crate) fn register(&mut self, cx: &Context, names: &mut Names, out: &mut Outbox) -> Verdict {
        if !matches!(cx.phase, Phase::Joining | Phase::Active) || !cx.is_connected() {
            return Verdict::Continue;
        }
        let missing_server = cx.view.server(cx.identity.server_ip).is_none();
        if cx.is_registered() && !missing_server {
            return Verdict::Continue;
        }
        if let Some(reason) = cx.objection() {
            // An attempt of unknown outcome may have created the instance.
            return if cx.has_instance() { Verdict::Leave(reason) } else { Verdict::End(reason) };
        }
        // An earlier session of this instance may have left nodes there, too.
        if !cx.fleet.is_loaded() {
            return Verdict::Continue;
        }
        if !cx.is_registered() {
            let verdict = names.waits_for_name(cx, out);
            if verdict != Verdict::Continue || names.is_taken() {
                return verdict;
            }
        }
        if !out.may_commit(cx, Purpose::Register) {
            return Verdict::Continue;
        }
        let mut transaction = Transaction::new();
        self.write_configuration(cx, &mut transaction);
        write_presence(cx, self.repeated, &mut transaction);
        self.repeated_before = std::mem::replace(&mut self.repeated, true);
        out.commit(Purpose::Register, transaction);
        Verdict::Continue
    }

    /// The configuration that this instance has to write, if any.
    pub(crate) fn configuration_to_write(&self, cx: &Context) -> Option<Arc<JobConfiguration>> {
        let ours = cx.request.configuration.as_ref()?;
        let overwrite = ours.overwrite && !self.overwritten;
        let write = match cx.view.config() {
            // A restart must not bring back a configuration that an operator removed under a running job.
            ConfigView::Absent => cx.registered.is_none(),
            ConfigView::Valid(theirs) => overwrite && theirs != ours,
            ConfigView::Unreadable => overwrite,
        };
        write.then(|| Arc::clone(ours))
    }

    fn write_configuration(&self, cx: &Context, transaction: &mut Transaction) {
        let paths = &cx.identity.paths;
        let configuration = self.configuration_to_write(cx);
        let class = cx.request.class.as_deref().unwrap_or_default();
        match cx.view.class() {
            None => transaction.push(Operation::create(paths.root().clone(), NodeKind::Persistent, class)),
            Some(found) if configuration.is_some() && !class.is_empty() && found != class => {
                transaction.push(Operation::set(paths.root().clone(), class));
            }
            Some(_) => {}
        }
        let Some(configuration) = configuration else { return };
        let mut written = (*configuration).clone();
        if let ConfigView::Valid(theirs) = cx.view.config() {
            // Requests cannot carry the extra configurations; they must not be lost.
            written.job_extra_configurations.clone_from(&theirs.job_extra_configurations);
        }
        let yaml = config_yaml::write(&written);
        transaction.push(match cx.view.config() {
            ConfigView::Absent => Operation::create(paths.config(), NodeKind::Persistent, yaml),
            // A concurrent write of another client is not lost: the next attempt sees it (H29).
            ConfigView::Valid(_) | ConfigView::Unreadable => {
                let (path, version) = (paths.config(), cx.view.config_version());
                Operation::Set { path, data: yaml.as_bytes().into(), version }
            }
        });
    }
}

/// Whether this instance still owns items, from its earlier session or from the earlier holder of its name.
fn owns_items(cx: &Context) -> bool {
    let me = &cx.identity.instance;
    let name = cx.identity.name.as_ref();
    let is_ours = |id: &InstanceId| id == me || name.is_some_and(|name| id.has_name(name.as_str()));
    let owns = |view: &ItemView| view.owner.as_ref().is_some_and(|owner| is_ours(&owner.instance));
    cx.view.sharding_version().is_some() && cx.view.item_views().any(owns)
}

/// Creates server and instance in one transaction, so that no start-up of a peer falls between them (H16); and the
/// profile, so that no leader takes the instance for one of Java's. `repeated`: this instance may have been registered
/// before.
fn write_presence(cx: &Context, repeated: bool, transaction: &mut Transaction) {
    let paths = &cx.identity.paths;
    for folder in [Folder::Servers, Folder::Instances, Folder::Leader] {
        if !cx.view.has_folder(folder) {
            transaction.push(Operation::create(paths.folder(folder), NodeKind::Persistent, ""));
        }
    }
    if cx.view.sharding_version().is_none() {
        transaction.push(Operation::create(paths.leader_sharding(), NodeKind::Persistent, ""));
    }
    if cx.view.server(cx.identity.server_ip).is_none() {
        let disabled = cx.settings.as_ref().map(|settings| &settings.configuration);
        let disabled = disabled.or(cx.request.configuration.as_ref()).is_some_and(|c| c.disabled);
        let status = if disabled { "DISABLED" } else { "ENABLED" };
        transaction.push(Operation::create(
            paths.server(cx.identity.server_ip),
            NodeKind::Persistent,
            status,
        ));
    }
    if mutant!(ServerEnabledAgain) && cx.view.server(cx.identity.server_ip).is_some() {
        transaction.push(Operation::set(paths.server(cx.identity.server_ip), "ENABLED"));
    }
    if cx.is_registered() {
        return;
    }
    let instance = paths.instance(&cx.identity.instance);
    let is_left = cx.view.instances().contains_key(&cx.identity.instance);
    if is_left || (owns_items(cx) && !cx.is_name_written()) {
        // Late requests of this instance's earlier session fail; so does a resharding that assigns its items to others
        // because it was offline. A resharding that assigns the items of a written name to others changes the name's
        // node, as this transaction does.
        transaction.push(Operation::set(paths.leader_sharding(), ""));
    } else if repeated {
        // A leader that had not seen the end of this instance's earlier session may have assigned items to it since.
        transaction.extend(cx.not_resharded());
    }
    if is_left {
        // An earlier session has left it; the id belongs to this instance alone.
        transaction.push(Operation::delete(instance.clone()));
    }
    transaction.extend(take_name(cx));
    transaction.extend(first_announcement(cx));
    let yaml = instance_yaml::write(&cx.identity.instance);
    transaction.push(Operation::create(instance, NodeKind::Ephemeral, yaml));
}
