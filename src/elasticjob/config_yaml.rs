//! A job configuration from and to YAML, as Java reads and writes it. Pure.
//!
//! Source: protocol 1.4. The rules are Java's, with one exception: an unknown key is only a problem here,
//! although Java peers throw at each read of such a document. Writing is in `config_yaml_writer`.

use std::collections::BTreeMap;

pub use super::config_yaml_writer::write;
pub use super::yaml::SyntaxError;
use super::yaml::{self, Content, Node};
use super::yaml_types::{self, Property};
use crate::elasticjob::extra_configurations;
use crate::elasticjob::field_error::FieldError;
use crate::excerpt::Excerpt;
use crate::job::{JobConfiguration, JobName, SHARDING_TOTAL_COUNT_MAX};

/// All keys that Java 3.0.5 knows.
const KEYS: [&str; 22] = [
    "cron",
    "description",
    "disabled",
    "failover",
    "jobErrorHandlerType",
    "jobExecutorThreadPoolSizeProviderType",
    extra_configurations::KEY,
    "jobListenerTypes",
    "jobName",
    "jobParameter",
    "jobShardingStrategyType",
    "label",
    "maxTimeDiffSeconds",
    "misfire",
    "monitorExecution",
    "overwrite",
    "props",
    "reconcileIntervalMinutes",
    "shardingItemParameters",
    "shardingTotalCount",
    "staticSharding",
    "timeZone",
];

/// The tags of YAML itself that do not change a field. All other names below its prefix are Java classes.
const CORE_TAGS: [&str; 7] = ["str", "int", "bool", "float", "null", "seq", "map"];

/// The most errors, and the most problems, that are reported for one document: more than a person reads. A
/// node full of unknown keys fills neither logs nor memory.
const REPORTED_MAX: usize = 50;

/// A configuration that was read, and the problems of its document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parsed {
    /// The configuration.
    pub configuration: JobConfiguration,
    /// The fields that Java peers read differently, one sentence each.
    pub problems: Vec<String>,
}

/// Why a document is not a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigProblem {
    /// The text is not YAML, not one document, or too large.
    #[error("the configuration is not a YAML document: {0}")]
    Syntax(#[from] SyntaxError),
    /// All keys that are missing or whose values Java refuses.
    #[error("{}", FieldError::join(.0))]
    Fields(Vec<FieldError>),
}

/// Reads the document in the registry. Absent keys have Java's meaning: `misfire` and `monitorExecution` are
/// off, and nothing is reconciled.
pub fn parse(data: &[u8]) -> Result<Parsed, ConfigProblem> {
    let absent = Absent { flag: false, reconcile_interval_minutes: 0 };
    parse_with(data, &absent)
}

/// Reads a document that a person wrote for the sidecar. Absent keys have the defaults of Java's builder, as
/// in [`JobConfiguration::new`].
pub fn parse_local(data: &[u8]) -> Result<Parsed, ConfigProblem> {
    let absent = Absent { flag: true, reconcile_interval_minutes: 10 };
    parse_with(data, &absent)
}

/// The values of absent keys for which reader and builder differ.
struct Absent {
    /// `misfire` and `monitorExecution`.
    flag: bool,
    reconcile_interval_minutes: i32,
}

fn parse_with(data: &[u8], absent: &Absent) -> Result<Parsed, ConfigProblem> {
    let text = yaml::decode(data)?;
    let root = yaml::parse(text)?;
    let Content::Mapping(pairs) = &root.content else {
        let error =
            FieldError::new("configuration", root.kind(), "a map with the keys of a job configuration");
        return Err(ConfigProblem::Fields(vec![error]));
    };
    let mut fields = Fields::default();
    for (position, (key, value)) in pairs.iter().enumerate() {
        fields.add(position, key, value);
    }
    let extra = fields.extra_configurations(text, &root);
    let name = fields.job_name();
    let total = fields.total();
    // A placeholder for a wrong name, so that the other keys are checked, too. It is never returned.
    let Ok(base) = name.clone().map_or_else(|| JobName::parse("unnamed"), Ok) else {
        return Err(ConfigProblem::Fields(fields.errors));
    };
    let configuration = JobConfiguration {
        job_name: base,
        // Java treats an empty expression as no expression.
        cron: fields.text("cron").filter(|cron| !cron.is_empty()),
        time_zone: fields.text("timeZone"),
        sharding_total_count: total.unwrap_or(1),
        sharding_item_parameters: fields.text("shardingItemParameters").unwrap_or_default(),
        job_parameter: fields.text("jobParameter").unwrap_or_default(),
        monitor_execution: fields.boolean("monitorExecution", absent.flag),
        failover: fields.boolean("failover", false),
        misfire: fields.boolean("misfire", absent.flag),
        max_time_diff_seconds: fields.integer("maxTimeDiffSeconds", -1),
        reconcile_interval_minutes: fields
            .integer("reconcileIntervalMinutes", absent.reconcile_interval_minutes),
        job_sharding_strategy_type: fields.text("jobShardingStrategyType"),
        job_executor_thread_pool_size_provider_type: fields.text("jobExecutorThreadPoolSizeProviderType"),
        job_error_handler_type: fields.text("jobErrorHandlerType"),
        job_listener_types: fields.list("jobListenerTypes"),
        props: fields.props(),
        description: fields.text("description").unwrap_or_default(),
        label: fields.text("label"),
        disabled: fields.boolean("disabled", false),
        overwrite: fields.boolean("overwrite", false),
        static_sharding: fields.boolean("staticSharding", false),
        job_extra_configurations: extra,
    };
    if fields.errors.is_empty() {
        Ok(Parsed { configuration, problems: fields.problems })
    } else {
        Err(ConfigProblem::Fields(fields.errors))
    }
}

