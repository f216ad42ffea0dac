//! By which rules do items change hands? One by one among sidecars; all at once, as in ElasticJob, with a Java instance or
//! if the job asks for it (P1, P2).

use std::fmt;
use std::time::Duration;

use crate::coordination::job::frame::context::Context;
use crate::coordination::job::picture::fleet_view::FleetView;
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::job::picture::settings::Settings;
use crate::elasticjob::handoff_policy::Handoff as Policy;
use crate::elasticjob::path::JobPaths;
use crate::job::{InstanceId, ShardingStrategy};
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

/// Since when it has not been decided.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Modes {
    undecided_since: Option<Duration>,
}

impl Modes {
    /// By which rules items change hands now.
    pub(in crate::coordination) fn now(&mut self, cx: &Context) -> Mode {
        let Some(settings) = &cx.settings else {
            return Mode::Stock(StockReason::Configured("the job's configuration is not known"));
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
        Mode::Stock(StockReason::Silent(silent))
    }

    /// The view of the others is old: a silent instance may have written its profile since.
    pub(in crate::coordination) fn look_again(&mut self) {
        self.undecided_since = None;
    }

    /// When silence becomes an answer.
    pub(in crate::coordination) fn next_retry(&self, now: Duration) -> Option<Duration> {
        let silence = self.undecided_since.map(|since| since.saturating_add(SILENCE_MAX));
        silence.filter(|at| *at > now)
    }
}
