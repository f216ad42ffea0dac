//! The properties of handoffs among sidecars. Java peers ignore them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::job::{Item, JobConfiguration};

use super::duration_text;
use super::props::Props;

/// The key in `props` of the kind of handoff between sidecars.
pub const HANDOFF_PROPERTY: &str = "sidekeeper.handoff";
/// The key in `props` of the time after which an item gets its next owner, in any state of its owner.
pub const DEADLINE_PROPERTY: &str = "sidekeeper.handoff-deadline";
/// The key in `props` of the time in which instances that join get their items together.
pub const SETTLING_PROPERTY: &str = "sidekeeper.handoff-settling";
/// The key in `props` of the way in which the application works on its items.
pub const OWNERSHIP_PROPERTY: &str = "sidekeeper.ownership";
/// The key in `props` of the labels that items require.
pub const ITEM_LABELS_PROPERTY: &str = "sidekeeper.item-labels";

/// All properties of this file.
pub const PROPERTIES: [&str; 5] =
    [HANDOFF_PROPERTY, DEADLINE_PROPERTY, SETTLING_PROPERTY, OWNERSHIP_PROPERTY, ITEM_LABELS_PROPERTY];

/// The time after which an item gets its next owner in any state of its owner, if the job does not set it.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(30);
const DEADLINE_ALLOWED: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(24 * 3600);
/// The settling time, if the job does not set it: long enough that a fleet which starts within a minute is divided a few
/// dozen times, however many instances it has, and hardly noticed by a person who waits.
pub const SETTLING_DEFAULT: Duration = Duration::from_secs(1);
const SETTLING_ALLOWED: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(60);

/// How items get another owner when all instances are sidecars.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handoff {
    /// As in ElasticJob: all at once, in any state of the old owners.
    Off,
    /// One by one. Each item waits until its old owner no longer executes it.
    Finished,
    /// One by one. Each item waits until the old owner's application has acknowledged the revocation.
    Drained,
}

/// How items get another owner, and how the application works on them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandoffPolicy {
    /// The kind of handoff.
    pub handoff: Handoff,
    /// The time after which an item gets its next owner in any state of its owner.
    pub deadline: Duration,
    /// The least time between two divisions of the items for instances that have joined.
    pub settling: Duration,
    /// Whether the application works on its items all the time. Then it never gets an execution.
    pub continuous: bool,
    /// The labels that items require.
    pub item_labels: BTreeMap<Item, String>,
}

/// The policy of a configuration, and the problems of values that are ignored.
pub fn of(configuration: &JobConfiguration) -> (HandoffPolicy, Vec<String>) {
    let mut props = Props::of(configuration, check);
    let continuous = props.get(OWNERSHIP_PROPERTY) == Some("continuous");
    let handoff = match props.get(HANDOFF_PROPERTY) {
        Some("off") => Handoff::Off,
        Some("drained") => Handoff::Drained,
        // Only an acknowledgement shows that the application has stopped its work on an item.
        _ if continuous => Handoff::Drained,
        _ => Handoff::Finished,
    };
    let deadline = props.get(DEADLINE_PROPERTY).and_then(|text| duration_text::parse(text, DEADLINE_ALLOWED));
    let item_labels = props.get(ITEM_LABELS_PROPERTY).and_then(labels).unwrap_or_default();
    let deadline = deadline.unwrap_or(DEADLINE_DEFAULT);
    let settling = props.get(SETTLING_PROPERTY).and_then(|text| duration_text::parse(text, SETTLING_ALLOWED));
    let settling = settling.unwrap_or(SETTLING_DEFAULT);
    let mut problems = props.problems;
    if continuous && configuration.cron.as_deref().is_some_and(|cron| !cron.is_empty()) {
        problems.push(format!(
            "props `{OWNERSHIP_PROPERTY}` is `continuous`, so `cron` is ignored: nothing is executed at its times"
        ));
    }
    (HandoffPolicy { handoff, deadline, settling, continuous, item_labels }, problems)
}

/// Checks the value of one of the properties. The error names the allowed values.
pub fn check(key: &str, text: &str) -> Result<(), &'static str> {
    match key {
        HANDOFF_PROPERTY if !matches!(text, "off" | "finished" | "drained") => {
            Err("`finished`, `drained` or `off`")
        }
        DEADLINE_PROPERTY if duration_text::parse(text, DEADLINE_ALLOWED).is_none() => {
            Err("`100ms` to `24h`, written like `90s` or `5m`, or as a number of milliseconds")
        }
        SETTLING_PROPERTY if duration_text::parse(text, SETTLING_ALLOWED).is_none() => {
            Err("`0s` (no wait) to `1m`, written like `500ms` or `5s`, or as a number of milliseconds")
        }
        OWNERSHIP_PROPERTY if !matches!(text, "scheduled" | "continuous") => {
            Err("`scheduled` or `continuous`")
        }
        ITEM_LABELS_PROPERTY if labels(text).is_none() => Err("items with labels, like `0=gpu,1=gpu,7=eu`"),
        _ => Ok(()),
    }
}

fn labels(text: &str) -> Option<BTreeMap<Item, String>> {
    let entry = |part: &str| {
        let (item, label) = part.split_once('=')?;
        let (item, label) = (item.trim().parse().ok()?, label.trim());
        is_label(label).then(|| (Item(item), label.to_owned()))
    };
    text.split(',').filter(|part| !part.trim().is_empty()).map(entry).collect()
}

/// Whether a text can be a label: 1 to 64 characters of `[A-Za-z0-9_.:/-]`.
pub fn is_label(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:/-".contains(&byte);
    (1..=64).contains(&text.len()) && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobName;

    fn configuration(props: &[(&str, &str)]) -> JobConfiguration {
        let mut configuration = JobConfiguration::new(JobName::parse("job").unwrap(), 4);
        configuration.props =
            props.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        configuration
    }

    #[test]
    fn by_default_an_item_is_handed_over_when_its_execution_has_ended() {
        let (policy, problems) = of(&configuration(&[]));
        assert_eq!((policy.handoff, policy.deadline), (Handoff::Finished, DEADLINE_DEFAULT));
        assert!(!policy.continuous && policy.item_labels.is_empty() && problems.is_empty());
    }

    #[test]
    fn a_continuous_application_has_to_release_its_items() {
        let (policy, _) =
            of(&configuration(&[(OWNERSHIP_PROPERTY, "continuous"), (DEADLINE_PROPERTY, "5s")]));
        assert!(policy.continuous);
        assert_eq!((policy.handoff, policy.deadline), (Handoff::Drained, Duration::from_secs(5)));
    }

    #[test]
    fn an_unreadable_value_is_a_problem_and_is_ignored() {
        for (key, text) in [
            (HANDOFF_PROPERTY, "gentle"),
            (DEADLINE_PROPERTY, "1d"),
            (SETTLING_PROPERTY, "61s"),
            (OWNERSHIP_PROPERTY, "mine"),
            (ITEM_LABELS_PROPERTY, "0=a b"),
            (ITEM_LABELS_PROPERTY, "x=a"),
        ] {
            let (policy, problems) = of(&configuration(&[(key, text)]));
            assert_eq!(policy, of(&configuration(&[])).0);
            assert!(problems.len() == 1 && problems[0].contains(text), "{problems:?}");
        }
        let (policy, _) = of(&configuration(&[(ITEM_LABELS_PROPERTY, "0=gpu, 7=eu")]));
        assert_eq!(policy.item_labels.len(), 2);
    }
}
