//! The text of ElasticJob's dump command: all nodes of a job, for a person who helps from afar. Pure.
//!
//! Source: protocol 9. Three things differ from Java on purpose. Secrets of the configuration are masked;
//! Java's dump shows them. Only whole addresses are replaced; Java's `10.0.0.1` also rewrites the start of
//! `10.0.0.10`. The length is bounded. There is no cache here that could differ from the registry, so the
//! columns for a cache never appear.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use super::java;
use super::path::Place;
use super::redaction::{self, REDACTED};
use crate::job::JobName;
use crate::tree::{Node, Path};

/// The longest request, in bytes, without the end of its line.
pub const REQUEST_BYTES_MAX: usize = COMMAND.len() + JobName::MAX_BYTES;
/// About the longest answer, in bytes: a job of 10000 items takes some 2 MB.
pub const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The beginning of a request.
const COMMAND: &str = "dump@";
/// The last line of an answer that is too long.
const CUT_OFF: &str = "*** the rest is left out: the answer would be longer than 16 MiB\n";

/// The job of a request of one line. `None`: the line is no request.
pub fn requested_job(line: &[u8]) -> Option<JobName> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    JobName::parse(std::str::from_utf8(line).ok()?.strip_prefix(COMMAND)?).ok()
}

/// The answer: every node below the job's, one entry each. Empty if there is none.
pub fn text(root: &Path, nodes: &[Node]) -> String {
    text_within(ANSWER_BYTES_MAX, root, nodes)
}

fn text_within(limit: usize, root: &Path, nodes: &[Node]) -> String {
    let below = nodes.iter().filter_map(|node| Some((node.path.relative_to(root)?, node)));
    let mut entries: Vec<_> = below.filter(|(relative, _)| !relative.is_empty()).collect();
    entries.sort_by(|(left, _), (right, _)| depth_first(left, right));
    let job = root.name();
    let mut text = String::new();
    for (relative, node) in entries {
        let entry = format!("/{job}/{relative} | {}\n", value(Place::of(relative), &node.data));
        if text.len().saturating_add(entry.len()) > limit {
            text.push_str(CUT_OFF);
            break;
        }
        text.push_str(&entry);
    }
    without_addresses(&text)
}

/// Parents first, then children in descending order of their names, each with all nodes below it.
fn depth_first(left: &str, right: &str) -> Ordering {
    let (mut left, mut right) = (left.split('/'), right.split('/'));
    loop {
        match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(left), Some(right)) => match java::compare(right, left) {
                Ordering::Equal => {}
                order @ (Ordering::Less | Ordering::Greater) => return order,
            },
        }
    }
}

/// The shown form of a node's data. Ids and states are always shown. Other data is not from the protocol; it
/// is hidden if it looks like a secret.
fn value(place: Place<'_>, data: &[u8]) -> String {
    if place == Place::Config {
        return redaction::document(data);
    }
    let text = String::from_utf8_lossy(data);
    let is_id_or_state = matches!(
        place,
        Place::Server(_)
            | Place::Instance(_)
            | Place::Leader
            | Place::ItemInstance(_)
            | Place::Running(_)
            | Place::Failover(_)
            | Place::Failovering(_)
            | Place::NextJobInstanceIp
    );
    if !is_id_or_state && redaction::is_secret_key(&text) {
        return REDACTED.to_owned();
    }
    text.into_owned()
}

/// The text with `ip1`, `ip2` and so on in place of addresses, numbered in the order in which they appear.
fn without_addresses(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut numbers: BTreeMap<Ipv4Addr, usize> = BTreeMap::new();
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from_digit) = rest.split_at(start);
        let (dotted, after) = from_digit.split_at(dotted_number(from_digit.as_bytes()));
        shown.push_str(before);
        match dotted.parse() {
            Ok(address) => {
                let next = numbers.len() + 1;
                let number = numbers.entry(address).or_insert(next);
                shown.push_str(&format!("ip{number}"));
            }
            Err(_) => shown.push_str(dotted),
        }
        rest = after;
    }
    shown.push_str(rest);
    shown
}

