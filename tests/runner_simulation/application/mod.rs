//! Applications as models of the client library: they attach, execute, report and stop as the stream's contract requires,
//! or break it on purpose. Each one attaches to every job of the world.

mod events;
mod executions;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::FutureExt;
use sidekeeper::proto;
use sidekeeper::proto::participant_service_server::ParticipantService;
use tonic::{Code, Request, Status};

use crate::world::World;

/// How long executions may go on in an application that leaves.
const DRAIN: Duration = Duration::from_secs(4);

/// An application: its current process, and after its end the next one.
pub struct App {
    pub place: usize,
    pub id: String,
    /// The name of its instances.
    pub name: Option<String>,
    pub alive: bool,
    /// It reads no message, and no execution ends.
    pub hung: bool,
    /// It ignores cancels.
    pub unresponsive: bool,
    pub leaving: bool,
    /// It has detached, and reads no message.
    pub left: bool,
    /// The number of its processes so far.
    pub life: u64,
    pub seats: Vec<Seat>,
}

/// An application as an instance of one job.
#[derive(Default)]
pub struct Seat {
    pub stream: Option<u64>,
    pub attachment: Option<String>,
    pub instance: String,
    pub assigned: bool,
    pub generation: i64,
    /// Whether each item is disabled.
    pub items: BTreeMap<u32, bool>,
    /// Revoked items that are not acknowledged.
    pub revoked: BTreeSet<u32>,
    pub lease_until: Option<Duration>,
    pub open: BTreeMap<String, Open>,
    /// Results without an answer to their report.
    pub results: BTreeMap<String, (proto::Execute, proto::ExecutionOutcome)>,
    pub reporting: bool,
    /// Whether it was told that no execution follows on this stream.
    pub drained: bool,
    /// Whether it keeps executions without a stream.
    pub kept: bool,
    pub attempts: u32,
    pub refused: bool,
}

/// An execution of an application.
pub struct Open {
    pub execute: proto::Execute,
    pub cancelled: proto::CancelReason,
}

impl World {
    /// Starts an application beside a sidecar. Returns its index.
    pub fn start_app(&mut self, place: usize, name: Option<&str>) -> usize {
        self.apps.push(App {
            place,
            id: String::new(),
            name: name.map(str::to_owned),
            alive: false,
            hung: false,
            unresponsive: false,
            leaving: false,
            left: false,
            life: 0,
            seats: Vec::new(),
        });
        let index = self.apps.len() - 1;
        self.restart_app(index);
        index
    }

    /// Starts the next process of an application.
    pub fn restart_app(&mut self, index: usize) {
        let number = self.timeline.chance(crate::random::Random::next);
        let seats = self.jobs.iter().map(|_| Seat::default()).collect();
        let app = &mut self.apps[index];
        if app.alive {
            return;
        }
        app.life += 1;
        app.id = format!("app-{index}-{number:016x}");
        (app.alive, app.hung, app.unresponsive) = (true, false, false);
        (app.leaving, app.left, app.seats) = (false, false, seats);
        self.timeline.log(format!("application {index} starts"));
        for job in 0..self.jobs.len() {
            self.attach(index, job);
        }
    }

    pub fn attach(&mut self, index: usize, job: usize) {
        let app = &self.apps[index];
        let seat = &app.seats[job];
        if !app.alive || app.hung || app.leaving || seat.stream.is_some() || seat.refused {
            return;
        }
        let request = proto::AttachRequest {
            job_name: self.jobs[job].name.clone(),
            configuration: Some(self.jobs[job].configuration()),
            application_id: app.id.clone(),
            instance_name: app.name.clone().unwrap_or_default(),
            open_executions: seat.open_executions(),
            ..Default::default()
        };
        let stream = self.open_stream(index, job, request);
        self.apps[index].seats[job].stream = Some(stream);
    }

    /// Kills an application.
    pub fn kill_app(&mut self, index: usize) {
        if !self.apps[index].alive {
            return;
        }
        self.timeline.fault("application dies");
        self.timeline.log(format!("application {index} dies"));
        self.end_app(index);
    }

    fn end_app(&mut self, index: usize) {
        for job in 0..self.jobs.len() {
            self.abandon(index, job);
            if let Some(stream) = self.apps[index].seats[job].stream.take() {
                self.close_stream(stream);
            }
        }
        self.apps[index].alive = false;
        // The executions of a dead process end, also those of an unresponsive application.
        for executing in self.executing.values_mut() {
            executing.retain(|(app, _)| *app != index);
        }
    }

