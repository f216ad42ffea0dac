//! Quartz as ElasticJob sets it up (protocol 6.5): one thread, in memory, a cron trigger whose misfires do nothing, and
//! that are noticed only when the thread is free (H8).

use std::collections::VecDeque;
use std::rc::Rc;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use sidekeeper::quartz::Expression;

use super::process::Process;

/// How late a fire may be before it counts as missed.
const MISFIRE_THRESHOLD: SignedDuration = SignedDuration::from_millis(1);

#[derive(Debug, Default)]
pub struct Quartz {
    expression: Option<Expression>,
    next: Option<Timestamp>,
    previous: Option<Timestamp>,
    is_paused: bool,
    /// The scheduler waits for the instant of the next fire: it fires then, however late that is.
    is_acquired: bool,
    /// Fires that were asked for, which take no part in the schedule.
    at_once: usize,
    /// The next fire of the worker; `None` as the instant: it was triggered.
    fires: VecDeque<Option<Timestamp>>,
    is_busy: bool,
    is_stopped: bool,
}

impl Quartz {
    fn after(&self, instant: Timestamp) -> Option<Timestamp> {
        self.expression.as_ref()?.next_after(instant, &TimeZone::UTC)
    }

    /// Notices that the next fire is missed, if it is. Tells whether to tell.
    fn misses(&mut self, now: Timestamp) -> bool {
        let is_missed = self.next.is_some_and(|next| next <= now - MISFIRE_THRESHOLD);
        if is_missed {
            self.next = self.after(now);
        }
        is_missed && self.previous.is_some()
    }

    pub fn is_busy(&self) -> bool {
        self.is_busy || !self.fires.is_empty()
    }

    /// Whether the cron trigger is paused; a job without one is never (H27).
    pub fn is_paused(&self) -> bool {
        self.is_paused && self.expression.is_some()
    }

    pub fn text(&self) -> Option<String> {
        self.expression.as_ref().map(ToString::to_string)
    }
}

impl Process {
    pub fn schedule(self: &Rc<Self>, cron: Option<&str>) {
        let mut quartz = self.quartz.borrow_mut();
        quartz.expression = cron.map(|cron| Expression::parse(cron).unwrap());
        quartz.next = quartz.after(self.local_now());
        quartz.previous = None;
        quartz.is_acquired = false;
        self.changed();
    }

    pub fn fire_at_once(&self) {
        self.quartz.borrow_mut().at_once += 1;
        self.changed();
    }

    pub fn pause_scheduler(&self) {
        let mut quartz = self.quartz.borrow_mut();
        (quartz.is_paused, quartz.is_acquired) = (true, false);
        self.changed();
    }

    /// Goes on with the schedule; the caller notices the fires that were missed meanwhile at once.
    pub async fn resume_scheduler(&self) {
        let tells = {
            let mut quartz = self.quartz.borrow_mut();
            let was_paused = std::mem::take(&mut quartz.is_paused);
            was_paused && quartz.misses(self.local_now())
        };
        self.changed();
        if tells {
            self.trigger_misfired().await;
        }
    }

    pub fn stop_scheduler(&self) {
        self.quartz.borrow_mut().is_stopped = true;
        self.changed();
    }

    /// The trigger listener: flags on all items that are mine, also those that do not run (H10).
    async fn trigger_misfired(&self) {
        let items = self.my_items().await;
        self.set_misfire(&items).await;
    }
}

/// The scheduler's own thread: it looks for the next fire when the worker is free.
pub async fn run_scheduler(process: Rc<Process>) {
    loop {
        let is_free = |process: &Process| (!process.quartz.borrow().is_busy()).then_some(());
        process.wait_for(is_free).await;
        process.pause(super::threads::Wait::Turn).await;
        if process.quartz.borrow().is_stopped {
            return;
        }
        let now = process.local_now();
        let misfired = {
            let mut quartz = process.quartz.borrow_mut();
            let misfired = !quartz.is_paused && quartz.misses(now);
            if !misfired && !quartz.is_paused && quartz.at_once > 0 {
                quartz.at_once -= 1;
                quartz.fires.push_back(None);
                process.changed();
                continue;
            }
            quartz.is_acquired = !quartz.is_paused && !misfired && quartz.next.is_some();
            misfired
        };
        if misfired {
            process.trigger_misfired().await;
            continue;
        }
        let next = process.quartz.borrow().next;
        let wake = next.map(|next| next - SignedDuration::from_millis(process.options.clock_ahead_ms));
        let something_else = |process: &Process| {
            let quartz = process.quartz.borrow();
            let is_other = quartz.is_stopped || (!quartz.is_paused && quartz.at_once > 0);
            let is_other = is_other || quartz.is_acquired != (!quartz.is_paused && quartz.next.is_some());
            is_other.then_some(())
        };
        let acquired = process.quartz.borrow().is_acquired;
        match wake.filter(|_| acquired) {
            Some(wake) => {
                let _ = process.wait_until(wake, something_else).await;
            }
            None => process.wait_for(something_else).await,
        }
        let mut quartz = process.quartz.borrow_mut();
        let is_due = quartz.next.is_some_and(|next| next <= process.local_now());
        if quartz.is_acquired && is_due && !quartz.is_stopped {
            let fired = quartz.next;
            (quartz.previous, quartz.is_acquired) = (fired, false);
            quartz.next = fired.and_then(|fired| quartz.after(fired));
            quartz.fires.push_back(fired);
            drop(quartz);
            process.changed();
        }
    }
}

/// The one thread that executes.
pub async fn run_worker(process: Rc<Process>) {
    loop {
        let next = |process: &Process| {
            let mut quartz = process.quartz.borrow_mut();
            let fire = quartz.fires.pop_front();
            quartz.is_busy = fire.is_some();
            fire.map(Ok).or(quartz.is_stopped.then_some(Err(())))
        };
        let Ok(fire) = process.wait_for(next).await else { return };
        // Its exception is logged, and the fire is over.
        let _ = process.catch(process.execute(fire)).await;
        process.quartz.borrow_mut().is_busy = false;
        process.changed();
    }
}
