//! The properties of the once-listener: a job's instances wait for each other around each fire, and one of
//! them acts for all of them (protocol 6.7). Java peers use a listener class for that, and ignore these
//! properties.

use std::time::Duration;

use crate::job::JobConfiguration;

use super::duration_text;
use super::props::Props;

/// The key in `props` that switches the once-listener on.
pub const ENABLED_PROPERTY: &str = "sidekeeper.once-listener";
/// The key in `props` of the time for which instances wait for all others before a fire.
pub const STARTED_PROPERTY: &str = "sidekeeper.once-listener.started-timeout";
/// The key in `props` of the time for which instances wait for all others after a fire.
pub const COMPLETED_PROPERTY: &str = "sidekeeper.once-listener.completed-timeout";

/// The time limits, if the job does not set them. Java's default is no limit (H25).
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
/// The shortest limit: far above the clock differences and round trips that it has to cover.
const TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// The longest limit.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);
/// The form of a limit.
const TIMEOUT_ALLOWED: &str = "`1s` to `24h`, written like `90s` or `5m`, or as a number of milliseconds";

/// How long instances wait for each other around each fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnceListener {
    /// The limit before the executions.
    pub started_timeout: Duration,
    /// The limit after the executions.
    pub completed_timeout: Duration,
}

/// The listener of a configuration, and the problems of values that are ignored.
pub fn of(configuration: &JobConfiguration) -> (Option<OnceListener>, Vec<String>) {
    let mut props = Props::of(configuration, check);
    let mut listener = OnceListener { started_timeout: TIMEOUT_DEFAULT, completed_timeout: TIMEOUT_DEFAULT };
    let mut enabled = false;
    for key in [ENABLED_PROPERTY, STARTED_PROPERTY, COMPLETED_PROPERTY] {
        let Some(text) = props.get(key) else { continue };
        match key {
            STARTED_PROPERTY => listener.started_timeout = timeout(text).unwrap_or(TIMEOUT_DEFAULT),
            COMPLETED_PROPERTY => listener.completed_timeout = timeout(text).unwrap_or(TIMEOUT_DEFAULT),
            _ => enabled = text == "true",
        }
    }
    (enabled.then_some(listener), props.problems)
}

/// Checks the value of one of the properties. The error names the allowed values.
pub fn check(key: &str, text: &str) -> Result<(), &'static str> {
    match key {
        ENABLED_PROPERTY if !matches!(text, "true" | "false") => Err("`true` or `false`"),
        STARTED_PROPERTY | COMPLETED_PROPERTY if timeout(text).is_none() => Err(TIMEOUT_ALLOWED),
        _ => Ok(()),
    }
}

fn timeout(text: &str) -> Option<Duration> {
    duration_text::parse(text, TIMEOUT_MIN..=TIMEOUT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobName;

    fn configuration(props: &[(&str, &str)]) -> JobConfiguration {
        let mut configuration = JobConfiguration::new(JobName::parse("job").unwrap(), 1);
        configuration.props =
            props.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        configuration
    }

    #[test]
    fn the_listener_is_off_by_default() {
        assert_eq!(of(&configuration(&[])), (None, vec![]));
        assert_eq!(
            of(&configuration(&[(ENABLED_PROPERTY, "false"), (STARTED_PROPERTY, "5s")])),
            (None, vec![])
        );
    }

    #[test]
    fn times_are_durations_or_milliseconds() {
        for (text, millis) in [("1000", 1_000), ("2500ms", 2_500), ("90s", 90_000), ("5m", 300_000)] {
            let (listener, problems) =
                of(&configuration(&[(ENABLED_PROPERTY, "true"), (COMPLETED_PROPERTY, text)]));
            let expected = OnceListener {
                started_timeout: TIMEOUT_DEFAULT,
                completed_timeout: Duration::from_millis(millis),
            };
            assert_eq!((listener, problems), (Some(expected), vec![]), "{text}");
        }
    }

    #[test]
    fn an_unreadable_value_is_a_problem_and_the_default_holds() {
        for text in ["", "0", "999ms", "25h", "5 s", "s", "-1", "1d", "99999999999999999999h"] {
            let (listener, problems) =
                of(&configuration(&[(ENABLED_PROPERTY, "true"), (STARTED_PROPERTY, text)]));
            assert_eq!(listener.map(|listener| listener.started_timeout), Some(TIMEOUT_DEFAULT), "{text}");
            assert!(problems.concat().contains(STARTED_PROPERTY), "{problems:?}");
        }
        let (listener, problems) = of(&configuration(&[(ENABLED_PROPERTY, "yes")]));
        assert_eq!((listener, problems.len()), (None, 1));
    }
}
