//! An application handles the messages of its sidecar, and checks the promises at each.

use std::time::Duration;

use futures::FutureExt;
use sidekeeper::proto;
use sidekeeper::proto::attach_response::Event;
use sidekeeper::proto::participant_service_server::ParticipantService;
use tonic::Request;

use super::Seat;
use crate::world::{SESSION_TIMEOUT, World};

/// How much older than the state of the registry a notice may be without network faults.
const STALE_MAX: Duration = Duration::from_millis(500);

impl Seat {
    /// The open executions that the application names when it reattaches.
    pub(super) fn open_executions(&self) -> Vec<proto::OpenExecution> {
        let lost = proto::CancelReason::LeaseLost;
        let open = self.open.values().filter(|open| open.cancelled != lost);
        let open = open.map(|open| (&open.execute, open.cancelled));
        let ended = self.results.values().map(|(execute, _)| (execute, proto::CancelReason::Unspecified));
        let message = |(execute, cancelled): (&proto::Execute, proto::CancelReason)| proto::OpenExecution {
            execution_id: execute.execution_id.clone(),
            fencing_token: execute.fencing_token,
            scheduled_time: execute.scheduled_time,
            source: execute.source,
            attempt: execute.attempt,
            deadline: execute.deadline,
            cancel_reason: cancelled.into(),
        };
        open.chain(ended).map(message).collect()
    }
}

impl World {
    /// An application reads a message.
    pub fn receive(&mut self, index: usize, job: usize, message: proto::AttachResponse) {
        let Some(event) = message.event else { return };
        let seat = &mut self.apps[index].seats[job];
        let first = seat.attachment.is_none();
        if first != matches!(event, Event::Attached(_) | Event::Waiting(_)) {
            self.violation(
                "the stream's contract",
                &format!("application {index}: Attached is not first: {event:?}"),
            );
        }
        match event {
            Event::Attached(attached) => self.attached(index, job, attached),
            Event::AssignmentChanged(changed) => self.assigned(index, job, changed),
            Event::Execute(execute) => {
                if self.apps[index].seats[job].drained {
                    let what = format!("application {index}: item {} after Draining", execute.item);
                    self.violation("the stream's contract", &what);
                }
                self.execute(index, job, execute);
            }
            Event::Cancel(cancel) => {
                let (id, reason) = (cancel.execution_id.clone(), cancel.reason());
                self.timeline
                    .log(format!("application {index}, job {job}: cancel {} {reason:?}", cancel.item));
                self.cancel(index, job, &id, reason);
            }
            Event::SessionChanged(changed) => self.session_changed(index, job, &changed),
            Event::Draining(_) => {
                self.apps[index].seats[job].drained = true;
                self.timeline.log(format!("application {index}, job {job}: draining"));
            }
            Event::LeadershipChanged(_)
            | Event::JobChanged(_)
            | Event::BeforeFirst(_)
            | Event::AfterLast(_)
            | Event::Waiting(_) => {}
        }
    }

    fn attached(&mut self, index: usize, job: usize, attached: proto::Attached) {
        let resumed = attached.resumed_execution_ids;
        self.timeline.log(format!(
            "application {index}, job {job}: attached as {}, {} resumed",
            attached.instance_id,
            resumed.len()
        ));
        let stream = self.apps[index].seats[job].stream.and_then(|number| self.streams.get(&number));
        // A sidecar that is about to stop may still accept an application.
        let paused = self.executor.lags > 0 || self.places[self.apps[index].place].paused;
        if stream.is_some_and(|stream| stream.late) && !paused {
            self.violation(
                "no application attaches to a sidecar that is stopping",
                &format!("application {index}"),
            );
        }
        // The sidecar has discarded the other executions.
        let seat = &mut self.apps[index].seats[job];
        let not_ours: Vec<_> = seat.open.keys().filter(|id| !resumed.contains(id)).cloned().collect();
        seat.results.retain(|id, _| resumed.contains(id));
        (seat.attachment, seat.kept) = (Some(attached.attachment_id), false);
        seat.instance = attached.instance_id;
        (seat.generation, seat.lease_until) = (i64::MIN, None);
        seat.revoked.clear();
        // A complete assignment follows.
        self.release_items_of_job(index, job);
        for id in not_ours {
            self.stop(index, job, &id);
        }
    }

    fn assigned(&mut self, index: usize, job: usize, changed: proto::AssignmentChanged) {
        let reason = changed.reason();
        let assignment = changed.assignment.unwrap();
        let items: Vec<_> = assignment.items.iter().map(|item| item.item).collect();
        self.timeline.log(format!(
            "application {index}, job {job}: generation {}, items {items:?}, revoked {:?}, {reason:?}",
            assignment.generation, changed.revoked_items
        ));
        let seat = &mut self.apps[index].seats[job];
        let is_first = !seat.assigned;
        if is_first != (reason == proto::AssignmentReason::Attached) {
            self.violation(
                "the stream's contract",
                &format!("application {index}: {reason:?} at the wrong place"),
            );
        }
        if assignment.generation < seat.generation {
            self.violation("generations never go backwards", &format!("application {index}"));
        }
        let before = std::mem::take(&mut seat.items);
        (seat.generation, seat.assigned) = (assignment.generation, true);
        seat.items = assignment.items.iter().map(|item| (item.item, item.disabled)).collect();
        seat.revoked.extend(before.into_keys());
        seat.revoked.retain(|item| !items.contains(item));
        if !self.jobs[job].drained || reason == proto::AssignmentReason::SessionLost {
            self.release_revoked(index, job);
        }
        for item in items {
            self.record_item(index, job, item);
        }
        self.acknowledge_if_done(index, job);
    }

