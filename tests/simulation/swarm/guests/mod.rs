//! Applications that use a sidecar for a lock, beside the job: they hold it, stand in an election, take a permit, or own a
//! sticky lock. In a schedule all of them are for one lock. They share the session, the connection and the faults with the
//! participants.
//!
//! This file has what they have in common: when they come and end, their steps, and the way of their requests to the servers
//! and back. Locks, elections and semaphores are in [`claims`], sticky locks in [`stands`].

mod claims;
mod stands;

use std::sync::Arc;

use sidekeeper::coordination::lock::contract::{Effect as LockEffect, Input as LockInput, Part};
use sidekeeper::coordination::sticky::contract::{Effect as StickyEffect, Input as StickyInput};
use sidekeeper::tree::{Error, NodeKind, Path, SessionId, Transaction};

use crate::lock::requests::failed;
use crate::random::Random;
use crate::sticky::requests::answer;

use super::client::{Ask, Link, Reply};
use super::invariants::Invariant;
use super::machine::FAR;
use super::world::{Event, World};
use super::{MILLISECOND, Micros, SECOND};

use claims::{Claimed, Claiming};
use stands::{Standing, Stood};

/// The most guests of all machines at a time.
const GUESTS_MAX: usize = 6;
/// How long it may take after the faults until the last guest has had its turn and has left.
const TURNS: Micros = 90 * SECOND;

/// The lock of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Mutex,
    ReadersAndWriters,
    Election,
    Semaphore,
    Sticky,
}

impl Kind {
    /// The lock of the schedule of a seed; most have none.
    pub fn of(seed: u64) -> Option<Self> {
        let kinds = [Self::Mutex, Self::ReadersAndWriters, Self::Election, Self::Semaphore, Self::Sticky];
        let place = (seed / 8 % kinds.len() as u64) as usize;
        (seed % 8 == 3 && seed % 16 != 11).then(|| kinds[place])
    }
}

/// An application, and its core in the sidecar.
pub(super) struct Guest {
    machine: usize,
    /// Which sidecar of the machine.
    life: u32,
    core: Core,
    /// The session that it knows, by its place among all; and the state of its connection.
    session: Option<usize>,
    connection: (u32, bool),
    inputs: Vec<Input>,
    step_at: Option<Micros>,
    /// When its core was asked last, by the sidecar's clock.
    stepped_at: std::time::Duration,
    /// Its core has ended, or its sidecar was killed.
    is_over: bool,
    /// The log as far as its watch has told it; `None`: the watch is not open.
    seen: Option<usize>,
}

enum Core {
    Claim(Box<Claiming>),
    Stand(Box<Standing>),
}

#[derive(Debug)]
enum Input {
    Claim(Part, LockInput),
    Stand(StickyInput),
}

/// A request of a guest.
#[derive(Debug)]
pub(super) enum Request {
    Claim(Part, LockEffect),
    Stand(StickyEffect),
    /// A watch of a claim.
    Watch(claims::Watched),
    /// The watch of the whole lock, for candidates.
    Observe,
}

/// An answer to a guest. Reads are made when it arrives.
#[derive(Debug)]
pub(super) enum Answer {
    Claim(Part, LockInput),
    Read(Part, LockEffect),
    Stand(StickyInput),
    Watch(claims::Watched),
    Observe,
}

/// All guests, and what has to hold for their lock.
pub(super) struct Guests {
    kind: Option<Kind>,
    all: Vec<Guest>,
    random: Random,
    claimed: Claimed,
    stood: Stood,
    pub(super) grants: u64,
    pub(super) losses: u64,
}

impl Guests {
    pub(super) fn new(kind: Option<Kind>, seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x4775_6573_7473_0001);
        let (claimed, stood) = (Claimed::new(&mut random), Stood::new());
        Self { kind, all: Vec::new(), random, claimed, stood, grants: 0, losses: 0 }
    }

    fn live(&self) -> impl Iterator<Item = &Guest> {
        self.all.iter().filter(|guest| !guest.is_over)
    }
}

