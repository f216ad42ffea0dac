//! A configuration, compiled once for the decisions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::elasticjob::item_parameters;
use crate::elasticjob::validate::Checks;
use crate::extension::execution_policy::{self, ExecutionPolicy};
use crate::extension::handoff_policy::{self, HandoffPolicy};
use crate::extension::item_lock::{self, ItemLock};
use crate::extension::once_listener::{self, OnceListener};
use crate::extension::removal::{self, FINISHED_JOBS, Removal, STALE_SERVERS};
use crate::extension::{properties, reattach_grace, strategy};
use crate::findings::problem::{Problem, ProblemCode};
use crate::job::{Item, JobConfiguration, ShardingStrategy};
use crate::quartz::{self, Expression};
use crate::tree::Path;

/// The schedule of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    expression: Expression,
    zone: TimeZone,
}

impl Schedule {
    /// Reads the schedule of a configuration; `None`: it has none. The error names the setting.
    pub fn of(configuration: &JobConfiguration) -> Result<Option<Self>, String> {
        let Some(cron) = configuration.cron.as_deref().filter(|cron| !cron.is_empty()) else {
            return Ok(None);
        };
        let expression = Expression::parse(cron).map_err(|error| format!("cron: {error}"))?;
        let zone = configuration.time_zone.as_deref().unwrap_or_default();
        let zone = quartz::parse_time_zone(zone).map_err(|error| format!("timeZone: {error}"))?;
        Ok(Some(Self { expression, zone }))
    }

    /// The first fire after an instant.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        self.expression.next_after(after, &self.zone)
    }
}

/// The check of the schedules of configurations that come from outside.
pub fn checks() -> Checks<'static> {
    Checks {
        cron: &|text| Expression::parse(text).map(drop).map_err(|error| error.to_string()),
        time_zone: &|text| quartz::parse_time_zone(text).map(drop).map_err(|error| error.to_string()),
        property: &properties::check,
    }
}

/// A compiled configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The configuration itself.
    pub configuration: Arc<JobConfiguration>,
    /// When the job fires.
    pub schedule: Option<Schedule>,
    /// The items' parameters; `Err`: they cannot be read, and nothing may be executed with wrong ones.
    pub parameters: Result<BTreeMap<i32, String>, String>,
    /// The strategy by which items are allocated.
    pub strategy: ShardingStrategy,
    /// The once-listener, if all instances wait for each other around each fire, so that one of them acts once for all.
    pub once_listener: Option<OnceListener>,
    /// The limits of an execution, and the retries of a failed one.
    pub policy: ExecutionPolicy,
    /// How items change hands among sidecars.
    pub handoff: HandoffPolicy,
    /// `reattach_grace`: how long an instance may stay when its application's stream has broken, and how long the items
    /// of an offline instance with a name are reserved.
    pub grace: Duration,
    /// The locks that executions hold. `None`: none.
    pub item_lock: Option<ItemLock>,
    /// When servers without instances are removed. `None`: never.
    pub stale_servers: Option<Removal>,
    /// When the finished job is removed. `None`: never.
    pub remove_finished: Option<Removal>,
    /// The problems of the configuration, each with the setting's name.
    pub problems: Vec<String>,
}

/// The schedule that was in force before another configuration.
#[derive(Debug)]
pub struct Rescheduled {
    /// The schedule.
    pub before: Option<Schedule>,
    /// When the new schedule was written, by this machine's clock.
    pub since: Option<Timestamp>,
}

