//! `watch`, against a server with scripted states.

use std::path::Path;

use nix::sys::signal::Signal;
use sidekeeper::proto::assignment_service_server::{AssignmentService, AssignmentServiceServer};
use sidekeeper::proto::{ItemStatus, WatchAssignmentsRequest, WatchAssignmentsResponse};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::{LIMIT, Running, output, sidekeeper};

type State = Result<WatchAssignmentsResponse, Status>;

/// Passes each call to the test: the job's name, and the channel for its states.
struct Scripted(mpsc::Sender<(String, mpsc::Sender<State>)>);

#[tonic::async_trait]
impl AssignmentService for Scripted {
    type WatchAssignmentsStream = ReceiverStream<State>;

    async fn watch_assignments(
        &self,
        request: Request<WatchAssignmentsRequest>,
    ) -> Result<Response<Self::WatchAssignmentsStream>, Status> {
        let job = request.into_inner().job_name;
        if job.contains('/') {
            return Err(Status::invalid_argument("job_name = `a/b`: allowed: no `/`"));
        }
        let (states, stream) = mpsc::channel(8);
        self.0.send((job, states)).await.unwrap();
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

struct FakeSidecar {
    endpoint: String,
    calls: mpsc::Receiver<(String, mpsc::Sender<State>)>,
}

impl FakeSidecar {
    async fn on_tcp() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (sender, calls) = mpsc::channel(8);
        let server = Server::builder().add_service(AssignmentServiceServer::new(Scripted(sender)));
        spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { endpoint, calls }
    }

    fn on_socket(path: &Path) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let (sender, calls) = mpsc::channel(8);
        let server = Server::builder().add_service(AssignmentServiceServer::new(Scripted(sender)));
        spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
        Self { endpoint: format!("unix://{}", path.display()), calls }
    }

    async fn call(&mut self) -> (String, mpsc::Sender<State>) {
        timeout(LIMIT, self.calls.recv()).await.unwrap().unwrap()
    }
}

#[expect(clippy::disallowed_methods, reason = "the server ends with the test's runtime")]
fn spawn(server: impl Future<Output = Result<(), tonic::transport::Error>> + Send + 'static) {
    tokio::spawn(server);
}

fn state(generation: i64) -> State {
    let items = vec![ItemStatus { instance_id: "10.0.0.1@-@1".to_owned(), ..Default::default() }];
    Ok(WatchAssignmentsResponse { job_name: "orders".to_owned(), generation, items, ..Default::default() })
}

#[tokio::test]
async fn each_change_is_printed_as_a_line_of_json_also_after_a_reconnect() {
    let mut sidecar = FakeSidecar::on_tcp().await;
    let mut watch =
        Running::start(sidekeeper(&["watch", "orders", "--json", "--endpoint", &sidecar.endpoint]));
    let (job, states) = sidecar.call().await;
    assert_eq!(job, "orders");
    for generation in [1, 2] {
        states.send(state(generation)).await.unwrap();
        let printed: serde_json::Value = serde_json::from_str(&watch.line().await).unwrap();
        assert_eq!(printed["generation"], generation);
        assert_eq!(printed["items"][0]["instance_id"], "10.0.0.1@-@1");
    }
    states.send(Err(Status::unavailable("no registry"))).await.unwrap();
    assert_eq!(
        watch.log_line().await,
        "sidekeeper: the sidecar answered Unavailable: no registry; trying again"
    );

    let (_, states) = sidecar.call().await;
    states.send(state(3)).await.unwrap();
    assert!(watch.line().await.contains("\"generation\":3"));
    watch.signal(Signal::SIGINT);
    assert_eq!(watch.end().await.code(), Some(0));
}

#[tokio::test]
async fn each_change_is_printed_as_a_plain_table_in_a_pipe() {
    let directory = tempfile::tempdir().unwrap();
    let mut sidecar = FakeSidecar::on_socket(&directory.path().join("s.sock"));
    let mut command = sidekeeper(&["watch", "orders"]);
    command.env("SIDEKEEPER_ENDPOINT", &sidecar.endpoint);
    let mut watch = Running::start(command);
    let (_, states) = sidecar.call().await;
    for generation in [1, 2] {
        states.send(state(generation)).await.unwrap();
        // Each table begins with its time, for readers of a file.
        while !is_time(&watch.line().await) {}
        let head = format!("orders  generation {generation}  1 item  0 instances");
        loop {
            let line = watch.line().await;
            assert!(!line.contains('\u{1b}'), "{line:?}");
            if line == head {
                break;
            }
        }
    }
    watch.signal(Signal::SIGTERM);
    assert_eq!(watch.end().await.code(), Some(0));
}