impl Request {
    /// Its transaction. `None`: it is a read, or it is repeated anyhow.
    pub(super) fn transaction(&self) -> Option<Transaction> {
        match self {
            Self::Claim(_, effect) => claims::transaction(effect),
            Self::Stand(StickyEffect::Commit(_, transaction)) => Some(transaction.clone()),
            Self::Stand(_) | Self::Watch(_) | Self::Observe => None,
        }
    }
}

impl World {
    /// Once a second: an application comes, or an operator interferes.
    pub(super) fn look_at_guests(&mut self) {
        self.check_losses_are_told();
        let Some(kind) = self.guests.kind.filter(|_| !self.is_calm) else { return };
        let m = self.guests.random.below(self.machines.len() as u64) as usize;
        match self.guests.random.below(8) {
            0..=4 => self.guest_comes(kind, m),
            5 => self.operator_breaks_lock(kind),
            6 if kind == Kind::Election => self.leader_names_successor(),
            _ => {}
        }
    }

    fn guest_comes(&mut self, kind: Kind, m: usize) {
        let mono = self.machines[m].mono(self.now);
        let Some(sidecar) = self.machines[m].sidecar.as_ref().filter(|sidecar| !sidecar.stopping) else {
            return;
        };
        if self.guests.live().count() >= GUESTS_MAX || self.machines[m].is_stopped(self.now) {
            return;
        }
        let life = sidecar.life;
        let number = self.guests.all.len();
        let core = match kind {
            Kind::Sticky => {
                let Some(standing) = self.new_stand(m, life) else { return };
                Core::Stand(Box::new(standing))
            }
            _ => Core::Claim(Box::new(self.new_claim(kind, mono))),
        };
        self.note(m, || format!("guest {number} comes, for {kind:?}"));
        self.guests.all.push(Guest {
            machine: m,
            life,
            core,
            session: None,
            connection: (0, false),
            inputs: Vec::new(),
            step_at: None,
            stepped_at: mono,
            is_over: false,
            seen: None,
        });
        self.wake_guest(number);
        self.plan_guest(number);
    }

    /// When the application does something next.
    fn plan_guest(&mut self, index: usize) {
        let most = if self.is_calm { 300 } else { 1_500 };
        let at = self.now + self.guests.random.below(most * MILLISECOND);
        self.at(at, Event::GuestActs(index));
    }

    /// The application of a guest does something.
    pub(super) fn guest_acts(&mut self, index: usize) {
        let Guest { machine, is_over, ref core, .. } = self.guests.all[index];
        if is_over {
            return;
        }
        if !self.machines[machine].is_stopped(self.now) {
            match core {
                Core::Claim(_) => self.act_with_claim(index),
                Core::Stand(_) => self.act_with_stand(index),
            }
        }
        self.plan_guest(index);
    }

    fn tell_guest(&mut self, index: usize, input: Input) {
        self.guests.all[index].inputs.push(input);
        self.wake_guest(index);
    }

    /// A guest has something to look at, in a moment.
    fn wake_guest(&mut self, index: usize) {
        let at = self.now + self.guests.random.below(200);
        let guest = &mut self.guests.all[index];
        if !guest.is_over && guest.step_at.is_none_or(|planned| planned > at) {
            guest.step_at = Some(at);
            self.at(at, Event::Guest(index));
        }
    }

    /// The session of a sidecar has changed, or its lease.
    pub(super) fn wake_guests(&mut self, m: usize) {
        for index in self.guests_of(m) {
            self.wake_guest(index);
        }
    }

    /// The live guests of a machine's present sidecar.
    fn guests_of(&self, m: usize) -> Vec<usize> {
        let life = self.machines[m].sidecar.as_ref().map(|sidecar| sidecar.life);
        let all = self.guests.all.iter().enumerate();
        let its = all.filter(|(_, guest)| !guest.is_over && guest.machine == m && Some(guest.life) == life);
        its.map(|(index, _)| index).collect()
    }

    pub(super) fn has_guests(&self, m: usize) -> bool {
        !self.guests_of(m).is_empty()
    }

