//! The application of the comparison without a client library: the protos, and nothing else. Reports the start and the end
//! of each execution, a JSON object a line.
//!
//! Lines on its standard input are commands: after `hold` executions do not end until `release`. It is one task that
//! attaches, reads its stream, and reports all executions that are over in one call at a time.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "a measurement that cannot be made ends with a panic"
)]
#![allow(clippy::disallowed_methods, reason = "measuring is reading clocks and waiting")]

use std::io::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sidekeeper::proto;
use sidekeeper::proto::attach_response::Event;
use sidekeeper::proto::participant_service_client::ParticipantServiceClient;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

/// The pause between two attempts to reach a sidecar that starts.
const CONNECT_PAUSE: Duration = Duration::from_millis(20);

type Client = ParticipantServiceClient<Channel>;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: `make compare` starts this program"))
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn tell(event: &Value) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{event}").and_then(|()| output.flush()).expect("somebody reads the events");
}

async fn connect() -> Client {
    let endpoint = Endpoint::from_shared(variable("SIDEKEEPER_ENDPOINT")).expect("an endpoint");
    loop {
        match endpoint.connect().await {
            Ok(channel) => return ParticipantServiceClient::new(channel),
            Err(_) => tokio::time::sleep(CONNECT_PAUSE).await,
        }
    }
}

fn configuration() -> proto::JobConfiguration {
    let given: Value = serde_json::from_str(&variable("COMPARE_CONFIGURATION")).expect("a configuration");
    let total = given["sharding_total_count"].as_u64().and_then(|total| u32::try_from(total).ok());
    proto::JobConfiguration {
        sharding_total_count: total.expect("a total count"),
        cron: given["cron"].as_str().unwrap_or_default().to_owned(),
        failover: given["failover"].as_bool(),
        misfire: given["misfire"].as_bool(),
        job_class: variable("COMPARE_CLASS"),
        ..proto::JobConfiguration::default()
    }
}

/// The executions without a report.
#[derive(Default)]
struct Open {
    attachment_id: String,
    /// The executions that have begun: the id, and the item.
    begun: Vec<(String, u32)>,
    held: bool,
}

impl Open {
    fn take(&mut self, event: Event, instance: &mut String) {
        match event {
            Event::Attached(attached) => {
                self.attachment_id = attached.attachment_id;
                *instance = attached.instance_id;
            }
            Event::AssignmentChanged(changed) => {
                let items: Vec<u32> =
                    changed.assignment.iter().flat_map(|all| &all.items).map(|item| item.item).collect();
                tell(&json!({"event": "assignment", "instance": instance, "items": items}));
            }
            Event::Execute(execute) => {
                let scheduled = execute.scheduled_time.unwrap_or_default();
                let scheduled = scheduled.seconds as f64 + f64::from(scheduled.nanos) / 1e9;
                let item = execute.item;
                tell(&json!({"event": "start", "item": item, "scheduled": scheduled, "time": now()}));
                self.begun.push((execute.execution_id, item));
            }
            Event::Cancel(_)
            | Event::LeadershipChanged(_)
            | Event::SessionChanged(_)
            | Event::JobChanged(_)
            | Event::BeforeFirst(_)
            | Event::AfterLast(_)
            | Event::Draining(_)
            | Event::Waiting(_) => {}
        }
    }

    /// The report of all executions that are over. `None`: there is none.
    fn report(&mut self) -> Option<proto::ReportCompletionRequest> {
        if self.held || self.begun.is_empty() {
            return None;
        }
        let over = std::mem::take(&mut self.begun);
        let success = |(execution_id, item): (String, u32)| {
            tell(&json!({"event": "end", "item": item, "time": now()}));
            let outcome = proto::ExecutionOutcome::Success.into();
            proto::ExecutionResult { execution_id, outcome, failure_message: String::new() }
        };
        let results = over.into_iter().map(success).collect();
        Some(proto::ReportCompletionRequest { attachment_id: self.attachment_id.clone(), results })
    }
}

/// The lines on the standard input.
fn commands() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

async fn send(
    mut client: Client,
    report: proto::ReportCompletionRequest,
) -> Result<Response<proto::ReportCompletionResponse>, Status> {
    client.report_completion(report).await
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut client = connect().await;
    let request = proto::AttachRequest {
        job_name: variable("COMPARE_JOB"),
        configuration: Some(configuration()),
        ..proto::AttachRequest::default()
    };
    let mut events = client.attach(request).await.expect("to attach").into_inner();
    let mut commands = commands();
    let mut stop = signal(SignalKind::terminate()).expect("signals");
    let (mut open, mut instance) = (Open::default(), String::new());
    let (mut reporting, mut stopping) = (tokio::task::JoinSet::new(), false);
    loop {
        if reporting.is_empty()
            && let Some(report) = open.report()
        {
            reporting.spawn(send(client.clone(), report));
        }
        tokio::select! {
            event = events.message() => match event {
                Ok(Some(message)) => {
                    let drained = matches!(message.event, Some(Event::Draining(_)));
                    message.event.into_iter().for_each(|event| open.take(event, &mut instance));
                    stopping |= drained;
                }
                Ok(None) | Err(_) => return,
            },
            Some(answer) = reporting.join_next() => {
                answer.expect("no panic").expect("the results are recorded");
            }
            Some(command) = commands.recv() => {
                open.held = command == "hold";
                tell(&json!({"event": command}));
            }
            _ = stop.recv() => {
                let request =
                    proto::DrainAttachmentRequest { attachment_id: open.attachment_id.clone(), for_good: false };
                client.drain_attachment(request).await.expect("the sidecar hears it");
            }
        }
        if stopping && open.begun.is_empty() && reporting.is_empty() {
            return;
        }
    }
}
