//! The properties that limit the time of an execution and define retries. Java peers ignore them.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::job::JobConfiguration;

use super::duration_text;
use super::props::ignored;

/// The key in `props` of the time after which an execution is cancelled.
pub const TIMEOUT_PROPERTY: &str = "sidekeeper.execution-timeout";
/// The key in `props` of the time within which a cancelled execution has to be reported.
pub const CANCEL_GRACE_PROPERTY: &str = "sidekeeper.cancel-grace";
/// The key in `props` of the number of attempts, including the first.
pub const RETRY_ATTEMPTS_PROPERTY: &str = "sidekeeper.retry-max-attempts";
/// The key in `props` of the pause before the second attempt; it doubles with each further attempt.
pub const RETRY_BACKOFF_PROPERTY: &str = "sidekeeper.retry-backoff";
/// The key in `props` of the longest pause between attempts.
pub const RETRY_BACKOFF_MAX_PROPERTY: &str = "sidekeeper.retry-backoff-max";
/// The key in `props` of the kinds of failures that are retried.
pub const RETRY_ON_PROPERTY: &str = "sidekeeper.retry-on";

/// All properties of this file.
pub const PROPERTIES: [&str; 6] = [
    TIMEOUT_PROPERTY,
    CANCEL_GRACE_PROPERTY,
    RETRY_ATTEMPTS_PROPERTY,
    RETRY_BACKOFF_PROPERTY,
    RETRY_BACKOFF_MAX_PROPERTY,
    RETRY_ON_PROPERTY,
];

/// The time within which a cancelled execution has to be reported, if the job does not set it.
pub const CANCEL_GRACE_DEFAULT: Duration = Duration::from_secs(10);
/// The first pause, if the job does not set it.
pub const RETRY_BACKOFF_DEFAULT: Duration = Duration::from_secs(1);
/// The longest pause, if the job does not set it.
pub const RETRY_BACKOFF_MAX_DEFAULT: Duration = Duration::from_secs(60);
/// The largest allowed number of attempts: a failure that repeats a hundred times needs a person.
const RETRY_ATTEMPTS_MAX: u32 = 100;

/// The kinds of failures that are retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryOn {
    /// Executions that the application reports as failed.
    pub failure: bool,
    /// Executions that failed because their deadline had passed.
    pub deadline: bool,
}

/// Whether and when a failed execution is retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The number of attempts, including the first. 1: no retry.
    pub attempts: u32,
    /// The pause before the second attempt.
    pub backoff: Duration,
    /// The longest pause.
    pub backoff_max: Duration,
    /// The kinds of failures that are retried.
    pub on: RetryOn,
}

impl RetryPolicy {
    /// The pause after an attempt; the first attempt is 1.
    pub fn pause_after(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        self.backoff.saturating_mul(1 << doublings).min(self.backoff_max)
    }
}

/// How long an execution may take, and what follows a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecutionPolicy {
    /// After this time it is cancelled. `None`: never.
    pub timeout: Option<Duration>,
    /// The time within which a cancelled execution has to be reported.
    pub cancel_grace: Duration,
    /// Whether and when it is retried.
    pub retry: RetryPolicy,
}

impl Default for ExecutionPolicy {
    fn default() -> Self {
        let on = RetryOn { failure: true, deadline: false };
        let (backoff, backoff_max) = (RETRY_BACKOFF_DEFAULT, RETRY_BACKOFF_MAX_DEFAULT);
        let retry = RetryPolicy { attempts: 1, backoff, backoff_max, on };
        Self { timeout: None, cancel_grace: CANCEL_GRACE_DEFAULT, retry }
    }
}

/// The policy of a configuration, and the problems of values that are ignored.
pub fn of(configuration: &JobConfiguration) -> (ExecutionPolicy, Vec<String>) {
    let mut policy = ExecutionPolicy::default();
    let mut problems = Vec::new();
    for key in PROPERTIES {
        let Some(text) = configuration.props.get(key) else { continue };
        if let Err(allowed) = set(&mut policy, key, text) {
            problems.push(ignored(key, text, allowed));
        }
    }
    (policy, problems)
}

/// Checks the value of one of the properties. The error names the allowed values.
pub fn check(key: &str, text: &str) -> Result<(), &'static str> {
    set(&mut ExecutionPolicy::default(), key, text)
}

