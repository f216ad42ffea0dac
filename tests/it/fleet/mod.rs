//! A fleet: a registry, sidecars on it, applications, and a session of its own that reads and changes nodes.

mod app;
mod faulty_registry;
mod logs;
mod nodes;

use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sidekeeper::config::{Allowed, Config, ListenAddress, LogFormat, Names};
use sidekeeper::proto;
use sidekeeper::proto::assignment_service_client::AssignmentServiceClient;
use sidekeeper::proto::participant_service_client::ParticipantServiceClient;
use sidekeeper::registry::Registry;
use sidekeeper::registry::embedded::Embedded;
use sidekeeper::registry::zookeeper::{Acl, CredentialFiles};
use sidekeeper::sidecar::Sidecar;
use sidekeeper::tree::Path;
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

pub use self::app::{App, Event, failure, success};
pub use self::faulty_registry::{FaultyRegistry, RegistryFault};
pub use self::logs::warnings_about;
pub use self::nodes::{Nodes, Tree};

/// Far more than any step of a test takes.
pub const LIMIT: Duration = Duration::from_secs(20);
pub const EACH_SECOND: &str = "* * * * * ?";
/// The job of most tests.
pub const JOB: &str = "orders";

/// Waits for a future that must end; the failure names it.
pub async fn bounded<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("waited {LIMIT:?} for {what}"))
}

/// A job without a schedule.
pub fn job(total: u32) -> proto::JobConfiguration {
    // The leader divides the items as soon as an instance joins, so that no fire comes in between.
    let props = [("sidekeeper.handoff-settling".to_owned(), "0s".to_owned())].into();
    proto::JobConfiguration { sharding_total_count: total, props, ..Default::default() }
}

/// A job that fires each second.
pub fn each_second(total: u32) -> proto::JobConfiguration {
    proto::JobConfiguration { cron: EACH_SECOND.to_owned(), ..job(total) }
}

/// The request of an application that attaches to [`JOB`].
pub fn request(configuration: impl Into<Option<proto::JobConfiguration>>) -> proto::AttachRequest {
    proto::AttachRequest {
        job_name: JOB.to_owned(),
        configuration: configuration.into(),
        ..Default::default()
    }
}

/// The request of an application that attaches to another job.
pub fn request_for(job: &str, configuration: proto::JobConfiguration) -> proto::AttachRequest {
    proto::AttachRequest { job_name: job.to_owned(), ..request(configuration) }
}

/// A registry with a namespace of its own. The number of a sidecar is the last part of its address.
pub struct Fleet {
    pub registry: Embedded,
    pub nodes: Nodes,
    pub namespace: String,
}

impl Fleet {
    pub async fn new() -> Self {
        Self::on(Embedded::in_memory()).await
    }

    pub async fn on(registry: Embedded) -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        logs::collect();
        let namespace = format!("it-{}", LAST.fetch_add(1, Ordering::Relaxed));
        let nodes = Nodes::open(&registry, &namespace).await;
        Self { registry, nodes, namespace }
    }

    /// The sidecar at 10.0.0.1.
    pub async fn sidecar(&self) -> RunningSidecar {
        self.sidecar_with(1, |_| ()).await
    }

    /// A sidecar whose registry has a fault.
    pub async fn sidecar_with_fault(&self, fault: RegistryFault) -> RunningSidecar {
        self.sidecar_on(Arc::new(FaultyRegistry { registry: self.registry.clone(), fault })).await
    }

    /// A sidecar on this registry.
    pub async fn sidecar_on(&self, registry: Arc<dyn Registry>) -> RunningSidecar {
        let namespace = Path::parse(&format!("/{}", self.namespace)).unwrap();
        RunningSidecar::of(Sidecar::start_on(config(&self.namespace, 7), namespace, registry).await.unwrap())
    }

    /// The sidecar with this number and a changed configuration.
    pub async fn sidecar_with(&self, number: u8, change: impl FnOnce(&mut Config)) -> RunningSidecar {
        let mut config = config(&self.namespace, number);
        change(&mut config);
        let namespace = Path::parse(&format!("/{}", self.namespace)).unwrap();
        let registry = Arc::new(self.registry.clone());
        RunningSidecar::of(Sidecar::start_on(config, namespace, registry).await.unwrap())
    }
}

