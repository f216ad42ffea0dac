//! Reads Sidekeeper's keys in `props`. A value that is not allowed is ignored, and named as a problem.

use crate::job::JobConfiguration;

/// Checks the value of a key. The error names the allowed values.
type Check = fn(&str, &str) -> Result<(), &'static str>;

/// The values of a configuration, and the problems of those that are ignored.
pub(super) struct Props<'a> {
    configuration: &'a JobConfiguration,
    check: Check,
    /// A sentence for each value that is ignored.
    pub(super) problems: Vec<String>,
}

impl<'a> Props<'a> {
    pub(super) fn of(configuration: &'a JobConfiguration, check: Check) -> Self {
        Self { configuration, check, problems: Vec::new() }
    }

    /// The value of a key. `None`: there is none, or it is not allowed.
    pub(super) fn get(&mut self, key: &str) -> Option<&'a str> {
        let text = self.configuration.props.get(key)?;
        match (self.check)(key, text) {
            Ok(()) => Some(text),
            Err(allowed) => {
                self.problems.push(ignored(key, text, allowed));
                None
            }
        }
    }
}

/// The problem of a value that is ignored.
pub(super) fn ignored(key: &str, text: &str, allowed: &str) -> String {
    format!("props `{key}` is `{text}` and is ignored; allowed is {allowed}")
}
