//! The catalogue of findings: everything that can be wrong with a job, each with its code, its severity, one sentence, and the
//! remedy; with a sidecar ([`sidecar`]); and what applications and observers are told while a job goes on ([`problem`]). Pure. Decides the words; `coordination::admin::explain` decides which findings a job has, and
//! `coordination::admin::doctor` which ones a sidecar has.
//!
//! A code is never renamed and never gets a second meaning, because programs and runbooks rely on it. `docs/operations.md` has a
//! section for each, and `tests/tidy` compares the two.

pub mod problem;
pub mod sidecar;

use std::net::Ipv4Addr;

use jiff::Timestamp;

use crate::job::{InstanceId, Item, JobName};
use crate::tree::Path;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be, and worth knowing.
    Info,
    /// Something does not run as it should, or soon will not.
    Warning,
    /// Something does not run.
    Error,
}

/// The effect of a finding on its items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// They run.
    None,
    /// They do not run now, and will without anybody's help.
    Waits,
    /// They do not run until somebody does something.
    Blocks,
}

/// The job, item, instance or server that a finding is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// The job as a whole.
    Job,
    /// An item.
    Item(Item),
    /// An instance.
    Instance(InstanceId),
    /// A server.
    Server(Ipv4Addr),
}

/// An entry of the catalogue, with the values for its sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// The job has nodes, and no configuration.
    JobNotConfigured,
    /// The job was removed, and Sidekeeper's own nodes of it are left.
    JobNodesLeft,
    /// Servers have had no instance for long.
    ServersIdle(Vec<Ipv4Addr>),
    /// The configuration cannot be read.
    JobConfigUnreadable(Text),
    /// The items' parameters cannot be read.
    JobParametersUnreadable(Text),
    /// A setting has no effect, or another one than it says.
    JobSettingWrong(Text),
    /// No instance is online.
    JobNoInstances,
    /// The servers of all online instances are disabled.
    JobServersDisabled,
    /// There is no schedule.
    JobNoSchedule,
    /// The schedule has fired for the last time.
    JobNeverFiresAgain,
    /// The job names no time zone, and instances of both kinds are online.
    JobZoneDiffers,
    /// Instances are online, and none leads.
    LeaderMissing,
    /// The leader has not resharded for long, though nothing keeps it from that.
    LeaderHung(InstanceId),
    /// A resharding is due, and items are being executed.
    ReshardingWaitsForRunning(Vec<Item>),
    /// A resharding is due, and the leader is a Java instance, which reshards when the job fires.
    ReshardingWaitsForJavaFire(InstanceId),
    /// A resharding is due or going on.
    ReshardingGoesOn,
    /// A server is disabled.
    ServerDisabled(Ipv4Addr),
    /// A node that an operator or an instance wrote cannot be read.
    NodeUnreadable(Text),
    /// An instance has not fired yet for a trigger.
    TriggerWaits(InstanceId),
    /// An operator has disabled the item.
    ItemDisabled(Item),
    /// No instance owns the item.
    ItemUnowned(Item),
    /// The owner is not online.
    ItemOwnerOffline(Item, InstanceId),
    /// The owner is not online, and its name keeps the item for a while.
    ItemOwnerAway(Item, InstanceId),
    /// The owner is online, and its server is disabled.
    ItemServerDisabled(Item, InstanceId),
    /// The item has a running node of an instance that is not online.
    ItemRunningStale(Item, InstanceId),
    /// The item has been executed since before its last fire.
    ItemRunningLong(Item),
    /// Another instance is to take the item over from one that crashed.
    ItemFailoverWaits(Item),
    /// The execution waits for the lock of its item.
    ItemWaitsForLock {
        /// The item.
        item: Item,
        /// The lock's name.
        lock: String,
        /// The first contender of its queue, in its own words.
        holder: Option<String>,
    },
    /// A fire was missed, and will be re-run.
    ItemMisfired(Item),
    /// So many triggers of the item have not been taken up.
    ItemTriggerWaits(Item, usize),
    /// The application reports that it cannot execute the item.
    ItemFailing {
        /// The item.
        item: Item,
        /// How many executions in a row.
        times: u32,
        /// The application's message.
        message: Text,
    },
}

