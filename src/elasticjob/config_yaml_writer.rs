//! A job configuration as the document that Java peers read. Pure.
//!
//! Source: protocol 1.4, rules 1 to 5. The document has every key that is not null, in alphabetical order,
//! and quotes every text. It leaves out null, empty lists and maps, and keys that Java does not know. The
//! same configuration always gives the same bytes.

use std::fmt::Write as _;

use crate::elasticjob::yaml;
use crate::job::JobConfiguration;

/// Characters in the longest key that YAML recognizes without an explicit `?`, less a margin for quotes.
const IMPLICIT_KEY_CHARS_MAX: usize = 1000;

/// The document of a configuration.
pub fn write(configuration: &JobConfiguration) -> String {
    let c = configuration;
    let mut document = Document(String::new());
    document.optional_text("cron", c.cron.as_ref());
    document.text("description", &c.description);
    document.value("disabled", c.disabled);
    document.value("failover", c.failover);
    document.optional_text("jobErrorHandlerType", c.job_error_handler_type.as_ref());
    document.optional_text(
        "jobExecutorThreadPoolSizeProviderType",
        c.job_executor_thread_pool_size_provider_type.as_ref(),
    );
    document.source(&c.job_extra_configurations);
    document.list("jobListenerTypes", &c.job_listener_types);
    document.text("jobName", c.job_name.as_str());
    document.text("jobParameter", &c.job_parameter);
    document.optional_text("jobShardingStrategyType", c.job_sharding_strategy_type.as_ref());
    document.optional_text("label", c.label.as_ref());
    document.value("maxTimeDiffSeconds", c.max_time_diff_seconds);
    document.value("misfire", c.misfire);
    document.value("monitorExecution", c.monitor_execution);
    document.value("overwrite", c.overwrite);
    document.map("props", &c.props);
    document.value("reconcileIntervalMinutes", c.reconcile_interval_minutes);
    document.text("shardingItemParameters", &c.sharding_item_parameters);
    document.value("shardingTotalCount", c.sharding_total_count);
    document.value("staticSharding", c.static_sharding);
    document.optional_text("timeZone", c.time_zone.as_ref());
    document.0
}

/// A text as a scalar that stays a text: in single quotes, or in double quotes if it needs escapes.
pub(super) fn quoted(text: &str) -> String {
    if !text.chars().any(needs_escape) {
        return format!("'{}'", text.replace('\'', "''"));
    }
    let mut scalar = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                scalar.push('\\');
                scalar.push(c);
            }
            '\n' => scalar.push_str("\\n"),
            '\r' => scalar.push_str("\\r"),
            '\t' => scalar.push_str("\\t"),
            c if needs_escape(c) => {
                let _infallible = match u32::from(c) {
                    code @ ..=0xFF => write!(scalar, "\\x{code:02X}"),
                    code @ ..=0xFFFF => write!(scalar, "\\u{code:04X}"),
                    code => write!(scalar, "\\U{code:08X}"),
                };
            }
            c => scalar.push(c),
        }
    }
    scalar.push('"');
    scalar
}

/// Line breaks of YAML 1.1, and characters that a document may not contain unescaped.
fn needs_escape(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{FEFF}') || !yaml::is_printable(c)
}

struct Document(String);

impl Document {
    fn line(&mut self, parts: &[&str]) {
        self.0.extend(parts.iter().copied().chain(["\n"]));
    }

    fn value(&mut self, key: &str, value: impl ToString) {
        self.line(&[key, ": ", &value.to_string()]);
    }

    fn text(&mut self, key: &str, text: &str) {
        self.line(&[key, ": ", &quoted(text)]);
    }

    fn optional_text(&mut self, key: &str, text: Option<&String>) {
        if let Some(text) = text {
            self.text(key, text);
        }
    }

    fn list(&mut self, key: &str, texts: &[String]) {
        if !texts.is_empty() {
            self.line(&[key, ":"]);
        }
        for text in texts {
            self.line(&["- ", &quoted(text)]);
        }
    }

    fn map(&mut self, key: &str, map: &std::collections::BTreeMap<String, String>) {
        if !map.is_empty() {
            self.line(&[key, ":"]);
        }
        for (key, value) in map {
            let (key, value) = (quoted(key), quoted(value));
            if key.chars().count() > IMPLICIT_KEY_CHARS_MAX {
                self.line(&["  ? ", &key]);
                self.line(&["  : ", &value]);
            } else {
                self.line(&["  ", &key, ": ", &value]);
            }
        }
    }

    /// Source lines that were kept unchanged.
    fn source(&mut self, lines: &str) {
        self.0.push_str(lines);
        if !lines.is_empty() && !lines.ends_with('\n') {
            self.0.push('\n');
        }
    }
}