/// The entries of the root map, and their errors.
#[derive(Default)]
struct Fields<'a> {
    /// By key, with the position in the document. The last entry of a key counts (rule 8).
    entries: BTreeMap<&'a str, (usize, &'a Node)>,
    errors: Vec<FieldError>,
    problems: Vec<String>,
}

impl<'a> Fields<'a> {
    fn add(&mut self, position: usize, key: &'a Node, value: &'a Node) {
        match key.scalar() {
            Some("<<") => self.refuse("<<", "a merge key", "keys written out, without merge keys"),
            Some(text) if KEYS.contains(&text) => {
                if text != extra_configurations::KEY {
                    self.check_tag(text, value);
                }
                self.entries.insert(text, (position, value));
            }
            other => {
                let key =
                    other.map_or_else(|| key.kind().to_owned(), |text| format!("`{}`", Excerpt::of(text)));
                self.report(format!(
                    "the key {key} is unknown; Java peers throw at each read of this configuration; \
                     remove it"
                ));
            }
        }
    }

    fn refuse(&mut self, field: &str, given: &str, allowed: &str) {
        if self.errors.len() < REPORTED_MAX {
            self.errors.push(FieldError::new(field, given, allowed));
        }
    }

    fn report(&mut self, problem: String) {
        match self.problems.len() {
            ..REPORTED_MAX => self.problems.push(problem),
            REPORTED_MAX => self.problems.push("there are more problems than these".to_owned()),
            _ => {}
        }
    }

