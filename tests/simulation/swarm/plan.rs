//! The plan of a seed: the job, the fleet, and which faults come when. Each seed draws which kinds can happen at
//! all and how often, so that some schedules are full of one kind and free of another.

use sidekeeper::extension::{execution_policy, handoff_policy, item_lock, once_listener, reattach_grace};
use sidekeeper::job::{JobConfiguration, JobName};

use crate::random::Random;

use super::faults::Fault;
use super::guests::Kind;
use super::{Micros, Options, SECOND};

/// A fault that comes at a time. Its effect is drawn from its own dice, so that leaving one out changes no other.
#[derive(Debug, Clone, Copy)]
pub struct Planned {
    pub at: Micros,
    pub fault: Fault,
    pub dice: u64,
}

/// How often small things go wrong by themselves: one in so many, zero for never.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rates {
    pub lost_request: u64,
    pub lost_answer: u64,
    pub late_answer: u64,
    pub slow_notification: u64,
    pub slow_execution: u64,
    pub hung: u64,
    pub disobedient: u64,
    pub failed: u64,
    pub duplicate: u64,
    pub late_report: u64,
    pub split_transaction: u64,
    pub slow_snapshot: u64,
}

/// How a machine's clock runs.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Parts per million by which it is fast.
    pub rate_ppm: i64,
    /// How far its time of day is ahead, in microseconds.
    pub ahead: i64,
}

/// The whole of it.
#[derive(Debug, Clone)]
pub struct Plan {
    pub configuration: JobConfiguration,
    /// Seconds between two fires; zero: none.
    pub period: u64,
    pub machines: usize,
    /// Whether instances have names.
    pub named: bool,
    /// Whether sidecars go on with the session of their former process.
    pub state_dir: bool,
    pub servers: usize,
    pub server_lag: Micros,
    pub session_timeout: Micros,
    /// How long a message to the registry takes at most.
    pub latency: Micros,
    /// How long an execution takes at most, mostly.
    pub duration: Micros,
    pub rates: Rates,
    pub faults: Vec<Planned>,
    /// When the faults stop.
    pub storm: Micros,
    pub seeds: [u64; 4],
    /// Whether all leave in the end, to see what is left.
    pub drained: bool,
    /// Whether one joins and one leaves in the calm, to count what moves.
    pub calm_moves: bool,
    /// Up to which life the sidecars of some machines are of an earlier version, which does not know how items are
    /// divided today; afterwards they are upgraded. Zero: none is.
    pub outdated_lives: u32,
    /// The size of requests that breaks connections: with a small one each fire takes several transactions.
    pub request_bytes: Option<usize>,
    /// The lock that other applications hold beside the job.
    pub guests: Option<Kind>,
}

/// Draws from a list.
fn one_of<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[random.below(from.len() as u64) as usize]
}

