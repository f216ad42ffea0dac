//! The effects of an operator's request, under the id that its caller gave it (AIP-155). So a repetition is recognised, by any sidecar of
//! the namespace.
//!
//! A request whose deed takes several transactions has a node for each of them, its *parts*.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::job::{InstanceId, Item, NameError};

/// How long a request is remembered at least, in milliseconds of the registry's clock: ten minutes. Callers repeat a request within seconds,
/// and people within minutes.
pub const REMEMBERED_MS: i64 = 600_000;

/// The first line of a trigger.
const TRIGGER: &str = "trigger";
/// The first line of a cancel at one sidecar.
const CANCEL: &str = "cancel";
/// The line of a trigger of items, before the text that tells it from other requests.
const ASKED: &str = "asked";
/// The line of a trigger that another part follows.
const PARTIAL: &str = "partial";

/// The id that the caller of an operation has given it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// Characters in the longest id: a UUID has 36.
    pub const MAX_CHARS: usize = 64;

    /// Checks an id. It is the name of a node.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if text.is_empty() || text.len() > Self::MAX_CHARS || !text.bytes().all(is_allowed) {
            let reason = "is not 1 to 64 letters (A to Z), digits, `-` and `_`; use a UUID";
            return Err(NameError { what: "request id", given: text.to_owned(), reason });
        }
        Ok(Self(text.into()))
    }

    /// The id of a request to which its caller has given none. `unguessable`: letters and digits.
    pub fn new(unguessable: &str) -> Self {
        Self(
            unguessable
                .chars()
                .filter(char::is_ascii_alphanumeric)
                .take(Self::MAX_CHARS)
                .collect::<String>()
                .into(),
        )
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The effects of a request, or of a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestRecord {
    /// It has triggered instances.
    Trigger(TriggerRecord),
    /// It cancels executions at one sidecar.
    Cancel(Vec<CancelledRecord>),
    /// Something that this version does not know.
    Unknown,
}

/// The effects of a trigger, or of a part of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TriggerRecord {
    /// The instances that it has triggered.
    pub triggered: BTreeSet<InstanceId>,
    /// The instances whose earlier trigger was pending.
    pub pending: BTreeSet<InstanceId>,
    /// Whether another part follows.
    pub is_partial: bool,
    /// The fingerprint of a request that names items or has a parameter ([`crate::extension::item_trigger::fingerprint`]).
    pub asked: Option<String>,
    /// The items that such a request has triggered.
    pub items: BTreeSet<Item>,
}

/// An execution that a request cancels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelledRecord {
    /// The instance that executes the item.
    pub instance: InstanceId,
    /// The item.
    pub item: Item,
    /// The execution.
    pub execution_id: String,
    /// Whether the item waited for a retry.
    pub was_waiting: bool,
}

impl RequestRecord {
    /// Reads the node.
    pub fn read(data: &[u8]) -> Self {
        let text = String::from_utf8_lossy(data);
        let mut lines = text.lines();
        match lines.next() {
            Some(TRIGGER) => Self::Trigger(TriggerRecord::read(lines)),
            Some(CANCEL) => Self::Cancel(read_cancelled(lines)),
            Some(_) | None => Self::Unknown,
        }
    }
}

impl TriggerRecord {
    /// How many bytes the line of an instance takes at most.
    pub fn size_of(id: &InstanceId) -> usize {
        id.as_str().len().saturating_add("triggered \n".len())
    }

    fn read<'a>(lines: impl Iterator<Item = &'a str>) -> Self {
        let mut record = Self::default();
        for line in lines {
            match line.split_once(' ') {
                Some(("triggered", id)) => {
                    record.triggered.insert(InstanceId::from_registry(id));
                }
                Some(("pending", id)) => {
                    record.pending.insert(InstanceId::from_registry(id));
                }
                Some((ASKED, fingerprint)) => record.asked = Some(fingerprint.to_owned()),
                Some(("items", items)) => {
                    let items = items.split(' ').filter_map(|item| item.parse().ok());
                    record.items.extend(items.map(Item));
                }
                None if line == PARTIAL => record.is_partial = true,
                Some(_) | None => {}
            }
        }
        record
    }

    /// The node's content.
    pub fn write(&self) -> String {
        let mut text = format!("{TRIGGER}\n");
        text.extend(self.is_partial.then(|| format!("{PARTIAL}\n")));
        text.extend(self.asked.iter().map(|fingerprint| format!("{ASKED} {fingerprint}\n")));
        let items: Vec<_> = self.items.iter().map(ToString::to_string).collect();
        text.extend((!items.is_empty()).then(|| format!("items {}\n", items.join(" "))));
        text.extend(self.triggered.iter().map(|id| format!("triggered {id}\n")));
        text.extend(self.pending.iter().map(|id| format!("pending {id}\n")));
        text
    }
}

