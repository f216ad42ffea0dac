//! The documents as Java writes them, and its readers, as strict as SnakeYAML with typed fields (protocol 1.3, 1.4).
//! Written apart from the sidecar's own: what that writes has to pass here. Of YAML only as much as either writes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    pub cron: Option<String>,
    pub description: String,
    pub disabled: bool,
    pub failover: bool,
    pub job_name: String,
    pub job_parameter: String,
    pub job_sharding_strategy_type: Option<String>,
    pub max_time_diff_seconds: i32,
    pub misfire: bool,
    pub monitor_execution: bool,
    pub overwrite: bool,
    pub props: BTreeMap<String, String>,
    pub reconcile_interval_minutes: i32,
    pub sharding_item_parameters: String,
    pub sharding_total_count: u32,
    pub static_sharding: bool,
}

impl Config {
    /// The result of the builder.
    pub fn new(job_name: &str, sharding_total_count: u32) -> Self {
        Self {
            job_name: job_name.to_owned(),
            sharding_total_count,
            max_time_diff_seconds: -1,
            misfire: true,
            monitor_execution: true,
            reconcile_interval_minutes: 10,
            ..Self::default()
        }
    }

    pub fn write(&self) -> String {
        let mut text = String::new();
        let mut line = |key: &str, value: &dyn std::fmt::Display| {
            let _infallible = writeln!(text, "{key}: {value}");
        };
        if let Some(cron) = &self.cron {
            line("cron", &plain(cron));
        }
        line("description", &plain(&self.description));
        line("disabled", &self.disabled);
        line("failover", &self.failover);
        line("jobName", &plain(&self.job_name));
        line("jobParameter", &plain(&self.job_parameter));
        if let Some(strategy) = &self.job_sharding_strategy_type {
            line("jobShardingStrategyType", &plain(strategy));
        }
        line("maxTimeDiffSeconds", &self.max_time_diff_seconds);
        line("misfire", &self.misfire);
        line("monitorExecution", &self.monitor_execution);
        line("overwrite", &self.overwrite);
        if !self.props.is_empty() {
            let entries = self.props.iter().map(|(key, value)| format!("\n  {key}: '{value}'"));
            line("props", &entries.collect::<String>());
        }
        line("reconcileIntervalMinutes", &self.reconcile_interval_minutes);
        line("shardingItemParameters", &plain(&self.sharding_item_parameters));
        line("shardingTotalCount", &self.sharding_total_count);
        line("staticSharding", &self.static_sharding);
        text.replace("props: \n", "props:\n")
    }

    /// Throws at every key that it does not know, and at every value of another type.
    pub fn read(data: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(data).map_err(|error| error.to_string())?;
        let mut config = Self { max_time_diff_seconds: -1, ..Self::default() };
        let mut section = "";
        for line in text.lines() {
            if let Some(entry) = line.strip_prefix("  ") {
                let (key, value) = split(entry)?;
                if section != "props" {
                    return Err(format!("`{line}` is in no map"));
                }
                config.props.insert(scalar(key)?, scalar(value)?);
                continue;
            }
            if line.starts_with("- ") && section == "jobListenerTypes" {
                continue;
            }
            let (key, value) = split(line)?;
            section = key;
            config.set(key, value)?;
        }
        let is_complete = !config.job_name.is_empty() && config.sharding_total_count > 0;
        if is_complete { Ok(config) } else { Err("no job name, or no total".to_owned()) }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "cron" => self.cron = Some(scalar(value)?),
            "description" => self.description = scalar(value)?,
            "disabled" => self.disabled = parsed(value)?,
            "failover" => self.failover = parsed(value)?,
            "jobName" => self.job_name = scalar(value)?,
            "jobParameter" => self.job_parameter = scalar(value)?,
            "jobShardingStrategyType" => self.job_sharding_strategy_type = Some(scalar(value)?),
            "maxTimeDiffSeconds" => self.max_time_diff_seconds = parsed(value)?,
            "misfire" => self.misfire = parsed(value)?,
            "monitorExecution" => self.monitor_execution = parsed(value)?,
            "overwrite" => self.overwrite = parsed(value)?,
            "reconcileIntervalMinutes" => self.reconcile_interval_minutes = parsed(value)?,
            "shardingItemParameters" => self.sharding_item_parameters = scalar(value)?,
            "shardingTotalCount" => self.sharding_total_count = parsed(value)?,
            "staticSharding" => self.static_sharding = parsed(value)?,
            "jobErrorHandlerType" | "jobExecutorThreadPoolSizeProviderType" | "label" | "timeZone" => {
                scalar(value)?;
            }
            "props" | "jobListenerTypes" if value.is_empty() => {}
            _ => return Err(format!("unknown `{key}: {value}`")),
        }
        Ok(())
    }
}