impl Plan {
    /// The plan of a seed.
    pub fn draw(seed: u64, options: &Options) -> Self {
        let mut random = Random::new(seed ^ 0x5157_4152_4d00_0001);
        let random = &mut random;
        let long = random.once_in(2_000);
        let period = one_of(random, &[2, 2, 3, 4, 5, 10]);
        let (configuration, period) = configuration(random, period);
        let machines = options.machines_max.min(1 + random.below(5) as usize).max(1);
        let mut storm = (10 + random.below(20)) * SECOND;
        if long {
            storm = (600 + random.below(7_200)) * SECOND;
        }
        storm = options.storm_max.min(storm);
        let mut possible = Vec::new();
        // Some seeds are calm: there everything is exact.
        let calm = random.once_in(12);
        for fault in Fault::ALL.iter().filter(|fault| !fault.has_own_dice()) {
            let weight = one_of(random, &[0, 0, 1, 1, 2, 6]);
            if weight > 0 && !calm && options.allows(*fault) {
                possible.push((*fault, weight));
            }
        }
        let rate = |random: &mut Random, fault: Fault, from: &[u64]| {
            let drawn = one_of(random, from);
            let is_possible = possible.iter().any(|(kind, _)| *kind == fault);
            if is_possible { drawn } else { 0 }
        };
        let mut reading = Random::new(seed ^ 0x5265_6164_696e_6701);
        let mut of_reading = |fault: Fault, from: &[u64]| {
            let drawn = one_of(&mut reading, from);
            if calm || !options.allows(fault) { 0 } else { drawn }
        };
        let rates = Rates {
            lost_request: rate(random, Fault::LostRequest, &[20, 60, 200]),
            lost_answer: rate(random, Fault::LostAnswer, &[20, 60, 200]),
            late_answer: rate(random, Fault::LateAnswer, &[60, 200, 600]),
            slow_notification: rate(random, Fault::SlowNotification, &[5, 20, 100]),
            slow_execution: rate(random, Fault::SlowApplication, &[4, 15, 50]),
            hung: rate(random, Fault::HungApplication, &[30, 100]),
            disobedient: rate(random, Fault::Disobedience, &[2, 5]),
            failed: rate(random, Fault::FailedExecution, &[3, 10, 40]),
            duplicate: rate(random, Fault::DuplicateReport, &[5, 20]),
            late_report: rate(random, Fault::LateReport, &[5, 20]),
            split_transaction: of_reading(Fault::SplitTransaction, &[0, 3, 10]),
            slow_snapshot: of_reading(Fault::SlowSnapshot, &[0, 2, 5]),
        };
        let mut planned = Self::faults(random, &possible, storm, options);
        if !calm && options.allows(Fault::ApplicationStop) {
            Self::stops(seed, &mut planned, storm, options);
        }
        if options.allows(Fault::ItemTrigger) {
            Self::item_triggers(seed, &mut planned, storm, options);
        }
        // Not drawn, as below.
        let mut configuration = configuration;
        let has_locks = seed % 16 == 11;
        let guests = Kind::of(seed);
        if has_locks && !configuration.props.contains_key(execution_policy::TIMEOUT_PROPERTY) {
            let value = if seed % 32 == 11 { "true" } else { "bills" };
            configuration.props.insert(item_lock::LOCK_PROPERTY.to_owned(), value.to_owned());
        }
        Self {
            configuration,
            period,
            machines,
            named: random.once_in(3),
            // A session whose sidecar is killed while it holds locks is not resumed.
            state_dir: random.once_in(3) && !has_locks && guests.is_none(),
            servers: one_of(random, &[1, 3, 3, 5]),
            server_lag: one_of(random, &[200, 1_000, 5_000]),
            session_timeout: one_of(random, &[2, 3, 4, 6]) * SECOND,
            latency: one_of(random, &[500, 2_000, 8_000]),
            duration: one_of(random, &[20_000, 200_000, 1_000_000]),
            rates,
            faults: planned,
            storm,
            seeds: std::array::from_fn(|_| random.next()),
            drained: random.once_in(3),
            calm_moves: random.once_in(4),
            // Not drawn, so that everything else is as it was before there were two versions.
            outdated_lives: if seed % 8 == 5 { (seed / 8 % 3) as u32 + 1 } else { 0 },
            request_bytes: (seed % 16 == 7).then_some(600),
            guests,
        }
    }

    /// A job of eight items that fails over and makes up. Every other execution takes longer than its period, and
    /// every six seconds most of its sidecars are cut off.
    pub fn of_interruptions(seed: u64) -> Self {
        let mut plan = Self::draw(seed, &Options::default());
        let mut random = Random::new(seed ^ 0x496e_7465_7272_7570);
        let mut job = JobConfiguration::new(JobName::parse("job").unwrap(), 8);
        job.cron = Some(cron(2));
        (job.failover, job.misfire, job.monitor_execution) = (true, true, true);
        (plan.configuration, plan.period, plan.machines) = (job, 2, 3);
        (plan.session_timeout, plan.duration, plan.storm) = (2 * SECOND, 200_000, 26 * SECOND);
        plan.rates = Rates { slow_execution: 2, split_transaction: 2, slow_snapshot: 2, ..Rates::default() };
        plan.faults.clear();
        plan.guests = None;
        for begin in [5, 11, 17] {
            for _ in 0..5 {
                let at = begin * SECOND + random.below(1_200_000);
                plan.faults.push(Planned { at, fault: Fault::Partition, dice: random.next() });
            }
        }
        plan
    }

