//! In which order do many instances join their jobs that attach at the same time?
//!
//! When a fleet starts, its sidecars attach to the same jobs, in the same order. Sidecars that register in one job at one moment
//! refuse each other's transactions, and each refusal costs the registry more requests. So only some instances of a sidecar
//! join at a time, and the others wait, in an order that each sidecar draws for itself: two sidecars rarely meet in a job.
//! Instances of one job are neighbours in that order, so they join together.
//!
//! Decides only the order. An instance gives its turn back when it has joined, and after some seconds in any case
//! (`runner/job/task.rs`), so each wait ends.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use twox_hash::XxHash64;

use crate::job::JobName;

/// How many instances join at a time: enough for requests with many of them, and few beside the thousands for which the order
/// matters.
const AT_A_TIME: usize = 256;

/// The turns of a sidecar's instances. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Turns {
    state: Arc<Mutex<State>>,
}

struct State {
    free: usize,
    /// The order of this sidecar. `None`: no instance has waited yet.
    seed: Option<u64>,
    /// By the place in the order: the instances that wait.
    waiting: BTreeMap<Place, oneshot::Sender<Turn>>,
    /// The place that was in turn last. The next one is behind it, so that no newcomer is preferred for long.
    last: Place,
    arrivals: u64,
    /// Whether no instance waits any more: the sidecar stops.
    is_open: bool,
}

impl Default for State {
    fn default() -> Self {
        let waiting = BTreeMap::new();
        Self { free: AT_A_TIME, seed: None, waiting, last: (0, 0), arrivals: 0, is_open: false }
    }
}

/// The place of a job in the order of this sidecar, and the instance's among those of the job.
type Place = (u64, u64);

/// A turn. Dropping it gives it back.
pub(crate) struct Turn(Option<Turns>);

impl Turns {
    /// Waits until an instance of the job may join. Ends when those before it have given their turns back. `draw`: a random text,
    /// from which the order follows.
    pub(crate) async fn take(&self, job: &JobName, draw: impl FnOnce() -> String) -> Turn {
        let waiting = {
            let mut state = self.lock();
            if state.is_open {
                return Turn(None);
            }
            if let Some(free) = state.free.checked_sub(1) {
                state.free = free;
                return Turn(Some(self.clone()));
            }
            state.arrivals += 1;
            let seed = *state.seed.get_or_insert_with(|| XxHash64::oneshot(0, draw().as_bytes()));
            let place = (XxHash64::oneshot(seed, job.as_str().as_bytes()), state.arrivals);
            let (turn, waiting) = oneshot::channel();
            state.waiting.insert(place, turn);
            waiting
        };
        // The sender is dropped when no instance waits any more.
        waiting.await.unwrap_or(Turn(None))
    }

    /// Lets all instances join at once, from now on.
    pub(crate) fn open(&self) {
        let waiting = {
            let mut state = self.lock();
            state.is_open = true;
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
    }

    fn give_back(&self) {
        loop {
            let next = self.lock().next();
            match next.map(|next| next.send(Turn(Some(self.clone())))) {
                None | Some(Ok(())) => return,
                // The instance does not wait any more.
                Some(Err(mut turn)) => turn.0 = None,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The instance that is in turn next. `None`: none waits, and the turn is free.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        let behind = self.waiting.range((Bound::Excluded(self.last), Bound::Unbounded)).next();
        let place = behind.or_else(|| self.waiting.iter().next()).map(|(place, _)| *place);
        match place {
            Some(place) => self.last = place,
            None => self.free += 1,
        }
        self.waiting.remove(&place?)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turns) = self.0.take() {
            turns.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn job(number: usize) -> JobName {
        JobName::parse(&format!("job-{number}")).unwrap()
    }

    /// Takes all turns that are free.
    fn take_all(turns: &Turns) -> Vec<Turn> {
        (0..AT_A_TIME)
            .map(|number| turns.take(&job(number), String::new).now_or_never().expect("a free turn"))
            .collect()
    }

    /// The order in which instances of so many jobs join.
    fn order(seed: &str) -> Vec<usize> {
        let turns = Turns::default();
        let mut taken = take_all(&turns);
        let mut waiting: Vec<_> =
            (0..20).map(|number| (number, Box::pin(take(&turns, number, seed)))).collect();
        assert!(waiting.iter_mut().all(|(_, turn)| turn.now_or_never().is_none()));
        let mut order = Vec::new();
        while !waiting.is_empty() {
            drop(taken.pop());
            waiting.retain_mut(|(number, turn)| match turn.now_or_never() {
                Some(turn) => {
                    order.push(*number);
                    taken.insert(0, turn);
                    false
                }
                None => true,
            });
        }
        order
    }

    async fn take(turns: &Turns, number: usize, seed: &str) -> Turn {
        turns.take(&job(number / 2), || seed.to_owned()).await
    }

    #[test]
    fn each_sidecar_has_an_order_of_its_own_and_instances_of_a_job_are_neighbours() {
        let (one, other) = (order("one"), order("other"));
        assert_ne!(one, other);
        for order in [one, other] {
            assert!(order.chunks(2).all(|pair| pair[0] / 2 == pair[1] / 2), "{order:?}");
        }
    }

    #[test]
    fn a_turn_of_an_instance_that_waits_no_longer_goes_to_the_next_one() {
        let turns = Turns::default();
        let mut taken = take_all(&turns);
        let mut waiting: Vec<_> = (0..3).map(|number| Box::pin(take(&turns, number, ""))).collect();
        assert!(waiting.iter_mut().all(|turn| turn.now_or_never().is_none()));
        waiting.truncate(1);
        drop(taken.pop());
        let turn = waiting[0].as_mut().now_or_never();
        assert!(turn.is_some());
        assert_eq!(turns.lock().free, 0);
        drop((turn, taken));
        assert_eq!(turns.lock().free, AT_A_TIME);
    }

    #[test]
    fn all_join_at_once_when_the_sidecar_stops() {
        let turns = Turns::default();
        let _taken = take_all(&turns);
        let mut waiting = Box::pin(take(&turns, 1, ""));
        assert!(waiting.as_mut().now_or_never().is_none());
        turns.open();
        assert!(waiting.now_or_never().is_some());
        assert!(turns.take(&job(2), String::new).now_or_never().is_some());
    }
}
