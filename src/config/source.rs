//! The sources of a setting's text: flags, then the environment, then the file, then the default.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::settings::{self, Setting};
use super::types::MASK;

/// The variable that names the configuration file.
pub const FILE_VARIABLE: &str = "SIDEKEEPER_CONFIG";

/// The settings given as flags: by key, one text for each time that the flag was given.
pub type Flags = BTreeMap<&'static str, Vec<String>>;

/// All sources of a configuration.
pub struct Sources<'a> {
    /// The settings given as flags.
    pub flags: Flags,
    /// The file given as a flag.
    pub file: Option<PathBuf>,
    /// Reads a variable of the environment. It is a function, so that tests need not change the process.
    pub environment: &'a dyn Fn(&str) -> Option<OsString>,
    /// The address to serve on if no source sets one, instead of the default.
    pub default_listen: Option<String>,
}

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    Flag,
    Environment,
    File(PathBuf),
    Default,
}

/// The texts of a setting and their source. Not shown as a whole, because they may be secret.
pub(super) struct Given {
    pub(super) texts: Vec<String>,
    pub(super) origin: Origin,
}

/// A setting, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenSetting {
    /// Its key.
    pub key: &'static str,
    /// Its values; masked if they are secret.
    pub texts: Vec<String>,
    /// `flag`, `environment`, `file` or `default`.
    pub origin: &'static str,
}

impl Given {
    /// The setting for operators.
    pub(super) fn shown(&self, setting: &Setting) -> GivenSetting {
        let mask = |text: &String| if setting.secret { MASK.to_owned() } else { text.clone() };
        GivenSetting {
            key: setting.key,
            texts: self.texts.iter().map(mask).collect(),
            origin: match self.origin {
                Origin::Flag => "flag",
                Origin::Environment => "environment",
                Origin::File(_) => "file",
                Origin::Default => "default",
            },
        }
    }
}

/// One error of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The wrong setting as its author wrote it: `--listen`, `SIDEKEEPER_LISTEN`,
    /// `listen in sidekeeper.toml`.
    pub what: String,
    /// The given text, masked if it is secret.
    pub given: Option<String>,
    /// The error, and the allowed values.
    pub reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.given {
            Some(given) => write!(f, "{} = `{}`: {}", self.what, given.escape_debug(), self.reason),
            None => write!(f, "{}: {}", self.what, self.reason),
        }
    }
}

impl Origin {
    /// The user's name for `setting` in this source.
    pub(super) fn name(&self, setting: &Setting) -> String {
        match self {
            Self::Flag => format!("--{}", setting.flag),
            Self::Environment => setting.env.to_owned(),
            Self::File(path) => format!("{} in {}", setting.key, path.display()),
            Self::Default => format!("the default of --{}", setting.flag),
        }
    }
}

/// The settings of a configuration file.
#[derive(Default)]
pub(super) struct File {
    path: PathBuf,
    values: BTreeMap<String, Vec<String>>,
}

impl Sources<'_> {
    /// Reads a variable. An empty variable counts as not set, because deployments unset variables that way.
    fn variable(&self, name: &str, problems: &mut Vec<Problem>) -> Option<String> {
        match (self.environment)(name)?.into_string() {
            Ok(text) if text.is_empty() => None,
            Ok(text) => Some(text),
            Err(_) => {
                let reason = "it is not UTF-8 text".to_owned();
                problems.push(Problem { what: name.to_owned(), given: None, reason });
                None
            }
        }
    }

    /// Reads the configuration file, if one is named.
    pub(super) fn read_file(&self, problems: &mut Vec<Problem>) -> File {
        let (name, path) = match &self.file {
            Some(path) => ("--config", path.clone()),
            None => match self.variable(FILE_VARIABLE, problems) {
                Some(path) => (FILE_VARIABLE, PathBuf::from(path)),
                None => return File::default(),
            },
        };
        match fs::read_to_string(&path) {
            Ok(text) => File::parse(&path, &text, problems),
            Err(error) => {
                problems.push(Problem {
                    what: name.to_owned(),
                    given: Some(path.display().to_string()),
                    reason: format!("the file cannot be read: {error}"),
                });
                File::default()
            }
        }
    }

    /// The texts of a setting from the first source that has it. No texts: no source has it, and there is no
    /// default.
    pub(super) fn find(&self, setting: &Setting, file: &File, problems: &mut Vec<Problem>) -> Given {
        if let Some(texts) = self.flags.get(setting.key) {
            return Given { texts: split(setting, texts), origin: Origin::Flag };
        }
        if let Some(text) = self.variable(setting.env, problems) {
            return Given { texts: split(setting, &[text]), origin: Origin::Environment };
        }
        if let Some(texts) = file.values.get(setting.key) {
            return Given { texts: texts.clone(), origin: Origin::File(file.path.clone()) };
        }
        let default = match (setting.default, &self.default_listen) {
            (_, Some(listen)) if setting.key == settings::LISTEN.key => vec![listen.clone()],
            (settings::Default::Value(text), _) => vec![text.to_owned()],
            (settings::Default::Detected(_) | settings::Default::Absent(_), _) => Vec::new(),
        };
        Given { texts: default, origin: Origin::Default }
    }
}

fn split(setting: &Setting, texts: &[String]) -> Vec<String> {
    if setting.list {
        texts.iter().flat_map(|text| text.split(',')).map(|text| text.trim().to_owned()).collect()
    } else {
        texts.to_vec()
    }
}

impl File {
    fn parse(path: &Path, text: &str, problems: &mut Vec<Problem>) -> Self {
        let table = match text.parse::<toml::Table>() {
            Ok(table) => table,
            Err(error) => {
                // The error's own text quotes the line, which may have the password.
                let line = error
                    .span()
                    .map_or(1, |span| 1 + text.get(..span.start).unwrap_or("").matches('\n').count());
                let reason = format!("line {line}: not TOML: {}", error.message().replace('\n', ", "));
                problems.push(Problem { what: path.display().to_string(), given: None, reason });
                return Self::default();
            }
        };
        let mut values = BTreeMap::new();
        for (key, value) in table {
            let what = format!("{key} in {}", path.display());
            let Some(setting) = settings::ALL.iter().find(|setting| setting.key == key) else {
                let known: Vec<_> = settings::ALL.iter().map(|setting| setting.key).collect();
                let reason = format!("there is no such setting; allowed: {}", known.join(", "));
                problems.push(Problem { what, given: None, reason });
                continue;
            };
            match strings(setting, &value) {
                Some(texts) => {
                    values.insert(key, texts);
                }
                None => {
                    let given = if setting.secret { MASK.to_owned() } else { value.to_string() };
                    let allowed =
                        if setting.list { "a string, or an array of strings" } else { "a string, in quotes" };
                    problems.push(Problem {
                        what,
                        given: Some(given),
                        reason: format!("allowed: {allowed}"),
                    });
                }
            }
        }
        Self { path: path.to_owned(), values }
    }
}

/// A value of the file as texts. `None` if it has the wrong type.
fn strings(setting: &Setting, value: &toml::Value) -> Option<Vec<String>> {
    match (value, setting.list) {
        (toml::Value::String(text), _) => Some(vec![text.clone()]),
        (toml::Value::Array(values), true) => {
            values.iter().map(|value| value.as_str().map(str::to_owned)).collect()
        }
        _ => None,
    }
}
