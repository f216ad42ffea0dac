//! The metrics in a bundle: the text that Prometheus gets, with pseudonyms. Pure. Decides which labels have names.

use std::fmt::Write as _;

use super::pseudonyms::{Kind, Pseudonyms};
use crate::metrics::table;

/// In place of the value of a label that nobody has classified.
const HIDDEN: &str = "***";
/// The labels whose values are of closed lists (`metrics/words.rs`), or numbers, besides those of the table of metrics.
const CLOSED: [&str; 6] = ["le", "quantile", "version", "commit", "features", "trace_id"];

/// The text of a scrape with pseudonyms.
pub fn scrape(pseudonyms: &mut Pseudonyms, text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for line in text.lines() {
        if line.starts_with('#') {
            shown.push_str(line);
        } else {
            sample(pseudonyms, line, &mut shown);
        }
        shown.push('\n');
    }
    shown
}

/// Writes a sample: `name{label="value",...} number # {label="value"} number`.
fn sample(pseudonyms: &mut Pseudonyms, mut line: &str, shown: &mut String) {
    while let Some((before, labels)) = line.split_once('{') {
        shown.push_str(before);
        shown.push('{');
        let mut rest = labels;
        let mut is_first = true;
        while let Some((name, after)) = rest.split_once("=\"") {
            let Some((value, after)) = quoted(after) else { break };
            let name = name.trim_start_matches(',');
            let value = label(pseudonyms, name, &value);
            // Writing to a string cannot fail.
            let _ = write!(shown, "{}{name}=\"{}\"", if is_first { "" } else { "," }, escaped(&value));
            is_first = false;
            rest = after;
            if rest.starts_with('}') {
                break;
            }
        }
        // The bundle has only labels.
        line = rest.split_once('}').map_or("", |(_, after)| after);
        shown.push('}');
    }
    shown.push_str(line);
}

fn label(pseudonyms: &mut Pseudonyms, name: &str, value: &str) -> String {
    match name {
        "job_name" if value == "_other" => value.to_owned(),
        "job_name" => pseudonyms.name(Kind::Job, value),
        "registry_namespace" => pseudonyms.name(Kind::Namespace, value.trim_start_matches('/')),
        name if CLOSED.contains(&name) => value.to_owned(),
        name if table::ALL.iter().any(|metric| metric.labels.contains(&name)) => value.to_owned(),
        _ => HIDDEN.to_owned(),
    }
}

/// The text up to the closing quotation mark, without escapes, and the text after the mark.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, text.get(at.checked_add(1)?..)?)),
            '\\' => match chars.next()? {
                (_, 'n') => value.push('\n'),
                (_, other) => value.push(other),
            },
            _ => value.push(c),
        }
    }
    None
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_jobs_have_pseudonyms_and_unknown_labels_are_hidden() {
        let mut names = Pseudonyms::default();
        let text = "# TYPE sidekeeper_failovers counter\n\
            sidekeeper_failovers_total{registry_namespace=\"orders\",job_name=\"a \\\"{b}\\\\\"} 3 # {trace_id=\"ab\"} 1.0\n\
            sidekeeper_x{job_name=\"_other\",customer=\"hunter2\"} 1\nprocess_threads 4\n# EOF\n";
        assert_eq!(
            scrape(&mut names, text),
            "# TYPE sidekeeper_failovers counter\n\
             sidekeeper_failovers_total{registry_namespace=\"namespace1\",job_name=\"job1\"} 3 # {trace_id=\"ab\"} 1.0\n\
             sidekeeper_x{job_name=\"_other\",customer=\"***\"} 1\nprocess_threads 4\n# EOF\n"
        );
        assert_eq!(names.name(Kind::Job, "a \"{b}\\"), "job1");
    }

    #[test]
    fn a_broken_line_shows_no_value() {
        let mut names = Pseudonyms::default();
        for line in ["x{job_name=\"hunter2", "x{hunter2}", "x{a=\"hunter2\\"] {
            assert!(!scrape(&mut names, line).contains("hunter2"), "{line}");
        }
    }
}
