//! By which rules do items change hands? One by one among sidecars; all at once, as in ElasticJob, with a Java instance
//! or if the job asks for it (P1, P2).

use std::fmt;
use std::time::Duration;

use crate::coordination::job::frame::context::Context;
use crate::coordination::job::picture::fleet_view::FleetView;
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::job::picture::settings::Settings;
use crate::elasticjob::path::JobPaths;
use crate::extension::handoff_policy::Handoff as Policy;
use crate::extension::path::ExtensionPaths;
use crate::job::{InstanceId, ShardingStrategy};
use crate::mutants::mutant;
use crate::tree::{NodeKind, Operation, Transaction};

/// How long an instance may be online without a profile. A sidecar writes the profile in the transaction of its
/// registration; an instance that is silent for longer is no sidecar that hands items over.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// The rules by which items change hands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// One by one, each when its owner has released it.
    OneByOne,
    /// All at once, as in ElasticJob; with the reason.
    AllAtOnce(AllAtOnceReason),
    /// This instance has published no profile yet.
    Undecided(InstanceId),
}

/// The reason for which items change hands all at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllAtOnceReason {
    /// The job's configuration asks for it.
    Configured(&'static str),
    /// This instance is ElasticJob's own.
    Java(InstanceId),
    /// This instance publishes no profile.
    Silent(InstanceId),
}

impl AllAtOnceReason {
    /// The steps that fail if the reason does not hold any more: a resharding may take effect seconds after its
    /// decision.
    pub(crate) fn still_holds(&self, paths: &JobPaths, own_paths: &ExtensionPaths) -> Transaction {
        let is_there = |id| Operation::Check { path: paths.instance(id), version: None };
        match self {
            Self::Configured(_) => Transaction::new(),
            Self::Java(id) => vec![is_there(id)],
            Self::Silent(_) if mutant!(SilenceNotChecked) => Transaction::new(),
            Self::Silent(id) => {
                // Fails if the instance has published a profile; then no node changes.
                let profile = own_paths.fleet().member(id);
                let publish = Operation::create(profile.clone(), NodeKind::Ephemeral, "");
                vec![is_there(id), publish, Operation::delete(profile)]
            }
        }
    }
}

impl fmt::Display for AllAtOnceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configured(reason) => f.write_str(reason),
            Self::Java(id) => write!(f, "instance {id} is ElasticJob's own"),
            Self::Silent(id) => {
                write!(f, "instance {id} publishes no profile that says how it hands items over")
            }
        }
    }
}

impl Mode {
    /// The mode according to the views; a silent instance is undecided.
    pub fn of(view: &JobView, fleet: &FleetView, settings: &Settings) -> Self {
        if settings.handoff.handoff == Policy::Off {
            return Self::AllAtOnce(AllAtOnceReason::Configured("`sidekeeper.handoff` is `off`"));
        }
        if settings.configuration.static_sharding {
            let reason = "the job's first assignment stays for good (`staticSharding`)";
            return Self::AllAtOnce(AllAtOnceReason::Configured(reason));
        }
        if settings.strategy == ShardingStrategy::SingleShardingBalance {
            return Self::AllAtOnce(AllAtOnceReason::Configured(
                "the job's single item rotates over the servers",
            ));
        }
        if view.has_java_instances()
            && let Some(java) = view.instances().keys().find(|id| id.is_java())
        {
            return Self::AllAtOnce(AllAtOnceReason::Java(java.clone()));
        }
        fleet.first_silent(view.instances().keys()).cloned().map_or(Self::OneByOne, Self::Undecided)
    }
}

/// Since when the mode has been undecided.
#[derive(Debug, Default)]
pub(crate) struct Modes {
    undecided_since: Option<Duration>,
}

impl Modes {
    /// The mode now.
    pub(crate) fn now(&mut self, cx: &Context) -> Mode {
        let Some(settings) = &cx.settings else {
            return Mode::AllAtOnce(AllAtOnceReason::Configured("the job's configuration is not known"));
        };
        let mode = Mode::of(&cx.view, &cx.fleet, settings);
        let Mode::Undecided(silent) = mode else {
            self.undecided_since = None;
            return mode;
        };
        let since = *self.undecided_since.get_or_insert(cx.now.mono);
        if cx.now.mono < since.saturating_add(SILENCE_MAX) {
            return Mode::Undecided(silent);
        }
        Mode::AllAtOnce(AllAtOnceReason::Silent(silent))
    }

    /// The view of the profiles is old: a silent instance may have written its profile since.
    pub(crate) fn look_again(&mut self) {
        self.undecided_since = None;
    }

    /// When a silent instance counts as no sidecar.
    pub(crate) fn next_retry(&self, now: Duration) -> Option<Duration> {
        let silence = self.undecided_since.map(|since| since.saturating_add(SILENCE_MAX));
        silence.filter(|at| *at > now)
    }
}
