//! Keeps redb's panics from ending what called it. redb believes much of what it reads, so a damaged page may fail one
//! of its assertions. Decides nothing but that such a panic is an error of the file.
//!
//! The only place that does so. After it the database is to be dropped and opened again: nobody knows its state.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread is told as an error, and not printed.
    static IS_TOLD: Cell<bool> = const { Cell::new(false) };
}

/// Does something with the file. A panic in it is [`redb::Error::Corrupted`].
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_TOLD.try_with(Cell::get).unwrap_or(false) {
                before(panic);
            }
        }));
    });
    let outer = IS_TOLD.replace(true);
    // What `work` leaves half done is redb's, and is dropped.
    let done = catch_unwind(AssertUnwindSafe(work));
    IS_TOLD.set(outer);
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
        assert!(!IS_TOLD.get());
    }
}
