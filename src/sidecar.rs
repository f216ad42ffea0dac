//! The sidecar as a whole: start-up in order, readiness, drain. Shell.
//!
//! Order of the start: what can fail because of a setting first (the data directory, the connect string, the job
//! files, the addresses), then the session, then the services. A ZooKeeper that is away is no failure: applications
//! attach, and are told more when it is there.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{Instrument, error, info, warn};

use crate::api::accept::Connections;
use crate::api::assignment::Assignments;
use crate::api::job::Jobs;
use crate::api::participant::Participants;
use crate::api::server::{self, Health, Listener, Services};
use crate::api::sidecar::Sidecars;
use crate::config::{Config, ListenAddress};
use crate::coordination::job::picture::settings::schedule_check;
use crate::coordination::time::Wakeup;
use crate::dump;
use crate::job::{JobConfiguration, JobName};
use crate::job_files;
use crate::registry::embedded::{self, Embedded};
use crate::registry::zookeeper::{Settings, SettingsError, ZooKeeper};
use crate::registry::{Registry, SessionState};
use crate::runner::clock::Clock;
use crate::runner::feed::Feeds;
use crate::runner::heirs::Former;
use crate::runner::hub::Hub;
use crate::runner::lease::Lease;
use crate::runner::memory::{FormerLife, Memory, MemoryError, Place};
use crate::runner::outcomes::Outcomes;
use crate::runner::session::{self, Current, Farewell};
use crate::runner::shared::Shared;
use crate::tree::{Path, PathError};