    /// In a line.
    pub fn describe(&self) -> String {
        let job = &self.configuration;
        let props: Vec<_> = job.props.iter().map(|(key, value)| format!("{key}={value}")).collect();
        format!(
            "{} machines{}{}, {} servers, sessions of {} s; {} items, {:?}, {}{}{}{}{:?} {}",
            self.machines,
            if self.named { " with names" } else { "" },
            match self.outdated_lives {
                0 =>
                    if self.state_dir {
                        " with state"
                    } else {
                        ""
                    },
                _ =>
                    if self.state_dir {
                        " with state, of two versions"
                    } else {
                        " of two versions"
                    },
            },
            self.servers,
            self.session_timeout / SECOND,
            job.sharding_total_count,
            job.cron,
            if job.failover { "failover, " } else { "" },
            if job.misfire { "misfire, " } else { "" },
            if job.monitor_execution { "" } else { "not monitored, " },
            if job.static_sharding { "static, " } else { "" },
            job.job_sharding_strategy_type,
            props.join(" ")
        ) + &self.guests.map_or(String::new(), |kind| format!("; guests for {kind:?}"))
    }

    /// In one of three schedules applications are stopped, as a deployment does it: often at a fire.
    fn stops(seed: u64, planned: &mut Vec<Planned>, storm: Micros, options: &Options) {
        let mut random = Random::new(seed ^ 0x5374_6f70_7300_0001);
        if !random.once_in(3) {
            return;
        }
        let first = planned.len();
        for index in first..first + 1 + random.below(8) as usize {
            let at = 2 * SECOND + random.below(storm.saturating_sub(3 * SECOND).max(1));
            let near = (at / SECOND * SECOND).saturating_add(random.below(60_000)).saturating_sub(30_000);
            let (at, dice) = (if random.once_in(3) { at } else { near }, random.next());
            if options.keep.as_ref().is_none_or(|keep| keep.contains(&index)) {
                planned.push(Planned { at, fault: Fault::ApplicationStop, dice });
            }
        }
    }

    /// In one of three schedules an operator triggers single items: often some at once.
    fn item_triggers(seed: u64, planned: &mut Vec<Planned>, storm: Micros, options: &Options) {
        let mut random = Random::new(seed ^ 0x5472_6967_6765_7201);
        if !random.once_in(3) {
            return;
        }
        let first = planned.len();
        let mut at = 2 * SECOND;
        for index in first..first + 1 + random.below(12) as usize {
            if !random.once_in(3) {
                at = 2 * SECOND + random.below(storm.saturating_sub(3 * SECOND).max(1));
            }
            let dice = random.next();
            if options.keep.as_ref().is_none_or(|keep| keep.contains(&index)) {
                planned.push(Planned { at, fault: Fault::ItemTrigger, dice });
            }
        }
    }

    fn faults(
        random: &mut Random,
        possible: &[(Fault, u64)],
        storm: Micros,
        options: &Options,
    ) -> Vec<Planned> {
        let at_times: Vec<_> = possible.iter().filter(|(fault, _)| comes_at_a_time(*fault)).collect();
        let sum: u64 = at_times.iter().map(|(_, weight)| weight).sum();
        if sum == 0 {
            return Vec::new();
        }
        let count = (2 + random.below(22)) * (storm / (20 * SECOND)).max(1);
        let mut planned = Vec::new();
        for index in 0..count as usize {
            let mut place = random.below(sum);
            let fault = at_times.iter().find(|(_, weight)| {
                let here = place < *weight;
                place = place.saturating_sub(*weight);
                here
            });
            let mut at = 2 * SECOND + random.below(storm.saturating_sub(3 * SECOND).max(1));
            if random.once_in(3) {
                // Close to a second, where fires are.
                at = (at / SECOND * SECOND).saturating_add(random.below(60_000)).saturating_sub(30_000);
            }
            let dice = random.next();
            let kept = options.keep.as_ref().is_none_or(|keep| keep.contains(&index));
            if let Some((fault, _)) = fault.filter(|_| kept) {
                planned.push(Planned { at, fault: *fault, dice });
            }
        }
        planned
    }

