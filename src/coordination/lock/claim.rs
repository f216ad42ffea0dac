//! What one application has in a lock: a place in the queue, and for a semaphore a permit as well.
//!
//! A semaphore is two contenders (locks specification 1.5): the first place of the queue gives the right to ask for a
//! permit, and is given back when the permit is held. A permit's node that waits without the first place would take the
//! room of the contender that has it: two such nodes could wait for one another for ever, so it is deleted. The permit is
//! counted whatever the queue says, so no fault of the queue makes too many holders.

use std::time::Duration;

use crate::coordination::lock::contender::{Contender, Wanted};
use crate::coordination::lock::contract::{Effect, End, Event, First, Input, Part};
use crate::coordination::lock::queue::Unclear;
use crate::coordination::time::Now;
use crate::extension::lock::{Child, Mode, SEMAPHORE_PERMITS, SEMAPHORE_QUEUE};
use crate::mutants::mutant;
use crate::tree::Error;

/// The pause before the kind of the lock is looked up again, although the session is connected.
const PAUSE: Duration = Duration::from_millis(100);

/// Is the node a semaphore's, or does it have contenders of another kind?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unknown { not_before: Option<Duration> },
    Looking,
    Known,
}

/// The part of a claim that a semaphore has beside its queue.
#[derive(Debug)]
struct Permit {
    contender: Contender,
    kind: Kind,
    /// The number of the last look at the kind.
    looks: u64,
    /// Whether the kind has to be known before a node is created.
    looks_first: bool,
    is_connected: bool,
    /// Whether the queue's node is to be created when the kind is known: it would keep contenders of another kind out.
    wants_parents: bool,
    /// Whether the place in the queue is not needed any more.
    has_left_queue: bool,
    /// Why the claim has ended, once both contenders have.
    end: Option<End>,
}

/// An application's part in a lock.
#[derive(Debug)]
pub struct Claim {
    queue: Contender,
    permit: Option<Permit>,
}

impl Claim {
    /// A claim that has no session yet.
    pub fn new(wanted: Wanted) -> Self {
        if wanted.mode != Mode::Permit {
            return Self { queue: Contender::new(wanted), permit: None };
        }
        let queue = Wanted {
            lock: wanted.lock.semaphore_queue(),
            mode: Mode::Mutex,
            hold_max: None,
            looks_first: false,
            stands_again: true,
            ..wanted.clone()
        };
        let looks_first = wanted.looks_first;
        let permits = Wanted { lock: wanted.lock.semaphore_permits(), looks_first: false, ..wanted };
        let permit = Permit {
            contender: Contender::second(permits),
            kind: Kind::Unknown { not_before: None },
            looks: 0,
            looks_first,
            is_connected: false,
            wants_parents: false,
            has_left_queue: false,
            end: None,
        };
        Self { queue: Contender::new(queue), permit: Some(permit) }
    }

    /// Takes the inputs, each of a part, and returns the effects in their order. Inputs of the session, of the application
    /// and of a drain concern all parts, whichever they name.
    pub fn step(&mut self, now: Now, inputs: Vec<(Part, Input)>) -> Vec<(Part, Effect)> {
        let Some(permit) = &mut self.permit else {
            let inputs = inputs.into_iter().map(|(_, input)| input).collect();
            let effects = self.queue.step(now, inputs);
            return effects.into_iter().map(|effect| (Part::Queue, effect)).collect();
        };
        let (mut of_queue, mut of_permits) = (Vec::new(), Vec::new());
        let mut refused = None;
        for (part, input) in inputs {
            refused = refused.or(permit.take(now.mono, &input, part));
            if is_common(&input) {
                of_queue.push(input.clone());
                of_permits.push(input);
            } else if part == Part::Queue {
                of_queue.push(input);
            } else if part == Part::Permits {
                of_permits.push(input);
            }
        }
        let mut out = Vec::new();
        if let Some(end) = refused {
            self.queue.end_waiting(end.clone());
            permit.contender.end_waiting(end);
        }
        out.extend(permit.look(now.mono, &self.queue));
        let may_stand = match permit.kind {
            Kind::Known => true,
            // In the same flight.
            Kind::Looking => !permit.looks_first,
            Kind::Unknown { .. } => false,
        };
        self.queue.set_may_stand(now.mono, may_stand);
        let of_queue = self.queue.step(now, of_queue);
        let has_place = self.queue.holds();
        let may_stand = permit.kind == Kind::Known && (has_place || permit.contender.holds());
        permit.contender.set_may_stand(now.mono, may_stand || mutant!(SemaphoreOutOfQueue));
        if let Some(end) = self.queue.end().filter(|_| !permit.has_left_queue) {
            permit.contender.end_waiting(placed_end(SEMAPHORE_QUEUE, end));
        }
        let of_permits = permit.contender.step(now, of_permits);
        let mut of_queue: Vec<_> = of_queue
            .into_iter()
            .filter(|effect| is_of_queue(effect, has_place) && permit.admits(effect))
            .collect();
        if permit.wants_parents && permit.kind == Kind::Known {
            permit.wants_parents = false;
            of_queue.push(Effect::CreateParents);
        }
        if !permit.contender.waits() && !permit.has_left_queue && !mutant!(SemaphoreQueueHeld) {
            permit.has_left_queue = true;
            of_queue.extend(self.queue.step(now, vec![Input::Release]).into_iter().filter(is_request));
        }
        // Before the application hears of an end: its place in the queue may have to go first.
        out.extend(of_queue.into_iter().map(|effect| (Part::Queue, placed(SEMAPHORE_QUEUE, effect))));
        let of_permits = of_permits.into_iter().filter(is_of_permit);
        out.extend(of_permits.map(|effect| (Part::Permits, placed(SEMAPHORE_PERMITS, effect))));
        if let (None, Some(_), Some(end)) = (&permit.end, self.queue.end(), permit.contender.end()) {
            permit.end = Some(placed_end(SEMAPHORE_PERMITS, end));
            if permit.end == Some(End::Released) {
                out.push((Part::Permits, Effect::Notify(Event::Released)));
            }
        }
        out
    }

