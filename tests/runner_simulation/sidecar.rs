//! A sidecar as a process: the real attachments, session keeper and services, assembled as `src/sidecar.rs` does, without
//! sockets.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::SignedDuration;
use sidekeeper::api::job::Jobs;
use sidekeeper::api::participant::Participants;
use sidekeeper::credential_file::CertificateEnds;
use sidekeeper::extension::lock::Roots;
use sidekeeper::metrics::meters::Meters;
use sidekeeper::proto;
use sidekeeper::proto::job_service_server::JobService;
use sidekeeper::runner::attachments::registry::Attachments;
use sidekeeper::runner::clock::Clock;
use sidekeeper::runner::elections::Elections;
use sidekeeper::runner::lock::registry::Locks;
use sidekeeper::runner::lock_waits::LockWaits;
use sidekeeper::runner::nodes::feed::Feeds;
use sidekeeper::runner::outcomes::Outcomes;
use sidekeeper::runner::session::current::NoSession;
use sidekeeper::runner::session::former::FormerSession;
use sidekeeper::runner::session::keeper::{self, CloseMode};
use sidekeeper::runner::session::lease::Lease;
use sidekeeper::runner::shared::Shared;
use sidekeeper::tree::Path;
use tokio::sync::watch;
use tonic::Request;

use crate::ensemble::ClientRegistry;
use crate::executor::Process;
use crate::machine::Virtual;
use crate::state_file::Disk;
use crate::world::World;

pub const NAMESPACE: &str = "/ns";
/// How long an application may leave its stream unread before it is disconnected.
const SLOW: Duration = Duration::from_secs(5);

/// A place for a sidecar, with its current process.
pub struct Place {
    pub ip: Ipv4Addr,
    /// The disk of the state file; `None`: the sidecar has no state file.
    pub disk: Option<Disk>,
    pub life: Option<Life>,
    pub paused: bool,
    pub cut_off: bool,
}

/// A running process of a sidecar.
pub struct Life {
    pub process: Process,
    pub participants: Participants,
    pub jobs: Jobs,
    pub attachments: Attachments,
    pub machine: Arc<Virtual>,
    pub alive: Arc<AtomicBool>,
    pub draining: bool,
    drained: watch::Sender<bool>,
    stop: watch::Sender<Option<CloseMode>>,
}

impl World {
    /// Starts a sidecar at a place, unless one runs there.
    pub fn start_sidecar(&mut self, index: usize) {
        if self.places[index].life.is_some() {
            return;
        }
        self.last_process += 1;
        let process = Process(self.last_process);
        self.timeline.log(format!("sidecar {index} starts as process {}", process.0));
        let (drift, ahead) = if self.clocks_are_wrong {
            self.timeline
                .chance(|random| (random.below(20_000) as i64 - 10_000, random.below(400) as i64 - 200))
        } else {
            (0, 0)
        };
        let ahead = SignedDuration::from_millis(ahead);
        let spawner = &self.executor.spawner;
        let machine = Arc::new(Virtual::new(&self.timeline, spawner, process, drift, ahead));
        let clock = Clock::of(Arc::<Virtual>::clone(&machine));
        let alive = Arc::new(AtomicBool::new(true));
        let registry = ClientRegistry {
            ensemble: self.ensemble.clone(),
            process,
            alive: Arc::clone(&alive),
            machine: Arc::clone(&machine),
        };
        let namespace = Path::parse(NAMESPACE).unwrap();
        let place = &self.places[index];
        let (state_file, former) = Disk::open(place.disk.as_ref(), &clock, place.ip);
        let former_session = former.as_ref().map(|former| FormerSession::new(former, namespace.clone()));
        let (current_sender, current) = watch::channel(None);
        let (trouble_sender, trouble) = watch::channel(NoSession::default());
        let (stop, stopped) = watch::channel(None);
        let (drained, draining) = watch::channel(false);
        let (lease, lease_keeper) = Lease::new();
        let meters = Meters::new("simulation", 100);
        let shared = Shared {
            namespace,
            server_ip: place.ip,
            clock: clock.clone(),
            current,
            feeds: Feeds::default(),
            lease,
            slow_application_timeout: SLOW,
            silent_application_timeout: Duration::MAX,
            state_file: state_file.clone(),
            trouble,
            outcomes: Outcomes::default(),
            lock_waits: LockWaits::default(),
            elections: Elections::default(),
            meters: meters.clone(),
            certificates: CertificateEnds::default(),
        };
        let roots = Roots::new(&shared.namespace, None);
        let attachments = Attachments::new(shared.clone(), Locks::new(shared, roots));
        if let Some(former) = former {
            attachments.restore(former);
        }
        let restart = (state_file, former_session);
        let published = (current_sender, trouble_sender);
        let keeping = keeper::keep(
            Arc::new(registry),
            clock.clone(),
            published,
            (lease_keeper, None),
            restart,
            meters,
            stopped,
        );
        let timeline = self.timeline.clone();
        clock.spawn(async move {
            keeping.await;
            timeline.after(Duration::ZERO, move |world| world.sidecar_has_ended(index, process));
        });
        let participants = Participants::new(attachments.clone(), BTreeMap::new());
        let jobs = Jobs::new(attachments.clone(), draining);
        let life =
            Life { process, participants, jobs, attachments, machine, alive, draining: false, drained, stop };
        self.places[index].life = Some(life);
    }

