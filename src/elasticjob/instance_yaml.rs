//! The content of an instance's node: exactly the two keys that every peer knows. Pure.
//!
//! Source: protocol 1.3. With one more key, the sharding of every Java peer throws.

use crate::elasticjob::yaml::{self, Content};
use crate::job::{ID_SEPARATOR, InstanceId};

/// The content of an instance's node, as far as it could be read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InstanceReading {
    /// `jobInstanceId`. Java readers replace a missing value by their own.
    pub job_instance_id: Option<String>,
    /// `serverIp`. Java readers replace a missing value by their own.
    pub server_ip: Option<String>,
    /// `labels`, which 3.0.5 never writes.
    pub labels: Option<String>,
    /// The node's errors and their effect on Java peers, one sentence each.
    pub problems: Vec<String>,
}

/// The node's content for an instance of this sidecar.
pub fn write(instance: &InstanceId) -> String {
    let server_ip = instance.as_str().split_once(ID_SEPARATOR).map_or("", |(server_ip, _)| server_ip);
    format!("jobInstanceId: {}\nserverIp: {}\n", scalar(instance.as_str()), scalar(server_ip))
}

/// Reads the node of `instance`, of a sidecar or of Java. Never fails: unreadable content is a problem.
pub fn read(instance: &InstanceId, data: &[u8]) -> InstanceReading {
    let mut reading = InstanceReading::default();
    if let Some((server_ip, _)) = instance.as_str().split_once(ID_SEPARATOR)
        && data == write(instance).as_bytes()
    {
        // The content of a sidecar's node: nothing has to be parsed.
        reading.job_instance_id = Some(instance.as_str().to_owned());
        reading.server_ip = Some(server_ip.to_owned());
        return reading;
    }
    if data.iter().all(u8::is_ascii_whitespace) {
        reading.problems.push("the instance has no data, so Java peers skip it".to_owned());
        return reading;
    }
    let document = match yaml::decode(data).and_then(yaml::parse) {
        Ok(document) => document,
        Err(error) => {
            reading
                .problems
                .push(format!("the instance's data is not YAML: {error}; Java peers cannot shard"));
            return reading;
        }
    };
    let Content::Mapping(pairs) = document.content else {
        let kind = document.kind();
        reading
            .problems
            .push(format!("the instance's data is {kind}; it must be a map; Java peers cannot shard"));
        return reading;
    };
    for (key, value) in pairs {
        let field = match key.scalar() {
            Some("jobInstanceId") => &mut reading.job_instance_id,
            Some("serverIp") => &mut reading.server_ip,
            Some("labels") => &mut reading.labels,
            other => {
                let key = other.unwrap_or("(not a text)");
                reading
                    .problems
                    .push(format!("the instance has the unknown key `{key}`; Java peers cannot shard"));
                continue;
            }
        };
        match &value.content {
            _ if value.is_null() => *field = None,
            Content::Scalar { text, .. } => *field = Some(text.clone()),
            Content::Sequence(_) | Content::Mapping(_) | Content::Alias => {
                let (key, kind) = (key.scalar().unwrap_or_default(), value.kind());
                reading.problems.push(format!("the instance's `{key}` is {kind}; it must be a text"));
            }
        }
    }
    compare_with_name(instance, &mut reading);
    reading
}

fn compare_with_name(instance: &InstanceId, reading: &mut InstanceReading) {
    let prefix = instance.as_str().split_once(ID_SEPARATOR).map(|(prefix, _)| prefix);
    let expected = [
        ("jobInstanceId", &reading.job_instance_id, Some(instance.as_str())),
        ("serverIp", &reading.server_ip, prefix),
    ];
    for (key, given, expected) in expected {
        match (given, expected) {
            (None, _) => {
                let text = format!("the instance has no `{key}`; each Java peer takes its own instead");
                reading.problems.push(text);
            }
            (Some(given), Some(expected)) if given != expected => {
                let text =
                    format!("the instance's `{key}` is `{given}`, but its node's name says `{expected}`");
                reading.problems.push(text);
            }
            (Some(_), _) => {}
        }
    }
}

/// Plain as Java's where that is safe, quoted otherwise.
fn scalar(text: &str) -> String {
    let plain = !text.is_empty()
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '@'));
    if plain { text.to_owned() } else { super::config_yaml_writer::quoted(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_as(id: &str, data: &[u8]) -> InstanceReading {
        read(&InstanceId::from_registry(id), data)
    }

    #[test]
    fn writes_the_same_bytes_as_java() {
        let instance = InstanceId::new("10.0.0.1".parse().unwrap(), "4711");
        let written = write(&instance);
        assert_eq!(written, "jobInstanceId: 10.0.0.1@-@4711\nserverIp: 10.0.0.1\n");
        let reading = read(&instance, written.as_bytes());
        assert_eq!(reading.job_instance_id.as_deref(), Some("10.0.0.1@-@4711"));
        assert_eq!(reading.server_ip.as_deref(), Some("10.0.0.1"));
        assert_eq!(reading.problems, [""; 0]);
    }

    #[test]
    fn quotes_text_that_cannot_be_plain() {
        for unique in ["a: b", "#", "it's", "x\n", "a #b", " "] {
            let instance = InstanceId::new("10.0.0.1".parse().unwrap(), unique);
            let reading = read(&instance, write(&instance).as_bytes());
            assert_eq!(reading.job_instance_id.as_deref(), Some(instance.as_str()));
            assert_eq!(reading.problems, [""; 0], "{unique:?}");
        }
    }

    #[test]
    fn reads_nodes_of_others_and_names_their_problems() {
        let id = "10.0.0.1@-@1";
        let labels = read_as(id, b"{jobInstanceId: '10.0.0.1@-@1', labels: blue, serverIp: 10.0.0.1}");
        assert_eq!((labels.labels.as_deref(), labels.problems.len()), (Some("blue"), 0));

        for (data, problem) in [
            (&b""[..], "the instance has no data, so Java peers skip it"),
            (b" \n", "the instance has no data, so Java peers skip it"),
            (b"TRIGGER", "the instance's data is a text; it must be a map; Java peers cannot shard"),
            (b"\xFF\xFE\x00", "not UTF-8"),
            (b"jobInstanceId: [", "is not YAML"),
            (b"jobInstanceId: 10.0.0.1@-@1\n", "has no `serverIp`; each Java peer takes its own instead"),
            (b"jobInstanceId: 10.0.0.1@-@1\nserverIp: ~\n", "has no `serverIp`"),
            (
                b"jobInstanceId: 10.0.0.1@-@1\nserverIp: 10.0.0.2\n",
                "is `10.0.0.2`, but its node's name says `10.0.0.1`",
            ),
            (b"jobInstanceId: 10.0.0.1@-@1\nserverIp: [a]\n", "`serverIp` is a list; it must be a text"),
            (b"jobInstanceId: 10.0.0.1@-@1\nserverIp: 10.0.0.1\npid: 1\n", "unknown key `pid`"),
            (b"jobInstanceId: 10.0.0.1@-@1\nserverIp: 10.0.0.1\n[1]: 1\n", "unknown key `(not a text)`"),
        ] {
            let problems = read_as(id, data).problems.join("; ");
            assert!(problems.contains(problem), "{problems}");
        }
    }
}