    /// An application hangs: it reads no message, and its executions never end.
    pub fn hang_app(&mut self, index: usize) {
        if self.apps[index].alive {
            self.timeline.fault("application hangs");
            self.timeline.log(format!("application {index} hangs"));
            self.apps[index].hung = true;
            self.release_all_items(index);
        }
    }

    /// From now on the application ignores cancels.
    pub fn ignore_cancels(&mut self, index: usize) {
        if self.apps[index].alive {
            self.timeline.fault("cancels ignored");
            self.timeline.log(format!("application {index} ignores cancels from now on"));
            self.apps[index].unresponsive = true;
            self.release_all_items(index);
        }
    }

    /// An application leaves: it tells its sidecar, executes what was started, reports that, and detaches.
    pub fn leave_app(&mut self, index: usize) {
        let app = &mut self.apps[index];
        if !app.alive || app.leaving || app.hung {
            return;
        }
        app.leaving = true;
        let life = app.life;
        self.timeline.log(format!("application {index} leaves"));
        let seats = self.apps[index].seats.iter();
        let attachments: Vec<_> = seats.filter_map(|seat| seat.attachment.clone()).collect();
        for attachment_id in attachments {
            let request = proto::DrainAttachmentRequest { attachment_id, for_good: false };
            let work = move |life: &crate::sidecar::Life| {
                let participants = life.participants.clone();
                async move { participants.drain_attachment(Request::new(request)).await }.boxed()
            };
            self.call(self.apps[index].place, work, |_, _| {});
        }
        let deadline = self.timeline.now() + DRAIN;
        self.leave_when_done(index, life, deadline);
    }

    fn leave_when_done(&mut self, index: usize, life: u64, deadline: Duration) {
        let app = &self.apps[index];
        if !app.alive || app.life != life {
            return;
        }
        let is_busy = |seat: &Seat| {
            let is_told = seat.drained || seat.stream.is_none();
            !is_told || !seat.open.is_empty() || !seat.results.is_empty()
        };
        let busy = app.seats.iter().any(is_busy);
        if busy && self.timeline.now() < deadline {
            let again = Duration::from_millis(20);
            return self.timeline.after(again, move |world| world.leave_when_done(index, life, deadline));
        }
        for job in 0..self.jobs.len() {
            self.abandon(index, job);
            let seat = &self.apps[index].seats[job];
            if let (Some(attachment_id), true) = (seat.attachment.clone(), seat.stream.is_some()) {
                self.detach(index, attachment_id);
            }
        }
        self.apps[index].left = true;
        // It waits a moment for the answer to the detach, and ends.
        self.timeline.after(Duration::from_millis(100), move |world| {
            if world.apps[index].life == life && world.apps[index].alive {
                world.end_app(index);
            }
        });
    }

    fn detach(&mut self, index: usize, attachment_id: String) {
        let request = proto::DetachRequest { attachment_id, for_good: false };
        let work = move |life: &crate::sidecar::Life| {
            let participants = life.participants.clone();
            async move { participants.detach(Request::new(request)).await }.boxed()
        };
        self.call(self.apps[index].place, work, |_, _| {});
    }

    /// A stream has ended.
    pub fn stream_ended(&mut self, index: usize, job: usize, end: Result<(), Status>) {
        let code = end.as_ref().map_or_else(Status::code, |()| Code::Ok);
        let message = end.as_ref().map_or_else(|status| status.message().to_owned(), |()| String::new());
        self.timeline.log(format!("application {index}, job {job}: stream ended: {code:?} {message}"));
        let place = &self.places[self.apps[index].place];
        let leaves = self.apps[index].leaving || place.life.as_ref().is_none_or(|life| life.draining);
        if self.exact && !leaves {
            self.violation("without faults no stream ends", &message);
        }
        let broken = matches!(
            code,
            Code::Cancelled | Code::Internal | Code::ResourceExhausted | Code::Unavailable | Code::Unknown
        );
        let grace = self.jobs[job].grace;
        let seat = &mut self.apps[index].seats[job];
        seat.stream = None;
        let attached = seat.attachment.take().is_some();
        (seat.reporting, seat.assigned, seat.drained) = (false, false, false);
        if broken && !grace.is_zero() {
            if attached {
                self.keep(index, job, grace);
            }
        } else {
            self.abandon(index, job);
        }
        let seat = &mut self.apps[index].seats[job];
        seat.refused = code == Code::FailedPrecondition;
        seat.attempts = if attached { 0 } else { seat.attempts + 1 };
        let pause_max = 200 << seat.attempts.min(3);
        let pause = self.timeline.chance(|random| random.millis(20, pause_max));
        let life = self.apps[index].life;
        self.timeline.after(pause, move |world| {
            if world.apps[index].life == life {
                world.attach(index, job);
            }
        });
    }
}
