//! Processes that start, end and die, and the streams between them.

use std::sync::Arc;
use std::time::Duration;

use sidekeeper::coordination::job::contract::input::Input;
use sidekeeper::coordination::job::contract::reattach::{Former, OpenExecution, Return};
use sidekeeper::coordination::job::contract::request::Request;
use sidekeeper::coordination::job::frame::context::Identity;
use sidekeeper::coordination::job::participant::Participant;
use sidekeeper::extension::profile::Profile;
use sidekeeper::job::InstanceId;

use super::application::Done;
use super::client::{Ask, Client, Link};
use super::machine::{Letter, Seat, Sidecar, StateFile, StreamEnd, Word};
use super::world::{Event, World};
use super::{MILLISECOND, Micros, SECOND};

/// How long a sidecar waits for instances that have not left when the drain timeout is over; as in the runner.
const LEAVING_TAKES: Micros = 5 * SECOND;

impl World {
    /// A sidecar's process begins.
    pub(super) fn start_sidecar(&mut self, m: usize) {
        let now = self.now;
        let machine = &mut self.machines[m];
        if let Some(sidecar) = &machine.sidecar {
            // Its starter waits until the former process has ended.
            if sidecar.stopping && !machine.retired {
                self.at(now + SECOND / 10, Event::Start(m));
            }
            return;
        }
        if machine.retired {
            return;
        }
        machine.lives += 1;
        machine.sidecars += 1;
        let life = machine.lives;
        let wall = machine.now(now).wall;
        machine.sidecar = Some(Sidecar { life, client: Client::new(), participant: None, stopping: false });
        self.note(m, || format!("sidecar {life} starts"));
        let memory = self.machines[m].memory.take().filter(|_| self.plan.state_dir);
        let Some(memory) = memory else {
            let soon = now + 1 + self.network.below(5 * MILLISECOND);
            self.at(soon, Event::Reconnect(m, 0));
            return;
        };
        let request = Request { configuration: None, ..self.request(m) };
        let execution_prefix = format!("e{m}x{life}");
        let identity = Identity { execution_prefix, ..memory.identity };
        let limit = self.plan.request_bytes;
        let core = Participant::restored(identity.clone(), request, memory.former);
        if let Some(sidecar) = &mut self.machines[m].sidecar {
            let mut seat = Seat::new(core, identity, wall);
            seat.calls.extend(limit.map(|bytes| (now, Input::RequestLimit(bytes))));
            sidecar.participant = Some(seat);
        }
        let reaches = self.machines[m].cut_off_until <= now && self.ensemble.leaderless_until <= now;
        if self.sessions[memory.session].alive && reaches {
            let server = self.network.below(self.ensemble.servers() as u64) as usize;
            self.serve(m, memory.session, server);
            self.ask(m, Ask::ClearLatches);
        } else {
            let soon = now + 1 + self.network.below(5 * MILLISECOND);
            self.at(soon, Event::Reconnect(m, 0));
        }
    }

    /// The requests of applications that attach.
    fn request(&self, m: usize) -> Request {
        Request {
            configuration: Some(Arc::new(self.plan.configuration.clone())),
            class: None,
            profile: Profile {
                rendezvous: !self.is_outdated(m),
                witnesses: !self.is_outdated(m),
                ..Profile::default()
            },
            resumable: true,
        }
    }

    /// Whether a machine's sidecar is of an earlier version. Its core is today's; as a leader it divides as it would
    /// have, for it knows of itself.
    pub(super) fn is_outdated(&self, m: usize) -> bool {
        m % 2 == 1 && self.machines[m].sidecars <= self.plan.outdated_lives
    }