/// A text from outside, which may quote parameters of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Text {
    /// The text.
    Shown(String),
    /// The caller may not see it.
    Hidden,
}

impl Text {
    /// A text as it is.
    pub fn of(text: &str) -> Self {
        Self::Shown(text.to_owned())
    }

    fn shown(&self) -> &str {
        match self {
            Self::Shown(text) => text,
            Self::Hidden => "only callers with the role `operate` may see the text",
        }
    }
}

/// A cause, and where it shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The entry of the catalogue.
    pub cause: Cause,
    /// The nodes that show it.
    pub paths: Vec<Path>,
    /// Since when, as far as is known.
    pub since: Option<Timestamp>,
    /// The author of the disabling, as far as is known.
    pub disabled_by: Option<DisabledBy>,
}

/// The author of a disabling, and its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DisabledBy {
    /// The author.
    pub author: String,
    /// Why. Empty: nobody has said it.
    pub reason: String,
    /// Until when. `None`: until somebody enables it.
    pub until: Option<Timestamp>,
}

impl Finding {
    /// A finding that no node shows.
    pub fn of(cause: Cause) -> Self {
        Self { cause, paths: Vec::new(), since: None, disabled_by: None }
    }

    /// A finding that one node shows.
    pub fn at(cause: Cause, path: Path) -> Self {
        Self { paths: vec![path], ..Self::of(cause) }
    }

    /// The same, since an instant.
    pub fn since(self, since: Option<Timestamp>) -> Self {
        Self { since, ..self }
    }

    /// The same, with the one who has disabled the item or the server.
    pub fn disabled_by(self, disabled_by: Option<DisabledBy>) -> Self {
        Self { disabled_by, ..self }
    }

    /// The fault, in one sentence.
    pub fn message(&self) -> String {
        let message = self.cause.message();
        let Some(DisabledBy { author, reason, until }) = &self.disabled_by else { return message };
        let until = until.map(|until| format!(" until {until}")).unwrap_or_default();
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        format!("{message} (by {author}{until}{reason})")
    }

    /// The same finding without texts, for a caller without the role `operate`.
    pub fn without_texts(mut self) -> Self {
        if let Cause::JobConfigUnreadable(text)
        | Cause::JobParametersUnreadable(text)
        | Cause::JobSettingWrong(text)
        | Cause::ItemFailing { message: text, .. } = &mut self.cause
        {
            *text = Text::Hidden;
        }
        self
    }

    /// Where the documentation explains it.
    pub fn anchor(&self) -> String {
        anchor(self.cause.code())
    }
}

/// Where the documentation explains a code.
fn anchor(code: &str) -> String {
    format!("docs/operations.md#{}", code.to_lowercase())
}

