//! Executions in an application, from the event `Execute` to the answer to their report.

use std::time::Duration;

use futures::FutureExt;
use jiff::Timestamp;
use sidekeeper::proto;
use sidekeeper::proto::participant_service_server::ParticipantService;
use tonic::{Code, Request, Response, Status};

use super::Open;
use crate::world::{Start, World};

/// An application without a stream stops its executions this long before the end of `reattach_grace`.
const GRACE_MARGIN: Duration = Duration::from_millis(500);

type Reported = Result<Response<proto::ReportCompletionResponse>, Status>;

impl World {
    pub(super) fn execute(&mut self, index: usize, job: usize, execute: proto::Execute) {
        let (item, id) = (execute.item, execute.execution_id.clone());
        let scheduled = execute.scheduled_time.unwrap();
        let scheduled = Timestamp::new(scheduled.seconds, scheduled.nanos).unwrap();
        let source = execute.source();
        self.timeline.log(format!(
            "application {index}, job {job}: execute {item} for {scheduled} {source:?}, token {}{}",
            execute.fencing_token,
            if execute.resumed { ", resumed" } else { "" }
        ));
        let seat = &self.apps[index].seats[job];
        let assigned = seat.items.get(&item) == Some(&false);
        // The execution of a revoked item may go on to its end, also on another stream.
        let excused = execute.resumed || source == proto::ExecutionSource::Failover;
        if !seat.assigned || (!assigned && !excused) {
            self.violation("Execute is within the assignment", &format!("application {index}, item {item}"));
        }
        if execute.resumed && seat.open.contains_key(&id) {
            return;
        }
        if execute.resumed && seat.results.contains_key(&id) {
            return self.report_later(index, job);
        }
        self.check_single_executor(index, job, item, &id);
        self.check_token(job, &execute);
        self.check_item_trigger(job, &execute);
        if !execute.resumed {
            let attempt = execute.attempt;
            let at = self.timeline.now();
            let start =
                Start { job, item, scheduled, source, attempt, app: index, execution_id: id.clone(), at };
            self.check_started_once(&start);
            self.starts.push(start);
        }
        self.executing.entry((job, item)).or_default().push((index, id.clone()));
        let open = Open { execute, cancelled: proto::CancelReason::Unspecified };
        self.apps[index].seats[job].open.insert(id.clone(), open);
        let takes = self.timeline.chance(|random| random.millis(0, self.duration_max));
        let life = self.apps[index].life;
        self.timeline.after(takes, move |world| world.finish(index, life, job, &id));
    }

    /// An execution ends.
    fn finish(&mut self, index: usize, life: u64, job: usize, id: &str) {
        let app = &self.apps[index];
        if !app.alive || app.hung || app.life != life {
            return;
        }
        self.end_with(index, job, id, proto::ExecutionOutcome::Success);
    }

    fn end_with(&mut self, index: usize, job: usize, id: &str, outcome: proto::ExecutionOutcome) {
        let Some(open) = self.apps[index].seats[job].open.remove(id) else { return };
        self.ended(index, job, open.execute.item, id);
        let seat = &mut self.apps[index].seats[job];
        seat.results.insert(id.to_owned(), (open.execute, outcome));
        self.acknowledge_if_done(index, job);
        self.report_later(index, job);
    }

    fn ended(&mut self, index: usize, job: usize, item: u32, id: &str) {
        if let Some(executing) = self.executing.get_mut(&(job, item)) {
            executing.retain(|(app, other)| *app != index || other != id);
        }
    }

    /// An execution gets a cancel.
    pub(super) fn cancel(&mut self, index: usize, job: usize, id: &str, reason: proto::CancelReason) {
        if self.apps[index].unresponsive {
            return;
        }
        let Some(open) = self.apps[index].seats[job].open.get_mut(id) else { return };
        if open.cancelled == proto::CancelReason::Unspecified {
            open.cancelled = reason;
        }
        let takes = self.timeline.chance(|random| random.millis(0, 150));
        let (life, id) = (self.apps[index].life, id.to_owned());
        self.timeline.after(takes, move |world| {
            if world.apps[index].life == life && world.apps[index].alive && !world.apps[index].hung {
                world.end_with(index, job, &id, proto::ExecutionOutcome::Failure);
            }
        });
    }

    /// An execution stops at once, without a report.
    pub(super) fn stop(&mut self, index: usize, job: usize, id: &str) {
        if self.apps[index].unresponsive {
            return;
        }
        if let Some(open) = self.apps[index].seats[job].open.remove(id) {
            self.ended(index, job, open.execute.item, id);
        }
    }

