//! The properties of a job each of whose executions holds a lock for its item. Java peers ignore them.

use std::time::Duration;

use crate::job::{Item, JobConfiguration};
use crate::tree::Path;

use super::duration_text;
use super::lock::{LockPaths, NAME_BYTES_MAX};
use super::props::ignored;

/// The key in `props` of the lock that executions hold.
pub const LOCK_PROPERTY: &str = "sidekeeper.item-lock";
/// The key in `props` of the longest wait for the lock.
pub const TIMEOUT_PROPERTY: &str = "sidekeeper.item-lock-timeout";

/// Between the name and the item in the name of an item's lock.
const ITEM_SEPARATOR: &str = "@-@";
/// The most bytes of a name: the item follows it, and has at most ten digits.
const NAME_BYTES: usize = NAME_BYTES_MAX - ITEM_SEPARATOR.len() - 10;

const LOCK_ALLOWED: &str = "`true` or nothing (a lock of the job's own), `false` (no lock), or a name that the job shares \
                            with others: at most 187 bytes, without `/`, not beginning with `@-@`";
const TIMEOUT_ALLOWED: &str = "`100ms` to `168h`, written like `90s` or `5m`, or as a number of milliseconds";

/// The locks that the executions of a job hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemLock {
    name: String,
    /// How long an execution may wait for its lock. `None`: without a limit.
    pub limit: Option<Duration>,
}

impl ItemLock {
    /// The name of an item's lock.
    pub fn name(&self, item: Item) -> String {
        format!("{}{ITEM_SEPARATOR}{item}", self.name)
    }
}

/// The name that this value of the property shares with other jobs, if it is one.
pub fn shared_name(value: &str) -> Option<String> {
    match read_name(value) {
        Some(Wanted::Named(name)) => Some(name),
        Some(Wanted::Nothing | Wanted::Own) | None => None,
    }
}

/// The locks of a configuration, and the problems of values that are ignored. `None`: executions hold no lock.
/// `execution_timeout`: the longest wait, if the job does not set it.
pub fn of(
    configuration: &JobConfiguration,
    execution_timeout: Option<Duration>,
) -> (Option<ItemLock>, Vec<String>) {
    let mut problems = Vec::new();
    let own = || configuration.job_name.to_string();
    let name = configuration.props.get(LOCK_PROPERTY).map(|text| read_name(text).ok_or(text));
    let name = match name {
        None | Some(Ok(Wanted::Nothing)) => None,
        Some(Ok(Wanted::Own)) => Some(own()),
        Some(Ok(Wanted::Named(name))) => Some(name),
        // The job asked for a lock: one that excludes too little is better than none.
        Some(Err(text)) => {
            problems.push(format!(
                "props `{LOCK_PROPERTY}` is `{text}`, and the job's own lock is used; allowed is {LOCK_ALLOWED}"
            ));
            Some(own())
        }
    };
    let mut limit = execution_timeout;
    if let Some(text) = configuration.props.get(TIMEOUT_PROPERTY) {
        match read_timeout(text) {
            Some(timeout) => limit = Some(timeout),
            None => problems.push(ignored(TIMEOUT_PROPERTY, text, TIMEOUT_ALLOWED)),
        }
    }
    (name.map(|name| ItemLock { name, limit }), problems)
}

/// Checks the value of one of the properties. The error names the allowed values.
pub fn check(key: &str, text: &str) -> Result<(), &'static str> {
    match key {
        LOCK_PROPERTY if read_name(text).is_none() => Err(LOCK_ALLOWED),
        TIMEOUT_PROPERTY if read_timeout(text).is_none() => Err(TIMEOUT_ALLOWED),
        _ => Ok(()),
    }
}

enum Wanted {
    Nothing,
    Own,
    Named(String),
}

fn read_name(text: &str) -> Option<Wanted> {
    match text {
        "false" => return Some(Wanted::Nothing),
        "true" | "" => return Some(Wanted::Own),
        _ => {}
    }
    let is_name = text.len() <= NAME_BYTES && LockPaths::named(&Path::root(), text).is_some();
    is_name.then(|| Wanted::Named(text.to_owned()))
}

fn read_timeout(text: &str) -> Option<Duration> {
    duration_text::parse(text, Duration::from_millis(100)..=Duration::from_secs(604_800))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobName;

    fn read(props: &[(&str, &str)]) -> (Option<ItemLock>, Vec<String>) {
        let mut configuration = JobConfiguration::new(JobName::parse("orders").unwrap(), 1);
        configuration.props =
            props.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        of(&configuration, Some(Duration::from_secs(60)))
    }

    #[test]
    fn the_lock_is_the_jobs_own_or_one_with_a_name() {
        let name = |value| read(&[(LOCK_PROPERTY, value)]).0.map(|lock| lock.name(Item(7)));
        assert_eq!(read(&[]).0, None);
        assert_eq!(name("false"), None);
        assert_eq!(name("true").as_deref(), Some("orders@-@7"));
        assert_eq!(name("").as_deref(), Some("orders@-@7"));
        assert_eq!(name("ledger of bills").as_deref(), Some("ledger of bills@-@7"));
        let longest = "x".repeat(NAME_BYTES);
        let lock = read(&[(LOCK_PROPERTY, &longest)]).0.unwrap().name(Item(u32::MAX));
        assert_eq!(lock.len(), NAME_BYTES_MAX);
    }

    #[test]
    fn the_wait_is_limited_by_the_timeout_or_that_of_the_execution() {
        let limit = |props: &[(&str, &str)]| {
            let props: Vec<_> = props.iter().copied().chain([(LOCK_PROPERTY, "true")]).collect();
            read(&props).0.unwrap().limit.unwrap().as_secs()
        };
        assert_eq!(limit(&[]), 60);
        assert_eq!(limit(&[(TIMEOUT_PROPERTY, "5m")]), 300);
        assert_eq!(limit(&[(TIMEOUT_PROPERTY, "soon")]), 60);
    }

    #[test]
    fn an_unreadable_name_is_a_problem_and_the_jobs_own_lock_is_used() {
        for text in ["a/b", "@-@x", "..", &"x".repeat(NAME_BYTES + 1)] {
            let (lock, problems) = read(&[(LOCK_PROPERTY, text)]);
            assert_eq!(lock.unwrap().name(Item(0)), "orders@-@0", "{text}");
            assert!(problems.len() == 1 && problems.concat().contains(LOCK_PROPERTY), "{problems:?}");
            assert!(check(LOCK_PROPERTY, text).is_err());
        }
        for text in ["99ms", "169h", ""] {
            assert_eq!(read(&[(TIMEOUT_PROPERTY, text)]).1.len(), 1);
            assert!(check(TIMEOUT_PROPERTY, text).is_err());
        }
        assert_eq!(check("sidekeeper.other", "a/b"), Ok(()));
    }
}
