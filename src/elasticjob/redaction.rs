//! The parts of a configuration that may be shown in answers to operators, dumps and logs. Pure.
//!
//! `jobExtraConfigurations` can have database passwords in clear text (protocol 1.4 rule 7). The `props` of
//! ElasticJob's notifying error handlers have web hooks and mail passwords.

use super::config_yaml::{self, ConfigProblem};
use super::extra_configurations;
use crate::job::JobConfiguration;

/// The text in place of a secret.
pub const REDACTED: &str = "***";

/// Parts of the keys of `props` whose values are secrets, in lower case without `-`, `_` and `.`.
const SECRET_KEY_PARTS: [&str; 9] =
    ["password", "passwd", "pwd", "secret", "token", "webhook", "credential", "apikey", "accesskey"];

/// Whether a key of `props` looks like the name of a secret.
pub fn is_secret_key(key: &str) -> bool {
    let key: String =
        key.chars().filter(|c| !matches!(c, '-' | '_' | '.')).flat_map(char::to_lowercase).collect();
    SECRET_KEY_PARTS.iter().any(|part| key.contains(part))
}

/// The configuration with `***` in place of each secret. It is still a configuration, so it can be shown as
/// one. It must never be written into a registry.
pub fn redacted(configuration: &JobConfiguration) -> JobConfiguration {
    let mut shown = configuration.clone();
    for (key, value) in &mut shown.props {
        if is_secret_key(key) {
            *value = REDACTED.to_owned();
        }
    }
    if !shown.job_extra_configurations.is_empty() {
        shown.job_extra_configurations = format!("jobExtraConfigurations: '{REDACTED}'\n");
    }
    shown
}

/// The shown form of a configuration document. A document without secrets is shown unchanged, with its
/// comments. A document with secrets is written anew from its parsed values, without the secrets. Of a
/// document that cannot be parsed only the place of the error is shown.
pub fn document(data: &[u8]) -> String {
    let text = match std::str::from_utf8(data) {
        Ok(text) => text,
        Err(error) => return hidden(&format!("byte {} is not UTF-8", error.valid_up_to())),
    };
    let parsed = match config_yaml::parse(data) {
        Ok(parsed) => parsed,
        // The error's text may quote the document.
        Err(ConfigProblem::Syntax(error)) => {
            return hidden(&format!("line {}, column {}", error.line, error.column));
        }
        Err(ConfigProblem::Fields(errors)) => {
            let fields: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
            return hidden(&fields.join(", "));
        }
    };
    let shown = redacted(&parsed.configuration);
    let speaks_of_secrets = is_secret_key(text) || text.contains(extra_configurations::KEY);
    if parsed.problems.is_empty() && shown == parsed.configuration && !speaks_of_secrets {
        return text.to_owned();
    }
    config_yaml::write(&shown)
}

/// The text in place of a document that cannot be read.
fn hidden(place: &str) -> String {
    format!("{REDACTED} not shown, because it cannot be read: {place}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elasticjob::config_yaml;
    use crate::job::JobName;

    #[test]
    fn secrets_are_not_shown() {
        let mut configuration = JobConfiguration::new(JobName::parse("demoJob").unwrap(), 3);
        configuration.job_extra_configurations = "jobExtraConfigurations:\n- password: hunter2\n".to_owned();
        for key in ["dingtalk.webhook", "dingtalk.secret", "EMAIL.PassWord", "api-key", "x.access_token"] {
            configuration.props.insert(key.to_owned(), "hunter2".to_owned());
        }
        configuration.props.insert("script.command.line".to_owned(), "echo".to_owned());

        let shown = redacted(&configuration);
        assert!(!format!("{shown:?}").contains("hunter2"));
        let written = config_yaml::write(&shown);
        assert!(!written.contains("hunter2"));
        assert!(written.contains("jobExtraConfigurations: '***'\n"));
        assert!(written.contains("'script.command.line': 'echo'"));
        assert!(written.contains("'dingtalk.webhook': '***'"));
    }

    #[test]
    fn a_document_is_shown_as_it_is_unless_something_in_it_looks_like_a_secret() {
        let plain = "cron: 0/5 * * * * ?  # each five seconds\njobName: demoJob\nshardingTotalCount: 3\n";
        assert_eq!(document(plain.as_bytes()), plain);
        let props = |line: &str| format!("{plain}props:\n  {line}\n");
        for hiding in [
            props("email.password: hunter2"),
            // The same key in a spelling that only a parser recognizes.
            props("\"pass\\x77ord\": hunter2"),
            format!("{plain}# password: hunter2\n"),
            // The last key counts, but the document still has the first one.
            format!("{plain}props: {{password: hunter2}}\nprops: {{}}\n"),
            format!("{plain}unknown: hunter2\n"),
            format!("{plain}jobExtraConfigurations:\n- !!x.Y\n  url: hunter2\n"),
        ] {
            let shown = document(hiding.as_bytes());
            assert!(!shown.contains("hunter2"), "{hiding}\n{shown}");
            assert!(shown.contains("demoJob"), "{hiding}\n{shown}");
        }
        for unreadable in ["{\"jobClass\":\"hunter2\"", "jobName: hunter2\n", "- hunter2", "\t", ""] {
            let shown = document(unreadable.as_bytes());
            let place = shown.strip_prefix("*** not shown, because it cannot be read: ").expect("a place");
            assert!(!place.is_empty() && !place.contains("hunter2"), "{unreadable}: {shown}");
        }
        let broken = document(b"jobName: a\nshardingTotalCount: 1\nprops: [hunter2\nlabel: x\n");
        assert!(broken.contains("line "), "{broken}");
        let shown = document(b"jobName: a\nshardingTotalCount: 1\nlabel: hunter2\xff\n");
        assert_eq!(shown, "*** not shown, because it cannot be read: byte 47 is not UTF-8");
    }
}