    /// A sidecar is killed. Its requests may still take effect, as far as they have got; its messages may still be
    /// read.
    pub(super) fn kill_sidecar(&mut self, m: usize) {
        self.break_connection(m, false);
        let machine = &mut self.machines[m];
        let Some(mut sidecar) = machine.sidecar.take() else { return };
        machine.stopped_until = 0;
        let (seat, session) = (sidecar.participant.take(), sidecar.client.session);
        self.note(m, || "the sidecar is killed".to_owned());
        self.guests_are_killed(m, sidecar.life);
        let Some(seat) = seat else { return };
        let machine = &mut self.machines[m];
        let wall = machine.now(self.now).wall;
        if let Some(session) = session.filter(|_| seat.was_registered) {
            let timeout = Duration::from_micros(self.plan.session_timeout);
            let proven = wall - jiff::SignedDuration::try_from(timeout).unwrap();
            let former = Former {
                session: self.sessions[session].handle.id(),
                timeout,
                since: seat.attached_at.max(proven).min(wall),
            };
            machine.memory = Some(StateFile { session, identity: seat.identity.clone(), former });
        }
        if let Some(stream) = seat.stream {
            let at = self.now + 1;
            let word = Word::Closed(StreamEnd::Broken);
            machine.application.inbox.push_back(Letter { at, stream, word });
            self.at(at, Event::Read(m));
        }
    }

    /// A sidecar is told to stop.
    pub(super) fn drain_sidecar(&mut self, m: usize, limit: Micros, for_good: bool) {
        let deadline = self.machines[m].mono(self.now) + Duration::from_micros(limit);
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        sidecar.stopping = true;
        let (at, life) = (self.now + limit + LEAVING_TAKES, sidecar.life);
        self.at(at, Event::PatienceOver(m, life));
        self.drain_guests(m, deadline);
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        if let Some(seat) = &mut sidecar.participant {
            let at = self.now;
            if for_good {
                seat.calls.push_front((at, Input::ForGood));
                seat.calls.insert(1, (at, Input::Drain { deadline: Some(deadline) }));
            } else {
                seat.calls.push_front((at, Input::Drain { deadline: Some(deadline) }));
            }
            self.wake(m, 0);
        } else {
            self.stop_if_empty(m);
        }
    }

    /// A sidecar that drains stops with the last one that it serves.
    pub(super) fn stop_if_empty(&mut self, m: usize) {
        let sidecar = self.machines[m].sidecar.as_ref();
        let is_due = sidecar.is_some_and(|sidecar| sidecar.stopping && sidecar.participant.is_none());
        if is_due && !self.has_guests(m) {
            self.stop_sidecar(m);
        }
    }

    /// A sidecar that drains waits no longer: it parts from its session without closing it, and its process ends.
    pub(super) fn end_drain(&mut self, m: usize, life: u32) {
        let machine = &self.machines[m];
        let still = machine.sidecar.as_ref().is_some_and(|sidecar| sidecar.life == life && sidecar.stopping);
        if still && machine.stopped_until > self.now {
            return self.at(machine.stopped_until, Event::PatienceOver(m, life));
        }
        if still {
            self.note(m, || "the sidecar has not left in time".to_owned());
            self.kill_sidecar(m);
            self.machines[m].memory = None;
        }
    }

    /// A sidecar's process ends by itself, and its session with it.
    fn stop_sidecar(&mut self, m: usize) {
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        if let (Link::Up(_), Some(session)) = (sidecar.client.link, sidecar.client.session) {
            let later = self.now + 500 + self.network.below(2 * MILLISECOND);
            self.at(later, Event::EndSession(session));
        }
        self.machines[m].sidecar = None;
        self.machines[m].memory = None;
        self.note(m, || "the sidecar has ended".to_owned());
    }

    /// A participant that has ended makes place.
    pub(super) fn remove_ended(&mut self, m: usize) {
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        if sidecar.participant.as_ref().is_some_and(|seat| seat.core.has_ended()) {
            sidecar.participant = None;
            self.give_item_locks_back(m);
            self.stop_if_empty(m);
        }
    }

    /// An application is started.
    pub(super) fn revive(&mut self, m: usize, life: u32) {
        let machine = &mut self.machines[m];
        let application = &mut machine.application;
        if machine.retired || application.up || application.life != life {
            return;
        }
        application.up = true;
        application.life += 1;
        let life = application.life;
        self.note(m, || format!("application {life} starts"));
        self.attach(m, life);
    }

