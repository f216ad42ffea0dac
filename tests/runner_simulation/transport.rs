//! The transport between an application and its sidecar: streams, which the application reads at its own pace, and calls.
//! Both call the methods of the service in a task of the sidecar's process; their messages arrive after a delay.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::StreamExt;
use futures::future::BoxFuture;
use sidekeeper::api::participant::Participants;
use sidekeeper::proto;
use sidekeeper::proto::participant_service_server::ParticipantService;
use tokio::sync::Semaphore;
use tonic::{Request, Status};

use crate::executor::{Process, TaskId};
use crate::sidecar::Life;
use crate::timeline::Timeline;
use crate::world::World;

/// The number of messages in flight that the application has not read.
const WINDOW: usize = 16;
/// How long an application waits for an answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// An open stream, seen from the application.
pub struct Stream {
    pub app: usize,
    pub job: usize,
    /// Whether the sidecar was already stopping when the stream was opened.
    pub late: bool,
    process: Option<Process>,
    task: Option<TaskId>,
    window: Arc<Semaphore>,
}

/// The messages of a stream.
pub enum Arrival {
    Message(Box<proto::AttachResponse>),
    End(Result<(), Status>),
}

type Fail = Box<dyn FnOnce(&mut World, Status) + Send>;

/// A call that is not answered.
pub struct Call {
    process: Process,
    fail: Fail,
}

impl World {
    /// An application opens a stream. Returns its number.
    pub fn open_stream(&mut self, app: usize, job: usize, request: proto::AttachRequest) -> u64 {
        let number = self.next_number();
        let window = Arc::new(Semaphore::new(WINDOW));
        let stream = Stream { app, job, late: false, process: None, task: None, window };
        self.streams.insert(number, stream);
        let hop = Self::short_hop(&self.timeline);
        self.timeline.after(hop, move |world| world.accept(number, request));
        number
    }

    fn accept(&mut self, number: u64, request: proto::AttachRequest) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let Some(life) = &self.places[self.apps[stream.app].place].life else {
            let hop = Self::short_hop(&self.timeline);
            let refused = Arrival::End(Err(Status::unavailable("no sidecar listens")));
            return self.timeline.after(hop, move |world| world.arrive(number, refused));
        };
        let participants = life.participants.clone();
        let serving = serve(participants, request, number, self.timeline.clone(), Arc::clone(&stream.window));
        stream.late = life.draining;
        stream.process = Some(life.process);
        stream.task = Some(self.executor.spawner.spawn(life.process, Box::pin(serving)));
    }

    /// A message or the end of a stream reaches the application.
    fn arrive(&mut self, number: u64, arrival: Arrival) {
        let Some(stream) = self.streams.get(&number) else { return };
        let (app, job) = (stream.app, stream.job);
        if self.apps[app].hung || self.apps[app].left {
            // The application does not read.
            return;
        }
        stream.window.add_permits(1);
        match arrival {
            Arrival::Message(message) => self.receive(app, job, *message),
            Arrival::End(end) => {
                self.streams.remove(&number);
                self.stream_ended(app, job, end);
            }
        }
    }

    /// The application closed its stream, or is dead.
    pub fn close_stream(&mut self, number: u64) {
        let Some(stream) = self.streams.remove(&number) else { return };
        let hop = Self::short_hop(&self.timeline);
        if let Some(task) = stream.task {
            self.timeline.after(hop, move |world| world.executor.drop_task(task));
        }
    }

    /// The process of a sidecar is dead: its streams and calls end.
    pub fn sever(&mut self, process: Process) {
        let streams: Vec<_> = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.process == Some(process))
            .map(|(number, _)| *number)
            .collect();
        for number in streams {
            let hop = Self::short_hop(&self.timeline);
            let broken = Arrival::End(Err(Status::unavailable("connection reset")));
            self.timeline.after(hop, move |world| world.arrive(number, broken));
        }
        let of_process = |(_, call): &(&u64, &Call)| call.process == process;
        let calls: Vec<_> = self.calls.iter().filter(of_process).map(|(number, _)| *number).collect();
        for number in calls {
            let hop = Self::short_hop(&self.timeline);
            self.timeline.after(hop, move |world| world.fail_call(number, Status::unavailable("reset")));
        }
    }

    fn fail_call(&mut self, number: u64, status: Status) {
        if let Some(call) = self.calls.remove(&number) {
            (call.fail)(self, status);
        }
    }

    /// Calls a method of the sidecar at a place; `done` gets the answer.
    pub fn call<T: Send + 'static>(
        &mut self,
        place: usize,
        work: impl FnOnce(&Life) -> BoxFuture<'static, Result<T, Status>> + Send + 'static,
        done: impl FnOnce(&mut Self, Result<T, Status>) + Send + 'static,
    ) {
        let number = self.next_number();
        let hop = Self::short_hop(&self.timeline);
        self.timeline.after(hop, move |world| {
            let Some(life) = &world.places[place].life else {
                let back = Self::short_hop(&world.timeline);
                let refused = Err(Status::unavailable("no sidecar listens"));
                return world.timeline.after(back, move |world| done(world, refused));
            };
            let process = life.process;
            let done = Arc::new(Mutex::new(Some(done)));
            let fails = Arc::clone(&done);
            let fail: Fail = Box::new(move |world: &mut Self, status| {
                let done = fails.lock().unwrap().take();
                if let Some(done) = done {
                    done(world, Err(status));
                }
            });
            let (working, timeline) = (work(life), world.timeline.clone());
            let task = working.map(move |result| {
                let back = Self::short_hop(&timeline);
                timeline.after(back, move |world: &mut Self| {
                    world.calls.remove(&number);
                    let done = done.lock().unwrap().take();
                    if let Some(done) = done {
                        done(world, result);
                    }
                });
            });
            world.calls.insert(number, Call { process, fail });
            let task = world.executor.spawner.spawn(process, Box::pin(task));
            world.timeline.after(CALL_TIMEOUT, move |world| {
                if world.calls.contains_key(&number) {
                    world.executor.drop_task(task);
                    world.fail_call(number, Status::deadline_exceeded("no answer"));
                }
            });
        });
    }
}

/// Serves a stream on the sidecar's side.
async fn serve(
    participants: Participants,
    request: proto::AttachRequest,
    number: u64,
    timeline: Timeline,
    window: Arc<Semaphore>,
) {
    let mut last = Duration::ZERO;
    let mut send = move |arrival: Arrival| {
        // Messages arrive in order.
        last = last.max(timeline.now() + World::short_hop(&timeline));
        timeline.at(last, move |world| world.arrive(number, arrival));
    };
    let mut events = match participants.attach(Request::new(request)).await {
        Ok(response) => response.into_inner(),
        Err(status) => return send(Arrival::End(Err(status))),
    };
    loop {
        // A message that the application does not read stays with the sidecar.
        if let Ok(permit) = window.acquire().await {
            permit.forget();
        }
        match events.next().await {
            Some(Ok(message)) => send(Arrival::Message(Box::new(message))),
            Some(Err(status)) => return send(Arrival::End(Err(status))),
            None => return send(Arrival::End(Ok(()))),
        }
    }
}