pub fn write_instance(id: &str, ip: &str) -> String {
    format!("jobInstanceId: {id}\nserverIp: {ip}\n")
}

/// The id and the ip of an instance; a missing one is replaced by the reader's own.
pub fn read_instance(data: &[u8], own_id: &str, own_ip: &str) -> Result<(String, String), String> {
    let text = std::str::from_utf8(data).map_err(|error| error.to_string())?;
    let (mut id, mut ip) = (own_id.to_owned(), own_ip.to_owned());
    for line in text.lines() {
        match split(line)? {
            ("jobInstanceId", value) => id = scalar(value)?,
            ("serverIp", value) => ip = scalar(value)?,
            ("labels", value) => drop(scalar(value)?),
            (key, value) => return Err(format!("unknown `{key}: {value}`")),
        }
    }
    Ok((id, ip))
}

fn split(line: &str) -> Result<(&str, &str), String> {
    let (key, value) = line.split_once(':').ok_or_else(|| format!("`{line}` is no pair"))?;
    match value.strip_prefix(' ') {
        Some(value) => Ok((key, value)),
        None if value.is_empty() => Ok((key, value)),
        None => Err(format!("`{line}` is no pair")),
    }
}

fn parsed<T: std::str::FromStr>(value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("`{value}` is of another type"))
}

/// A text, with or without quotes.
fn scalar(value: &str) -> Result<String, String> {
    let bad = || Err(format!("`{value}` is no text"));
    if let Some(rest) = value.strip_prefix('\'') {
        let Some(inner) = rest.strip_suffix('\'') else { return bad() };
        let text = inner.replace("''", "\u{0}");
        return if text.contains('\'') { bad() } else { Ok(text.replace('\u{0}', "'")) };
    }
    let is_special = |c: char| "\"*&!%@`?-[]{}|>#,".contains(c);
    let is_plain = !value.is_empty() && !value.starts_with(is_special);
    if !is_plain || value.contains(": ") || value.contains(" #") {
        return bad();
    }
    Ok(value.to_owned())
}

/// Plainly if that is possible, as Java writes it.
fn plain(text: &str) -> String {
    match scalar(text) {
        Ok(same) if same == text => text.to_owned(),
        _ => format!("'{}'", text.replace('\'', "''")),
    }
}

#[test]
fn a_document_is_java_s_byte_for_byte() {
    let mut config = Config::new("demoJob", 3);
    config.cron = Some("0/5 * * * * ?".to_owned());
    config.sharding_item_parameters = "0=Beijing,1=Shanghai,2=Guangzhou".to_owned();
    let expected = "cron: 0/5 * * * * ?\ndescription: ''\ndisabled: false\nfailover: false\njobName: demoJob\n\
        jobParameter: ''\nmaxTimeDiffSeconds: -1\nmisfire: true\nmonitorExecution: true\noverwrite: false\n\
        reconcileIntervalMinutes: 10\nshardingItemParameters: 0=Beijing,1=Shanghai,2=Guangzhou\n\
        shardingTotalCount: 3\nstaticSharding: false\n";
    assert_eq!(config.write(), expected);
    assert_eq!(expected.len(), 309);
    assert_eq!(Config::read(expected.as_bytes()), Ok(config));
}

#[test]
fn readers_are_strict() {
    let good = Config::new("job", 3).write();
    assert!(Config::read(good.as_bytes()).is_ok());
    for bad in ["more: 1\n", "misfire: yes please\n", "shardingTotalCount: 0\n", "cron: * * * * * ?\n", "x\n"]
    {
        assert!(Config::read(format!("{good}{bad}").as_bytes()).is_err(), "{bad}");
    }
    assert!(read_instance(b"jobInstanceId: a@-@1\nserverIp: a\nage: 3\n", "", "").is_err());
    let missing = read_instance(b"jobInstanceId: a@-@1\n", "b@-@2", "b");
    assert_eq!(missing, Ok(("a@-@1".to_owned(), "b".to_owned())));
}
