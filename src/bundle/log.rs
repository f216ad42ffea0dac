//! The log in a bundle: which fields of its lines are written. Pure.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::pseudonyms::{Kind, Pseudonyms};

/// How a field is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// As it is, with pseudonyms for the addresses and names in it.
    Text,
    /// The pseudonym of a name of this kind.
    Name(Kind),
    /// The pseudonym of an instance id.
    Instance,
    /// A text from outside, which may quote parameters of jobs: with them only.
    Outside,
}

/// The fields of log lines and of their spans. One that is not here is left out: `caller` and `subject` among others are here because an
/// operator's call is worth a line, `path` of a file is not, because it names a person's folders.
const FIELDS: &[(&str, Class)] = &[
    ("address", Class::Text),
    ("after", Class::Text),
    ("attempt", Class::Text),
    ("attempts", Class::Text),
    ("bytes", Class::Text),
    ("caller", Class::Text),
    ("cause", Class::Text),
    ("client", Class::Text),
    ("code", Class::Text),
    ("connections", Class::Text),
    ("count", Class::Text),
    ("descriptors_max", Class::Text),
    ("detail", Class::Outside),
    ("end", Class::Text),
    ("error", Class::Text),
    ("event", Class::Text),
    ("execution.id", Class::Text),
    ("expires", Class::Text),
    ("faas.time", Class::Text),
    ("faas.trigger", Class::Text),
    ("fencing.token", Class::Text),
    ("for_each_caller", Class::Text),
    ("for_health", Class::Text),
    ("generation", Class::Text),
    ("holder", Class::Name(Kind::Contender)),
    ("host", Class::Name(Kind::Host)),
    ("how", Class::Text),
    ("instance.id", Class::Instance),
    ("item", Class::Text),
    ("items", Class::Text),
    ("job.name", Class::Name(Kind::Job)),
    ("latch", Class::Text),
    ("leader", Class::Text),
    ("left_out", Class::Text),
    ("level", Class::Text),
    ("lock", Class::Name(Kind::Lock)),
    ("message", Class::Text),
    ("method", Class::Text),
    ("mode", Class::Text),
    ("name", Class::Text),
    ("node", Class::Text),
    ("nodes", Class::Text),
    ("of", Class::Text),
    ("pause", Class::Text),
    ("peer", Class::Text),
    ("pending", Class::Text),
    ("port", Class::Text),
    ("purpose", Class::Text),
    ("reason", Class::Text),
    ("refusal", Class::Text),
    ("registry", Class::Text),
    ("remaining", Class::Text),
    ("remaining_lease", Class::Text),
    ("roles", Class::Text),
    ("root", Class::Text),
    ("scheduled", Class::Text),
    ("server", Class::Text),
    ("session", Class::Text),
    ("signal", Class::Text),
    ("silent_for", Class::Text),
    ("source", Class::Text),
    ("status", Class::Text),
    ("steps", Class::Text),
    ("subject", Class::Text),
    ("target", Class::Text),
    ("time_to_live", Class::Text),
    ("timeout", Class::Text),
    ("timestamp", Class::Text),
    ("triggered", Class::Text),
    ("version", Class::Text),
    ("waiting", Class::Text),
    ("what", Class::Text),
    ("why", Class::Text),
];

/// The log in a bundle.
#[derive(Debug, Default)]
pub struct Log {
    /// The lines, each a JSON object.
    pub text: String,
    /// The fields that were left out, and how often.
    pub left_out: BTreeMap<String, u64>,
    /// How many lines were left out, because they are no JSON objects.
    pub lines_left_out: u64,
}

/// The lines of the log with pseudonyms; with texts from outside if `with_texts`.
pub fn lines<'a>(
    pseudonyms: &mut Pseudonyms,
    lines: impl Iterator<Item = &'a str> + Clone,
    with_texts: bool,
) -> Log {
    // All names are known before the first text is searched for them.
    for line in lines.clone() {
        if let Ok(Value::Object(fields)) = serde_json::from_str(line) {
            learn(pseudonyms, &fields);
        }
    }
    let mut log = Log::default();
    for line in lines {
        match serde_json::from_str(line) {
            Ok(Value::Object(fields)) => {
                let shown = object(pseudonyms, fields, with_texts, &mut log.left_out);
                log.text.push_str(&Value::Object(shown).to_string());
                log.text.push('\n');
            }
            Ok(_) | Err(_) => log.lines_left_out = log.lines_left_out.saturating_add(1),
        }
    }
    log
}