    /// How a machine's clock runs; drawn from its own dice.
    pub fn clock(&self, machine: usize, options: &Options) -> Clock {
        let mut random = Random::new(self.seeds[3] ^ machine as u64);
        let rate_ppm = one_of(&mut random, &[0, 0, 0, 50, -50, 3_000, -3_000]);
        let ahead = one_of(&mut random, &[0, 0, 1_000, -2_000, 30_000, -30_000, 250_000]);
        let calm = self.faults.is_empty();
        let differs = options.allows(Fault::ClockRate) && !calm;
        if differs { Clock { rate_ppm, ahead } } else { Clock { rate_ppm: 0, ahead: 0 } }
    }
}

/// Whether a kind comes at a time; the others happen to requests and executions.
fn comes_at_a_time(fault: Fault) -> bool {
    !matches!(
        fault,
        Fault::LostRequest
            | Fault::LostAnswer
            | Fault::LateEffect
            | Fault::LateAnswer
            | Fault::SlowNotification
            | Fault::ClockRate
            | Fault::SlowApplication
            | Fault::HungApplication
            | Fault::Disobedience
            | Fault::FailedExecution
            | Fault::DuplicateReport
            | Fault::LateReport
            | Fault::SplitTransaction
            | Fault::SlowSnapshot
    )
}

/// A job, and the seconds between its fires.
fn configuration(random: &mut Random, period: u64) -> (JobConfiguration, u64) {
    let total = one_of(random, &[1, 2, 3, 3, 4, 5, 6, 8]);
    let mut job = JobConfiguration::new(JobName::parse("job").unwrap(), total);
    job.cron = Some(cron(period));
    job.failover = random.once_in(2);
    job.misfire = !random.once_in(4);
    job.monitor_execution = !random.once_in(6);
    job.static_sharding = random.once_in(20);
    let mut put = |key: &str, value: &str| job.props.insert(key.to_owned(), value.to_owned());
    if random.once_in(3) {
        put(reattach_grace::PROPERTY, one_of(random, &["500ms", "2s", "5s"]));
    }
    if random.once_in(4) {
        put(handoff_policy::HANDOFF_PROPERTY, one_of(random, &["drained", "drained", "off"]));
        put(handoff_policy::DEADLINE_PROPERTY, one_of(random, &["1s", "4s"]));
    }
    // No draw: the schedules of all seeds stay as they were.
    match (u64::from(total) + period) % 3 {
        0 => {}
        1 => _ = put(handoff_policy::SETTLING_PROPERTY, "0s"),
        _ => _ = put(handoff_policy::SETTLING_PROPERTY, "1500ms"),
    }
    let mut period = period;
    if random.once_in(12) {
        put(handoff_policy::OWNERSHIP_PROPERTY, "continuous");
        put(handoff_policy::DEADLINE_PROPERTY, "2s");
        period = 0;
    }
    if random.once_in(3) {
        put(execution_policy::TIMEOUT_PROPERTY, one_of(random, &["800ms", "2s", "4s"]));
        put(execution_policy::CANCEL_GRACE_PROPERTY, one_of(random, &["500ms", "2s"]));
    }
    if random.once_in(4) {
        put(execution_policy::RETRY_ATTEMPTS_PROPERTY, one_of(random, &["2", "3"]));
        put(execution_policy::RETRY_BACKOFF_PROPERTY, one_of(random, &["50ms", "700ms"]));
    }
    if random.once_in(10) {
        put(once_listener::ENABLED_PROPERTY, "true");
        put(once_listener::STARTED_PROPERTY, "2s");
        put(once_listener::COMPLETED_PROPERTY, "4s");
    }
    if total == 1 && random.once_in(3) {
        job.job_sharding_strategy_type = Some("SINGLE_SHARDING_BALANCE".to_owned());
    } else if random.once_in(10) {
        let name = one_of(random, &["AVG_ALLOCATION", "ODEVITY", "ROUND_ROBIN"]);
        job.job_sharding_strategy_type = Some(name.to_owned());
    }
    if random.once_in(12) {
        job.max_time_diff_seconds = 5;
    }
    (job, period)
}

/// Fires at each multiple of so many seconds of a minute.
pub fn cron(period: u64) -> String {
    format!("0/{period} * * * * ?")
}
