//! The content of an item's trigger: an operator's wish that one item is executed once, with the job's own parameter or with another one.
//!
//! The node is created with the operator's request. The transaction that starts the item marks it as begun, so that no instance begins it again.
//! It then stays until the execution has ended, because a retry or a failover needs the parameter, too.

use std::sync::Arc;

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use crate::extension::request_record::RequestId;
use crate::job::{InstanceId, Item};

/// The most bytes of a parameter. Each item has a copy of it.
pub const PARAMETER_BYTES_MAX: usize = 4_096;

/// The line before the parameter, which is the rest of the content.
const PARAMETER: &str = "parameter";

/// The trigger of an item.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ItemTrigger {
    /// The execution that has begun for it; `None`: it waits.
    pub begun: Option<Begun>,
    /// The text that its execution gets instead of the job's `jobParameter`. It may be a secret.
    pub parameter: Option<Arc<str>>,
}

/// The execution that has begun for a trigger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// The instant that the execution is for, in milliseconds.
    pub scheduled: Timestamp,
    /// The instance that has begun it.
    pub instance: InstanceId,
}

impl ItemTrigger {
    /// Reads the node. Lines of later versions are skipped.
    pub fn read(data: &[u8]) -> Self {
        let text = String::from_utf8_lossy(data);
        let (mut rest, mut trigger) = (&*text, Self::default());
        while let Some((line, after)) = rest.split_once('\n') {
            if line == PARAMETER {
                trigger.parameter = Some(after.into());
                break;
            }
            if let Some((millis, instance)) =
                line.strip_prefix("begun ").and_then(|begun| begun.split_once(' '))
            {
                let scheduled =
                    millis.parse().ok().and_then(|millis| Timestamp::from_millisecond(millis).ok());
                trigger.begun = scheduled
                    .map(|scheduled| Begun { scheduled, instance: InstanceId::from_registry(instance) });
            }
            rest = after;
        }
        trigger
    }

    /// The node's content.
    pub fn write(&self) -> String {
        let begun = self.begun.as_ref().map(|begun| {
            let Begun { scheduled, instance } = begun;
            format!("begun {} {instance}\n", scheduled.as_millisecond())
        });
        let parameter = self.parameter.as_ref().map(|parameter| format!("{PARAMETER}\n{parameter}"));
        begun.into_iter().chain(parameter).collect()
    }
}

/// A text that two requests with this id share only if they ask for the same: for the record of the request, which must not have the
/// parameter. `items`: those that the caller has named.
pub fn fingerprint<'a>(
    id: &RequestId,
    items: impl IntoIterator<Item = &'a Item>,
    parameter: Option<&str>,
) -> String {
    let items: Vec<_> = items.into_iter().map(ToString::to_string).collect();
    let parameter = parameter.map(|parameter| format!("\n{parameter}")).unwrap_or_default();
    hex::encode(Sha256::digest(format!("{id}\n{}{parameter}", items.join(" "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triggers_are_read_as_they_were_written_and_nonsense_is_a_trigger_that_waits() {
        let begun = Begun {
            scheduled: Timestamp::from_millisecond(1_700_000_000_123).unwrap(),
            instance: InstanceId::from_registry("10.0.0.1@-@a b"),
        };
        for begun in [None, Some(begun)] {
            for parameter in [None, Some(""), Some("day=1\nparameter\nbegun 5 x\n")] {
                let trigger = ItemTrigger { begun: begun.clone(), parameter: parameter.map(Into::into) };
                assert_eq!(ItemTrigger::read(trigger.write().as_bytes()), trigger);
            }
        }
        for nonsense in
            [&b""[..], b"\xff\n", b"begun\n", b"begun x y\n", b"begun 99999999999999999999 y\n", b"news 5\n"]
        {
            assert_eq!(ItemTrigger::read(nonsense), ItemTrigger::default(), "{nonsense:?}");
        }
    }

    #[test]
    fn a_fingerprint_tells_items_and_parameters_apart_and_does_not_show_them() {
        let id = RequestId::parse("x").unwrap();
        let items = |items: &[u32]| items.iter().copied().map(Item).collect::<Vec<_>>();
        let all = [
            fingerprint(&id, &items(&[1, 23]), None),
            fingerprint(&id, &items(&[12, 3]), None),
            fingerprint(&id, &items(&[1, 23]), Some("")),
            fingerprint(&id, &items(&[1]), Some("23")),
            fingerprint(&id, &items(&[1, 23]), Some("hunter2")),
            fingerprint(&RequestId::parse("y").unwrap(), &items(&[1, 23]), Some("hunter2")),
        ];
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        assert!(all.iter().all(|text| text.len() == 64 && !text.contains("hunter")));
    }
}