    /// An application asks for a stream, and again if it gets none.
    pub(super) fn attach(&mut self, m: usize, life: u32) {
        let now = self.now;
        let again = now + 20 * MILLISECOND + self.network.below(80 * MILLISECOND);
        let (request, limit) = (self.request(m), self.plan.request_bytes);
        let machine = &mut self.machines[m];
        let wall = machine.now(now).wall;
        let application = &machine.application;
        if machine.retired || !application.up || application.life != life || application.stream.is_some() {
            return;
        }
        let waits = application.stopped_until > now || machine.stopped_until > now;
        let Some(sidecar) = machine.sidecar.as_mut().filter(|sidecar| !waits && !sidecar.stopping) else {
            return self.at(again, Event::Attach(m, life));
        };
        let open = machine.application.claims();
        let stream = machine.application.last_stream + 1;
        match &mut sidecar.participant {
            Some(seat) if seat.core.may_reattach() && machine.application.is_known() => {
                // The end of the former stream has no effect any more.
                seat.calls.retain(|(_, call)| !matches!(call, Input::Detached));
                seat.stream = Some(stream);
                let back = Return { request, open };
                seat.calls.push_back((now, Input::Reattached(Box::new(back))));
            }
            Some(seat) => {
                seat.calls.push_back((now, Input::Left));
                self.wake(m, 0);
                return self.at(again, Event::Attach(m, life));
            }
            None => {
                machine.lives += 1;
                let unique = match &machine.name {
                    Some(name) => name.to_string(),
                    None => format!("m{m}x{}", machine.lives),
                };
                let identity = Identity {
                    job: self.plan.configuration.job_name.clone(),
                    instance: InstanceId::new(machine.ip, &unique),
                    name: machine.name.clone(),
                    server_ip: machine.ip,
                    paths: self.paths.clone(),
                    own_paths: self.own_paths.clone(),
                    execution_prefix: format!("e{m}x{}", machine.lives),
                };
                let mut seat = Seat::new(Participant::new(identity.clone(), request), identity, wall);
                seat.stream = Some(stream);
                seat.calls.extend(limit.map(|bytes| (now, Input::RequestLimit(bytes))));
                sidecar.participant = Some(seat);
            }
        }
        let application = &mut machine.application;
        application.open_stream(stream);
        self.note(m, || format!("stream {stream} is opened"));
        let watching =
            self.machines[m].sidecar.as_ref().is_some_and(|sidecar| sidecar.client.session.is_some());
        let fresh = self.machines[m].seat().is_some_and(|seat| seat.session.is_none());
        if watching && fresh {
            self.watch(m);
        }
        self.wake(m, 0);
    }

    /// The application is killed: its executions end, and its stream.
    pub(super) fn kill_application(&mut self, m: usize) {
        self.note(m, || "the application is killed".to_owned());
        if self.end_application(m) {
            self.call(m, Input::Detached);
        }
    }

    /// The application's process ends. Returns whether it had a stream.
    pub(super) fn end_application(&mut self, m: usize) -> bool {
        self.stop_executions(m, "killed");
        let application = &mut self.machines[m].application;
        application.up = false;
        application.stopped_until = 0;
        application.forget();
        application.inbox.clear();
        let had_stream = application.stream.take().is_some();
        if let Some(seat) = self.machines[m].seat() {
            seat.unread = seat.tickets;
        }
        had_stream
    }

    /// The connection between the two breaks; both notice.
    pub(super) fn break_stream(&mut self, m: usize) {
        let application = &mut self.machines[m].application;
        application.inbox.clear();
        if application.stream.is_some() {
            self.note(m, || "the stream breaks".to_owned());
            self.stream_ended(m, StreamEnd::Broken);
            self.call(m, Input::Detached);
        }
    }

    /// The machine is lost, without a message.
    pub(super) fn lose_machine(&mut self, m: usize) {
        self.kill_sidecar(m);
        self.kill_application(m);
        self.machines[m].memory = None;
    }

    /// All processes that are down start again.
    pub(super) fn start_again(&mut self, m: usize, after: Micros) {
        let life = self.machines[m].application.life;
        self.at(self.now + after, Event::Start(m));
        let later = self.now + after + self.network.below(SECOND / 5);
        self.at(later, Event::Revive(m, life));
    }
}

/// A claim of an application about an open execution. Some claims have the id and the token only.
pub(super) fn claim(done: &Done) -> OpenExecution {
    let execute = &done.execute;
    let says_all = execute.token.0 % 3 != 0;
    OpenExecution {
        execution_id: execute.execution_id.clone(),
        token: execute.token,
        source: Some(execute.source).filter(|_| says_all),
        scheduled: Some(execute.scheduled).filter(|_| says_all),
        attempt: execute.attempt,
        deadline: execute.deadline,
        cancelled: None,
    }
}