    fn node(&self, key: &str) -> Option<&'a Node> {
        self.entries.get(key).map(|(_, node)| *node)
    }

    /// Java refuses tags of classes that it does not expect at a field. It would decode `!!binary`.
    fn check_tag(&mut self, field: &str, node: &Node) {
        let harmless = match (&node.tag, node.core_tag()) {
            (None, _) => true,
            (Some(_), Some(name)) => CORE_TAGS.contains(&name),
            (Some(tag), None) => tag == "!",
        };
        if !harmless {
            let given = format!("a value tagged {}", node.tag.as_deref().unwrap_or_default());
            self.refuse(field, &given, "a value without a tag");
        }
    }

    /// A text, also if it looks like a value of another type (rule 4). `None` if absent or null.
    fn text(&mut self, key: &str) -> Option<String> {
        let node = self.node(key).filter(|node| !node.is_null())?;
        match node.scalar() {
            Some(text) => Some(text.to_owned()),
            None => {
                self.refuse(key, node.kind(), "a text");
                None
            }
        }
    }

    fn boolean(&mut self, key: &str, absent: bool) -> bool {
        let Some(node) = self.node(key) else { return absent };
        let value = node.scalar().filter(|_| !node.is_null()).and_then(yaml_types::boolean);
        value.unwrap_or_else(|| {
            self.refuse(key, node.scalar().unwrap_or(node.kind()), "`true` or `false`");
            absent
        })
    }

    fn integer(&mut self, key: &str, absent: i32) -> i32 {
        let Some(node) = self.node(key) else { return absent };
        let value = node.scalar().filter(|_| !node.is_null()).and_then(yaml_types::integer);
        value.and_then(|value| i32::try_from(value).ok()).unwrap_or_else(|| {
            self.refuse(key, node.scalar().unwrap_or(node.kind()), "a 32-bit integer");
            absent
        })
    }

    fn job_name(&mut self) -> Option<JobName> {
        let Some(text) = self.text("jobName") else {
            self.refuse("jobName", "nothing", "the job's name, a text of 1 to 200 bytes; it is required");
            return None;
        };
        match JobName::parse(&text) {
            Ok(name) => Some(name),
            Err(error) => {
                self.errors.push(FieldError::of_job_name("jobName", &error));
                None
            }
        }
    }

    fn total(&mut self) -> Option<u32> {
        let key = "shardingTotalCount";
        let allowed = format!("an integer from 1 to {SHARDING_TOTAL_COUNT_MAX}; it is required");
        let Some(node) = self.node(key) else {
            self.refuse(key, "nothing", &allowed);
            return None;
        };
        let value = node.scalar().filter(|_| !node.is_null()).and_then(yaml_types::integer);
        let total = value.and_then(|value| u32::try_from(value).ok());
        let total = total.filter(|total| (1..=SHARDING_TOTAL_COUNT_MAX).contains(total));
        if total.is_none() {
            self.refuse(key, node.scalar().unwrap_or(node.kind()), &allowed);
        }
        total
    }

    fn list(&mut self, key: &str) -> Vec<String> {
        let Some(node) = self.node(key) else { return Vec::new() };
        let Content::Sequence(nodes) = &node.content else {
            self.refuse(key, node.kind(), "a list of texts");
            return Vec::new();
        };
        let mut texts = Vec::new();
        for node in nodes {
            self.check_tag(key, node);
            match node.scalar() {
                Some(text) if !node.is_null() => texts.push(text.to_owned()),
                _ => self.refuse(key, node.kind(), "a list of texts"),
            }
        }
        texts
    }

    /// Keys must be texts and values may not be null (rule 3).
    fn props(&mut self) -> BTreeMap<String, String> {
        let mut props = BTreeMap::new();
        let Some(node) = self.node("props") else { return props };
        let Content::Mapping(pairs) = &node.content else {
            self.refuse("props", node.kind(), "a map of texts");
            return props;
        };
        for (key, value) in pairs {
            let Some(text) = property_key(key) else {
                let given = key.scalar().unwrap_or(key.kind());
                self.refuse("props", &format!("the key {given}"), "keys that are texts; quote it");
                continue;
            };
            let field = format!("props[{}]", Excerpt::of(text));
            self.check_tag(&field, value);
            if let Some(value) = self.property(&field, value) {
                props.insert(text.to_owned(), value);
            }
        }
        props
    }

    fn property(&mut self, field: &str, node: &Node) -> Option<String> {
        let Content::Scalar { text, plain } = &node.content else {
            self.refuse(field, node.kind(), "a text");
            return None;
        };
        if node.is_null() {
            self.refuse(field, "null", "a text; write '' for an empty one");
            return None;
        }
        let typed = match node.core_tag() {
            Some(tag) => tag != "str",
            None => *plain && node.tag.is_none(),
        };
        if !typed {
            return Some(text.clone());
        }
        match yaml_types::property(text) {
            Property::Text(text) => return Some(text),
            Property::Date => self.report(format!(
                "`{field}` looks like a date, which each Java peer prints in its own locale and time zone; quote it"
            )),
            Property::Huge => self.report(format!(
                "`{field}` is a number of more than 127 bits, which Java peers print in decimal; quote it"
            )),
        }
        Some(text.clone())
    }

    fn extra_configurations(&mut self, text: &str, root: &Node) -> String {
        let key = extra_configurations::KEY;
        let Some((position, node)) = self.entries.get(key).copied() else { return String::new() };
        match &node.content {
            Content::Sequence(entries) if entries.is_empty() => String::new(),
            Content::Sequence(_) => extra_configurations::cut(text, root, position).unwrap_or_else(|| {
                let allowed = "entries that need no anchor or directive from elsewhere in the document";
                self.refuse(key, "a list", allowed);
                String::new()
            }),
            Content::Scalar { .. } | Content::Mapping(_) | Content::Alias => {
                self.refuse(key, node.kind(), "a list of tagged maps");
                String::new()
            }
        }
    }
}

/// The key, unless Java would read it as a value of another type than text.
fn property_key(node: &Node) -> Option<&str> {
    let Content::Scalar { text, plain } = &node.content else { return None };
    let stays_text = match node.core_tag() {
        Some(tag) => tag == "str",
        None if !*plain => true,
        None => !node.is_null() && text != "<<" && is_text(text),
    };
    stays_text.then_some(text)
}

fn is_text(text: &str) -> bool {
    // A number whose printed form is its text is still a number.
    let number = yaml_types::integer(text).is_some();
    !number
        && yaml_types::property(text) == Property::Text(text.to_owned())
        && !matches!(text, "true" | "false")
}
