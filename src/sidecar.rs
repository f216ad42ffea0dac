//! The sidecar as a whole: start in order, readiness, drain. Shell.
//!
//! Order of the start: first the steps that a setting can make fail (the data directory, the connect string,
//! the job files, the addresses), then the session, then the services. An unreachable ZooKeeper is no
//! failure: applications attach, and join their jobs when ZooKeeper serves.
//!
//! Order of the drain, which a signal begins (`cli/serve.rs`; a second signal makes the deadline now): no new
//! streams and not ready; all instances drain by themselves, until `drain_timeout` and some seconds to leave
//! (`coordination/job/lifecycle/departure.rs`); then the connections end, and the session is closed, or abandoned to
//! its timeout if an instance remains.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path as FilePath;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::ready;
use futures::stream::{Stream, StreamExt as _};
use nix::unistd::geteuid;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{Instrument, error, info, warn};

use crate::api::assignment::Assignments;
use crate::api::diagnostics::Diagnostics;
use crate::api::election::ElectionCalls;
use crate::api::job::Jobs;
use crate::api::lock::LockCalls;
use crate::api::namespace::Namespaces;
use crate::api::participant::Participants;
use crate::api::server::{self, Health, Served, Services};
use crate::api::sidecar::Sidecars;
use crate::api::sticky_lock::StickyLockCalls;
use crate::config::{Config, Listen, ListenAddress, Rights, Roles, Who};
use crate::coordination::job::picture::settings::checks;
use crate::coordination::time::Wakeup;
use crate::credential_file::{CertificateEnd, CertificateEnds};
use crate::dump;
use crate::extension::lock::Roots;
use crate::findings::sidecar::Door;
use crate::http;
use crate::job::{JobConfiguration, JobName};
use crate::job_files;
use crate::listen::admission::Admission;
use crate::listen::connections::{Connection, Connections};
use crate::listen::lanes::{self, Lanes};
use crate::listen::listener::Listener;
use crate::listen::tls::{Tls, TlsFiles, TlsFilesError};
use crate::listen::token::Tokens;
use crate::listen::token_file::{TokenFile, TokenFileError};
use crate::listen::token_set::TokenSet;
use crate::metrics::meters::Meters;
use crate::metrics::registry::Metered;
use crate::registry::embedded::{self, Embedded};
use crate::registry::zookeeper::{Acl, Settings, SettingsError, ZooKeeper};
use crate::registry::{Registry, SessionState};
use crate::runner::admin::check_deployment::CheckedSettings;
use crate::runner::admin::housekeeping;
use crate::runner::attachments::drain::Drained;
use crate::runner::attachments::registry::Attachments;
use crate::runner::clock::Clock;
use crate::runner::elections::Elections;
use crate::runner::heartbeat::Heartbeat;
use crate::runner::lock::registry::Locks;
use crate::runner::lock_waits::LockWaits;
use crate::runner::nodes::feed::Feeds;
use crate::runner::outcomes::Outcomes;
use crate::runner::session::current::Current;
use crate::runner::session::current::NoSession;
use crate::runner::session::former::FormerSession;
use crate::runner::session::keeper::{self, CloseMode};
use crate::runner::session::lease::Lease;
use crate::runner::shared::Shared;
use crate::runner::state_file::contents::{FormerProcess, Place};
use crate::runner::state_file::storage::StateFileError;
use crate::runner::state_file::writer::StateFile;
use crate::runner::sticky::registry::StickyLocks;
use crate::runner::waiting::becomes;
use crate::telemetry::log_filter::LogFilter;
use crate::tree::{Path, PathError};

/// How long connections may take to end after all applications have left. They need one round trip.
const CLOSE_TIME: Duration = Duration::from_secs(2);

