//! Guests that stand for a sticky lock, each with the sidecar's own core; and what has to hold for all of them: one instance
//! acts, and the nodes keep what [`Judge`] says.

use std::time::Duration;

use sidekeeper::coordination::sticky::candidate::{Candidate, Wanted};
use sidekeeper::coordination::sticky::contract::{Answer as Said, Effect, Event, Input};
use sidekeeper::coordination::time::Now;
use sidekeeper::extension::sticky::{OwnerNode, Record, StickyPaths};
use sidekeeper::tree::{NodeChange, Operation, Path, WatchEvent};
use uuid::Uuid;

use crate::sticky::application::{Action, Application};
use crate::sticky::judge::Judge;

use super::super::ensemble::subtree;
use super::super::invariants::Invariant;
use super::super::reads::merged;
use super::super::world::World;
use super::{Change, Core, Kind, Request};

/// Clocks of machines run faster by at most so much, as a divisor.
const FAST: u32 = 100;

/// A guest's stand.
#[derive(Debug)]
pub(super) struct Standing {
    candidate: Candidate,
    stand: Uuid,
    instance: String,
    application: Application,
}

/// The sticky lock of a schedule.
pub(super) struct Stood {
    pub(super) lock: StickyPaths,
    judge: Judge,
    last_call: u64,
}

impl Stood {
    pub(super) fn new() -> Self {
        let root = Path::parse("/ns/@-@locks/sticky").unwrap();
        let lock = StickyPaths::named(&root, "bill").unwrap();
        Self { lock, judge: Judge::of_clocks(FAST), last_call: 0 }
    }
}

impl Standing {
    pub(super) fn has_ended(&self) -> bool {
        self.candidate.end().is_some()
    }

    pub(super) fn next_wakeup(&self, now: Duration) -> Option<Duration> {
        self.candidate.next_wakeup(now)
    }

    /// Its stream has broken: without a lease of its own to count, the application stops.
    pub(super) fn is_cut_off(&mut self) {
        if !self.application.counts {
            self.application.owned = None;
        }
    }
}

impl World {
    /// An application comes, sometimes under the name of one that was here before.
    pub(super) fn new_stand(&mut self, m: usize, life: u32) -> Option<Standing> {
        let instance = format!("m{}", self.guests.random.below(5));
        let is_taken = self.guests.live().any(|guest| match &guest.core {
            Core::Stand(stand) => guest.machine == m && guest.life == life && stand.instance == instance,
            Core::Claim(_) => false,
        });
        let random = &mut self.guests.random;
        let stand = Uuid::from_u128(u128::from(random.next()) << 64 | 1);
        let grace = Duration::from_millis(1_000 * random.below(10));
        let counts = random.once_in(2);
        let lock = self.guests.stood.lock.clone();
        let wanted = Wanted { lock, instance: instance.clone(), stand, grace, queue_max: 100 };
        let (candidate, application) = (Candidate::new(wanted), Application::new(counts));
        (!is_taken).then_some(Standing { candidate, stand, instance, application })
    }

    fn stand(&mut self, index: usize) -> &mut Standing {
        match &mut self.guests.all[index].core {
            Core::Stand(stand) => stand,
            Core::Claim(_) => unreachable!("all guests of a schedule are of one kind"),
        }
    }

    pub(super) fn act_with_stand(&mut self, index: usize) {
        let now = self.machines[self.guests.all[index].machine].mono(self.now);
        let number = self.guests.stood.last_call + 1;
        let super::Guests { all, random, stood, .. } = &mut self.guests;
        let Core::Stand(stand) = &mut all[index].core else { return };
        if stand.application.has_left {
            return;
        }
        match stand.application.act(random, now, &mut stood.judge, number) {
            None => {}
            Some(Action::Leave) => self.tell_guest(index, super::Input::Stand(Input::Left)),
            Some(Action::Call { number, call, is_heard }) => {
                self.guests.stood.last_call = number;
                self.tell_guest(index, super::Input::Stand(Input::Asked(number, call)));
                if !is_heard {
                    self.tell_guest(index, super::Input::Stand(Input::Unheard(number)));
                }
            }
        }
    }

    pub(super) fn step_stand(
        &mut self,
        index: usize,
        now: Now,
        changes: &[Change],
        inputs: Vec<super::Input>,
    ) {
        let session = changes.iter().map(|change| match *change {
            Change::Lost => Input::SessionLost,
            Change::Opened(id) => Input::SessionOpened(id),
            Change::Leased(until) => Input::Leased { until },
            Change::Suspended => Input::SessionSuspended,
            Change::Resumed => Input::SessionResumed,
        });
        let mut all: Vec<_> = session.collect();
        all.extend(inputs.into_iter().filter_map(|input| match input {
            super::Input::Stand(input) => Some(input),
            super::Input::Claim(..) => None,
        }));
        let m = self.guests.all[index].machine;
        if self.is_traced() && all.iter().any(|input| !matches!(input, Input::Leased { .. })) {
            self.note(m, || format!("guest {index} hears {all:?}"));
        }
        let effects = self.stand(index).candidate.step(now, all);
        for effect in effects {
            self.note(m, || format!("guest {index}: {effect:?}"));
            match effect {
                Effect::Notify(event) => self.hear_stand(index, event),
                Effect::Answer(call, answer) => self.hear_answer_of_stand(index, call, answer),
                Effect::GiveUpSession => self.give_up_session(m),
                effect => self.send_of_guest(index, Request::Stand(effect)),
            }
        }
        let stand = self.stand(index);
        if stand.has_ended() {
            stand.application.owned = None;
            let calls = stand.application.calls.clone();
            if !calls.is_empty() {
                self.fail(Invariant::NoSilentWait, || {
                    format!("guest {index} has ended, and its calls {calls:?} have no answer")
                });
            }
        }
        self.check_actors();
    }

