//! In which fields do two configurations of one job differ? For people who have to make them the same. Decides nothing.

use std::collections::BTreeSet;

use crate::excerpt::Excerpt;
use crate::job::JobConfiguration;

/// How many fields are named with both values; of further ones the number is given.
const NAMED_MAX: usize = 8;

/// The fields in which two configurations differ, with both values. Empty: in none. `theirs` is in force. Extra
/// configurations of Java do not count, because requests cannot carry them, nor does `overwrite`, which is not stored.
pub fn in_words(theirs: &JobConfiguration, ours: &JobConfiguration) -> String {
    if theirs == ours {
        return String::new();
    }
    let mut rows = vec![
        (
            "sharding_total_count".to_owned(),
            theirs.sharding_total_count.to_string(),
            ours.sharding_total_count.to_string(),
        ),
        ("cron".to_owned(), text(&theirs.cron), text(&ours.cron)),
        ("time_zone".to_owned(), text(&theirs.time_zone), text(&ours.time_zone)),
        (
            "sharding_item_parameters".to_owned(),
            theirs.sharding_item_parameters.clone(),
            ours.sharding_item_parameters.clone(),
        ),
        ("job_parameter".to_owned(), theirs.job_parameter.clone(), ours.job_parameter.clone()),
        (
            "monitor_execution".to_owned(),
            theirs.monitor_execution.to_string(),
            ours.monitor_execution.to_string(),
        ),
        ("failover".to_owned(), theirs.failover.to_string(), ours.failover.to_string()),
        ("misfire".to_owned(), theirs.misfire.to_string(), ours.misfire.to_string()),
        (
            "job_sharding_strategy_type".to_owned(),
            text(&theirs.job_sharding_strategy_type),
            text(&ours.job_sharding_strategy_type),
        ),
        ("static_sharding".to_owned(), theirs.static_sharding.to_string(), ours.static_sharding.to_string()),
        ("description".to_owned(), theirs.description.clone(), ours.description.clone()),
    ];
    let keys: BTreeSet<_> = theirs.props.keys().chain(ours.props.keys()).collect();
    for key in keys {
        let value = |of: &JobConfiguration| of.props.get(key).cloned().unwrap_or_default();
        rows.push((format!("props[{}]", Excerpt::of(key)), value(theirs), value(ours)));
    }
    let different: Vec<_> = rows.into_iter().filter(|(_, theirs, ours)| theirs != ours).collect();
    let hidden = different.len().saturating_sub(NAMED_MAX);
    let mut words: Vec<_> = different
        .into_iter()
        .take(NAMED_MAX)
        .map(|(field, theirs, ours)| {
            format!(
                "configuration.{field} (`{}` there, `{}` given)",
                Excerpt::of(&theirs),
                Excerpt::of(&ours)
            )
        })
        .collect();
    if hidden > 0 {
        words.push(format!("{hidden} more"));
    }
    let rest = JobConfiguration {
        overwrite: theirs.overwrite,
        job_extra_configurations: theirs.job_extra_configurations.clone(),
        ..ours.clone()
    };
    if words.is_empty() && rest != *theirs {
        return "another field of the configuration".to_owned();
    }
    words.join(", ")
}

fn text(value: &Option<String>) -> String {
    value.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobName;

    #[test]
    fn fields_are_named_with_both_values_and_large_ones_shortened() {
        let theirs = JobConfiguration::new(JobName::parse("orders").unwrap(), 3);
        let mut ours = JobConfiguration { overwrite: true, ..theirs.clone() };
        assert_eq!(in_words(&theirs, &ours), "");
        ours.cron = Some("0 0 3 * * ?".to_owned());
        ours.props.insert("sidekeeper.grace".to_owned(), "5s".to_owned());
        assert_eq!(
            in_words(&theirs, &ours),
            "configuration.cron (`` there, `0 0 3 * * ?` given), configuration.props[sidekeeper.grace] (`` there, `5s` given)"
        );
        for number in 0..100 {
            ours.props.insert(format!("key-{number}"), "x".repeat(10_000));
        }
        let words = in_words(&theirs, &ours);
        assert!(words.ends_with(", 94 more") && words.len() < 2_000, "{words}");
        ours = JobConfiguration { label: Some("new".to_owned()), ..theirs.clone() };
        assert_eq!(in_words(&theirs, &ours), "another field of the configuration");
    }
}