impl Settings {
    /// Compiles a configuration. A schedule that cannot be read is replaced by `previous`, as Java peers do.
    pub fn compile(configuration: Arc<JobConfiguration>, previous: Option<&Self>) -> Self {
        let mut problems = Vec::new();
        let schedule = Schedule::of(&configuration).unwrap_or_else(|problem| {
            problems.push(format!("{problem}; the last readable schedule stays in force"));
            previous.and_then(|previous| previous.schedule.clone())
        });
        let parameters = item_parameters::parse(&configuration.sharding_item_parameters).map_err(|error| {
            format!("shardingItemParameters: {error}; nothing is executed until it is corrected")
        });
        if let Err(problem) = &parameters {
            problems.push(problem.clone());
        }
        let (strategy, problem) = strategy::effective_strategy(&configuration);
        problems.extend(problem);
        let (once_listener, wrong) = once_listener::of(&configuration);
        problems.extend(wrong);
        let (policy, wrong) = execution_policy::of(&configuration);
        problems.extend(wrong);
        let (item_lock, wrong) = item_lock::of(&configuration, policy.timeout);
        problems.extend(wrong);
        let (stale_servers, wrong) = removal::of(&configuration, STALE_SERVERS);
        problems.extend(wrong);
        let (remove_finished, wrong) = removal::of(&configuration, FINISHED_JOBS);
        problems.extend(wrong);
        let (handoff, wrong) = handoff_policy::of(&configuration);
        problems.extend(wrong);
        let schedule = schedule.filter(|_| !handoff.continuous);
        let (mut grace, problem) = reattach_grace::of(&configuration);
        problems.extend(problem);
        if once_listener.is_some() && !grace.is_zero() {
            // All instances wait for each other around each fire, so a detached instance would hold up all of them.
            grace = Duration::ZERO;
            problems.push(format!(
                "props `{}` is ignored: the job has `{}`",
                reattach_grace::PROPERTY,
                once_listener::ENABLED_PROPERTY
            ));
        }
        Self {
            configuration,
            schedule,
            parameters,
            strategy,
            once_listener,
            policy,
            handoff,
            grace,
            item_lock,
            stale_servers,
            remove_finished,
            problems,
        }
    }

    /// The configuration of an execution. `parameter`: the text that takes the place of the job's own parameter.
    pub(in crate::coordination) fn configuration_with(
        &self,
        parameter: Option<&str>,
    ) -> Arc<JobConfiguration> {
        match parameter {
            None => Arc::clone(&self.configuration),
            Some(parameter) => {
                let job_parameter = parameter.to_owned();
                Arc::new(JobConfiguration { job_parameter, ..(*self.configuration).clone() })
            }
        }
    }

    /// The problems of the configuration in the node with this path.
    pub(in crate::coordination) fn problems(&self, path: &Path) -> impl Iterator<Item = Problem> {
        let parameters = self.parameters.as_ref().err();
        self.problems.iter().map(move |message| Problem {
            path: path.clone(),
            message: message.clone(),
            code: match parameters == Some(message) {
                true => ProblemCode::JobParametersUnreadable,
                false => ProblemCode::JobSettingWrong,
            },
        })
    }

    /// The problem of a job whose schedule has fired for the last time.
    pub(in crate::coordination) fn never_fires(config_path: Path) -> Problem {
        let message = "cron: the expression never fires again; the job runs only when it is triggered. Give one that \
                       does, or an empty one";
        Problem { path: config_path, message: message.to_owned(), code: ProblemCode::JobNeverFiresAgain }
    }

    /// Whether the job asks for a strategy, which then also holds in fleets of sidecars.
    pub fn names_strategy(&self) -> bool {
        let name = self.configuration.job_sharding_strategy_type.as_deref();
        name.is_some_and(|name| !name.is_empty()) || self.strategy != ShardingStrategy::AvgAllocation
    }

    /// Whether the strategy is one of ElasticJob's or Sidekeeper's, and not one that a Java application brings.
    pub fn knows_strategy(&self) -> bool {
        let name = self.configuration.job_sharding_strategy_type.as_deref().filter(|name| !name.is_empty());
        name.is_none_or(|name| ShardingStrategy::from_type(name).is_some())
    }

    /// An item's parameter.
    pub fn parameter(&self, item: Item) -> Option<&str> {
        item_parameters::of_item(self.parameters.as_ref().ok()?, item)
    }

    /// The items: 0 to the sharding total count less one.
    pub fn items(&self) -> impl Iterator<Item = Item> + use<> {
        (0..self.configuration.sharding_total_count).map(Item)
    }
}
