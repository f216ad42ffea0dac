//! The property for the time during which an instance keeps its items after its application's stream has
//! broken. A named instance also keeps them after it has vanished or left. Java peers ignore the property.

use std::time::Duration;

use crate::job::JobConfiguration;

use super::duration_text;
use super::props::ignored;

/// The key in `props` of this time.
pub const PROPERTY: &str = "sidekeeper.grace";

/// The longest time. No instance executes the items meanwhile.
const GRACE_MAX: Duration = Duration::from_secs(3600);

const ALLOWED: &str = "`0s` (none) to `1h`, written like `90s` or `5m`, or as a number of milliseconds";

/// The time of a configuration, and the problem of a value that is ignored. Zero, the default: the instance
/// leaves at once.
pub fn of(configuration: &JobConfiguration) -> (Duration, Option<String>) {
    let Some(text) = configuration.props.get(PROPERTY) else { return (Duration::ZERO, None) };
    match read(text) {
        Some(grace) => (grace, None),
        None => (Duration::ZERO, Some(ignored(PROPERTY, text, ALLOWED))),
    }
}

/// Checks the value, if the key is this property. The error names the allowed values.
pub fn check(key: &str, text: &str) -> Result<(), &'static str> {
    if key == PROPERTY && read(text).is_none() { Err(ALLOWED) } else { Ok(()) }
}

fn read(text: &str) -> Option<Duration> {
    duration_text::parse(text, Duration::ZERO..=GRACE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobName;

    #[test]
    fn the_default_is_zero_and_the_maximum_is_an_hour() {
        let mut configuration = JobConfiguration::new(JobName::parse("job").unwrap(), 1);
        assert_eq!(of(&configuration), (Duration::ZERO, None));
        for (text, millis) in [("0s", 0), ("0", 0), ("1500", 1_500), ("90s", 90_000), ("1h", 3_600_000)] {
            configuration.props.insert(PROPERTY.to_owned(), text.to_owned());
            assert_eq!(of(&configuration), (Duration::from_millis(millis), None), "{text}");
            assert_eq!(check(PROPERTY, text), Ok(()));
        }
        for text in ["", "61m", "soon", "-1"] {
            configuration.props.insert(PROPERTY.to_owned(), text.to_owned());
            let (grace, problem) = of(&configuration);
            assert_eq!(grace, Duration::ZERO);
            assert!(problem.unwrap().contains(text));
            assert!(check(PROPERTY, text).is_err());
        }
        assert_eq!(check("sidekeeper.other", "soon"), Ok(()));
    }
}