    /// All executions and results of an application in a job are dropped without a report.
    pub(super) fn abandon(&mut self, index: usize, job: usize) {
        let ids: Vec<_> = self.apps[index].seats[job].open.keys().cloned().collect();
        for id in ids {
            self.stop(index, job, &id);
        }
        let seat = &mut self.apps[index].seats[job];
        seat.results.clear();
        seat.items.clear();
        seat.revoked.clear();
        (seat.kept, seat.lease_until) = (false, None);
        self.release_items_of_job(index, job);
    }

    /// The stream has broken; the executions go on until `reattach_grace` or the lease ends.
    pub(super) fn keep(&mut self, index: usize, job: usize, grace: Duration) {
        let now = self.timeline.now();
        let seat = &mut self.apps[index].seats[job];
        let lease = seat.lease_until.unwrap_or(Duration::MAX);
        let until = lease.min(now + grace.saturating_sub(GRACE_MARGIN)).max(now);
        seat.kept = true;
        (seat.lease_until, seat.items) = (None, Default::default());
        let life = self.apps[index].life;
        self.timeline.at(until, move |world| {
            let seat = &world.apps[index].seats[job];
            if world.apps[index].life == life && seat.kept && world.apps[index].alive {
                world.abandon(index, job);
            }
        });
    }

    fn report_later(&mut self, index: usize, job: usize) {
        let late = if self.sloppy { 300 } else { 2 };
        let pause = self.timeline.chance(|random| random.micros(0, late * 1_000));
        let life = self.apps[index].life;
        self.timeline.after(pause, move |world| world.report(index, life, job));
    }

    fn report(&mut self, index: usize, life: u64, job: usize) {
        let app = &mut self.apps[index];
        if !app.alive || app.hung || app.life != life {
            return;
        }
        let seat = &mut app.seats[job];
        let (Some(attachment_id), Some(stream)) = (seat.attachment.clone(), seat.stream) else { return };
        if seat.reporting || seat.results.is_empty() {
            return;
        }
        seat.reporting = true;
        let result = |(id, (_, outcome)): (&String, &(_, proto::ExecutionOutcome))| proto::ExecutionResult {
            execution_id: id.clone(),
            outcome: (*outcome).into(),
            failure_message: String::new(),
        };
        let results: Vec<_> = seat.results.iter().map(result).collect();
        let ids: Vec<_> = results.iter().map(|result| result.execution_id.clone()).collect();
        let request = proto::ReportCompletionRequest { attachment_id, results };
        let twice = self.sloppy && self.timeline.chance(|random| random.once_in(8));
        if twice {
            self.timeline.fault("reported twice");
            self.send_report(index, request.clone(), |_, _| {});
        }
        self.send_report(index, request, move |world, answer| {
            let same = world.apps[index].seats[job].stream == Some(stream);
            if world.apps[index].life == life && same {
                world.reported(index, job, &ids, answer);
            }
        });
    }

    fn send_report(
        &mut self,
        index: usize,
        request: proto::ReportCompletionRequest,
        done: impl FnOnce(&mut Self, Reported) + Send + 'static,
    ) {
        let work = move |life: &crate::sidecar::Life| {
            let participants = life.participants.clone();
            async move { participants.report_completion(Request::new(request)).await }.boxed()
        };
        self.call(self.apps[index].place, work, done);
    }

    /// A report was answered, or has failed.
    fn reported(&mut self, index: usize, job: usize, ids: &[String], answer: Reported) {
        self.apps[index].seats[job].reporting = false;
        match answer {
            Ok(response) => {
                let records = response.into_inner().records;
                if !records.iter().map(|record| &record.execution_id).eq(ids) {
                    self.violation("each result is answered", &format!("{ids:?}: {records:?}"));
                }
                for record in records {
                    let status = record.status();
                    if self.exact && status != proto::CompletionStatus::Recorded && !self.sloppy {
                        self.violation(
                            "a completion is recorded",
                            &format!("application {index}: {status:?}"),
                        );
                    }
                    if status == proto::CompletionStatus::Recorded {
                        *self.recorded.entry(record.execution_id.clone()).or_default() += 1;
                    }
                    self.apps[index].seats[job].results.remove(&record.execution_id);
                }
            }
            Err(status) => {
                let text =
                    format!("application {index}, job {job}: {:?} {}", status.code(), status.message());
                self.timeline.log(&text);
                if self.exact {
                    self.violation("a completion is recorded", &text);
                }
                let refused =
                    [Code::FailedPrecondition, Code::InvalidArgument, Code::NotFound, Code::PermissionDenied];
                if refused.contains(&status.code()) {
                    self.apps[index].seats[job].results.retain(|id, _| !ids.contains(id));
                }
            }
        }
        let again = self.timeline.chance(|random| random.millis(1, 400));
        let life = self.apps[index].life;
        self.timeline.after(again, move |world| world.report(index, life, job));
    }
}
