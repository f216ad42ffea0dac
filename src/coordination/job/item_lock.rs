//! Does an execution hold the lock of its item? (`sidekeeper.item-lock`.)
//!
//! An item of such a job starts only while this instance holds the item's lock: no item is executed twice at once, also
//! not by another job or by a job of another namespace with the same lock. The lock is a condition beside the
//! assignment, and never replaces it.
//!
//! A planned execution stays on the agenda while it waits, without a running node: so it holds up no resharding, and
//! fires that come meanwhile count as missed, as during an execution. Each step compares the asked locks with the
//! agenda. A wait whose execution is not planned any more, or may not start here any more, is given up, whatever the
//! cause. After its limit the execution is withdrawn and counts as missed, or as a retry that was dropped; an item that
//! was taken over waits anew, because its execution was interrupted and nobody else goes on with it.
//!
//! A lock is for one execution. It is given back when that is over, so that others in the queue come first.
//!
//! A lost lock ends the execution like a lost session: the application has to stop, its result is too late, and with
//! `failover` the item is executed again.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::effect::{Effect, LockWait};
use crate::coordination::job::contract::input::LockNews;
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::execution::Executions;
use crate::coordination::job::execution::retry::Retries;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::{Phase, Session};
use crate::coordination::job::picture::settings::Settings;
use crate::findings::problem::{Problem, ProblemCode};
use crate::job::{FencingToken, Item};
use crate::mutants::mutant;

/// The pause after a lock could not be asked for.
const PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// Others are first, or the registry has not answered.
    Waiting,
    /// This instance holds the lock, and the execution has not begun.
    Held,
    /// The lock is held for an execution that has begun.
    Used,
    /// The lock was lost while the execution was starting, or after that.
    Lost,
    /// The lock cannot be had now: why, and when it is asked for again (monotonic).
    Refused(String, Duration),
}

/// A lock that was asked for.
#[derive(Debug, Clone)]
struct Asked {
    /// Distinguishes it from all others of this participant.
    number: u64,
    lock: String,
    /// Since when the execution waits; monotonic.
    since: Duration,
    state: State,
    /// The token with which it was held last.
    token: Option<FencingToken>,
}

impl Asked {
    /// Whether the execution has not begun, and does not hold the lock.
    fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting | State::Refused(..))
    }
}

/// The locks that this instance holds for its items, or waits for.
#[derive(Debug, Default)]
pub(crate) struct ItemLocks {
    asked: BTreeMap<Item, Asked>,
    last_number: u64,
}

impl ItemLocks {
    /// When the next limit or pause ends.
    pub(crate) fn next_look(&self, cx: &Context) -> Option<Duration> {
        let now = cx.now.mono;
        let limit = limit(cx);
        let waiting = self.asked.values().filter(|asked| asked.is_waiting());
        let ends = waiting.flat_map(|asked| {
            let again = if let State::Refused(_, until) = &asked.state { Some(*until) } else { None };
            [limit.map(|limit| asked.since.saturating_add(limit)), again]
        });
        ends.flatten().filter(|at| *at > now).min()
    }

    /// The problems of locks that cannot be had.
    pub(crate) fn problems(&self, cx: &Context) -> Vec<Problem> {
        let problem = |(item, asked): (&Item, &Asked)| {
            let State::Refused(why, _) = &asked.state else { return None };
            let message = format!("item {item} cannot get its lock `{}`: {why}", asked.lock);
            Some(Problem { path: cx.identity.paths.config(), message, code: ProblemCode::ItemWaitsForLock })
        };
        self.asked.iter().filter_map(problem).collect()
    }

    /// Whether an execution of the item waits for its lock, or holds it and has not begun.
    pub(crate) fn concerns_planned(&self, item: Item) -> bool {
        let asked = self.asked.get(&item);
        asked.is_some_and(|asked| asked.is_waiting() || asked.state == State::Held)
    }

    /// Whether the planned execution of an item may start: the job asks for no lock, or this instance holds it. Asks for
    /// a lock that was not asked for.
    pub(crate) fn may_start(&mut self, cx: &Context, out: &mut Outbox, item: Item) -> bool {
        let Some(lock) = cx.settings.as_ref().and_then(|settings| lock(settings, item)) else { return true };
        if let Some(asked) = self.asked.get(&item) {
            return asked.state == State::Held || mutant!(ItemLockNotAwaited);
        }
        self.ask(out, item, lock, cx.now.mono);
        mutant!(ItemLockNotAwaited)
    }

    fn ask(&mut self, out: &mut Outbox, item: Item, lock: String, since: Duration) {
        self.last_number += 1;
        let number = self.last_number;
        out.push(Effect::AskItemLock { number, lock: lock.clone() });
        self.asked.insert(item, Asked { number, lock, since, state: State::Waiting, token: None });
    }

    /// The token of the lock with which the execution of an item begins. `None`: it holds none.
    pub(crate) fn token(&self, item: Item) -> Option<FencingToken> {
        self.asked.get(&item)?.token
    }