/// Why a sidecar could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The sidecar cannot listen on an address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The embedded registry's directory is unusable.
    #[error("cannot open the data directory: {0}")]
    DataDirectory(#[from] embedded::OpenError),
    /// The state directory is unusable.
    #[error("state directory: {0}")]
    StateDirectory(#[from] StateFileError),
    /// The file of the tokens is unusable.
    #[error("token file: {0}")]
    TokenFile(#[from] TokenFileError),
    /// The files of TLS are unusable.
    #[error("{0}")]
    Tls(#[from] TlsFilesError),
    /// The connect string is invalid.
    #[error("zookeeper: {0}")]
    ZooKeeper(#[from] SettingsError),
    /// The namespace is invalid.
    #[error("namespace: {0}")]
    Namespace(#[from] PathError),
    /// The job files are invalid.
    #[error("{0}")]
    JobFiles(#[from] job_files::JobFilesError),
    /// The reflection service refuses the sidecar's own descriptors.
    #[error("reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// A running sidecar.
pub struct Sidecar {
    endpoints: Vec<String>,
    dump_address: Option<SocketAddr>,
    http_address: Option<SocketAddr>,
    attachments: Attachments,
    locks: Locks,
    sticky_locks: StickyLocks,
    drain_timeout: Duration,
    draining: watch::Sender<bool>,
    stop: watch::Sender<bool>,
    close: watch::Sender<Option<CloseMode>>,
    session_task: JoinHandle<()>,
    server_tasks: Vec<JoinHandle<()>>,
}

impl Sidecar {
    /// Binds the listeners and starts everything; returns when the sidecar serves. Fails if a setting cannot
    /// be applied: an address, the data directory, a job file. An unreachable ZooKeeper is no failure.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let namespace = Path::parse(&format!("/{}", config.namespace))?;
        let clock = Clock::start();
        let certificates = CertificateEnds::default();
        let registry = open_registry(&config, &clock, &certificates.registry).await?;
        Self::start_by(config, namespace, (registry, certificates), clock).await
    }

    /// As [`Self::start`], on a registry that the caller has opened.
    pub async fn start_on(
        config: Config,
        namespace: Path,
        registry: Arc<dyn Registry>,
    ) -> Result<Self, StartError> {
        Self::start_by(config, namespace, (registry, CertificateEnds::default()), Clock::start()).await
    }

    async fn start_by(
        config: Config,
        namespace: Path,
        (registry, certificates): (Arc<dyn Registry>, CertificateEnds),
        clock: Clock,
    ) -> Result<Self, StartError> {
        let files = load_job_files(&config)?;
        let (token_file, tokens) = open_tokens(&config).await?;
        let (tls_files, tls) = open_tls(&config, &certificates.listener).await?;
        let listeners = listen(&config, tls.as_ref()).await?;
        let dump = listen_for_dump(&config).await?;
        let http = listen_for_http(&config).await?;
        let meters = Meters::new(&config.namespace, config.metrics_jobs);
        let counting = clock.clone();
        let registry: Arc<dyn Registry> =
            Arc::new(Metered::new(registry, meters.clone(), Arc::new(move || counting.now().mono)));
        let (current_sender, current) = watch::channel(None);
        let connecting = format!("connecting to {}", registry.describe());
        let connecting = NoSession { trouble: connecting, is_read_only: false };
        let (trouble_sender, trouble) = watch::channel(connecting);
        let (stop, stopped) = watch::channel(false);
        let (close, closing) = watch::channel(None);
        let (draining, drained) = watch::channel(false);
        let describe = registry.describe();
        let (state_file, former) = open_state_file(&config, &describe, &clock)?;
        let former_session = former.as_ref().map(|former| FormerSession::new(former, namespace.clone()));
        let (lease, lease_keeper) = Lease::new();
        let lease_keeper = (lease_keeper, config.lease_margin);
        let shared = Shared {
            namespace,
            server_ip: config.instance_ip,
            clock: clock.clone(),
            current: current.clone(),
            feeds: Feeds::default(),
            lease,
            slow_application_timeout: config.slow_application_timeout,
            silent_application_timeout: config.silent_application_timeout,
            state_file: state_file.clone(),
            trouble,
            outcomes: Outcomes::default(),
            lock_waits: LockWaits::default(),
            elections: Elections::default(),
            meters: meters.clone(),
            certificates,
        };
        let locks = Locks::new(shared.clone(), Roots::new(&shared.namespace, config.lock_root.as_ref()));
        let attachments = Attachments::new(shared.clone(), locks.clone());
        let sticky_locks = StickyLocks::new(shared.clone());
        if let Some(former) = former {
            attachments.restore(former);
        }
        let restart = (state_file, former_session);
        let published = (current_sender, trouble_sender);
        let session_task = spawn(keeper::keep(
            Arc::clone(&registry),
            clock.clone(),
            published,
            lease_keeper,
            restart,
            meters.clone(),
            closing,
        ));
        let heartbeat = Heartbeat::new(&clock);
        let sidecars = Sidecars::new(
            attachments.clone(),
            (locks.clone(), sticky_locks.clone()),
            (draining.clone(), config.drain_timeout),
            describe.clone(),
            (LogFilter::new(&config.log_level), heartbeat.clone()),
        );
        let services = Services {
            participants: Participants::new(attachments.clone(), files),
            assignments: Assignments::new(shared.clone()),
            jobs: Jobs::new(attachments.clone(), drained.clone()),
            locks: LockCalls::new(locks.clone()),
            elections: ElectionCalls::new(locks.clone()),
            sticky_locks: StickyLockCalls::new(sticky_locks.clone()),
            namespaces: Namespaces::new(shared.clone(), drained.clone()),
            diagnostics: Diagnostics::new(
                (shared.clone(), Arc::clone(&registry)),
                (checked_settings(&config), config.given.clone()),
                heartbeat.clone(),
                drained.clone(),
                sidecars.clone(),
            ),
            sidecars,
        };
        let mut endpoints = Vec::new();
        let mut server_tasks = Vec::new();
        server_tasks.push(spawn(until_stop(housekeeping::keep(shared.clone()), stopped.clone())));
        let dump_address = dump.map(|(address, listener)| {
            server_tasks.push(spawn(dump::serve(listener, shared, stopped.clone())));
            address
        });
        server_tasks.push(spawn(until_stop(heartbeat.clone().keep(), stopped.clone())));
        let http_address = http.map(|(address, listener)| {
            let answers = http::Answers::new(attachments.clone(), heartbeat, drained.clone());
            let serving =
                http::serve(listener, answers, config.http_hosts.clone(), clock.clone(), stopped.clone());
            server_tasks.push(spawn(serving));
            address
        });
        if let Some(file) = token_file {
            server_tasks.push(spawn(until_stop(file.keep(clock.clone()), stopped.clone())));
        }
        if let Some(files) = tls_files {
            server_tasks.push(spawn(until_stop(files.keep(clock.clone()), stopped.clone())));
        }
        let admission = Admission::new(&config.allow, geteuid().as_raw(), has_token(&config))
            .with_certificates(&config.tls_allow);
        if let Some(roles) = roles_of_any_user(&config) {
            warn!(event = "LISTENER_OPEN",
                %roles,
                "every user of this machine may call this sidecar, because `allow` has `any-local-user`"
            );
        }
        let several = admission.serves_several();
        let (router, health) =
            server::router(services, tokens, several, config.silent_application_timeout, (meters, &clock))?;
        let lanes = Arc::new(Lanes::new(serve_lanes(&router, &stopped, &clock)));
        let connections =
            Connections::new(admission, config.jobs_allowed.clone(), Arc::clone(&lanes), &clock);
        server_tasks.push(spawn(keep_health(health, current, drained, stopped.clone())));
        for (endpoint, listener, rights) in listeners {
            info!(endpoint, registry = describe, "listening");
            endpoints.push(endpoint);
            let is_tls = matches!(listener, Listener::Tls(_));
            let connections = connections.of(listener, rights);
            if is_tls {
                // Each caller has a lane, so there is only the accepting, whose handshakes take processor time.
                lanes.run(Box::pin(until_stop(connections.for_each(|_| ready(())), stopped.clone())));
                continue;
            }
            let serving = serve(router.clone(), connections, stopped.clone(), clock.clone());
            server_tasks.push(spawn(serving));
        }
        server_tasks.push(spawn(until_lanes_end(lanes, stopped)));
        Ok(Self {
            endpoints,
            dump_address,
            http_address,
            attachments,
            locks,
            sticky_locks,
            drain_timeout: config.drain_timeout,
            draining,
            stop,
            close,
            session_task,
            server_tasks,
        })
    }

    /// The endpoints it serves on, in the form of `SIDEKEEPER_ENDPOINT`: `http://127.0.0.1:7070`, `https://10.0.0.7:7443`,
    /// `unix:///path`.
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// The address of the dump command, if it is on.
    pub fn dump_address(&self) -> Option<SocketAddr> {
        self.dump_address
    }

    /// The address of probes and metrics, if it is on.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http_address
    }

    /// Drains: the instances leave the schedule, executions may finish until the drain timeout, then the
    /// instances leave the registry without traces. One kind of trace stays until the session times out: the
    /// nodes of executions whose application has no stream, because the sidecar cannot cancel them. When
    /// `hurry` becomes true, executions are cancelled at once, and the applications have two seconds to
    /// report them. The instances leave the registry without traces all the same.
    pub async fn drain(self, mut hurry: watch::Receiver<bool>) {
        info!(timeout = ?self.drain_timeout, "draining");
        self.draining.send_replace(true);
        let clock = &self.attachments.shared().clock;
        let deadline = clock.now().mono.saturating_add(self.drain_timeout);
        let drained = tokio::select! {
            biased; // A finished drain comes before a request to hurry.
            drained = self.drain_until(deadline) => drained,
            () = becomes(&mut hurry, true) => self.drain_until(clock.now().mono).await,
        };
        for (job, instance) in &drained.remaining {
            warn!(event = "INSTANCE_NOT_LEFT",
                job.name = %job,
                instance.id = %instance,
                "the instance has not left in time: the registry does not answer, or an application without a stream may \
                 still execute; the instance's nodes vanish when its session times out"
            );
        }
        self.stop.send_replace(true);
        self.close.send_replace(Some(drained.close_mode()));
        // If all instances have left, the session is closed before the process ends, so that no node waits
        // for the session's timeout. Both waits are bounded, so a signal has nothing to speed up here. A task
        // that panicked leaves nothing to wait for.
        let _ = self.session_task.await;
        for task in self.server_tasks {
            let _ = task.await;
        }
    }
}

impl Sidecar {
    /// Has all instances leave, and ends all holds.
    async fn drain_until(&self, deadline: Duration) -> Drained {
        let attachments = self.attachments.drain(deadline, false);
        let locks = (self.locks.drain(deadline), self.sticky_locks.drain(deadline));
        futures::future::join3(attachments, locks.0, locks.1).await.0
    }
}

/// Whether callers need a token.
fn has_token(config: &Config) -> bool {
    config.token.is_some() || config.token_file.is_some()
}

/// What every user of this machine may do without a token. `None`: nothing.
fn roles_of_any_user(config: &Config) -> Option<Roles> {
    let any = config.allow.iter().find(|allowed| allowed.who == Who::AnyLocalUser)?;
    (!has_token(config)).then_some(any.roles)
}

/// The settings that let others in without authentication.
fn doors(config: &Config) -> Vec<Door> {
    let any_user = roles_of_any_user(config).map(|roles| Door::AnyLocalUser { roles: roles.to_string() });
    let is_remote = |address: &SocketAddr| !address.ip().is_loopback();
    let dump = config.dump_listen.filter(is_remote).map(Door::Dump);
    let http = config.http_listen.filter(is_remote).map(Door::Http);
    [any_user, dump, http].into_iter().flatten().collect()
}

/// The settings that the checks of a deployment concern.
fn checked_settings(config: &Config) -> CheckedSettings {
    let files = &config.credential_files;
    let has_password = config.digest.is_some() || files.digest.is_some();
    let has_user = has_password || files.sasl.is_some() || files.kerberos.is_some();
    CheckedSettings {
        timeout: config.zookeeper.is_some().then_some(config.session_timeout),
        has_digest_in_clear: files.ca.is_none() && (has_password || files.sasl.is_some()),
        has_open_nodes: files.cert.is_some() && !has_user && config.zookeeper_acl == Acl::Auto,
        doors: doors(config),
        certificates: [
            ("tls_cert", config.tls.as_ref().map(|tls| &tls.cert)),
            ("zookeeper_cert", files.cert.as_ref()),
        ]
        .into_iter()
        .filter_map(|(setting, file)| Some((setting, file?.clone())))
        .collect(),
    }
}

/// Warns of settings that leave the password or the nodes open.
fn warn_of_open_doors(config: &Config) {
    let settings = checked_settings(config);
    if settings.has_digest_in_clear {
        warn!(
            event = "DIGEST_IN_CLEAR",
            "the password for ZooKeeper is sent over an unencrypted connection; `zookeeper_ca` encrypts it"
        );
    }
    if settings.has_open_nodes {
        warn!(
            event = "NODES_WORLD_WRITABLE",
            "every client of ZooKeeper may change the sidecar's nodes: a certificate alone gives them no owner; set \
             `zookeeper_acl` to `open`, to `creator`, or to a list"
        );
    }
}

/// The registry of a configuration. `end` becomes the end of the client certificate that it shows.
pub(crate) async fn open_registry(
    config: &Config,
    clock: &Clock,
    end: &CertificateEnd,
) -> Result<Arc<dyn Registry>, StartError> {
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
        files: config.credential_files.clone(),
        acl: config.zookeeper_acl.clone(),
    })?
    .with_certificate_end(end.clone());
    zookeeper.check_files().await?;
    warn_of_open_doors(config);
    Ok(Arc::new(zookeeper.with_clock(Arc::new(move || clock.now().mono))))
}

/// Opens the state file, and reads what the former process has written. Only sessions with ZooKeeper outlive
/// a process.
fn open_state_file(
    config: &Config,
    registry: &str,
    clock: &Clock,
) -> Result<(StateFile, Option<FormerProcess>), StateFileError> {
    match &config.state_dir {
        Some(folder) if config.zookeeper.is_some() => {
            let (registry, namespace) = (registry.to_owned(), config.namespace.clone());
            StateFile::open(folder, Place { registry, namespace, instance_ip: config.instance_ip }, clock)
        }
        Some(_) => {
            warn!(
                event = "STATE_IGNORED",
                "the state directory has no effect: the embedded registry ends with its process"
            );
            Ok((StateFile::none(), None))
        }
        None => Ok((StateFile::none(), None)),
    }
}

fn load_job_files(config: &Config) -> Result<BTreeMap<JobName, Arc<JobConfiguration>>, StartError> {
    let Some(folder) = &config.jobs_dir else { return Ok(BTreeMap::new()) };
    let files = job_files::load(folder, checks())?;
    Ok(files.into_iter().map(|(job, configuration)| (job, Arc::new(configuration))).collect())
}

/// The tokens of callers, and the file from which they come.
async fn open_tokens(config: &Config) -> Result<(Option<TokenFile>, Tokens), TokenFileError> {
    match &config.token_file {
        Some(path) => {
            let (file, tokens) = TokenFile::open(path.clone()).await?;
            Ok((Some(file), tokens))
        }
        None => Ok((None, Tokens::fixed(config.token.as_ref().map(TokenSet::of)))),
    }
}

/// The certificates of TLS, if an address has TLS, and the files from which they come.
async fn open_tls(
    config: &Config,
    end: &CertificateEnd,
) -> Result<(Option<TlsFiles>, Option<watch::Receiver<Tls>>), TlsFilesError> {
    let Some(files) = &config.tls else { return Ok((None, None)) };
    let (files, tls) = TlsFiles::open(files.clone(), end.clone()).await?;
    Ok((Some(files), Some(tls)))
}

/// Fails if an address cannot be served, or if none of the optional ones can.
async fn listen(
    config: &Config,
    tls: Option<&watch::Receiver<Tls>>,
) -> Result<Vec<(String, Listener, Rights)>, StartError> {
    let mut listeners = Vec::new();
    let mut missing = None;
    for listen in &config.listen {
        match bind(listen, tls).await {
            Ok((endpoint, listener)) => listeners.push((endpoint, listener, listen.rights.clone())),
            Err(source) => {
                let failed = StartError::Listen { address: listen.address.to_string(), source };
                if !listen.optional {
                    return Err(failed);
                }
                missing = Some(failed);
            }
        }
    }
    match missing {
        Some(failed) if listeners.is_empty() => Err(failed),
        Some(failed) => {
            warn!(event = "ADDRESS_NOT_SERVED", "{failed}; serving on the other address only");
            Ok(listeners)
        }
        None => Ok(listeners),
    }
}

async fn bind(listen: &Listen, tls: Option<&watch::Receiver<Tls>>) -> io::Result<(String, Listener)> {
    let listener = match &listen.address {
        ListenAddress::Tcp(address) => Listener::tcp(*address).await?,
        ListenAddress::Tls(address) => match tls {
            Some(tls) => Listener::tls(*address, tls.clone()).await?,
            None => return Err(io::Error::other("an address with TLS needs certificates")),
        },
        ListenAddress::Unix(address) => {
            if listen.optional
                && let Some(folder) = address.path.parent()
            {
                make_private(folder)?;
            }
            Listener::unix(address).await?
        }
    };
    Ok((listener.endpoint()?, listener))
}

/// Makes a folder for the sidecar's user alone, unless there is one.
fn make_private(folder: &FilePath) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

async fn listen_for_dump(config: &Config) -> Result<Option<(SocketAddr, TcpListener)>, StartError> {
    let Some(address) = config.dump_listen else { return Ok(None) };
    let failed = |source| StartError::Listen { address: address.to_string(), source };
    dump::bind(address).await.map(Some).map_err(failed)
}

async fn listen_for_http(config: &Config) -> Result<Option<(SocketAddr, TcpListener)>, StartError> {
    let Some(address) = config.http_listen else { return Ok(None) };
    let failed = |source| StartError::Listen { address: address.to_string(), source };
    http::bind(address).await.map(Some).map_err(failed)
}

/// Ready while there is a session, its registry can write, and the sidecar is not stopping. Liveness never
/// depends on the registry: the process answers in each state of the registry.
async fn keep_health(
    health: Health,
    mut current: Current,
    mut draining: watch::Receiver<bool>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let session = current.borrow_and_update().clone();
        let mut state = session.as_ref().map(|session| session.state());
        // Marked before it is read, so that no change is missed.
        state.iter_mut().for_each(watch::Receiver::mark_unchanged);
        // A suspended session may reconnect in a moment, or it is lost. An obstacle lasts until a person
        // removes it.
        let can_write = session.is_some_and(|session| session.obstacle().is_none());
        health.set_ready(can_write && !*draining.borrow_and_update()).await;
        tokio::select! {
            biased;
            () = becomes(&mut stop, true) => return health.end().await,
            changed = draining.changed() => if changed.is_err() { return },
            changed = current.changed() => if changed.is_err() { return },
            () = state_changes(state) => {}
        }
    }
}

/// Ends when a session's state changes. The state of a lost session does not change.
async fn state_changes(state: Option<watch::Receiver<SessionState>>) {
    if let Some(mut state) = state
        && state.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Ends some time after the stop, when connections have had time to end. A client that does not read, or has
/// never sent anything, must not hold up the exit.
async fn close_time_over(mut stop: watch::Receiver<bool>, clock: Clock) {
    becomes(&mut stop, true).await;
    let mono = clock.now().mono.saturating_add(CLOSE_TIME);
    clock.sleep_until(Wakeup { wall: None, mono: Some(mono) }).await;
}

/// How the lanes of other users are served.
fn serve_lanes(router: &Served, stopped: &watch::Receiver<bool>, clock: &Clock) -> lanes::Serve<Connection> {
    // A router cannot be shared between threads, only given to them.
    let router = Mutex::new(router.clone());
    let (stopped, clock) = (stopped.clone(), clock.clone());
    Arc::new(move |connections| {
        let router = router.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::pin(serve(router, connections, stopped.clone(), clock.clone()))
    })
}

/// Serves connections until the sidecar stops, and they have had time to end.
async fn serve(
    router: Served,
    connections: impl Stream<Item = io::Result<Connection>>,
    stopped: watch::Receiver<bool>,
    clock: Clock,
) {
    let over = close_time_over(stopped.clone(), clock);
    tokio::select! {
        biased; // A connection that has ended by itself is not cut off.
        served = server::serve(router, connections, stopped) => if let Err(error) = served {
            error!(event = "LISTENER_FAILED", %error, "a listener has failed");
        },
        () = over => warn!(event = "CONNECTION_NOT_ENDED", "a client keeps its connection open; not waiting for it"),
    }
}

/// Ends when the sidecar stops and the threads of other users have ended.
async fn until_lanes_end(lanes: Arc<Lanes<Connection>>, mut stop: watch::Receiver<bool>) {
    becomes(&mut stop, true).await;
    lanes.ended().await;
}

/// Performs a task without an end until the sidecar stops.
async fn until_stop(task: impl Future<Output = ()>, mut stop: watch::Receiver<bool>) {
    tokio::select! {
        biased; // Either order will do.
        () = becomes(&mut stop, true) => {}
        () = task => {}
    }
}

fn spawn(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    #[expect(clippy::disallowed_methods, reason = "the sidecar's own tasks, awaited when it stops")]
    tokio::spawn(task.in_current_span())
}