    /// Why it has ended. `None`: it has not.
    pub fn end(&self) -> Option<&End> {
        match &self.permit {
            None => self.queue.end(),
            Some(permit) => permit.end.as_ref(),
        }
    }

    /// When to step again if nothing happens before; monotonic.
    pub fn next_wakeup(&self, now: Duration) -> Option<Duration> {
        let queue = self.queue.next_wakeup(now);
        let Some(permit) = &self.permit else { return queue };
        let kind = match permit.kind {
            Kind::Unknown { not_before } => not_before.filter(|at| *at > now),
            Kind::Looking | Kind::Known => None,
        };
        queue.into_iter().chain(permit.contender.next_wakeup(now)).chain(kind).min()
    }
}

impl Permit {
    /// Takes an input as far as the kind of the lock is concerned. Returns why the claim ends.
    fn take(&mut self, now: Duration, input: &Input, part: Part) -> Option<End> {
        if matches!(input, Input::SessionOpened(_) | Input::SessionResumed) {
            self.is_connected = true;
        } else if matches!(input, Input::SessionSuspended | Input::SessionLost) {
            self.is_connected = false;
            if self.kind == Kind::Looking {
                self.kind = Kind::Unknown { not_before: None };
            }
            self.wants_parents &= *input != Input::SessionLost;
        }
        let Input::Listed(look, result) = input else { return None };
        if part != Part::Kind || *look != self.looks {
            return None;
        }
        match result {
            Ok(children) => {
                let other = other_kind(children).map(|name| End::Unclear(Unclear::OtherKind { name }));
                if other.is_none() {
                    self.kind = Kind::Known;
                }
                other
            }
            Err(Error::Suspended | Error::SessionLost | Error::OutcomeUnknown(_)) => {
                self.kind = Kind::Unknown { not_before: Some(now.saturating_add(PAUSE)) };
                None
            }
            Err(error) => Some(End::Refused(error.clone())),
        }
    }

    /// Whether a request of the queue is sent now.
    fn admits(&mut self, effect: &Effect) -> bool {
        let waits = *effect == Effect::CreateParents && self.kind != Kind::Known;
        self.wants_parents |= waits;
        !waits
    }

    /// Asks for the kind of the lock, if it is needed and not known.
    fn look(&mut self, now: Duration, queue: &Contender) -> Option<(Part, Effect)> {
        let Kind::Unknown { not_before } = self.kind else { return None };
        if !self.is_connected || queue.end().is_some() || not_before.is_some_and(|at| now < at) {
            return None;
        }
        self.kind = Kind::Looking;
        self.looks += 1;
        Some((Part::Kind, Effect::List(self.looks)))
    }
}

/// A contender of another kind of lock among the children of a semaphore's node.
fn other_kind(children: &[String]) -> Option<String> {
    let is_other = |name: &&String| match Child::read(name) {
        Child::Contender { .. } | Child::WithoutNumber(_) => true,
        Child::OtherRecipe => !matches!(name.as_str(), SEMAPHORE_QUEUE | SEMAPHORE_PERMITS),
        Child::Delay { .. } | Child::Foreign => false,
    };
    children.iter().find(is_other).cloned()
}

/// Whether an input concerns all parts of a claim.
fn is_common(input: &Input) -> bool {
    match input {
        Input::SessionOpened(_)
        | Input::SessionSuspended
        | Input::SessionResumed
        | Input::SessionLost
        | Input::Leased { .. }
        | Input::Release
        | Input::Left
        | Input::Drain { .. } => true,
        Input::Created(..)
        | Input::ParentsCreated(_)
        | Input::DelayCreated(..)
        | Input::Listed(..)
        | Input::Found(..)
        | Input::FirstRead(..)
        | Input::Gone(_)
        | Input::QueueChanged
        | Input::RevocationRequested
        | Input::LeaderSeen { .. }
        | Input::Deleted(..) => false,
    }
}

/// A contender below the semaphore's node, by its name there.
fn below(folder: &str, first: First) -> First {
    First { name: format!("{folder}/{}", first.name), ..first }
}

fn placed(folder: &str, effect: Effect) -> Effect {
    if let Effect::Notify(Event::Waiting { position, first }) = effect {
        return Effect::Notify(Event::Waiting { position, first: below(folder, first) });
    }
    effect
}

fn placed_end(folder: &str, end: &End) -> End {
    // The queue's folder is in the name already.
    if let End::TimedOut(Some(first)) = end
        && !first.name.contains('/')
    {
        return End::TimedOut(Some(below(folder, first.clone())));
    }
    end.clone()
}

fn is_request(effect: &Effect) -> bool {
    !matches!(effect, Effect::Notify(_))
}

/// Whether an effect of the queue is one of the claim: the application hears of its place, until that is the first.
fn is_of_queue(effect: &Effect, has_place: bool) -> bool {
    is_request(effect)
        || (matches!(effect, Effect::Notify(Event::Waiting { .. } | Event::NoAnswer)) && !has_place)
}

/// Whether an effect of the permit is one of the claim: it is given back when the place in the queue is gone, too.
fn is_of_permit(effect: &Effect) -> bool {
    !matches!(effect, Effect::Notify(Event::Released))
}