fn is_time(line: &str) -> bool {
    line.ends_with('Z') && line.parse::<jiff::Timestamp>().is_ok()
}

#[tokio::test]
async fn watch_once_prints_one_state_and_ends() {
    let mut sidecar = FakeSidecar::on_tcp().await;
    let endpoint = sidecar.endpoint.strip_prefix("http://").unwrap().to_owned();
    let mut watch = Running::start(sidekeeper(&["watch", "orders", "--once", "--endpoint", &endpoint]));
    let (_, states) = sidecar.call().await;
    states.send(state(1)).await.unwrap();
    assert!(is_time(&watch.line().await));
    assert_eq!(watch.line().await, "orders  generation 1  1 item  0 instances");
    assert_eq!(watch.end().await.code(), Some(0));
    // `--once` does not wait for a sidecar.
    let absent = output(sidekeeper(&["watch", "orders", "--once", "--endpoint", "127.0.0.1:1"])).await;
    assert_eq!(absent.code, Some(1));
    assert!(absent.stderr.contains("no sidecar answers at http://127.0.0.1:1"), "{}", absent.stderr);
}

#[tokio::test]
async fn an_unknown_job_is_an_error() {
    let mut sidecar = FakeSidecar::on_tcp().await;
    let watch = Running::start(sidekeeper(&["watch", "ordres", "--endpoint", &sidecar.endpoint]));
    let (_, states) = sidecar.call().await;
    states.send(Err(Status::not_found("the registry has no nodes of job `ordres`"))).await.unwrap();
    let mut watch = watch;
    assert!(watch.log_line().await.ends_with("the registry has no nodes of job `ordres`"));
    assert_eq!(watch.end().await.code(), Some(1));
}

#[tokio::test]
async fn watch_ends_without_an_error_when_its_reader_closes_the_pipe() {
    let mut sidecar = FakeSidecar::on_tcp().await;
    let mut watch = Running::start(sidekeeper(&["watch", "orders", "--endpoint", &sidecar.endpoint]));
    let (_, states) = sidecar.call().await;
    states.send(state(1)).await.unwrap();
    watch.line().await;

    // The program notices the closed pipe without a further change.
    let Running { mut child, stdout, mut stderr } = watch;
    drop(stdout);
    let status = timeout(LIMIT, child.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(0));
    assert_eq!(stderr.next_line().await.unwrap(), None);
}

#[tokio::test]
async fn a_request_that_can_never_succeed_is_not_repeated() {
    let sidecar = FakeSidecar::on_tcp().await;
    let refused = output(sidekeeper(&["watch", "a/b", "--endpoint", &sidecar.endpoint])).await;
    assert_eq!(refused.code, Some(1));
    assert_eq!(
        refused.stderr,
        "sidekeeper: the sidecar answered InvalidArgument: job_name = `a/b`: allowed: no `/`\n"
    );
    assert_eq!(output(sidekeeper(&["watch", "j", "--endpoint", "7070"])).await.code, Some(64));
}

#[tokio::test]
async fn watch_waits_for_a_sidecar_that_does_not_serve_yet() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s.sock");
    let endpoint = format!("unix://{}", socket.display());
    let mut watch = Running::start(sidekeeper(&["watch", "orders", "--json", "--endpoint", &endpoint]));
    let notice = watch.log_line().await;
    assert!(
        notice.starts_with("sidekeeper: no sidecar answers at unix://") && notice.ends_with("; trying again"),
        "{notice}"
    );
    let mut sidecar = FakeSidecar::on_socket(&socket);
    let (_, states) = sidecar.call().await;
    states.send(state(1)).await.unwrap();
    assert!(watch.line().await.contains("\"generation\":1"));
    watch.signal(Signal::SIGINT);
    assert_eq!(watch.end().await.code(), Some(0));
}
