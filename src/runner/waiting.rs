//! Waits for a value that another task sends. Decides nothing.

use tokio::sync::watch;

/// Waits until the receiver has this value, or until its sender is dropped: then no other value can come.
pub async fn becomes<T: PartialEq>(receiver: &mut watch::Receiver<T>, value: T) {
    let _ = receiver.wait_for(|now| *now == value).await;
}
