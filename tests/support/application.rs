//! An application in Rust: it attaches to jobs over one connection, receives executions, and reports them. And the
//! configuration of a sidecar for it, on a Unix socket.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use sidekeeper::config::{Allowed, Config, ListenAddress, LogFormat, Names};
use sidekeeper::proto;
use sidekeeper::proto::attach_response::Event;
use sidekeeper::proto::participant_service_client::ParticipantServiceClient;
use sidekeeper::registry::zookeeper::{Acl, CredentialFiles};
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

pub(crate) type Client = ParticipantServiceClient<Channel>;

/// A sidecar's default configuration, except that it serves on this socket only.
pub(crate) fn config(socket: &Path) -> Config {
    Config {
        listen: vec![ListenAddress::Unix(socket.into()).into()],
        zookeeper: None,
        namespace: "sidekeeper".to_owned(),
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
        instance_ip: Ipv4Addr::LOCALHOST,
        session_timeout: Duration::from_secs(30),
        lease_margin: None,
        connection_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_secs(10),
        drain_timeout: Duration::from_secs(25),
        slow_application_timeout: Duration::from_secs(10),
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

/// Connects to a sidecar.
pub(crate) async fn connect(endpoint: &str) -> Client {
    ParticipantServiceClient::new(connect_channel(endpoint).await)
}

/// A connection to a sidecar.
pub(crate) async fn connect_channel(endpoint: &str) -> Channel {
    let endpoint = Endpoint::from_shared(endpoint.to_owned()).expect("an endpoint");
    endpoint.connect().await.expect("a sidecar that serves")
}

/// A job of so many items with this schedule.
pub(crate) fn job(cron: &str, items: u32) -> proto::JobConfiguration {
    proto::JobConfiguration {
        sharding_total_count: items,
        cron: cron.to_owned(),
        ..proto::JobConfiguration::default()
    }
}

/// An attached job.
pub(crate) struct Job {
    client: Client,
    attachment_id: String,
    events: Streaming<proto::AttachResponse>,
}

impl Job {
    /// Attaches, and waits until the application owns all items of the job.
    pub(crate) async fn attach(
        mut client: Client,
        name: &str,
        configuration: proto::JobConfiguration,
    ) -> Self {
        let total = configuration.sharding_total_count;
        let request = proto::AttachRequest {
            job_name: name.to_owned(),
            configuration: Some(configuration),
            ..proto::AttachRequest::default()
        };
        let events = client.attach(request).await.expect("to attach").into_inner();
        let mut job = Self { client, attachment_id: String::new(), events };
        loop {
            match job.event().await {
                Event::Attached(attached) => job.attachment_id = attached.attachment_id,
                Event::AssignmentChanged(changed) => {
                    let items = changed.assignment.map_or(0, |assignment| assignment.items.len());
                    if u32::try_from(items) == Ok(total) {
                        return job;
                    }
                }
                Event::Execute(_)
                | Event::Cancel(_)
                | Event::LeadershipChanged(_)
                | Event::SessionChanged(_)
                | Event::JobChanged(_)
                | Event::BeforeFirst(_)
                | Event::AfterLast(_)
                | Event::Draining(_)
                | Event::Waiting(_) => {}
            }
        }
    }

    async fn event(&mut self) -> Event {
        let message = self.events.message().await.expect("no error on the stream");
        message.and_then(|message| message.event).expect("the stream to go on")
    }

    /// The next execution; other events are skipped. Dropping the future loses no event.
    pub(crate) async fn execute(&mut self) -> proto::Execute {
        loop {
            if let Event::Execute(execute) = self.event().await {
                return execute;
            }
        }
    }

    /// Reports the success of executions, and waits until it is recorded.
    pub(crate) fn succeeded(
        &self,
        executions: Vec<String>,
    ) -> impl Future<Output = Vec<proto::CompletionRecord>> + Send + 'static {
        let result = |execution_id| proto::ExecutionResult {
            execution_id,
            outcome: proto::ExecutionOutcome::Success.into(),
            failure_message: String::new(),
        };
        let results = executions.into_iter().map(result).collect();
        let request = proto::ReportCompletionRequest { attachment_id: self.attachment_id.clone(), results };
        let mut client = self.client.clone();
        async move { client.report_completion(request).await.expect("an answer").into_inner().records }
    }
}