    /// A sidecar is told to stop.
    pub(super) fn drain_guests(&mut self, m: usize, deadline: std::time::Duration) {
        for index in self.guests_of(m) {
            let input = match &self.guests.all[index].core {
                Core::Claim(_) => Input::Claim(Part::Queue, LockInput::Drain { deadline }),
                Core::Stand(_) => Input::Stand(StickyInput::Drain { deadline }),
            };
            self.tell_guest(index, input);
        }
    }

    /// A sidecar was killed. An application that counts its lease goes on until that ends.
    pub(super) fn guests_are_killed(&mut self, m: usize, life: u32) {
        for guest in &mut self.guests.all {
            if guest.machine != m || guest.life != life || guest.is_over {
                continue;
            }
            guest.is_over = true;
            match &mut guest.core {
                Core::Claim(claim) => claim.is_cut_off(),
                Core::Stand(stand) => stand.is_cut_off(),
            }
        }
    }

    /// A guest takes a step.
    pub(super) fn step_guest(&mut self, index: usize) {
        let now = self.now;
        let Guest { machine: m, life, is_over, step_at, .. } = self.guests.all[index];
        if is_over || step_at.is_none_or(|at| at > now) {
            return;
        }
        let machine = &self.machines[m];
        if machine.is_stopped(now) {
            // It goes on with the process.
            let later = machine.stopped_until + 1;
            self.guests.all[index].step_at = Some(later);
            return self.at(later, Event::Guest(index));
        }
        let time = machine.now(now);
        let Some(sidecar) = machine.sidecar.as_ref().filter(|sidecar| sidecar.life == life) else { return };
        let (session, is_up) = (sidecar.client.session, sidecar.client.link != Link::Down);
        let (until, connection) = (sidecar.client.until, (sidecar.client.epoch, is_up));
        let id = session.map(|session| self.sessions[session].handle.id());
        let guest = &mut self.guests.all[index];
        (guest.step_at, guest.stepped_at) = (None, time.mono);
        let mut change = Vec::new();
        let mut opened = false;
        if guest.session != session {
            if guest.session.is_some() {
                change.push(Change::Lost);
            }
            guest.inputs.retain(is_of_application);
            (guest.session, guest.connection, guest.seen) = (session, connection, None);
            if let Core::Claim(claim) = &mut guest.core {
                claim.watches.clear();
            }
            if let Some(id) = id {
                opened = true;
                change.push(Change::Opened(id));
                change.push(Change::Leased(until));
                change.extend((!is_up).then_some(Change::Suspended));
            }
        } else if session.is_some() {
            change.push(Change::Leased(until));
            if guest.connection != connection {
                guest.connection = connection;
                change.push(if is_up { Change::Resumed } else { Change::Suspended });
            }
        }
        if opened {
            self.send_of_guest(index, Request::Observe);
        }
        let inputs = std::mem::take(&mut self.guests.all[index].inputs);
        match &self.guests.all[index].core {
            Core::Claim(_) => self.step_claim(index, time, &change, inputs),
            Core::Stand(_) => self.step_stand(index, time, &change, inputs),
        }
        self.set_alarm_of_guest(index);
        let has_ended = match &self.guests.all[index].core {
            Core::Claim(claim) => claim.has_ended(),
            Core::Stand(stand) => stand.has_ended(),
        };
        if has_ended {
            self.guests.all[index].is_over = true;
            self.note(m, || format!("guest {index} has ended"));
            if matches!(self.guests.all[index].core, Core::Claim(_)) {
                self.check_end_of_claim(index);
            }
            self.stop_if_empty(m);
        }
    }

    fn set_alarm_of_guest(&mut self, index: usize) {
        let (now, guest) = (self.now, &self.guests.all[index]);
        let machine = &self.machines[guest.machine];
        let mono = machine.mono(now);
        let wakeup = match &guest.core {
            Core::Claim(claim) => claim.next_wakeup(mono),
            Core::Stand(stand) => stand.next_wakeup(mono),
        };
        let Some(at) = wakeup.map(|mono| machine.when_mono(mono).max(now + 1)) else { return };
        // Timers are a little late.
        let at = at + self.guests.random.below(MILLISECOND);
        let guest = &mut self.guests.all[index];
        if at < now + FAR && guest.step_at.is_none_or(|planned| planned > at) {
            guest.step_at = Some(at);
            self.at(at, Event::Guest(index));
        }
    }