impl Cause {
    /// The entry's code, its severity, and its effect on its items.
    fn entry(&self) -> (&'static str, Severity, Effect) {
        use Effect::{Blocks, None, Waits};
        use Severity::{Error, Info, Warning};
        match self {
            Self::JobNotConfigured => ("JOB_NOT_CONFIGURED", Error, Blocks),
            Self::JobNodesLeft => ("JOB_NODES_LEFT", Warning, None),
            Self::ServersIdle(_) => ("SERVERS_IDLE", Warning, None),
            Self::JobConfigUnreadable(_) => ("JOB_CONFIG_UNREADABLE", Error, Blocks),
            Self::JobParametersUnreadable(_) => ("JOB_PARAMETERS_UNREADABLE", Error, Blocks),
            Self::JobSettingWrong(_) => ("JOB_SETTING_WRONG", Warning, None),
            Self::JobNoInstances => ("JOB_NO_INSTANCES", Error, Blocks),
            Self::JobServersDisabled => ("JOB_SERVERS_DISABLED", Error, Blocks),
            Self::JobNoSchedule => ("JOB_NO_SCHEDULE", Info, None),
            Self::JobNeverFiresAgain => ("JOB_NEVER_FIRES_AGAIN", Warning, None),
            Self::JobZoneDiffers => ("JOB_ZONE_DIFFERS", Warning, None),
            Self::LeaderMissing => ("LEADER_MISSING", Warning, None),
            Self::LeaderHung(_) => ("LEADER_HUNG", Error, Waits),
            Self::ReshardingWaitsForRunning(_) => ("RESHARDING_WAITS_FOR_RUNNING", Warning, Waits),
            Self::ReshardingWaitsForJavaFire(_) => ("RESHARDING_WAITS_FOR_JAVA_FIRE", Info, Waits),
            Self::ReshardingGoesOn => ("RESHARDING_GOES_ON", Info, Waits),
            Self::ServerDisabled(_) => ("SERVER_DISABLED", Warning, None),
            Self::NodeUnreadable(_) => ("NODE_UNREADABLE", Warning, None),
            Self::TriggerWaits(_) => ("TRIGGER_WAITS", Info, None),
            Self::ItemDisabled(_) => ("ITEM_DISABLED", Error, Blocks),
            Self::ItemUnowned(_) => ("ITEM_UNOWNED", Error, Blocks),
            Self::ItemOwnerOffline(..) => ("ITEM_OWNER_OFFLINE", Error, Blocks),
            Self::ItemOwnerAway(..) => ("ITEM_OWNER_AWAY", Warning, Waits),
            Self::ItemServerDisabled(..) => ("ITEM_SERVER_DISABLED", Error, Blocks),
            Self::ItemRunningStale(..) => ("ITEM_RUNNING_STALE", Error, Blocks),
            Self::ItemRunningLong(_) => ("ITEM_RUNNING_LONG", Warning, Waits),
            Self::ItemFailoverWaits(_) => ("ITEM_FAILOVER_WAITS", Warning, Waits),
            Self::ItemWaitsForLock { .. } => ("ITEM_WAITS_FOR_LOCK", Warning, Waits),
            Self::ItemMisfired(_) => ("ITEM_MISFIRED", Info, None),
            Self::ItemTriggerWaits(..) => ("ITEM_TRIGGER_WAITS", Info, None),
            Self::ItemFailing { .. } => ("ITEM_FAILING", Error, None),
        }
    }