/// How long connections may take to end after everybody has left; they need one round trip.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Why a sidecar could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// The embedded registry's directory is unusable.
    #[error("cannot open the data directory: {0}")]
    DataDirectory(#[from] embedded::OpenError),
    /// The state directory is unusable.
    #[error("state directory: {0}")]
    StateDirectory(#[from] MemoryError),
    /// The connect string is wrong.
    #[error("zookeeper: {0}")]
    ZooKeeper(#[from] SettingsError),
    /// The namespace is wrong.
    #[error("namespace: {0}")]
    Namespace(#[from] PathError),
    /// The job files are wrong.
    #[error("{0}")]
    JobFiles(#[from] job_files::JobFilesError),
    /// The reflection service refuses our own descriptors.
    #[error("reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// A running sidecar.
pub struct Sidecar {
    endpoints: Vec<String>,
    dump_address: Option<SocketAddr>,
    hub: Hub,
    config: Config,
    draining: watch::Sender<bool>,
    stop: watch::Sender<bool>,
    part: watch::Sender<Option<Farewell>>,
    session_task: JoinHandle<()>,
    server_tasks: Vec<JoinHandle<()>>,
}

impl Sidecar {
    /// Binds the listeners and starts everything; returns once it serves. Fails if a setting cannot be followed: an
    /// address, the data directory, a job file. A ZooKeeper that is away is no failure.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let namespace = Path::parse(&format!("/{}", config.namespace))?;
        let clock = Clock::start();
        let registry = open_registry(&config, &clock)?;
        Self::start_by(config, namespace, registry, clock).await
    }

    /// As [`Self::start`], on a registry that the caller has opened.
    pub async fn start_on(
        config: Config,
        namespace: Path,
        registry: Arc<dyn Registry>,
    ) -> Result<Self, StartError> {
        Self::start_by(config, namespace, registry, Clock::start()).await
    }

    async fn start_by(
        config: Config,
        namespace: Path,
        registry: Arc<dyn Registry>,
        clock: Clock,
    ) -> Result<Self, StartError> {
        let files = load_job_files(&config)?;
        let listeners = listen(&config).await?;
        let dump = listen_for_dump(&config).await?;
        let (current_sender, current) = watch::channel(None);
        let (trouble_sender, trouble) = watch::channel(format!("connecting to {}", registry.describe()));
        let (stop, stopped) = watch::channel(false);
        let (part, parting) = watch::channel(None);
        let (draining, drained) = watch::channel(false);
        let describe = registry.describe();
        let (memory, life) = open_memory(&config, &describe, &clock)?;
        let former = life.as_ref().map(|life| Former::new(life, namespace.clone()));
        let (lease, keeper) = Lease::new();
        let keeper = (keeper, config.lease_margin);
        let shared = Shared {
            namespace,
            server_ip: config.instance_ip,
            clock: clock.clone(),
            current: current.clone(),
            feeds: Feeds::default(),
            lease,
            slow_application_timeout: config.slow_application_timeout,
            silent_application_timeout: config.silent_application_timeout,
            memory: memory.clone(),
            trouble,
            outcomes: Outcomes::default(),
        };
        let hub = Hub::new(shared.clone());
        if let Some(life) = life {
            hub.inherit(life);
        }
        let left = (memory, former);
        let published = (current_sender, trouble_sender);
        let session_task = spawn(session::keep(registry, clock.clone(), published, keeper, left, parting));
        let services = Services {
            participants: Participants::new(hub.clone(), files),
            assignments: Assignments::new(shared.clone()),
            jobs: Jobs::new(hub.clone(), drained.clone()),
            sidecars: Sidecars::new(hub.clone(), draining.clone(), config.drain_timeout),
        };
        let mut endpoints = Vec::new();
        let mut server_tasks = Vec::new();
        let dump_address = dump.map(|(address, listener)| {
            server_tasks.push(spawn(dump::serve(listener, shared, stopped.clone())));
            address
        });
        let (router, health) =
            server::router(services, config.token.as_ref(), config.silent_application_timeout, &clock)?;
        server_tasks.push(spawn(keep_health(health, current, drained, stopped.clone())));
        let connections = Connections::new(&clock);
        for (endpoint, listener) in listeners {
            info!(endpoint, registry = describe, "listening");
            endpoints.push(endpoint);
            let serving = server::serve(router.clone(), listener, connections.clone(), stopped.clone());
            let over = last_words(stopped.clone(), clock.clone());
            server_tasks.push(spawn(async move {
                tokio::select! {
                    biased; // Nothing is cut off that has ended by itself.
                    served = serving => if let Err(error) = served {
                        error!(%error, "a listener has failed");
                    },
                    () = over => warn!("a client keeps its connection open; not waiting for it"),
                }
            }));
        }
        Ok(Self { endpoints, dump_address, hub, config, draining, stop, part, session_task, server_tasks })
    }

    /// The endpoints it serves on, in the form of `SIDEKEEPER_ENDPOINT`: `http://127.0.0.1:7070`, `unix:///path`.
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Where it answers the dump command, if it does.
    pub fn dump_address(&self) -> Option<SocketAddr> {
        self.dump_address
    }

    /// Drains: leaves the schedule, lets executions finish until the drain timeout, leaves the registry without
    /// traces; but not what may still be executed by an application that nobody can tell to stop: that stays until the
    /// session times out. When `hurry` becomes true, executions are told to stop at once and have two seconds to be
    /// reported; the registry is left without traces all the same.
    pub async fn drain(self, mut hurry: watch::Receiver<bool>) {
        info!(timeout = ?self.config.drain_timeout, "draining");
        self.draining.send_replace(true);
        let clock = &self.hub.shared().clock;
        let deadline = clock.now().mono.saturating_add(self.config.drain_timeout);
        let drained = tokio::select! {
            biased; // What is done is done, whatever else is asked for.
            drained = self.hub.drain(deadline, false) => drained,
            () = session::becomes(&mut hurry, true) => self.hub.drain(clock.now().mono, false).await,
        };
        for (job, instance) in &drained.remaining {
            warn!(
                job.name = %job,
                instance.id = %instance,
                "not left in time: the registry does not answer, or an application without a stream may still execute; \
                 its nodes go with the session, at its timeout"
            );
        }
        self.stop.send_replace(true);
        self.part.send_replace(Some(drained.farewell()));
        // If all have left the session is closed before the process ends, so that nothing of ours waits for its timeout.
        // Both are bounded, so a signal has nothing to speed up here. A task that panicked has nothing left to wait for.
        let _ = self.session_task.await;
        for task in self.server_tasks {
            let _ = task.await;
        }
    }
}

fn open_registry(config: &Config, clock: &Clock) -> Result<Arc<dyn Registry>, StartError> {
    let Some(connect) = &config.zookeeper else {
        let embedded = match &config.data_dir {
            Some(folder) => Embedded::open(folder)?,
            None => Embedded::in_memory(),
        };
        return Ok(Arc::new(embedded));
    };
    let clock = clock.clone();
    let zookeeper = ZooKeeper::new(Settings {
        connect: connect.clone(),
        session_timeout: config.session_timeout,
        connection_timeout: config.connection_timeout,
        request_timeout: config.request_timeout,
        digest: config.digest.as_ref().map(|digest| digest.reveal().to_owned()),
    })?;
    Ok(Arc::new(zookeeper.with_clock(Arc::new(move || clock.now().mono))))
}

/// What the former process has left, and what the next one is to know. Only sessions with ZooKeeper outlive a process.
fn open_memory(
    config: &Config,
    registry: &str,
    clock: &Clock,
) -> Result<(Memory, Option<FormerLife>), MemoryError> {
    match &config.state_dir {
        Some(folder) if config.zookeeper.is_some() => {
            let (registry, namespace) = (registry.to_owned(), config.namespace.clone());
            Memory::open(folder, Place { registry, namespace, instance_ip: config.instance_ip }, clock)
        }
        Some(_) => {
            warn!("the state directory has no effect: the embedded registry ends with its process");
            Ok((Memory::none(), None))
        }
        None => Ok((Memory::none(), None)),
    }
}

fn load_job_files(config: &Config) -> Result<BTreeMap<JobName, Arc<JobConfiguration>>, StartError> {
    let Some(folder) = &config.jobs_dir else { return Ok(BTreeMap::new()) };
    let files = job_files::load(folder, schedule_check())?;
    Ok(files.into_iter().map(|(job, configuration)| (job, Arc::new(configuration))).collect())
}

async fn listen(config: &Config) -> Result<Vec<(String, Listener)>, StartError> {
    let mut listeners = Vec::new();
    for address in &config.listen {
        let listener = match address {
            ListenAddress::Tcp(socket) => Listener::tcp(*socket).await,
            ListenAddress::Unix(path) => Listener::unix(path).await,
        };
        let bound = listener.and_then(|listener| Ok((listener.endpoint()?, listener)));
        let failed = |source| StartError::Listen { address: address.to_string(), source };
        listeners.push(bound.map_err(failed)?);
    }
    Ok(listeners)
}

async fn listen_for_dump(config: &Config) -> Result<Option<(SocketAddr, TcpListener)>, StartError> {
    let Some(address) = config.dump_listen else { return Ok(None) };
    let failed = |source| StartError::Listen { address: address.to_string(), source };
    dump::bind(address).await.map(Some).map_err(failed)
}

/// Ready while there is a session, its registry can write, and the sidecar is not stopping. Liveness never depends on the
/// registry: the process answers, whatever it says.
async fn keep_health(
    health: Health,
    mut current: Current,
    mut draining: watch::Receiver<bool>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let session = current.borrow_and_update().clone();
        let mut state = session.as_ref().map(|session| session.state());
        // Marked before it is looked at, so that no change is missed.
        state.iter_mut().for_each(watch::Receiver::mark_unchanged);
        // A session that is only suspended may be back in a moment, and is lost if it is not; an obstacle for a person lasts.
        let can_write = session.is_some_and(|session| session.obstacle().is_none());
        health.set_ready(can_write && !*draining.borrow_and_update()).await;
        tokio::select! {
            biased;
            () = session::becomes(&mut stop, true) => return health.end().await,
            changed = draining.changed() => if changed.is_err() { return },
            changed = current.changed() => if changed.is_err() { return },
            () = state_changes(state) => {}
        }
    }
}

/// Ends when a session's state changes. One that is over will not.
async fn state_changes(state: Option<watch::Receiver<SessionState>>) {
    if let Some(mut state) = state
        && state.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Comes back when connections have had their time to end after the stop. A client that does not read or never spoke
/// must not hold up the exit.
async fn last_words(mut stop: watch::Receiver<bool>, clock: Clock) {
    session::becomes(&mut stop, true).await;
    let mono = clock.now().mono.saturating_add(LAST_WORDS);
    clock.sleep_until(Wakeup { wall: None, mono: Some(mono) }).await;
}

fn spawn(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    #[expect(clippy::disallowed_methods, reason = "the sidecar's own tasks, awaited when it stops")]
    tokio::spawn(task.in_current_span())
}
