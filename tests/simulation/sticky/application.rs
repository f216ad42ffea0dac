//! The application of a candidate: what it does next, what it believes, and whether it acts.

use std::collections::BTreeSet;
use std::time::Duration;

use sidekeeper::coordination::sticky::contract::{Answer, Call, Event, Leases};
use sidekeeper::job::FencingToken;
use sidekeeper::tree::Zxid;

use super::judge::Judge;
use crate::random::Random;

/// The belief of an application about its ownership.
#[derive(Debug, Clone)]
pub struct Owned {
    pub token: FencingToken,
    leases: Leases,
    run: Option<String>,
}

/// The next step of an application.
pub enum Action {
    /// It leaves, sometimes inside a run.
    Leave,
    /// It calls, with this number. The caller of some calls has gone.
    Call { number: u64, call: Call, is_heard: bool },
}

#[derive(Debug)]
pub struct Application {
    pub owned: Option<Owned>,
    /// Whether it counts the lease by itself. Otherwise it relies on the sidecar's word.
    pub counts: bool,
    /// Its owner's node that an operator has deleted last. It may hear of that grant only later.
    pub deleted: Option<Zxid>,
    /// The runs that it was told of by the last `Acquired`.
    told: Vec<i64>,
    pub calls: BTreeSet<u64>,
    is_trying: bool,
    /// The call by which it has resigned: it does not act until the answer.
    resigning: Option<u64>,
    leave_at: Option<Duration>,
    pub has_left: bool,
}

impl Application {
    pub fn new(counts: bool) -> Self {
        Self {
            owned: None,
            counts,
            deleted: None,
            told: Vec::new(),
            calls: BTreeSet::new(),
            is_trying: false,
            resigning: None,
            leave_at: None,
            has_left: false,
        }
    }

    /// What it does next. `number`: of its next call. `None`: nothing.
    pub fn act(
        &mut self,
        random: &mut Random,
        now: Duration,
        judge: &mut Judge,
        number: u64,
    ) -> Option<Action> {
        let inside = self.owned.as_ref().is_some_and(|owned| owned.run.is_some());
        let call = match random.below(16) {
            // When the faults have ended, everybody leaves at last.
            0 => {
                self.leave();
                return Some(Action::Leave);
            }
            1 if self.owned.is_some() => {
                Call::Resolve { token: self.told.first().copied().map(FencingToken)? }
            }
            2 if self.owned.is_some() && random.once_in(3) => {
                self.end_run(judge);
                self.resigning = Some(number);
                Call::Resign
            }
            3 if inside => Call::Checkpoint { data: vec![7; 10] },
            4..=10 if inside => {
                if self.leave_at.is_some_and(|at| now < at) {
                    return None;
                }
                self.end_run(judge);
                Call::Leave { run_id: String::new() }
            }
            _ if !self.is_trying && !inside => {
                self.is_trying = true;
                let wait = Duration::from_millis(random.below(6_000));
                Call::TryRun { wait: if random.once_in(2) { Duration::ZERO } else { wait } }
            }
            _ => return None,
        };
        let is_heard = !(matches!(call, Call::TryRun { .. }) && random.once_in(20));
        if is_heard {
            self.calls.insert(number);
        } else {
            self.is_trying = false;
        }
        Some(Action::Call { number, call, is_heard })
    }

    /// It does not act any more.
    pub fn leave(&mut self) {
        (self.has_left, self.owned) = (true, None);
    }

    fn end_run(&mut self, judge: &mut Judge) {
        if let Some(run) = self.owned.iter_mut().find_map(|owned| owned.run.take()) {
            judge.open.remove(&run);
        }
    }

    /// It hears an event. `is_owner`: whether the registry has its candidate as the owner.
    pub fn hear(&mut self, event: Event, is_owner: bool, judge: &Judge) -> Result<(), String> {
        match event {
            Event::Acquired { token, is_continued, unfinished, leases, .. } => {
                self.resigning = self.resigning.filter(|resigning| self.calls.contains(resigning));
                self.told = unfinished.iter().map(|run| run.token).collect();
                let run = self.owned.as_ref().and_then(|owned| owned.run.clone()).filter(|_| is_continued);
                if !self.has_left {
                    self.owned = Some(Owned { token, leases, run });
                }
                let is_newest = is_owner && token.0 == judge.highest;
                let untold = judge.interrupted.iter().find(|run| is_newest && !self.told.contains(run));
                if let Some(run) = untold {
                    return Err(format!("the owner {token:?} does not hear of the interrupted run {run}"));
                }
            }
            Event::LeaseRenewed(leases) | Event::Suspended(leases) | Event::Resumed(leases) => {
                self.owned.iter_mut().for_each(|owned| owned.leases = leases);
            }
            Event::Lost { .. } => self.owned = None,
            Event::State(_) | Event::Draining { .. } => {}
        }
        Ok(())
    }

    /// It hears the answer to a call. `held`: how long a run takes that begins. Returns whether the caller is there.
    pub fn hear_answer(
        &mut self,
        call: u64,
        answer: Answer,
        (now, held): (Duration, Duration),
        judge: &mut Judge,
    ) -> Result<bool, String> {
        if !self.calls.remove(&call) {
            return Ok(false);
        }
        match answer {
            Answer::Entered { token, run_id, leases } => {
                self.is_trying = false;
                self.resigning = self.resigning.filter(|resigning| self.calls.contains(resigning));
                if self.owned.as_ref().is_none_or(|owned| owned.token != token) && !self.has_left {
                    return Err(format!(
                        "a run of {token:?} begins, and its application has {:?}",
                        self.owned
                    ));
                }
                if let Some(owned) = &mut self.owned {
                    judge.open.insert(run_id.clone());
                    (owned.run, owned.leases) = (Some(run_id), leases);
                    self.leave_at = Some(now + held);
                }
            }
            Answer::Busy(_) | Answer::Refused(_) => self.is_trying = false,
            Answer::Done => {}
        }
        Ok(true)
    }

    /// Whether it acts for the lock. `is_told`: whether the sidecar can tell it of a loss.
    pub fn acts(&self, now: Duration, is_told: bool) -> bool {
        let Some(owned) = &self.owned else { return false };
        let is_over = self.lease_end().is_some_and(|end| now >= end);
        let is_deleted = self.deleted.is_some_and(|deleted| FencingToken::from(deleted) == owned.token);
        !(is_deleted || self.resigning.is_some() || is_over && (self.counts || !is_told))
    }

    /// When the lease ends that its acting rests on.
    pub fn lease_end(&self) -> Option<Duration> {
        let owned = self.owned.as_ref()?;
        if owned.run.is_some() { owned.leases.run } else { owned.leases.owned }
    }
}
