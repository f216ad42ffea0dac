//! The properties for the removal of finished one-off jobs, and the nodes of the housekeeping. Java peers ignore them.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::job::JobConfiguration;
use crate::tree::Path;

use super::duration_text;
use super::path::ExtensionPaths;

/// The key in `props` of the time after which a finished job is removed.
pub const AFTER_PROPERTY: &str = "sidekeeper.remove-finished-after";
/// The key in `props` that allows that also if Java instances have taken part.
pub const BESIDE_JAVA_PROPERTY: &str = "sidekeeper.remove-finished-beside-java";

/// The name of the housekeeper's node below our own root. It can be no job's name.
const HOUSEKEEPER: &str = "@-@housekeeper";

/// At least far longer than a session that is interrupted lasts.
const AFTER_ALLOWED: RangeInclusive<Duration> =
    Duration::from_secs(10 * 60)..=Duration::from_secs(365 * 24 * 3600);
const AFTER_TEXT: &str = "`10m` to `8760h`, written like `90m` or `720h`, or as a number of milliseconds";
const BOOLEAN: &str = "`true` or `false`";

/// When a finished job is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoveFinished {
    /// After this time without an instance and without a change.
    pub after: Duration,
    /// Whether also if Java instances have taken part.
    pub beside_java: bool,
}

/// The policy of a configuration, and the problems of values that are ignored. `None`, the default: the job stays.
pub fn of(configuration: &JobConfiguration) -> (Option<RemoveFinished>, Vec<String>) {
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
    (after.map(|after| RemoveFinished { after, beside_java }), problems)
}

/// Checks the value, if the key is one of these properties. The error names the allowed values.
pub fn check(key: &str, text: &str) -> Result<(), &'static str> {
    match key {
        AFTER_PROPERTY if duration_text::parse(text, AFTER_ALLOWED).is_none() => Err(AFTER_TEXT),
        BESIDE_JAVA_PROPERTY if !matches!(text, "true" | "false") => Err(BOOLEAN),
        _ => Ok(()),
    }
}

/// Whether the bytes of a configuration may name the property. Reading them as a configuration takes far longer.
pub fn may_ask(configuration: &[u8]) -> bool {
    configuration.windows(AFTER_PROPERTY.len()).any(|bytes| bytes == AFTER_PROPERTY.as_bytes())
}

/// The ephemeral node of the sidecar that looks for finished jobs.
pub fn housekeeper(namespace: &Path) -> Path {
    ExtensionPaths::all(namespace).child(HOUSEKEEPER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobName;

    #[test]
    fn no_job_is_removed_unless_a_readable_time_says_so() {
        let mut configuration = JobConfiguration::new(JobName::parse("job").unwrap(), 1);
        assert_eq!(of(&configuration), (None, Vec::new()));
        let mut with = |after: &str, beside: &str| {
            configuration.props.insert(AFTER_PROPERTY.to_owned(), after.to_owned());
            configuration.props.insert(BESIDE_JAVA_PROPERTY.to_owned(), beside.to_owned());
            of(&configuration)
        };
        let day = Duration::from_secs(24 * 3600);
        assert_eq!(with("24h", "true"), (Some(RemoveFinished { after: day, beside_java: true }), Vec::new()));
        let (found, problems) = with("24h", "yes");
        assert_eq!(found, Some(RemoveFinished { after: day, beside_java: false }));
        assert!(problems[0].contains("`yes`"), "{problems:?}");
        for wrong in ["9m", "8761h", "soon", "0s"] {
            let (found, problems) = with(wrong, "false");
            assert_eq!((found, problems.len()), (None, 1), "{wrong}");
            assert!(check(AFTER_PROPERTY, wrong).is_err());
        }
    }

    #[test]
    fn only_a_configuration_with_the_property_is_read() {
        assert!(may_ask(b"jobName: a\nprops:\n  sidekeeper.remove-finished-after: 1h\n"));
        for other in [&b""[..], b"jobName: a\n", b"props:\n  sidekeeper.remove-finished-aft"] {
            assert!(!may_ask(other));
        }
        let path = housekeeper(&Path::parse("/ns").unwrap());
        assert_eq!(path.as_str(), "/ns-sidekeeper/@-@housekeeper");
    }
}