    /// Gives back the locks of executions that are over, ends the waits of executions that are not wanted any more, and
    /// withdraws executions that have waited for too long.
    pub(crate) fn look(
        &mut self,
        cx: &Context,
        executions: &Executions,
        retries: &mut Retries,
        agenda: &mut Agenda,
        out: &mut Outbox,
    ) {
        let items: Vec<_> = self.asked.keys().copied().collect();
        for item in items.into_iter().filter(|item| !executions.has_open(*item)) {
            let Some(asked) = self.asked.get(&item) else { continue };
            if matches!(asked.state, State::Used | State::Lost) {
                if !mutant!(ItemLockKept) {
                    self.give_back(item, out);
                }
                continue;
            }
            let Some(planned) = wanted(cx, agenda, item, &asked.lock) else {
                if !mutant!(ItemLockWaitsOn) {
                    self.give_back(item, out);
                }
                continue;
            };
            let waited = cx.now.mono.saturating_sub(asked.since);
            let is_over = asked.is_waiting() && limit(cx).is_some_and(|limit| waited >= limit);
            if is_over && !mutant!(ItemLockLimitIgnored) {
                let lock = asked.lock.clone();
                self.give_back(item, out);
                out.push(Effect::LockWait(item, LockWait::GivenUp { lock, after: waited }));
                // An item that was taken over stays planned, and asks again.
                if !planned.is_first_of(Source::Failover) {
                    agenda.withdraw(item);
                    retries.could_not_start(cx, agenda, out, item, planned, "its lock was not free in time");
                }
                continue;
            }
            if let State::Refused(_, until) = &asked.state
                && *until <= cx.now.mono
            {
                let (lock, since) = (asked.lock.clone(), asked.since);
                self.ask(out, item, lock, since);
            }
        }
    }

    /// The execution of an item has begun.
    pub(crate) fn began(&mut self, cx: &Context, executions: &mut Executions, out: &mut Outbox, item: Item) {
        let Some(asked) = self.asked.get_mut(&item) else { return };
        if asked.state == State::Lost {
            executions.lose_lock(cx, out, item);
        } else {
            asked.state = State::Used;
        }
        out.push(Effect::LockWait(item, LockWait::Over));
    }

    fn give_back(&mut self, item: Item, out: &mut Outbox) {
        if let Some(asked) = self.asked.remove(&item) {
            if !matches!(asked.state, State::Used | State::Lost) {
                out.push(Effect::LockWait(item, LockWait::Over));
            }
            out.push(Effect::GiveBackItemLock(asked.number));
        }
    }

    /// A lock that was asked for has a new state.
    pub(crate) fn news(
        &mut self,
        cx: &Context,
        executions: &mut Executions,
        out: &mut Outbox,
        number: u64,
        news: LockNews,
    ) {
        let known = self.asked.iter_mut().find(|(_, asked)| asked.number == number);
        let Some((item, asked)) = known.map(|(item, asked)| (*item, asked)) else { return };
        match news {
            LockNews::Behind { holder } => {
                let lock = asked.lock.clone();
                out.push(Effect::LockWait(item, LockWait::Behind { lock, holder }));
            }
            LockNews::Held(token) => (asked.state, asked.token) = (State::Held, Some(token)),
            LockNews::Lost(_) if mutant!(ItemLockLossIgnored) => {}
            // An execution that is starting begins, and is cancelled at once.
            LockNews::Lost(_) if executions.has_open(item) => {
                asked.state = State::Lost;
                executions.lose_lock(cx, out, item);
            }
            LockNews::Lost(why) => {
                asked.state = State::Refused(why, cx.now.mono.saturating_add(PAUSE));
            }
        }
    }

    /// The session is lost, and all locks with it.
    pub(crate) fn forget(&mut self, out: &mut Outbox) {
        for item in self.asked.keys().copied().collect::<Vec<_>>() {
            self.give_back(item, out);
        }
    }
}

/// The execution for which the lock of an item is still asked; `None`: there is none.
fn wanted(cx: &Context, agenda: &Agenda, item: Item, asked: &str) -> Option<Planned> {
    let planned = agenda.planned(item)?;
    let lock = cx.settings.as_ref().and_then(|settings| lock(settings, item));
    if lock.as_deref() != Some(asked) || cx.phase != Phase::Active {
        return None;
    }
    // While the job's nodes are not known, nothing says that the wait is in vain.
    let is_known = matches!(cx.session, Session::Connected(_)) && cx.view.is_loaded();
    (!is_known || may_still_start(cx, item, planned)).then_some(planned)
}

/// Whether the execution may still start here, as soon as it holds the lock.
fn may_still_start(cx: &Context, item: Item, planned: Planned) -> bool {
    if planned.is_first_of(Source::Failover) {
        return cx.has_taken(item);
    }
    cx.is_registered() && !cx.view.is_resharding() && cx.assigned.executable_item(item).is_some()
}

fn lock(settings: &Settings, item: Item) -> Option<String> {
    settings.item_lock.as_ref().map(|lock| lock.name(item))
}

/// The longest wait for a lock.
fn limit(cx: &Context) -> Option<Duration> {
    cx.settings.as_ref()?.item_lock.as_ref()?.limit
}