fn class(field: &str) -> Option<Class> {
    let at = FIELDS.binary_search_by_key(&field, |(name, _)| name).ok()?;
    FIELDS.get(at).map(|(_, class)| *class)
}

/// Learns the names in the fields that have nothing else.
fn learn(pseudonyms: &mut Pseudonyms, fields: &Map<String, Value>) {
    for (name, value) in fields {
        match (class(name), value) {
            (_, Value::Object(span)) if name == "span" => learn(pseudonyms, span),
            (Some(Class::Name(kind)), Value::String(text)) => {
                pseudonyms.name(kind, text);
            }
            (Some(Class::Instance), Value::String(text)) => {
                pseudonyms.instance(text);
            }
            _ => {}
        }
    }
}

fn object(
    pseudonyms: &mut Pseudonyms,
    fields: Map<String, Value>,
    with_texts: bool,
    left_out: &mut BTreeMap<String, u64>,
) -> Map<String, Value> {
    let mut shown = Map::new();
    for (name, value) in fields {
        let value = match (name.as_str(), value) {
            ("span", Value::Object(span)) => {
                Some(Value::Object(object(pseudonyms, span, with_texts, left_out)))
            }
            ("spans", Value::Array(spans)) => Some(Value::Array(
                spans
                    .into_iter()
                    .filter_map(|span| {
                        let Value::Object(span) = span else { return None };
                        Some(Value::Object(object(pseudonyms, span, with_texts, left_out)))
                    })
                    .collect(),
            )),
            (name, value) => self::value(pseudonyms, class(name), value, with_texts),
        };
        match value {
            Some(value) => {
                shown.insert(name, value);
            }
            None => {
                let count = left_out.entry(name).or_default();
                *count = count.saturating_add(1);
            }
        }
    }
    shown
}

fn value(pseudonyms: &mut Pseudonyms, class: Option<Class>, value: Value, with_texts: bool) -> Option<Value> {
    let text = match (class?, value) {
        (Class::Outside, _) if !with_texts => return None,
        (_, value @ (Value::Null | Value::Bool(_) | Value::Number(_))) => return Some(value),
        (Class::Name(kind), Value::String(text)) => pseudonyms.name(kind, &text),
        (Class::Instance, Value::String(text)) => pseudonyms.instance(&text),
        (Class::Text | Class::Outside, Value::String(text)) => pseudonyms.text(&text),
        (_, Value::Array(_) | Value::Object(_)) => return None,
    };
    Some(Value::String(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order() {
        assert!(FIELDS.is_sorted_by_key(|(name, _)| *name));
    }

    #[test]
    fn op_12_a_field_that_nobody_has_classified_is_left_out_and_counted() {
        let line = r#"{"timestamp":"t","level":"WARN","message":"for orders at 10.0.0.1","password":"hunter2","item":3,
            "job.name":"orders","detail":"hunter2","error":{"nested":"hunter2"},"target":"sidekeeper",
            "span":{"name":"participant","job.name":"orders","instance.id":"10.0.0.1@-@w-a","key":"hunter2"},
            "spans":[{"name":"participant","instance.id":"10.0.0.1@-@w-a","key":"hunter2"},"hunter2"]}"#;
        let mut names = Pseudonyms::default();
        let log = lines(&mut names, [line, "hunter2", "[\"hunter2\"]"].into_iter(), false);
        assert_eq!(
            log.text,
            concat!(
                r#"{"item":3,"job.name":"job1","level":"WARN","message":"for job1 at ip1","#,
                r#""span":{"instance.id":"ip1@-@instance1","job.name":"job1","name":"participant"},"#,
                r#""spans":[{"instance.id":"ip1@-@instance1","name":"participant"}],"target":"sidekeeper","timestamp":"t"}"#,
                "\n"
            )
        );
        let left_out = [("detail", 1), ("error", 1), ("key", 2), ("password", 1)];
        assert_eq!(log.left_out, left_out.map(|(name, count)| (name.to_owned(), count)).into());
        assert_eq!(log.lines_left_out, 2);
        assert!(lines(&mut names, [line].into_iter(), true).text.contains("\"detail\":\"hunter2\""));
    }
}