/// The length of the digits at the start of a text, and of the single dots between them.
fn dotted_number(bytes: &[u8]) -> usize {
    let digit_at = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let within = |at: &usize| digit_at(*at) || (bytes.get(*at) == Some(&b'.') && digit_at(at + 1));
    (0..bytes.len()).take_while(within).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elasticjob::config_yaml;
    use crate::job::JobConfiguration;
    use crate::tree::{Stat, Zxid};

    fn dump_within(limit: usize, nodes: &[(&str, &[u8])]) -> String {
        let root = Path::parse("/fleet/eu/rcJob").unwrap();
        let node = |(relative, data): &(&str, &[u8])| Node {
            path: if relative.is_empty() { root.clone() } else { root.child(relative) },
            data: (*data).into(),
            stat: Stat {
                created: Zxid(1),
                modified: Zxid(1),
                version: 0,
                ephemeral_owner: None,
                modified_ms: 0,
            },
        };
        text_within(limit, &root, &nodes.iter().map(node).collect::<Vec<_>>())
    }

    fn dump(nodes: &[(&str, &[u8])]) -> String {
        dump_within(ANSWER_BYTES_MAX, nodes)
    }

    #[test]
    fn only_the_command_with_a_job_is_a_request() {
        for good in ["dump@rcJob", "dump@rcJob\n", "dump@rcJob\r\n"] {
            assert_eq!(requested_job(good.as_bytes()).unwrap().as_str(), "rcJob");
        }
        // Java splits task ids at it, but not job names.
        assert_eq!(requested_job(b"dump@a@b").unwrap().as_str(), "a@b");
        let bad =
            ["", "\n", "dump", "dump@", "dump@\n", "DUMP@a", " dump@a", "dump@a/b", "dump@..", "dump@a\nb"];
        for bad in bad.map(str::as_bytes).into_iter().chain([&b"dump@\xff"[..]]) {
            assert_eq!(requested_job(bad), None, "{:?}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn parents_come_first_and_children_in_descending_order_of_text() {
        let text = dump(&[
            ("", b"com.example.Job"),
            ("config", b""),
            ("sharding", b""),
            ("sharding/2", b""),
            ("sharding/10", b""),
            ("sharding/10/instance", b"a"),
            ("sharding/10/running", b"a"),
            ("sharding/2/instance", b"b"),
            ("sharding-x", b""),
            ("instances", b""),
        ]);
        assert_eq!(
            text,
            "/rcJob/sharding-x | \n/rcJob/sharding | \n/rcJob/sharding/2 | \n/rcJob/sharding/2/instance | b\n\
             /rcJob/sharding/10 | \n/rcJob/sharding/10/running | a\n/rcJob/sharding/10/instance | a\n\
             /rcJob/instances | \n/rcJob/config | *** not shown, because it cannot be read: line 1, column 1\n"
        );
        assert_eq!(dump(&[]), "");
        assert_eq!(dump(&[("", b"com.example.Job")]), "");
    }

    #[test]
    fn whole_addresses_are_replaced_in_the_order_in_which_they_appear() {
        let text = dump(&[
            ("servers/10.0.0.10", b"ENABLED"),
            ("servers/10.0.0.1", b"ENABLED"),
            ("instances/10.0.0.10@-@1.2", b"serverIp: 10.0.0.10\n"),
            ("a", b"10.0.0.1. x10.0.0.1y 10.0.0.1..10.0.0.2 1.2.3.4.5 256.0.0.1 10.0.0.1\xc3\xa9"),
        ]);
        assert_eq!(
            text,
            "/rcJob/servers/ip1 | ENABLED\n/rcJob/servers/ip2 | ENABLED\n\
             /rcJob/instances/ip1@-@1.2 | serverIp: ip1\n\n\
             /rcJob/a | ip2. xip2y ip2..ip3 1.2.3.4.5 256.0.0.1 ip2\u{e9}\n"
        );
    }

    #[test]
    fn secrets_are_not_in_it() {
        let mut configuration = JobConfiguration::new(JobName::parse("rcJob").unwrap(), 3);
        configuration.props.insert("email.password".to_owned(), "hunter2".to_owned());
        let written = config_yaml::write(&configuration);
        let text = dump(&[
            ("config", written.as_bytes()),
            ("config/old", written.as_bytes()),
            ("notes", b"passwd=hunter2"),
            ("sharding/0/misfire", b"token hunter2"),
            ("leader/election/instance", b"10.0.0.1@-@token-service"),
        ]);
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("'email.password': '***'") && text.contains("shardingTotalCount: 3"), "{text}");
        assert!(text.contains("ip1@-@token-service"), "{text}");
    }

    #[test]
    fn the_end_of_a_too_long_answer_is_marked() {
        let long = "x".repeat(100);
        let text = dump_within(200, &[("c", long.as_bytes()), ("b", long.as_bytes()), ("a", b"")]);
        assert_eq!(text, format!("/rcJob/c | {long}\n{CUT_OFF}"));
    }

    #[test]
    fn nothing_makes_it_fail() {
        let text = dump(&[
            ("sharding/\u{1f600}", &[0xff, 0xfe, 0]),
            ("sharding/99999999999999999999", b"1.1.1.1.1"),
            ("x", b"9.9.9."),
        ]);
        assert!(text.ends_with("/rcJob/sharding/99999999999999999999 | 1.1.1.1.1\n"), "{text}");
    }
}