/// The configuration of the sidecar with this number.
pub fn config(namespace: &str, number: u8) -> Config {
    Config {
        listen: vec![ListenAddress::Tcp((Ipv4Addr::LOCALHOST, 0).into()).into()],
        zookeeper: None,
        namespace: namespace.to_owned(),
        tls: None,
        tls_allow: Vec::new(),
        allow: vec![Allowed::SAME_USER],
        jobs_allowed: Names::ALL,
        token: None,
        token_file: None,
        digest: None,
        credential_files: CredentialFiles::default(),
        zookeeper_acl: Acl::Auto,
        data_dir: None,
        state_dir: None,
        lock_root: None,
        jobs_dir: None,
        instance_ip: Ipv4Addr::new(10, 0, 0, number),
        session_timeout: Duration::from_secs(30),
        lease_margin: None,
        connection_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_secs(10),
        drain_timeout: LIMIT,
        slow_application_timeout: LIMIT,
        silent_application_timeout: Duration::from_secs(10),
        log_level: "info".to_owned(),
        log_format: LogFormat::Auto,
        otlp_endpoint: None,
        dump_listen: None,
        http_listen: None,
        http_hosts: Vec::new(),
        metrics_jobs: 200,
        given: Vec::new(),
    }
}

/// A running sidecar.
pub struct RunningSidecar {
    pub inner: Sidecar,
}

impl RunningSidecar {
    pub fn of(sidecar: Sidecar) -> Self {
        Self { inner: sidecar }
    }

    /// A connection to one of its endpoints.
    pub async fn connect_to(&self, index: usize) -> Channel {
        let endpoint = Endpoint::from_shared(self.inner.endpoints()[index].clone()).unwrap();
        // Small windows: messages that an application does not read stay in the sidecar.
        endpoint.initial_stream_window_size(65_535).connect().await.unwrap()
    }

    /// A connection that is made at its first use.
    pub fn lazy_channel(&self) -> Channel {
        Endpoint::from_shared(self.inner.endpoints()[0].clone()).unwrap().connect_lazy()
    }

    pub async fn connect(&self) -> Channel {
        self.connect_to(0).await
    }

    pub async fn participants(&self) -> ParticipantServiceClient<Channel> {
        ParticipantServiceClient::new(self.connect().await)
    }

    /// Attaches an application on a connection of its own, and waits for `Attached`.
    pub async fn try_attach(&self, request: proto::AttachRequest) -> Result<App, Status> {
        App::attach(self.participants().await, request).await
    }

    pub async fn attach(&self, request: proto::AttachRequest) -> App {
        self.try_attach(request).await.unwrap()
    }

    /// The refusal of a request.
    pub async fn refusal(&self, request: proto::AttachRequest) -> Status {
        match self.try_attach(request).await {
            Ok(app) => panic!("attached as {}", app.attached.instance_id),
            Err(status) => status,
        }
    }

    pub async fn try_watch(&self, job: &str) -> Result<Watcher, Status> {
        let mut client = AssignmentServiceClient::new(self.connect().await);
        let request = proto::WatchAssignmentsRequest { job_name: job.to_owned(), wait_for_job: true };
        Ok(Watcher { stream: client.watch_assignments(request).await?.into_inner() })
    }

    /// Watches [`JOB`].
    pub async fn watch(&self) -> Watcher {
        self.try_watch(JOB).await.unwrap()
    }

    /// Drains, without hurry.
    pub async fn drain(self) {
        let (_no_hurry, hurry) = watch::channel(false);
        bounded("the end of the drain", self.inner.drain(hurry)).await;
    }
}

/// A watch of a job's assignments.
pub struct Watcher {
    stream: Streaming<proto::WatchAssignmentsResponse>,
}

impl Watcher {
    /// The first state that `wanted` accepts.
    pub async fn until(
        &mut self,
        what: &str,
        wanted: impl Fn(&proto::WatchAssignmentsResponse) -> bool,
    ) -> proto::WatchAssignmentsResponse {
        let search = async {
            loop {
                let state = self.stream.message().await.unwrap().expect("the watch has ended");
                if wanted(&state) {
                    return state;
                }
            }
        };
        bounded(what, search).await
    }

    /// Waits for the end of the stream.
    pub async fn end(mut self) -> Result<(), Status> {
        let end = async {
            while self.stream.message().await?.is_some() {}
            Ok(())
        };
        bounded("the end of the watch", end).await
    }
}
