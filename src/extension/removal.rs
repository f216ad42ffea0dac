//! The properties for nodes that are removed after a time: those of servers without instances, and those of finished one-off jobs; and the
//! node of the housekeeping. Java peers ignore them.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::job::JobConfiguration;
use crate::tree::Path;

use super::duration_text;
use super::path::ExtensionPaths;
use super::props::Props;

/// The keys in `props` for one kind of nodes.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    /// The time after which they are removed.
    pub after: &'static str,
    /// Whether also beside Java instances.
    pub beside_java: &'static str,
}

/// For the nodes of servers without instances. `beside_java`: also while Java instances are online.
pub const STALE_SERVERS: Keys =
    Keys { after: "sidekeeper.stale-servers", beside_java: "sidekeeper.stale-servers-beside-java" };
/// For finished one-off jobs. `beside_java`: also if Java instances have taken part.
pub const FINISHED_JOBS: Keys =
    Keys { after: "sidekeeper.remove-finished-after", beside_java: "sidekeeper.remove-finished-beside-java" };

/// The name of the housekeeper's node below our own root. It can be no job's name.
const HOUSEKEEPER: &str = "@-@housekeeper";

/// At least far longer than an interrupted session lasts, and than a Java instance takes between the node of its server and its own.
const AFTER_ALLOWED: RangeInclusive<Duration> =
    Duration::from_secs(10 * 60)..=Duration::from_secs(365 * 24 * 3600);
const AFTER_TEXT: &str = "`10m` to `8760h`, written like `90m` or `720h`, or as a number of milliseconds";
const BOOLEAN: &str = "`true` or `false`";

/// When nodes are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removal {
    /// After this time without an instance; for a job also without a change.
    pub after: Duration,
    /// Whether also beside Java instances.
    pub beside_java: bool,
}

/// The rule of a configuration for one kind of nodes, and the problems of values that are ignored. `None`, the default: they stay.
pub fn of(configuration: &JobConfiguration, keys: Keys) -> (Option<Removal>, Vec<String>) {
    let mut props = Props::of(configuration, check);
    let beside_java = props.get(keys.beside_java) == Some("true");
    let after = props.get(keys.after).and_then(|text| duration_text::parse(text, AFTER_ALLOWED));
    (after.map(|after| Removal { after, beside_java }), props.problems)
}

/// Checks the value, if the key is one of these properties. The error names the allowed values.
pub fn check(key: &str, text: &str) -> Result<(), &'static str> {
    let is_key = |of: fn(Keys) -> &'static str| [STALE_SERVERS, FINISHED_JOBS].map(of).contains(&key);
    if is_key(|keys| keys.after) && duration_text::parse(text, AFTER_ALLOWED).is_none() {
        return Err(AFTER_TEXT);
    }
    if is_key(|keys| keys.beside_java) && !matches!(text, "true" | "false") {
        return Err(BOOLEAN);
    }
    Ok(())
}

/// Whether the bytes of a configuration may ask for the removal of the finished job. Reading them as a configuration takes far longer.
pub fn may_ask(configuration: &[u8]) -> bool {
    let key = FINISHED_JOBS.after.as_bytes();
    configuration.windows(key.len()).any(|bytes| bytes == key)
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
    fn nothing_is_removed_unless_a_readable_time_says_so() {
        for (keys, other) in [(STALE_SERVERS, FINISHED_JOBS), (FINISHED_JOBS, STALE_SERVERS)] {
            let mut configuration = JobConfiguration::new(JobName::parse("job").unwrap(), 1);
            assert_eq!(of(&configuration, keys), (None, Vec::new()));
            let mut with = |after: &str, beside: &str| {
                configuration.props.insert(keys.after.to_owned(), after.to_owned());
                configuration.props.insert(keys.beside_java.to_owned(), beside.to_owned());
                assert_eq!(of(&configuration, other), (None, Vec::new()));
                of(&configuration, keys)
            };
            let after = Duration::from_secs(720 * 3600);
            assert_eq!(with("720h", "true"), (Some(Removal { after, beside_java: true }), Vec::new()));
            let (found, problems) = with("720h", "yes");
            assert_eq!(found, Some(Removal { after, beside_java: false }));
            assert!(problems[0].contains("`yes`"), "{problems:?}");
            for wrong in ["9m", "8761h", "soon", "0s"] {
                let (found, problems) = with(wrong, "false");
                assert_eq!((found, problems.len()), (None, 1), "{wrong}");
                assert!(check(keys.after, wrong).is_err());
            }
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