    /// A guest sends a request, in the session that it knows.
    fn send_of_guest(&mut self, index: usize, request: Request) {
        let guest = &self.guests.all[index];
        let (m, session) = (guest.machine, guest.session);
        let client = self.machines[m].sidecar.as_ref().map(|sidecar| &sidecar.client);
        // A request in a session that is over comes to nothing.
        if session.is_some() && client.is_some_and(|client| client.session == session) {
            self.send(m, Ask::Guest(index, request));
        }
    }

    /// There is a connection again: watches are opened anew.
    pub(super) fn watch_for_guests(&mut self, m: usize) {
        for index in self.guests_of(m) {
            self.guests.all[index].seen = None;
            self.send_of_guest(index, Request::Observe);
            let watched = match &mut self.guests.all[index].core {
                Core::Claim(claim) => claim.close_watches(),
                Core::Stand(_) => Vec::new(),
            };
            for watched in watched {
                self.send_of_guest(index, Request::Watch(watched));
            }
        }
    }

    /// A request of a guest has failed.
    pub(super) fn refuse_guest(&mut self, index: usize, request: Request, error: &Error) {
        let failed = match request {
            Request::Claim(part, effect) => failed(&effect, error).map(|input| Input::Claim(part, input)),
            Request::Stand(effect) => answer(&effect, Err(error.clone())).map(Input::Stand),
            Request::Watch(_) | Request::Observe => None,
        };
        if let Some(input) = failed {
            self.tell_guest(index, input);
        }
    }

    /// At the leader: the request of a guest takes effect. `is_lost`: its answer gets lost.
    pub(super) fn take_effect_of_guest(
        &mut self,
        session: usize,
        index: usize,
        request: Request,
        is_lost: bool,
    ) -> Reply {
        let answer = match request {
            Request::Claim(part, effect) => self.claim_takes_effect(session, index, part, effect),
            Request::Stand(effect) => {
                let result = match &effect {
                    StickyEffect::CreateParents => {
                        let queue = self.guests.stood.lock.queue().clone();
                        self.create_above(session, &queue, NodeKind::Persistent);
                        Ok(())
                    }
                    StickyEffect::Commit(_, transaction) => {
                        let result = self.commit_as(session, transaction.clone());
                        result.map(drop).map_err(|error| error.error)
                    }
                    _ => Ok(()),
                };
                self.tell(|| format!("guest {index}: {effect:?}: {result:?}"));
                answer(&effect, result).map(Answer::Stand)
            }
            Request::Watch(watched) => Some(Answer::Watch(watched)),
            Request::Observe => Some(Answer::Observe),
        };
        let unknown = || Error::OutcomeUnknown("the answer was lost".to_owned());
        let answer = answer.map(|answer| if is_lost { lost(answer, unknown()) } else { answer });
        Reply::Guest(index, answer)
    }

    /// An answer reaches a guest.
    pub(super) fn answer_guest(&mut self, m: usize, server: usize, index: usize, answer: Option<Answer>) {
        let applied = self.ensemble.applied(server, self.now);
        let guest = &self.guests.all[index];
        if guest.is_over || guest.machine != m {
            return;
        }
        match answer {
            Some(Answer::Claim(part, input)) => self.tell_guest(index, Input::Claim(part, input)),
            Some(Answer::Stand(input)) => self.tell_guest(index, Input::Stand(input)),
            Some(Answer::Read(part, effect)) => self.read_for_claim(server, applied, index, part, effect),
            Some(Answer::Watch(watched)) => self.open_watch_of_claim(server, applied, index, watched),
            Some(Answer::Observe) => {
                self.guests.all[index].seen = Some(applied);
                match &self.guests.all[index].core {
                    Core::Claim(_) => self.observe_for_claim(server, applied, index),
                    Core::Stand(_) => self.snapshot_for_stand(server, applied, index),
                }
            }
            None => {}
        }
    }

