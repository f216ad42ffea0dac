//! The properties for the removal of servers without instances. Java peers ignore them.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::job::JobConfiguration;

use super::duration_text;

/// The key in `props` of the time after which a server without instances is removed.
pub const AFTER_PROPERTY: &str = "sidekeeper.stale-servers";
/// The key in `props` that allows that also while Java instances are online.
pub const BESIDE_JAVA_PROPERTY: &str = "sidekeeper.stale-servers-beside-java";

/// At least far longer than a Java instance takes between the node of its server and its own.
const AFTER_ALLOWED: RangeInclusive<Duration> =
    Duration::from_secs(10 * 60)..=Duration::from_secs(365 * 24 * 3600);
const AFTER_TEXT: &str = "`10m` to `8760h`, written like `90m` or `720h`, or as a number of milliseconds";
const BOOLEAN: &str = "`true` or `false`";

/// When servers without instances are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaleServers {
    /// After this time without instances.
    pub after: Duration,
    /// Whether also while Java instances are online.
    pub beside_java: bool,
}

/// The policy of a configuration, and the problems of values that are ignored. `None`, the default: no server is removed.
pub fn of(configuration: &JobConfiguration) -> (Option<StaleServers>, Vec<String>) {
    let mut problems = Vec::new();
    let mut readable = |key: &str| {
        let text = configuration.props.get(key)?;
        match check(key, text) {
            Ok(()) => Some(text.clone()),
            Err(allowed) => {
                problems.push(format!("props `{key}` is `{text}` and is ignored; allowed is {allowed}"));
                None
            }
        }
    };
    let beside_java = readable(BESIDE_JAVA_PROPERTY).as_deref() == Some("true");
    let after = readable(AFTER_PROPERTY).and_then(|text| duration_text::parse(&text, AFTER_ALLOWED));
    (after.map(|after| StaleServers { after, beside_java }), problems)
}

/// Checks the value, if the key is one of these properties. The error names the allowed values.
pub fn check(key: &str, text: &str) -> Result<(), &'static str> {
    match key {
        AFTER_PROPERTY if duration_text::parse(text, AFTER_ALLOWED).is_none() => Err(AFTER_TEXT),
        BESIDE_JAVA_PROPERTY if !matches!(text, "true" | "false") => Err(BOOLEAN),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobName;

    #[test]
    fn no_server_is_removed_unless_a_readable_time_says_so() {
        let mut configuration = JobConfiguration::new(JobName::parse("job").unwrap(), 1);
        assert_eq!(of(&configuration), (None, Vec::new()));
        let mut with = |after: &str, beside: &str| {
            configuration.props.insert(AFTER_PROPERTY.to_owned(), after.to_owned());
            configuration.props.insert(BESIDE_JAVA_PROPERTY.to_owned(), beside.to_owned());
            of(&configuration)
        };
        let month = Duration::from_secs(720 * 3600);
        assert_eq!(
            with("720h", "true"),
            (Some(StaleServers { after: month, beside_java: true }), Vec::new())
        );
        let (found, problems) = with("720h", "yes");
        assert_eq!(found, Some(StaleServers { after: month, beside_java: false }));
        assert!(problems[0].contains("`yes`"), "{problems:?}");
        for wrong in ["9m", "8761h", "soon", "0s"] {
            let (found, problems) = with(wrong, "false");
            assert_eq!((found, problems.len()), (None, 1), "{wrong}");
            assert!(check(AFTER_PROPERTY, wrong).is_err());
        }
    }
}
