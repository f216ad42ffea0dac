//! The locks that a participant holds for its items, or waits for. Decides nothing: tells the participant the news of each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{AbortHandle, Abortable, BoxFuture, abortable};
use futures::stream::FuturesUnordered;
use tokio_stream::StreamExt;

use crate::coordination::job::contract::input::{Input, LockNews};
use crate::coordination::job::frame::context::Identity;
use crate::coordination::lock::contract::{End, Event, LossReason};
use crate::extension::lock::{HOLDER_BYTES_MAX, LockPaths, Mode};
use crate::runner::lock::registry::{Hold, Locks, Outlet};

/// The next event of a lock; `None`: there are no more.
struct News {
    number: u64,
    outlet: Outlet,
    event: Option<Event>,
}

/// The locks of one participant. Dropping it gives them back.
pub(super) struct ItemLocks {
    locks: Arc<Locks>,
    news: FuturesUnordered<Abortable<BoxFuture<'static, News>>>,
    /// By the number that the participant chose.
    asked: BTreeMap<u64, AbortHandle>,
}

impl ItemLocks {
    pub(super) fn new(locks: Arc<Locks>) -> Self {
        Self { locks, news: FuturesUnordered::new(), asked: BTreeMap::new() }
    }

    /// Asks for a lock for this instance. Returns the input that it cannot be had.
    pub(super) fn ask(&mut self, number: u64, lock: &str, identity: &Identity) -> Option<Input> {
        let refused = |why: String| Some(Input::ItemLock(number, LockNews::Lost(why)));
        let Some(lock) = LockPaths::named(&self.locks.roots().locks, lock) else {
            return refused("this cannot be the name of a lock".to_owned());
        };
        let hold = Hold {
            lock,
            is_foreign: false,
            mode: Mode::Mutex,
            permits: 0,
            lock_delay: Duration::ZERO,
            // The participant limits the wait.
            wait: None,
            hold_max: None,
            stands_again: false,
            data: Some(holder(identity)),
            application_id: String::new(),
            is_of_item: true,
        };
        match self.locks.hold(hold) {
            Ok((_, outlet)) => {
                self.wait_for_news(number, outlet);
                None
            }
            Err(error) => refused(error.to_string()),
        }
    }

    /// Gives a lock back, or ends the wait for it.
    pub(super) fn give_back(&mut self, number: u64) {
        if let Some(handle) = self.asked.remove(&number) {
            // The outlet is dropped when the aborted future is polled.
            handle.abort();
        }
    }

    fn wait_for_news(&mut self, number: u64, mut outlet: Outlet) {
        let next: BoxFuture<'static, News> = Box::pin(async move {
            let event = outlet.events.recv().await;
            News { number, outlet, event }
        });
        let (news, handle) = abortable(next);
        self.news.push(news);
        self.asked.insert(number, handle);
    }

    /// The next news. `None`: no lock is asked for. Nothing is lost if the caller drops it.
    pub(super) async fn next(&mut self) -> Option<Input> {
        loop {
            let Ok(News { number, outlet, event }) = self.news.next().await? else { continue };
            if !self.asked.contains_key(&number) {
                continue; // Given back in the meantime.
            }
            let news = match event {
                None => Some(LockNews::Lost(end(outlet.end.borrow().as_ref()))),
                Some(event) => news_of(event),
            };
            if matches!(news, Some(LockNews::Lost(_))) {
                self.asked.remove(&number);
            } else {
                self.wait_for_news(number, outlet);
            }
            let Some(news) = news else { continue };
            return Some(Input::ItemLock(number, news));
        }
    }
}

/// The news of an event. `None`: the participant needs none, because it follows the session itself.
fn news_of(event: Event) -> Option<LockNews> {
    match event {
        Event::Waiting { first, .. } => Some(LockNews::Behind { holder: first.holder }),
        Event::Acquired { token, .. } => Some(LockNews::Held(token)),
        Event::Lost(reason) => Some(LockNews::Lost(loss(reason).to_owned())),
        Event::NoAnswer
        | Event::LeaseRenewed { .. }
        | Event::Suspended { .. }
        | Event::Resumed { .. }
        | Event::LeaderChanged(_)
        | Event::RevocationRequested
        | Event::Draining { .. }
        | Event::Released => None,
    }
}

fn loss(reason: LossReason) -> &'static str {
    match reason {
        LossReason::Lease => "the session could not be proven alive in time, or has ended",
        LossReason::Revoked => "somebody has deleted its node",
        LossReason::HoldLimit => "it was held for too long",
        LossReason::Draining => "the sidecar is stopping",
    }
}

fn end(end: Option<&End>) -> String {
    match end {
        Some(End::QueueFull { contenders }) => {
            format!("{contenders} contenders wait for it, which is the most")
        }
        Some(End::Unclear(unclear)) => format!("its queue is not clear: {unclear:?}"),
        Some(End::Refused(error)) => error.to_string(),
        Some(End::Lost(reason)) => loss(*reason).to_owned(),
        Some(End::Draining) => loss(LossReason::Draining).to_owned(),
        Some(End::Released | End::TimedOut(_)) | None => "it has ended".to_owned(),
    }
}

/// The name by which others know the holder.
fn holder(Identity { job, instance, .. }: &Identity) -> String {
    let name = format!("{instance} of job {job}");
    if name.len() <= HOLDER_BYTES_MAX { name } else { instance.to_string() }
}
