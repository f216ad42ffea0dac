//! The log filter of the process, and its replacement for a time. Decides when the setting counts again.
//!
//! The filter is the process's, so it is reached without a handle. A process without a subscriber of its own, such as a test, has none.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::reload;

use super::QUIET;

/// Puts another filter in place.
type Replace = Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>;

static REPLACE: OnceLock<Replace> = OnceLock::new();

/// Why a filter was not replaced.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// The text is no filter.
    #[error("{0}")]
    Wrong(#[from] tracing_subscriber::filter::ParseError),
    /// The process has no filter that can be replaced.
    #[error("the log of this process has no filter: {0}")]
    None(String),
}

/// A filter from its text.
pub(super) fn parse(text: &str) -> Result<EnvFilter, tracing_subscriber::filter::ParseError> {
    EnvFilter::builder().parse(format!("{QUIET},{text}"))
}

/// Says how the process's filter is replaced. Only the first call counts.
pub(super) fn install(replace: Replace) {
    let _ = REPLACE.set(replace);
}

/// The log filter of a sidecar. Clones share it.
#[derive(Clone)]
pub struct LogFilter {
    setting: String,
    temporary: Arc<Mutex<Temporary>>,
}

#[derive(Default)]
struct Temporary {
    /// The filter in place of the setting, and until when; monotonic.
    filter: Option<(String, Duration)>,
    /// Counts the replacements.
    number: u64,
}

impl LogFilter {
    /// The filter of the setting.
    pub fn new(setting: &str) -> Self {
        Self { setting: setting.to_owned(), temporary: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Temporary> {
        self.temporary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The filter in force, and until when, if it is not the setting; monotonic.
    pub fn now(&self) -> (String, Option<Duration>) {
        match &self.lock().filter {
            Some((filter, until)) => (filter.clone(), Some(*until)),
            None => (self.setting.clone(), None),
        }
    }

    /// Replaces the filter until this time; monotonic. Returns the number of the replacement, for [`Self::end`].
    pub fn replace(&self, filter: &str, until: Duration) -> Result<u64, FilterError> {
        let mut temporary = self.lock();
        put(filter)?;
        temporary.filter = Some((filter.to_owned(), until));
        temporary.number = temporary.number.saturating_add(1);
        Ok(temporary.number)
    }

    /// The setting counts again, if there was no replacement after the one with this number; `None`: in any case. Returns whether it does.
    pub fn end(&self, number: Option<u64>) -> Result<bool, FilterError> {
        let mut temporary = self.lock();
        if temporary.filter.is_none() || number.is_some_and(|number| number != temporary.number) {
            return Ok(false);
        }
        put(&self.setting)?;
        temporary.filter = None;
        Ok(true)
    }
}

fn put(filter: &str) -> Result<(), FilterError> {
    let parsed = parse(filter)?;
    let none = |why: &dyn ToString| FilterError::None(why.to_string());
    let replace = REPLACE.get().ok_or_else(|| none(&"it was set up by another program"))?;
    replace(parsed).map_err(|error| none(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_13_the_setting_counts_again_unless_the_filter_was_replaced_anew() {
        install(Box::new(|_| Ok(())));
        let filter = LogFilter::new("info");
        let hour = Duration::from_secs(3_600);
        let first = filter.replace("debug", hour).unwrap();
        assert_eq!(filter.now(), ("debug".to_owned(), Some(hour)));
        let second = filter.replace("trace", hour * 2).unwrap();
        assert!(!filter.end(Some(first)).unwrap(), "the first replacement is over already");
        assert_eq!(filter.now().0, "trace");
        assert!(filter.end(Some(second)).unwrap());
        assert_eq!(filter.now(), ("info".to_owned(), None));
        assert!(!filter.end(None).unwrap());
        assert!(matches!(filter.replace("sidekeeper=loud", hour), Err(FilterError::Wrong(_))));
        assert_eq!(filter.now(), ("info".to_owned(), None));
    }
}