/// The content of the node of a cancel. A line `of` has an instance and the beginning of its executions' ids; the lines after it have an item
/// and the rest of an id each.
pub fn write_cancelled(cancelled: &[CancelledRecord]) -> String {
    let mut text = format!("{CANCEL}\n");
    let mut before = None;
    for CancelledRecord { instance, item, execution_id, was_waiting } in cancelled {
        let (prefix, rest) = execution_id.rsplit_once('-').unwrap_or(("", execution_id));
        if before != Some((instance, prefix)) {
            text.push_str(&format!("of {prefix} {instance}\n"));
            before = Some((instance, prefix));
        }
        let waits = if *was_waiting { " waits" } else { "" };
        text.push_str(&format!("{item} {rest}{waits}\n"));
    }
    text
}

fn read_cancelled<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<CancelledRecord> {
    let mut cancelled = Vec::new();
    let mut of: Option<(&str, InstanceId)> = None;
    for line in lines {
        let Some((first, rest)) = line.split_once(' ') else { continue };
        if first == "of" {
            of = rest.split_once(' ').map(|(prefix, id)| (prefix, InstanceId::from_registry(id)));
            continue;
        }
        let (Some((prefix, instance)), Ok(item)) = (&of, first.parse()) else { continue };
        let (rest, was_waiting) = match rest.strip_suffix(" waits") {
            Some(rest) => (rest, true),
            None => (rest, false),
        };
        let execution_id = if prefix.is_empty() { rest.to_owned() } else { format!("{prefix}-{rest}") };
        let (instance, item) = (instance.clone(), Item(item));
        cancelled.push(CancelledRecord { instance, item, execution_id, was_waiting });
    }
    cancelled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written_and_nonsense_is_skipped() {
        let [a, b] = ["10.0.0.1@-@a b", "10.0.0.2@-@2"].map(InstanceId::from_registry);
        let instances = TriggerRecord {
            triggered: [a.clone()].into(),
            pending: [b.clone()].into(),
            is_partial: true,
            ..TriggerRecord::default()
        };
        let asked = Some("0f".to_owned());
        let items = TriggerRecord { asked, items: [Item(3), Item(12)].into(), ..TriggerRecord::default() };
        for trigger in [instances, items] {
            assert_eq!(RequestRecord::read(trigger.write().as_bytes()), RequestRecord::Trigger(trigger));
        }
        let cancelled =
            [(&a, "abc-1.3", false), (&a, "abc-2.4", true), (&b, "d-e-7.3", false), (&b, "x", false)];
        let cancelled = cancelled.map(|(instance, id, was_waiting)| CancelledRecord {
            instance: instance.clone(),
            item: Item(3),
            execution_id: id.to_owned(),
            was_waiting,
        });
        let read = RequestRecord::read(write_cancelled(&cancelled).as_bytes());
        assert_eq!(read, RequestRecord::Cancel(cancelled.to_vec()));
        for nonsense in [&b"cancel\n7 x\nof\nof x\nx\n\xff -1 y\n"[..], b"cancel\n"] {
            assert_eq!(RequestRecord::read(nonsense), RequestRecord::Cancel(Vec::new()));
        }
        for unknown in [&b""[..], b"\xff", b"triggers\ntriggered a\n"] {
            assert_eq!(RequestRecord::read(unknown), RequestRecord::Unknown);
        }
    }

    #[test]
    fn an_id_is_the_name_of_a_node() {
        for good in ["a", "0f0f-_Z", &"x".repeat(64)] {
            assert_eq!(RequestId::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(RequestId::parse(bad).is_err(), "{bad:?}");
        }
    }
}