    fn hear_stand(&mut self, index: usize, event: Event) {
        self.guests.grants += u64::from(matches!(event, Event::Acquired { .. }));
        self.guests.losses += u64::from(matches!(event, Event::Lost { .. }));
        let owner = self.ensemble.get(&self.guests.stood.lock.owner());
        let owner = owner.and_then(|node| OwnerNode::read(&node.data));
        let super::Guests { all, stood, .. } = &mut self.guests;
        let Core::Stand(stand) = &mut all[index].core else { return };
        let is_owner = owner.is_some_and(|owner| owner.stand == stand.stand);
        if let Err(found) = stand.application.hear(event, is_owner, &stood.judge) {
            self.fail(Invariant::StickyLock, || found);
        }
    }

    fn hear_answer_of_stand(&mut self, index: usize, call: u64, answer: Said) {
        let now = self.machines[self.guests.all[index].machine].mono(self.now);
        let most = if self.is_calm { 500 } else { 12_000 };
        let held = Duration::from_millis(self.guests.random.below(most));
        let is_run = matches!(answer, Said::Entered { .. });
        let super::Guests { all, stood, .. } = &mut self.guests;
        let Core::Stand(stand) = &mut all[index].core else { return };
        match stand.application.hear_answer(call, answer, (now, held), &mut stood.judge) {
            Ok(true) => {}
            // Its caller has gone.
            Ok(false) if is_run => self.tell_guest(index, super::Input::Stand(Input::Unheard(call))),
            Ok(false) => {}
            Err(found) => self.fail(Invariant::StickyLock, || found),
        }
    }

    /// No two instances act for the lock.
    fn check_actors(&mut self) {
        let mut actors = Vec::new();
        for (index, guest) in self.guests.all.iter().enumerate() {
            let Core::Stand(stand) = &guest.core else { continue };
            let now = self.machines[guest.machine].mono(self.now);
            // A sidecar that has not looked since cannot have told its application of the end.
            let end = stand.application.lease_end();
            let is_told = !guest.is_over && end.is_some_and(|end| guest.stepped_at >= end);
            if stand.application.acts(now, is_told) {
                actors.push((index, stand.instance.clone(), stand.application.owned.clone()));
            }
        }
        if actors.len() > 1 {
            self.fail(Invariant::LockHolders, || format!("instances act for one sticky lock: {actors:?}"));
        }
    }

    /// The nodes of the lock may have changed.
    pub(in crate::swarm) fn see_stand(&mut self) {
        if self.guests.kind != Some(Kind::Sticky) {
            return;
        }
        let lock = &self.guests.stood.lock;
        let owner = self.ensemble.get(&lock.owner()).map(|node| node.stat.created);
        let record = self.ensemble.get(&lock.record());
        let record = record.map(|node| Record::read(&node.data, &node.stat).unwrap());
        let now = Duration::from_micros(self.now);
        if let Err(found) = self.guests.stood.judge.see(now, owner, record) {
            self.fail(Invariant::StickyLock, || found);
        }
    }

    pub(super) fn operator_breaks_sticky_lock(&mut self) {
        let path = self.guests.stood.lock.owner();
        let Some(node) = self.ensemble.get(&path).filter(|_| self.guests.random.once_in(3)) else { return };
        let owner = OwnerNode::read(&node.data);
        for guest in &mut self.guests.all {
            if let Core::Stand(stand) = &mut guest.core
                && owner.as_ref().is_some_and(|owner| owner.stand == stand.stand)
            {
                stand.application.deleted = Some(node.stat.created);
            }
        }
        self.tell(|| format!("an operator deletes {path}"));
        self.operate(vec![Operation::delete(path)]);
    }

    pub(super) fn snapshot_for_stand(&mut self, server: usize, applied: usize, index: usize) {
        let root = self.guests.stood.lock.root().clone();
        let nodes = subtree(self.ensemble.replica(server, applied), &root);
        self.tell_guest(index, super::Input::Stand(Input::Seen(WatchEvent::Snapshot(nodes))));
    }

    pub(super) fn changes_for_stand(&mut self, server: usize, applied: usize, index: usize) {
        let root = self.guests.stood.lock.root().clone();
        let Some(seen) = self.guests.all[index].seen.filter(|seen| *seen < applied) else { return };
        self.guests.all[index].seen = Some(applied);
        let entries = self.ensemble.entries(seen, applied).iter().flatten();
        let paths = entries.map(|change| change.path.clone()).filter(|path| path.is_within(&root));
        let paths: Vec<_> = paths.collect();
        if paths.is_empty() {
            return;
        }
        let replica = self.ensemble.replica(server, applied);
        // A watch reads the contents after the event.
        let told = paths.into_iter().map(|path| match replica.get(&path) {
            Some(content) => NodeChange::Put { path, content: Some(content.clone()) },
            None => NodeChange::Removed { path },
        });
        let changes = merged(told.collect());
        self.tell_guest(index, super::Input::Stand(Input::Seen(WatchEvent::Changes(changes))));
    }
}