fn set(policy: &mut ExecutionPolicy, key: &str, text: &str) -> Result<(), &'static str> {
    let time = |range: RangeInclusive<u64>, allowed| {
        let range = Duration::from_millis(*range.start())..=Duration::from_millis(*range.end());
        duration_text::parse(text, range).ok_or(allowed)
    };
    match key {
        TIMEOUT_PROPERTY => policy.timeout = Some(time(100..=604_800_000, TIMEOUT_ALLOWED)?),
        CANCEL_GRACE_PROPERTY => policy.cancel_grace = time(100..=3_600_000, CANCEL_GRACE_ALLOWED)?,
        RETRY_BACKOFF_PROPERTY => policy.retry.backoff = time(10..=86_400_000, RETRY_BACKOFF_ALLOWED)?,
        RETRY_BACKOFF_MAX_PROPERTY => {
            policy.retry.backoff_max = time(10..=86_400_000, RETRY_BACKOFF_ALLOWED)?;
        }
        RETRY_ATTEMPTS_PROPERTY => {
            let attempts = text.parse().ok().filter(|n| (1..=RETRY_ATTEMPTS_MAX).contains(n));
            policy.retry.attempts = attempts.ok_or("a number from 1 (no retry) to 100")?;
        }
        RETRY_ON_PROPERTY => policy.retry.on = retry_on(text).ok_or(RETRY_ON_ALLOWED)?,
        _ => {}
    }
    Ok(())
}

fn retry_on(text: &str) -> Option<RetryOn> {
    let mut on = RetryOn { failure: false, deadline: false };
    for word in text.split(',') {
        match word.trim() {
            "failure" => on.failure = true,
            "deadline" => on.deadline = true,
            _ => return None,
        }
    }
    Some(on)
}

const TIMEOUT_ALLOWED: &str = "`100ms` to `168h`, written like `90s` or `5m`, or as a number of milliseconds";
const CANCEL_GRACE_ALLOWED: &str =
    "`100ms` to `1h`, written like `90s` or `5m`, or as a number of milliseconds";
const RETRY_BACKOFF_ALLOWED: &str =
    "`10ms` to `24h`, written like `90s` or `5m`, or as a number of milliseconds";
const RETRY_ON_ALLOWED: &str = "`failure`, `deadline`, or both, separated by a comma";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobName;

    fn read(props: &[(&str, &str)]) -> (ExecutionPolicy, Vec<String>) {
        let mut configuration = JobConfiguration::new(JobName::parse("job").unwrap(), 1);
        configuration.props =
            props.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        of(&configuration)
    }

    #[test]
    fn without_properties_nothing_is_limited_and_nothing_is_retried() {
        let (policy, problems) = read(&[]);
        assert_eq!((policy.timeout, policy.retry.attempts, problems.len()), (None, 1, 0));
        assert_eq!(policy.cancel_grace, Duration::from_secs(10));
    }

    #[test]
    fn each_property_is_read() {
        let (policy, problems) = read(&[
            (TIMEOUT_PROPERTY, "5m"),
            (CANCEL_GRACE_PROPERTY, "500"),
            (RETRY_ATTEMPTS_PROPERTY, "100"),
            (RETRY_BACKOFF_PROPERTY, "2s"),
            (RETRY_BACKOFF_MAX_PROPERTY, "9s"),
            (RETRY_ON_PROPERTY, "deadline, failure"),
        ]);
        assert_eq!(problems, Vec::<String>::new());
        assert_eq!(policy.timeout, Some(Duration::from_secs(300)));
        assert_eq!(policy.cancel_grace, Duration::from_millis(500));
        assert_eq!(policy.retry.attempts, 100);
        assert_eq!(policy.retry.on, RetryOn { failure: true, deadline: true });
        let pauses = [1, 2, 3, 4, 99].map(|attempt| policy.retry.pause_after(attempt).as_secs());
        assert_eq!(pauses, [2, 4, 8, 9, 9]);
        assert_eq!(
            read(&[(RETRY_ON_PROPERTY, "deadline")]).0.retry.on,
            RetryOn { failure: false, deadline: true }
        );
    }

    #[test]
    fn an_unreadable_value_is_a_problem_and_the_default_holds() {
        for (key, text) in [
            (TIMEOUT_PROPERTY, "99ms"),
            (TIMEOUT_PROPERTY, "169h"),
            (CANCEL_GRACE_PROPERTY, "soon"),
            (RETRY_ATTEMPTS_PROPERTY, "0"),
            (RETRY_ATTEMPTS_PROPERTY, "101"),
            (RETRY_BACKOFF_PROPERTY, "1d"),
            (RETRY_BACKOFF_MAX_PROPERTY, ""),
            (RETRY_ON_PROPERTY, ""),
            (RETRY_ON_PROPERTY, "failure,rejected"),
        ] {
            let (policy, problems) = read(&[(key, text)]);
            assert_eq!(policy, ExecutionPolicy::default(), "{key} {text}");
            assert!(problems.len() == 1 && problems.concat().contains(key), "{problems:?}");
            assert!(check(key, text).is_err());
        }
    }
}