    /// Kills a sidecar: its tasks are dropped wherever they wait.
    pub fn crash_sidecar(&mut self, index: usize) {
        let Some(life) = self.places[index].life.take() else { return };
        self.timeline.fault("sidecar crash");
        self.timeline.log(format!("sidecar {index} is killed"));
        life.alive.store(false, Ordering::Relaxed);
        self.executor.kill(life.process);
        self.ensemble.break_connections_of(life.process);
        let process = life.process;
        // The process is dead: destructors that run now have no effect on servers or applications.
        drop(life);
        self.executor.kill(process);
        self.places[index].paused = false;
        self.places[index].cut_off = false;
        self.ensemble.set_paused(process, false);
        self.sever(process);
    }

    /// Stops a sidecar as a signal does: the sidecar drains, and ends its session.
    pub fn drain_sidecar(&mut self, index: usize, timeout: Duration) {
        let Some(life) = self.places[index].life.as_mut().filter(|life| !life.draining) else { return };
        self.timeline.log(format!("sidecar {index} drains"));
        life.draining = true;
        life.drained.send_replace(true);
        let (attachments, stop) = (life.attachments.clone(), life.stop.clone());
        let timeline = self.timeline.clone();
        let deadline = attachments.shared().clock.now().mono + timeout;
        let process = life.process;
        let draining: BoxFuture<'static, ()> = Box::pin(async move {
            let drained = attachments.drain(deadline, false).await;
            let remaining = drained.remaining.len();
            timeline.log(format!("sidecar {index} has drained; {remaining} remain"));
            timeline.after(Duration::ZERO, move |world| world.sidecar_has_drained(index, process, remaining));
            stop.send_replace(Some(drained.close_mode()));
        });
        self.executor.spawner.spawn(process, draining);
    }

    /// Stops a sidecar without a drain.
    pub fn stop_sidecar(&mut self, index: usize) {
        if let Some(life) = &self.places[index].life {
            life.stop.send_replace(Some(CloseMode::Close));
        }
    }

    fn sidecar_has_drained(&mut self, index: usize, process: Process, remaining: usize) {
        let Some(life) = self.places[index].life.as_ref().filter(|life| life.process == process) else {
            return;
        };
        let shared = life.attachments.shared();
        // A session without a proof in time is given up, with its nodes.
        let proof = *shared.lease.proof.borrow();
        let proven = proof.filter(|proof| proof.until > shared.clock.now().mono);
        if self.exact && remaining > 0 {
            self.violation(
                "a drain ends when all have left",
                &format!("{remaining} remain at sidecar {index}"),
            );
        }
        if let Some(proof) = proven.filter(|proof| remaining == 0 && self.ensemble.is_good(proof.session)) {
            self.check_drained(proof.session);
        }
    }

    /// The task of the session has ended, and so does the process.
    fn sidecar_has_ended(&mut self, index: usize, process: Process) {
        let same = self.places[index].life.as_ref().is_some_and(|life| life.process == process);
        if !same {
            return;
        }
        self.timeline.log(format!("sidecar {index} is over"));
        let Some(life) = self.places[index].life.take() else { return };
        self.check_session_left(process);
        life.alive.store(false, Ordering::Relaxed);
        drop(life);
        self.executor.kill(process);
        self.ensemble.break_connections_of(process);
        self.places[index].paused = false;
        self.places[index].cut_off = false;
        self.sever(process);
    }

    pub fn pause_sidecar(&mut self, index: usize, paused: bool) {
        let Some(life) = &self.places[index].life else { return };
        if paused {
            self.timeline.fault("pause");
            self.executor.pause(life.process);
        } else {
            self.executor.resume(life.process);
        }
        self.timeline.log(format!("sidecar {index} {}", if paused { "is paused" } else { "goes on" }));
        self.ensemble.set_paused(life.process, paused);
        self.places[index].paused = paused;
    }

    pub fn cut_off_sidecar(&mut self, index: usize, cut_off: bool) {
        let Some(life) = &self.places[index].life else { return };
        if cut_off {
            self.timeline.fault("partition");
        }
        let what = if cut_off { "is cut off" } else { "is reachable again" };
        self.timeline.log(format!("sidecar {index} {what}"));
        self.ensemble.set_cut_off(life.process, cut_off);
        self.places[index].cut_off = cut_off;
    }

    /// Cuts the server of a sidecar off from the other servers, for so long.
    pub fn partition_server(&mut self, index: usize, leads: bool, time: Duration) {
        let Some(life) = &self.places[index].life else { return };
        let process = life.process;
        self.timeline.fault(if leads { "leader cut off" } else { "follower cut off" });
        let role = if leads { "leader" } else { "follower" };
        self.timeline.log(format!("sidecar {index}: its server, the {role}, is cut off from the others"));
        self.ensemble.partition_server_of(process, leads);
        self.timeline.after(time, move |world| {
            let cut_off = world.places[index].cut_off;
            if world.places[index].life.as_ref().is_some_and(|life| life.process == process) {
                world.timeline.log(format!("sidecar {index}: its server is one of the others again"));
                world.ensemble.rejoin_server_of(process, cut_off);
            }
        });
    }

    /// Sets the time of day of a sidecar's machine.
    pub fn set_clock(&mut self, index: usize) {
        let Some(life) = &self.places[index].life else { return };
        let ahead = self.timeline.chance(|random| random.below(400)) as i64 - 200;
        self.timeline.fault("clock set");
        self.timeline.log(format!("sidecar {index}: the clock is {ahead} ms ahead now"));
        life.machine.set_ahead(SignedDuration::from_millis(ahead));
    }

    /// Breaks the connections of a sidecar.
    pub fn break_connections(&mut self, index: usize) {
        let Some(life) = &self.places[index].life else { return };
        for session in self.ensemble.sessions_of(life.process) {
            self.ensemble.break_connection(session, "connection broken");
        }
    }

    /// An operator triggers a job, or every other time one of its items.
    pub fn trigger(&mut self, index: usize, job: usize) {
        let Some(life) = &self.places[index].life else { return };
        let (jobs, timeline) = (life.jobs.clone(), self.timeline.clone());
        self.triggered.insert(job, self.timeline.now());
        let mut request =
            proto::TriggerJobRequest { job_name: self.jobs[job].name.clone(), ..Default::default() };
        let number = self.item_triggers.len() as u32;
        let parameter = format!("trigger-{number}");
        let item = number % self.jobs[job].total;
        self.item_triggers.insert(parameter.clone(), (job, item, None));
        if number % 2 == 1 {
            (request.items, request.parameter) = (vec![item], Some(parameter));
        }
        let asking = async move {
            let answer = jobs.trigger_job(Request::new(request)).await;
            let text = answer.map_or_else(|status| status.message().to_owned(), |_| "done".to_owned());
            timeline.log(format!("trigger: {text}"));
        };
        self.executor.spawner.spawn(life.process, Box::pin(asking));
    }

    /// An operator cancels the executions of a job at a sidecar.
    pub fn cancel_executions(&mut self, index: usize, job: usize) {
        let Some(life) = &self.places[index].life else { return };
        let jobs = life.jobs.clone();
        let request =
            proto::CancelExecutionsRequest { job_name: self.jobs[job].name.clone(), ..Default::default() };
        let asking = async move { drop(jobs.cancel_executions(Request::new(request)).await) };
        self.executor.spawner.spawn(life.process, Box::pin(asking));
    }
}
