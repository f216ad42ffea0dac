//! Waits for a value that another task sends. Decides nothing.

use std::future::poll_fn;
use std::task::Poll;

use tokio::sync::watch;

/// Waits until the receiver has this value, or until its sender is dropped: then no other value can come.
pub async fn becomes<T: PartialEq>(receiver: &mut watch::Receiver<T>, value: T) {
    let _ = receiver.wait_for(|now| *now == value).await;
}

/// Lets the tasks that are ready run first.
pub async fn let_others_run() {
    let mut has_waited = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