    /// Records that an application has an item in its assignment, and checks that no other application has it.
    pub(super) fn record_item(&mut self, index: usize, job: usize, item: u32) {
        if self.apps[index].unresponsive || self.apps[index].hung {
            return;
        }
        if !self.is_owned_by(job, item, &self.apps[index].seats[job].instance) {
            // The notice may be old: an instance with the id of an earlier one gets its items until its view is newer.
            let life = self.apps[index].life;
            return self.timeline.after(STALE_MAX, move |world| {
                let app = &world.apps[index];
                if app.alive && app.life == life && app.seats[job].items.contains_key(&item) {
                    world.record_item(index, job, item);
                }
            });
        }
        let owners = self.owners.entry((job, item)).or_default();
        owners.insert(index);
        let others: Vec<_> = owners.iter().copied().filter(|other| *other != index).collect();
        if others.is_empty() {
            return;
        }
        // An application whose sidecar drains gets the revocation only after its instance has left.
        let leaves = |other: &usize| {
            self.places[self.apps[*other].place].life.as_ref().is_none_or(|life| life.draining)
        };
        let by_handoff = self.ensemble.was_handed_over(&self.item_path(job, item));
        if self.jobs[job].drained && by_handoff && !others.iter().all(leaves) {
            self.violation(
                "an item is revoked before the next owner is notified",
                &format!(
                    "item {item} of job {job} is assigned to {index}, and {others:?} have not released it"
                ),
            );
        }
        // A resharding in the mode `AllAtOnce` is notified to all applications at once, and some notices are late.
        let bound = if self.exact { STALE_MAX } else { SESSION_TIMEOUT };
        self.timeline.after(bound, move |world| {
            let still = world.owners.get(&(job, item)).is_some_and(|owners| {
                owners.contains(&index) && others.iter().any(|other| owners.contains(other))
            });
            if still {
                let what = format!("item {item} of job {job} is {index}'s and {others:?}'s");
                world.violation("an item is revoked before the next owner is notified", &what);
            }
        });
    }

    /// The application has released its revoked items.
    fn release_revoked(&mut self, index: usize, job: usize) {
        for item in std::mem::take(&mut self.apps[index].seats[job].revoked) {
            self.release_item(index, job, item);
        }
    }

    fn release_item(&mut self, index: usize, job: usize, item: u32) {
        if let Some(owners) = self.owners.get_mut(&(job, item)) {
            owners.remove(&index);
        }
    }

    /// An application releases all items of a job.
    pub(super) fn release_items_of_job(&mut self, index: usize, job: usize) {
        for item in 0..self.jobs[job].total {
            self.release_item(index, job, item);
        }
    }

    pub(super) fn release_all_items(&mut self, index: usize) {
        for job in 0..self.jobs.len() {
            self.release_items_of_job(index, job);
        }
    }

    /// Acknowledges the assignment once no revoked item is executed.
    pub(super) fn acknowledge_if_done(&mut self, index: usize, job: usize) {
        let seat = &self.apps[index].seats[job];
        let busy = seat.open.values().any(|open| seat.revoked.contains(&open.execute.item));
        let (Some(attachment_id), false) = (seat.attachment.clone(), busy || !seat.assigned) else { return };
        let generation = seat.generation;
        self.release_revoked(index, job);
        let request = proto::AcknowledgeAssignmentRequest { attachment_id, generation };
        let work = move |life: &crate::sidecar::Life| {
            let participants = life.participants.clone();
            async move { participants.acknowledge_assignment(Request::new(request)).await }.boxed()
        };
        self.call(self.apps[index].place, work, |_, _| {});
    }

    fn session_changed(&mut self, index: usize, job: usize, changed: &proto::SessionChanged) {
        let lease = changed.remaining_lease.map(|lease| Duration::try_from(lease).unwrap_or_default());
        let until = lease.map(|lease| self.timeline.now() + lease);
        let seat = &mut self.apps[index].seats[job];
        let was_silent = seat.lease_until.is_some_and(|until| until <= self.timeline.now());
        seat.lease_until = until;
        if changed.state() != proto::SessionState::Connected {
            self.timeline.log(format!("application {index}, job {job}: session {:?}", changed.state()));
        }
        if was_silent && changed.state() == proto::SessionState::Connected {
            // The lease was over at the application, and is renewed.
            let items: Vec<_> = self.apps[index].seats[job].items.keys().copied().collect();
            for item in items {
                self.record_item(index, job, item);
            }
        }
        let life = self.apps[index].life;
        if let Some(until) = until {
            self.timeline.at(until, move |world| {
                let seat = &world.apps[index].seats[job];
                if world.apps[index].life == life && seat.lease_until == Some(until) && seat.stream.is_some()
                {
                    world.end_lease(index, job);
                }
            });
        }
    }

    /// The lease is over without a renewal.
    fn end_lease(&mut self, index: usize, job: usize) {
        self.timeline.log(format!("application {index}, job {job}: the lease is over"));
        self.release_items_of_job(index, job);
        let ids: Vec<_> = self.apps[index].seats[job].open.keys().cloned().collect();
        for id in ids {
            self.cancel(index, job, &id, proto::CancelReason::LeaseLost);
        }
    }
}
