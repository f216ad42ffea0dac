//! Task ids, `{job}@-@{items}@-@READY@-@{instance}`: the name of a fire in traces and contexts. Pure.
//!
//! Source: protocol 6.4. A task id is the same for every fire with the same items. It identifies nothing by
//! itself.

use crate::job::{ID_SEPARATOR, InstanceId, Item, JobName};

/// The longest task id, in bytes, that ElasticJob's trace tables can store (protocol 6.8).
pub const BYTES_MAX: usize = 255;

/// The third part of every task id, for failover and misfire too.
const EXECUTION_TYPE: &str = "READY";

/// The parts of a task id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskId {
    /// The job.
    pub job: JobName,
    /// The items in the order of the execution.
    pub items: Vec<Item>,
    /// `READY` in all ids of 3.x.
    pub execution_type: String,
    /// The instance that executes.
    pub instance: InstanceId,
}

/// Why a text is not a task id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "task id `{given}` {reason}; allowed is `{{job}}@-@{{items joined by ,}}@-@READY@-@{{ip}}@-@{{unique}}`"
)]
pub struct TaskIdError {
    /// The given text.
    pub given: String,
    /// The rule that the text breaks.
    pub reason: &'static str,
}

/// The id of a fire of these items on this instance.
pub fn build(job: &JobName, items: &[Item], instance: &InstanceId) -> String {
    let items: Vec<String> = items.iter().map(Item::to_string).collect();
    [job.as_str(), &items.join(","), EXECUTION_TYPE, instance.as_str()].join(ID_SEPARATOR)
}

/// Splits an id into its parts. It must have exactly five, as Java requires.
pub fn parse(text: &str) -> Result<TaskId, TaskIdError> {
    let error = |reason| TaskIdError { given: text.to_owned(), reason };
    let parts: Vec<&str> = text.split(ID_SEPARATOR).collect();
    let [job, items, execution_type, server, unique] = parts.as_slice() else {
        return Err(error("does not have five parts"));
    };
    if server.is_empty() || unique.is_empty() {
        return Err(error("has an empty instance"));
    }
    let job = JobName::parse(job).map_err(|_| error("does not begin with a job name"))?;
    let numbers = items.split(',').filter(|_| !items.is_empty());
    let items = numbers
        .map(|item| item.parse().map(Item))
        .collect::<Result<_, _>>()
        .map_err(|_| error("has items that are not numbers"))?;
    Ok(TaskId {
        job,
        items,
        execution_type: (*execution_type).to_owned(),
        instance: InstanceId::from_registry(&[*server, *unique].join(ID_SEPARATOR)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_the_same_id_as_java() {
        let job = JobName::parse("demoJob").unwrap();
        let instance = InstanceId::from_registry("192.0.2.2@-@6686");
        let id = build(&job, &[Item(0), Item(2)], &instance);
        assert_eq!(id, "demoJob@-@0,2@-@READY@-@192.0.2.2@-@6686");
        assert_eq!(
            parse(&id),
            Ok(TaskId {
                job: job.clone(),
                items: vec![Item(0), Item(2)],
                execution_type: "READY".to_owned(),
                instance: instance.clone()
            })
        );

        let empty = build(&job, &[], &instance);
        assert_eq!(empty, "demoJob@-@@-@READY@-@192.0.2.2@-@6686");
        assert_eq!(parse(&empty).unwrap().items, []);
    }

    #[test]
    fn refuses_everything_else_with_a_reason() {
        for (text, reason) in [
            ("", "does not have five parts"),
            ("a@-@0@-@READY@-@10.0.0.1", "does not have five parts"),
            ("a@-@0@-@READY@-@10.0.0.1@-@1@-@2", "does not have five parts"),
            ("a@-@0@-@READY@-@10.0.0.1@-@", "has an empty instance"),
            ("a@-@0,@-@READY@-@10.0.0.1@-@1", "has items that are not numbers"),
            ("a@-@-1@-@READY@-@10.0.0.1@-@1", "has items that are not numbers"),
            ("@-@0@-@READY@-@10.0.0.1@-@1", "does not begin with a job name"),
        ] {
            assert_eq!(parse(text).unwrap_err().reason, reason, "{text}");
        }
    }
}