    /// An answer is lost with its connection.
    pub(super) fn lose_answer_of_guest(&mut self, index: usize, answer: Option<Answer>, error: &Error) {
        let input = match answer.map(|answer| lost(answer, error.clone())) {
            Some(Answer::Claim(part, input)) => Input::Claim(part, input),
            Some(Answer::Stand(input)) => Input::Stand(input),
            Some(Answer::Read(part, effect)) => match failed(&effect, error) {
                Some(input) => Input::Claim(part, input),
                None => return,
            },
            Some(Answer::Watch(_) | Answer::Observe) | None => return,
        };
        self.tell_guest(index, input);
    }

    /// A machine's server has applied entries: its guests' watches are told.
    pub(super) fn tell_watches_of_guests(&mut self, m: usize, server: usize) {
        if self.guests.kind.is_none() {
            return;
        }
        let applied = self.ensemble.applied(server, self.now);
        for index in self.guests_of(m) {
            match &self.guests.all[index].core {
                Core::Claim(_) => self.tell_watches_of_claim(server, applied, index),
                Core::Stand(_) => self.changes_for_stand(server, applied, index),
            }
        }
    }

    /// Each guest has had its turn and has left, and has left nothing.
    pub(super) fn let_guests_end(&mut self) {
        if self.guests.kind.is_none() {
            return;
        }
        let end = self.now + TURNS;
        while self.guests.live().next().is_some() && self.now < end && !self.has_failed() {
            self.run_until(self.now + 250 * MILLISECOND);
        }
        let waiting = self.guests.all.iter().position(|guest| !guest.is_over);
        if let Some(index) = waiting {
            let guest = &self.guests.all[index];
            let core = match &guest.core {
                Core::Claim(claim) => format!("{claim:?}"),
                Core::Stand(stand) => format!("{stand:?}"),
            };
            let m = guest.machine;
            return self.fail(Invariant::NoSilentWait, || {
                format!("guest {index} of m{m} waits without a cause: {core}")
            });
        }
        // Sessions that were given up or killed end a moment later.
        self.run_until(self.now + 2 * self.plan.session_timeout);
        let below = [self.guests.claimed.lock.lock().clone(), self.guests.stood.lock.root().clone()];
        let is_left = |(path, (_, stat)): &(Path, super::ensemble::Content)| {
            stat.ephemeral_owner.is_some() && below.iter().any(|lock| path.is_within(lock))
        };
        let left: Vec<_> = self.tree().into_iter().filter(is_left).map(|(path, _)| path).collect();
        if !left.is_empty() {
            self.fail(Invariant::NothingLeft, || format!("all guests have ended, and there is {left:?}"));
        }
    }
}

/// A change of the session.
#[derive(Debug, Clone, Copy)]
enum Change {
    Lost,
    Opened(SessionId),
    Leased(std::time::Duration),
    Suspended,
    Resumed,
}

/// Whether an input does not come from the registry.
fn is_of_application(input: &Input) -> bool {
    match input {
        Input::Claim(_, input) => {
            matches!(input, LockInput::Release | LockInput::Left | LockInput::Drain { .. })
        }
        Input::Stand(input) => matches!(
            input,
            StickyInput::Asked(..) | StickyInput::Unheard(_) | StickyInput::Left | StickyInput::Drain { .. }
        ),
    }
}

/// The answer of a write whose outcome its client does not learn.
fn lost(answer: Answer, error: Error) -> Answer {
    match answer {
        Answer::Claim(part, input) => Answer::Claim(part, claims::unknown(input, error)),
        Answer::Stand(StickyInput::Committed(number, _)) => {
            Answer::Stand(StickyInput::Committed(number, Err(error)))
        }
        Answer::Stand(_) => Answer::Stand(StickyInput::ParentsCreated(Err(error))),
        other => other,
    }
}

/// The data of a guest's node.
fn data(index: usize) -> Arc<[u8]> {
    format!("guest {index}").into_bytes().into()
}
