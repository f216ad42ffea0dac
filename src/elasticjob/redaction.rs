//! What of a configuration may be shown: in answers to operators, dumps and logs. Pure.
//!
//! `jobExtraConfigurations` can hold the passwords of databases in clear text (protocol 1.4 rule 7), and the `props`
//! of ElasticJob's notifying error handlers hold web hooks and mail passwords.

use crate::job::JobConfiguration;

/// What stands in place of a secret.
const REDACTED: &str = "***";

/// Parts of the keys of `props` whose values are secrets, in lower case without `-`, `_` and `.`.
const SECRET_KEY_PARTS: [&str; 9] =
    ["password", "passwd", "pwd", "secret", "token", "webhook", "credential", "apikey", "accesskey"];

/// Whether a key of `props` looks like the name of a secret.
pub fn is_secret_key(key: &str) -> bool {
    let key: String =
        key.chars().filter(|c| !matches!(c, '-' | '_' | '.')).flat_map(char::to_lowercase).collect();
    SECRET_KEY_PARTS.iter().any(|part| key.contains(part))
}

/// The configuration with `***` in place of each secret. It is still a configuration, so that it can be shown like
/// one, but must never get back into a registry.
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
}
