//! Turns a panic of redb into an error of the file. redb trusts most bytes that it reads, so a damaged page
//! may fail one of its assertions. Decides nothing else.
//!
//! No other place catches panics of redb. After one the database's state is unknown: the caller drops the
//! database and opens it again.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread becomes an error, and is not printed.
    static IS_REPORTED: Cell<bool> = const { Cell::new(false) };
}

/// Works with the file. A panic of the work becomes [`redb::Error::Corrupted`].
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_REPORTED.try_with(Cell::get).unwrap_or(false) {
                before(panic);
            }
        }));
    });
    let outer = IS_REPORTED.replace(true);
    // `work` may leave redb's values half changed; they are dropped.
    let done = catch_unwind(AssertUnwindSafe(work));
    IS_REPORTED.set(outer);
    done.unwrap_or_else(|panic| Err(redb::Error::Corrupted(message(&*panic))))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
    format!("reading it fails: {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_message() {
        let failed = |work: fn() -> Result<(), redb::Error>| guarded(work).unwrap_err().to_string();
        assert!(failed(|| panic!("page {}", 7)).ends_with("reading it fails: page 7"));
        assert!(failed(|| panic!("fixed")).ends_with("reading it fails: fixed"));
        assert_eq!(guarded(|| Ok(1)).unwrap(), 1);
        assert!(!IS_REPORTED.get());
    }
}
