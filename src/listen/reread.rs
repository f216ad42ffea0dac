//! Files of settings that are read again each second, so that a change counts without a restart. Shell.
//!
//! A file that becomes wrong changes nothing: the values that were read before stay in force, and the log says so.

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

use crate::coordination::time::Wakeup;
use crate::runner::clock::Clock;

/// How long the sidecar may go on with values that are no longer in the files.
const INTERVAL: Duration = Duration::from_secs(1);

/// Reads again and again, and tells all readers the changes. Never ends. `what` and `place` are for the log; errors have no
/// text of a file.
pub(super) async fn keep<T, R, F>(
    current: watch::Sender<T>,
    read: R,
    (what, place): (&str, impl Display),
    clock: Clock,
) where
    T: PartialEq,
    R: Fn() -> F,
    F: Future<Output = Result<T, String>>,
{
    let mut known_fault = None;
    loop {
        let mono = Some(clock.now().mono.saturating_add(INTERVAL));
        clock.sleep_until(Wakeup { wall: None, mono }).await;
        match read().await {
            Ok(found) => {
                known_fault = None;
                let changed = current.send_if_modified(|current| {
                    let differs = *current != found;
                    *current = found;
                    differs
                });
                if changed {
                    info!(path = %place, "{what} have changed");
                }
            }
            Err(reason) if known_fault.as_ref() == Some(&reason) => {}
            Err(reason) => {
                warn!(event = "CREDENTIALS_NOT_READ",
                    path = %place,
                    reason,
                    "{what} cannot be read again: those that were read before stay in force"
                );
                known_fault = Some(reason);
            }
        }
    }
}