    /// The code: for programs.
    pub fn code(&self) -> &'static str {
        self.entry().0
    }

    /// How bad it is.
    pub fn severity(&self) -> Severity {
        self.entry().1
    }

    /// The effect on its items.
    pub fn effect(&self) -> Effect {
        self.entry().2
    }

    /// The job, item, instance or server that it is about.
    pub fn subject(&self) -> Subject {
        match self {
            Self::ServerDisabled(server) => Subject::Server(*server),
            Self::LeaderHung(instance)
            | Self::ReshardingWaitsForJavaFire(instance)
            | Self::TriggerWaits(instance) => Subject::Instance(instance.clone()),
            Self::ItemDisabled(item)
            | Self::ItemUnowned(item)
            | Self::ItemOwnerOffline(item, _)
            | Self::ItemOwnerAway(item, _)
            | Self::ItemServerDisabled(item, _)
            | Self::ItemRunningStale(item, _)
            | Self::ItemRunningLong(item)
            | Self::ItemFailoverWaits(item)
            | Self::ItemWaitsForLock { item, .. }
            | Self::ItemMisfired(item)
            | Self::ItemTriggerWaits(item, _)
            | Self::ItemFailing { item, .. } => Subject::Item(*item),
            Self::JobNotConfigured
            | Self::JobNodesLeft
            | Self::ServersIdle(_)
            | Self::JobConfigUnreadable(_)
            | Self::JobParametersUnreadable(_)
            | Self::JobSettingWrong(_)
            | Self::JobNoInstances
            | Self::JobServersDisabled
            | Self::JobNoSchedule
            | Self::JobNeverFiresAgain
            | Self::JobZoneDiffers
            | Self::LeaderMissing
            | Self::ReshardingWaitsForRunning(_)
            | Self::ReshardingGoesOn
            | Self::NodeUnreadable(_) => Subject::Job,
        }
    }

    /// The fault, in one sentence.
    pub fn message(&self) -> String {
        match self {
            Self::JobNotConfigured => "the registry has nodes of the job, and no configuration".to_owned(),
            Self::JobNodesLeft => {
                "the job does not exist any more, and Sidekeeper's own nodes of it are left".to_owned()
            }
            Self::ServersIdle(servers) => {
                let (count, word) = (servers.len(), if servers.len() == 1 { "server has" } else { "servers have" });
                let example = servers.first().map(|server| format!(", for example {server}")).unwrap_or_default();
                format!("{count} {word} no instance, and a node that nobody has written for 30 days{example}")
            }
            Self::JobConfigUnreadable(text)
            | Self::JobParametersUnreadable(text)
            | Self::JobSettingWrong(text) => text.shown().to_owned(),
            Self::JobNoInstances => "no instance is online".to_owned(),
            Self::JobServersDisabled => "the servers of all online instances are disabled".to_owned(),
            Self::JobNoSchedule => {
                "the job has no cron expression: it runs only when it is triggered".to_owned()
            }
            Self::JobNeverFiresAgain => "the cron expression never fires again".to_owned(),
            Self::JobZoneDiffers => {
                "the job has no timeZone: sidecars fire by UTC, and each Java instance by the time zone of its machine"
                    .to_owned()
            }
            Self::LeaderHung(leader) => {
                format!("a resharding has been due for long, and the leader `{leader}` does not do it")
            }
            Self::LeaderMissing => "no instance leads, though instances are online".to_owned(),
            Self::ReshardingWaitsForRunning(items) => {
                format!("a resharding waits until {} not executed any more", are(items))
            }
            Self::ReshardingWaitsForJavaFire(leader) => {
                format!(
                    "a resharding is due, and the leader `{leader}`, a Java instance, reshards at its next fire only"
                )
            }
            Self::ReshardingGoesOn => "a resharding is due or going on".to_owned(),
            Self::ServerDisabled(server) => {
                format!("the server {server} is disabled: its instances get no items")
            }
            Self::NodeUnreadable(text) => text.shown().to_owned(),
            Self::TriggerWaits(instance) => format!("`{instance}` has not fired yet for a trigger"),
            Self::ItemDisabled(_) => "the item is disabled".to_owned(),
            Self::ItemUnowned(_) => "no instance owns the item".to_owned(),
            Self::ItemOwnerOffline(_, owner) => format!("its owner `{owner}` is not online"),
            Self::ItemOwnerAway(_, owner) => {
                format!("its owner `{owner}` is not online, and keeps the item for the reattach grace")
            }
            Self::ItemServerDisabled(_, owner) => format!("the server of its owner `{owner}` is disabled"),
            Self::ItemRunningStale(_, owner) => {
                format!(
                    "its running node is of `{owner}`, which is not online: nobody executes the item, and nobody may"
                )
            }
            Self::ItemRunningLong(_) => {
                "it has been executed for so long that it was due again meanwhile".to_owned()
            }
            Self::ItemFailoverWaits(_) => {
                "an instance that executed it has crashed, and another one is to take it over".to_owned()
            }
            Self::ItemWaitsForLock { lock, holder, .. } => {
                let holder = holder.as_deref().unwrap_or("unknown");
                format!("its execution waits for the lock `{lock}`, whose holder is {holder}")
            }
            Self::ItemMisfired(_) => {
                "it has missed a fire, which is executed when the execution before it ends".to_owned()
            }
            Self::ItemTriggerWaits(_, 1) => "a trigger of the item has not been taken up".to_owned(),
            Self::ItemTriggerWaits(_, count) => {
                format!("{count} triggers of the item have not been taken up: they are executed one after the other")
            }
            Self::ItemFailing { times: 1, message, .. } => {
                format!("its last execution failed: {}", message.shown())
            }
            Self::ItemFailing { times, message, .. } => {
                format!("its last {times} executions failed, the last one: {}", message.shown())
            }
        }
    }

    /// The command or the act that ends the fault of this job. Empty: none is needed.
    pub fn remedy(&self, job: &JobName) -> String {
        let text = match self {
            Self::ItemDisabled(item) => return format!("sidekeeper enable {job} --item {item}"),
            Self::JobServersDisabled => return format!("sidekeeper enable {job} --all-servers"),
            Self::ServerDisabled(server) => return format!("sidekeeper enable {job} --server {server}"),
            Self::ItemServerDisabled(_, owner) => {
                let server = owner.server_ip().map(|server| server.to_string()).unwrap_or_default();
                return format!("sidekeeper enable {job} --server {server}");
            }
            Self::ReshardingWaitsForRunning(_) => {
                return format!("wait, or cancel the executions: sidekeeper cancel {job} --fleet");
            }
            Self::ReshardingWaitsForJavaFire(_) => {
                return format!("wait for the fire, or make the job fire: sidekeeper trigger {job}");
            }
            Self::ItemRunningLong(item) => {
                return format!("wait, or cancel it: sidekeeper cancel {job} --item {item} --fleet");
            }
            Self::ItemWaitsForLock { lock, .. } => {
                return format!("look who holds the lock: sidekeeper locks {lock}");
            }
            Self::ItemTriggerWaits(..) => {
                return format!("wait, or see how far they are: sidekeeper triggers {job}");
            }
            Self::ServersIdle(servers) => {
                let server = servers.first().map(|server| format!(" --server {server}")).unwrap_or_default();
                return format!("sidekeeper remove {job}{server}, or set sidekeeper.stale-servers");
            }
            Self::JobNodesLeft => {
                "attach an application of the job, or delete the nodes with all below them (deleteall of zkCli.sh)"
            }
            Self::JobNotConfigured => {
                "attach an application with a configuration, or start the job's Java service"
            }
            Self::JobConfigUnreadable(_) | Self::JobParametersUnreadable(_) | Self::JobSettingWrong(_) => {
                "correct the configuration"
            }
            Self::JobNoInstances => {
                "start an application of the job, beside a sidecar of this namespace, or its Java service"
            }
            Self::JobNeverFiresAgain => "give an expression that fires, or none",
            Self::JobZoneDiffers => "set timeZone in the configuration, to an offset such as GMT+8:00",
            Self::LeaderHung(leader) => {
                return format!(
                    "end the process of `{leader}`, or let it go on; when its session has ended, another instance leads"
                );
            }
            Self::LeaderMissing => {
                "wait some seconds; if it stays, look at the logs of the instances that are online"
            }
            Self::NodeUnreadable(_) => "delete the node, or write what belongs there",
            Self::ItemUnowned(_) | Self::ItemOwnerOffline(..) => {
                "wait for the leader's resharding; if it stays, look at the leader's log"
            }
            Self::ItemRunningStale(..) => {
                "make sure that the process has ended, then delete the running node"
            }
            Self::ItemFailing { .. } => "look at the application's log",
            Self::JobNoSchedule
            | Self::ReshardingGoesOn
            | Self::TriggerWaits(_)
            | Self::ItemOwnerAway(..)
            | Self::ItemFailoverWaits(_)
            | Self::ItemMisfired(_) => "",
        };
        text.to_owned()
    }
}

/// `item 3 is`, `items 1, 4 and 7 are`, `items 1, 2, 3 and 97 more are`.
fn are(items: &[Item]) -> String {
    const NAMED: usize = 5;
    match items {
        [] => "an item is".to_owned(),
        [item] => format!("item {item} is"),
        _ => {
            let named: Vec<_> = items.iter().take(NAMED).map(ToString::to_string).collect();
            let more = items.len().saturating_sub(NAMED);
            let named = named.join(", ");
            if more == 0 {
                format!("items {named} are")
            } else {
                format!("items {named} and {more} more are")
            }
        }
    }
}
