//! The events and effects of a participant, as numbers for Prometheus. Decides only which counter an event or an effect belongs to.

use std::sync::Arc;
use std::time::Duration;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::{Reported, RetryNews};
use crate::coordination::job::contract::event::{CancelReason, Event};
use crate::coordination::job::contract::plan::Source;
use crate::coordination::job::contract::report::Outcome;
use crate::coordination::job::participant::Participant;
use crate::coordination::time::Now;
use crate::metrics::meters::{Exemplar, JobMeters};
use crate::metrics::words;
use crate::telemetry::spans::Traced;
use crate::tree::{Operation, Transaction};

/// The numbers of one participant.
pub(super) struct Measure {
    meters: Arc<JobMeters>,
    /// This participant's part of the gauges.
    unreported: i64,
    unrecorded: i64,
}

impl Measure {
    pub(super) fn new(meters: Arc<JobMeters>) -> Self {
        Self { meters, unreported: 0, unrecorded: 0 }
    }

    /// An event goes to the application. `traced`: the span of the execution.
    pub(super) fn event(&self, now: Now, event: &Event, traced: Option<&Traced>) {
        match event {
            Event::Execute(execute) if !execute.resumed => {
                if execute.attempt > 1 {
                    self.meters.retries.inc();
                } else if execute.source == Source::Schedule {
                    let late = now.wall.duration_since(execute.scheduled);
                    let late = Duration::try_from(late).unwrap_or_default();
                    let instant = u64::try_from(execute.scheduled.as_millisecond()).unwrap_or_default();
                    self.meters.fired(instant, late, exemplar(now, traced));
                }
            }
            Event::AssignmentChanged { added, .. } => {
                self.meters.received.inc_by(u64::try_from(added.len()).unwrap_or(u64::MAX));
            }
            Event::Cancel { reason, .. } => self.meters.cancelled(match reason {
                CancelReason::LeaseLost => words::Cancel::LeaseLost,
                CancelReason::Deadline => words::Cancel::Deadline,
                CancelReason::Operator => words::Cancel::Operator,
                CancelReason::DrainTimeout => words::Cancel::DrainTimeout,
                CancelReason::ItemLockLost => words::Cancel::ItemLockLost,
            }),
            Event::Execute(_)
            | Event::Attached { .. }
            | Event::LeadershipChanged(_)
            | Event::SessionChanged { .. }
            | Event::LeaseRenewed { .. }
            | Event::JobChanged { .. }
            | Event::Waiting(_)
            | Event::CallListener(_)
            | Event::Draining { .. } => {}
        }
    }

    /// The application has reported an execution. `traced`: its span.
    pub(super) fn reported(&self, now: Now, reported: &Reported, traced: Option<&Traced>) {
        let source = match reported.source {
            Source::Schedule => words::Source::Schedule,
            Source::Misfire => words::Source::Misfire,
            Source::Trigger => words::Source::Trigger,
            Source::Failover => words::Source::Failover,
        };
        let outcome = match reported.outcome {
            Outcome::Success => words::Outcome::Success,
            Outcome::Failure(_) => words::Outcome::Failure,
            Outcome::Rejected(_) => words::Outcome::Rejected,
            Outcome::Interrupted(_) => words::Outcome::Interrupted,
        };
        self.meters.reported(source, outcome, reported.lasted, exemplar(now, traced));
    }

    /// Nobody will record how an execution ended.
    pub(super) fn lost(&self) {
        self.meters.lost.inc();
    }

    /// The consequence of a failed execution.
    pub(super) fn retry(&self, news: RetryNews) {
        match news {
            // The attempt counts when it begins.
            RetryNews::Waits { .. } => {}
            RetryNews::Dropped { .. } | RetryNews::GivenUp { .. } => {
                self.meters.given_up.inc();
            }
        }
    }

    /// A fire is not executed.
    pub(super) fn skipped(&self) {
        self.meters.skipped.inc();
    }

    /// The work of a transaction, to be counted when the registry has carried it out.
    pub(super) fn work(&self, purpose: Purpose, transaction: &Transaction) -> Work {
        let is_created = |operation: &&Operation| matches!(operation, Operation::Create { .. });
        let created = || u64::try_from(transaction.iter().filter(is_created).count()).unwrap_or(u64::MAX);
        Work {
            meters: Arc::clone(&self.meters),
            misfires: if purpose == Purpose::FlagMisfire { created() } else { 0 },
            reshardings: u64::from(purpose == Purpose::Shard),
        }
    }

    /// The participant has made a step.
    pub(super) fn stepped(&mut self, participant: &Participant) {
        self.set(participant.unreported(), participant.unrecorded());
    }

    fn set(&mut self, unreported: usize, unrecorded: usize) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let (unreported, unrecorded) = (number(unreported), number(unrecorded));
        if unreported != self.unreported {
            self.meters.running.inc_by(unreported.saturating_sub(self.unreported));
            self.unreported = unreported;
        }
        if unrecorded != self.unrecorded {
            self.meters.pending.inc_by(unrecorded.saturating_sub(self.unrecorded));
            self.unrecorded = unrecorded;
        }
    }

    /// The participant has ended. The executions that it leaves have no report.
    pub(super) fn ended(&mut self, participant: &Participant) {
        self.meters.lost.inc_by(u64::try_from(participant.unreported()).unwrap_or(u64::MAX));
        self.set(0, 0);
    }
}

/// The execution as an example for its bucket of a histogram, if its trace can be found.
fn exemplar(now: Now, traced: Option<&Traced>) -> Option<Exemplar> {
    Some(Exemplar { trace_id: traced?.sampled_trace()?, at: now.wall.into() })
}

/// The work of a transaction.
pub(super) struct Work {
    meters: Arc<JobMeters>,
    misfires: u64,
    reshardings: u64,
}

impl Work {
    /// The registry has carried it out.
    pub(super) fn done(&self) {
        self.meters.misfires.inc_by(self.misfires);
        self.meters.reshardings.inc_by(self.reshardings);
    }
}
