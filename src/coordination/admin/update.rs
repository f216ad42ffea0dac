//! Changes the configuration of a job for an operator: the job's nodes and a wish in, a transaction or a refusal out.
//!
//! Only the keys that are asked for change; the rest of the document stays byte for byte. The node's version guards the write, so a change of
//! somebody else in between is not undone.

use crate::coordination::job::picture::settings::checks;
use crate::elasticjob::config_yaml;
use crate::elasticjob::config_yaml_editor::{self, EditError, Key};
use crate::elasticjob::field_error::FieldError;
use crate::elasticjob::path::JobPaths;
use crate::elasticjob::validate::validate;
use crate::extension::strategy;
use crate::job::JobConfiguration;
use crate::tree::{Node, NodeKind, Operation, Stat, Transaction};

/// The wish of an operator.
#[derive(Debug, Clone, PartialEq)]
pub struct Update {
    /// The configuration with the new values.
    pub wanted: JobConfiguration,
    /// The keys whose values are to be those of `wanted`.
    pub keys: Vec<Key>,
    /// The state that the operator has seen; `None`: any.
    pub etag: Option<String>,
    /// Whether a job without configuration gets `wanted` as a whole.
    pub allow_missing: bool,
    /// The class of a job that does not exist.
    pub class: String,
}

/// The steps of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdatePlan {
    /// The steps. Empty: nothing differs.
    pub transaction: Transaction,
    /// The keys that differ.
    pub keys: Vec<Key>,
    /// The document after the change.
    pub document: String,
}

/// Why nothing is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpdateRefusal {
    /// The job has no configuration.
    NotConfigured,
    /// The configuration is not in the state that the operator has seen, but in this one.
    Changed(String),
    /// The configuration after the change would be invalid.
    Invalid(Vec<FieldError>),
    /// The document cannot be edited.
    Form(EditError),
}

/// Names the state of a configuration's node; `None`: there is no node. A version alone is no name: a node that was deleted and created
/// anew begins with version 0 again.
pub fn etag(stat: Option<&Stat>) -> String {
    match stat {
        Some(stat) => format!("\"{:x}.{}\"", stat.created.0, stat.version),
        None => "\"missing\"".to_owned(),
    }
}

/// Plans an update. `root` and `config`: the nodes of the job and of its configuration, if they exist.
pub fn plan(
    paths: &JobPaths,
    root: Option<&Node>,
    config: Option<&Node>,
    update: &Update,
) -> Result<UpdatePlan, UpdateRefusal> {
    let now = etag(config.map(|node| &node.stat));
    if update.etag.as_ref().is_some_and(|seen| *seen != now) {
        return Err(UpdateRefusal::Changed(now));
    }
    let Some(node) = config else { return create(paths, root, update) };
    let current = config_yaml::parse(&node.data).map_err(|error| UpdateRefusal::Form(error.into()))?;
    let mut expected = current.configuration.clone();
    for key in &update.keys {
        key.copy(&update.wanted, &mut expected);
    }
    check(&mut expected)?;
    let keys = config_yaml_editor::difference(&current.configuration, &expected);
    let document = config_yaml_editor::edit(&node.data, &expected, &keys).map_err(UpdateRefusal::Form)?;
    let (path, data, version) = (paths.config(), document.as_bytes().into(), Some(node.stat.version));
    let set = Operation::Set { path, data, version };
    let transaction = if keys.is_empty() { Vec::new() } else { vec![set] };
    Ok(UpdatePlan { transaction, keys, document })
}

fn create(paths: &JobPaths, root: Option<&Node>, update: &Update) -> Result<UpdatePlan, UpdateRefusal> {
    if !update.allow_missing {
        return Err(UpdateRefusal::NotConfigured);
    }
    let mut expected = update.wanted.clone();
    check(&mut expected)?;
    let document = config_yaml::write(&expected);
    let persistent = |path, data: &str| Operation::create(path, NodeKind::Persistent, data);
    let own = root.is_none().then(|| persistent(paths.root().clone(), &update.class));
    let transaction = own.into_iter().chain([persistent(paths.config(), &document)]).collect();
    Ok(UpdatePlan { transaction, keys: Key::ALL.to_vec(), document })
}

/// Checks a configuration as that of an application.
fn check(configuration: &mut JobConfiguration) -> Result<(), UpdateRefusal> {
    strategy::move_own_strategy(configuration);
    let errors = validate(configuration, checks());
    if errors.is_empty() { Ok(()) } else { Err(UpdateRefusal::Invalid(errors)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobName;
    use crate::tree::{Path, Zxid};

    const DOCUMENT: &str = "cron: 0/5 * * * * ?\njavaOnly: 1\njobName: orders\nshardingTotalCount: 3\n";

    fn node(created: i64, version: i32) -> Node {
        let (created, modified) = (Zxid(created), Zxid(9));
        let stat = Stat { created, modified, version, ephemeral_owner: None, modified_ms: 0 };
        Node { path: paths().config(), data: DOCUMENT.as_bytes().into(), stat }
    }

    fn paths() -> JobPaths {
        JobPaths::new(&Path::parse("/ns").unwrap(), &JobName::parse("orders").unwrap())
    }

    fn update(total: u32) -> Update {
        let wanted = JobConfiguration::new(JobName::parse("orders").unwrap(), total);
        let keys = vec![Key::ShardingTotalCount];
        Update { wanted, keys, etag: None, allow_missing: false, class: String::new() }
    }

    #[test]
    fn op_2_only_the_state_that_was_seen_is_changed() {
        let seen = etag(Some(&node(5, 0).stat));
        let wish = Update { etag: Some(seen.clone()), ..update(4) };
        let planned = plan(&paths(), None, Some(&node(5, 0)), &wish).unwrap();
        assert_eq!(planned.document, DOCUMENT.replace(": 3", ": 4"));
        let [Operation::Set { version, .. }] = &planned.transaction[..] else { panic!("{planned:?}") };
        assert_eq!(*version, Some(0));
        // Set once, and created anew: the version is 0 again.
        for other in [node(5, 1), node(6, 0)] {
            let refused = plan(&paths(), None, Some(&other), &wish).unwrap_err();
            assert_eq!(refused, UpdateRefusal::Changed(etag(Some(&other.stat))));
        }
        assert_eq!(plan(&paths(), None, None, &wish), Err(UpdateRefusal::Changed(etag(None))));
    }

    #[test]
    fn an_update_without_a_difference_writes_nothing_and_an_invalid_one_is_refused() {
        let same = plan(&paths(), None, Some(&node(5, 0)), &update(3)).unwrap();
        assert_eq!((same.transaction, same.keys), (Vec::new(), Vec::new()));
        let Err(UpdateRefusal::Invalid(errors)) = plan(&paths(), None, Some(&node(5, 0)), &update(0)) else {
            panic!("not refused")
        };
        assert_eq!(errors[0].field, "shardingTotalCount");
    }

    #[test]
    fn a_missing_job_is_created_only_if_that_is_allowed() {
        assert_eq!(plan(&paths(), None, None, &update(4)), Err(UpdateRefusal::NotConfigured));
        let allowed = Update { allow_missing: true, class: "SCRIPT".to_owned(), ..update(4) };
        let planned = plan(&paths(), None, None, &allowed).unwrap();
        assert_eq!(planned.transaction.len(), 2);
        let root = Node { path: paths().root().clone(), ..node(1, 0) };
        assert_eq!(plan(&paths(), Some(&root), None, &allowed).unwrap().transaction.len(), 1);
    }
}
