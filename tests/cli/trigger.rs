//! `trigger` and `cancel`, against a sidecar of its own, and one that says what the test wants.

use sidekeeper::proto::job_service_server::{JobService, JobServiceServer};
use sidekeeper::proto::{
    CancelExecutionsRequest, CancelExecutionsResponse, CancelledExecution, TriggerJobRequest,
    TriggerJobResponse,
};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::{output, sidekeeper};

struct Scripted;

#[tonic::async_trait]
impl JobService for Scripted {
    async fn trigger_job(
        &self,
        request: Request<TriggerJobRequest>,
    ) -> Result<Response<TriggerJobResponse>, Status> {
        match request.into_inner().job_name.as_str() {
            "orders" => Ok(Response::new(TriggerJobResponse {
                triggered_instance_ids: vec!["10.0.0.1@-@1".to_owned(), "10.0.0.2@-@\u{1b}[2J".to_owned()],
                pending_instance_ids: vec!["10.0.0.3@-@1".to_owned()],
            })),
            _ => Err(Status::not_found("job `nobody` has no\u{7} configuration")),
        }
    }

    async fn cancel_executions(
        &self,
        request: Request<CancelExecutionsRequest>,
    ) -> Result<Response<CancelExecutionsResponse>, Status> {
        let request = request.into_inner();
        if request.job_name != "orders" {
            return Err(Status::not_found(
                "no application is attached to this sidecar for job `nobody\u{7}`",
            ));
        }
        let cancelled = request.items.into_iter().map(|item| CancelledExecution {
            instance_id: "10.0.0.1@-@\u{1b}[2J".to_owned(),
            item,
            execution_id: format!("abc-{item}"),
            was_waiting: item == 7,
        });
        Ok(Response::new(CancelExecutionsResponse { cancelled: cancelled.collect() }))
    }
}

async fn sidecar() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let server = Server::builder().add_service(JobServiceServer::new(Scripted));
    #[expect(clippy::disallowed_methods, reason = "the server ends with the test's runtime")]
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    endpoint
}

#[tokio::test]
async fn who_fires_is_told_in_words_and_in_json() {
    let endpoint = sidecar().await;
    let told = output(sidekeeper(&["trigger", "orders", "--endpoint", &endpoint])).await;
    assert_eq!((told.code, told.stderr.as_str()), (Some(0), ""));
    let lines: Vec<_> = told.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!(lines[0], "triggered  10.0.0.1@-@1");
    assert!(!told.stdout.contains('\u{1b}'), "{:?}", told.stdout);
    assert!(lines[2].starts_with("pending    10.0.0.3@-@1  ("), "{lines:?}");

    let mut command = sidekeeper(&["trigger", "orders", "--json"]);
    command.env("SIDEKEEPER_ENDPOINT", &endpoint);
    let told = output(command).await;
    let [line] = told.stdout.lines().collect::<Vec<_>>()[..] else { panic!("{}", told.stdout) };
    let value: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(value["triggered_instance_ids"][0], "10.0.0.1@-@1");
    assert_eq!(value["pending_instance_ids"], serde_json::json!(["10.0.0.3@-@1"]));
}

#[tokio::test]
async fn a_refusal_is_told_with_its_reason() {
    let endpoint = sidecar().await;
    let refused = output(sidekeeper(&["trigger", "nobody", "--endpoint", &endpoint])).await;
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""));
    assert!(
        refused.stderr.contains("the sidecar answered NotFound: job `nobody` has no"),
        "{}",
        refused.stderr
    );
    assert!(!refused.stderr.contains('\u{7}'));
}

#[tokio::test]
async fn an_endpoint_that_is_none_is_a_mistake_and_one_that_is_away_a_failure() {
    let mistake = output(sidekeeper(&["trigger", "orders", "--endpoint", "ftp://x"])).await;
    assert_eq!(mistake.code, Some(64), "{}", mistake.stderr);
    let away = output(sidekeeper(&["trigger", "orders", "--endpoint", "unix:///nonexistent/s.sock"])).await;
    assert_eq!(away.code, Some(1));
    assert!(
        away.stderr.contains(
            "no sidecar answers at unix:///nonexistent/s.sock; is `sidekeeper serve` running there?"
        ),
        "{}",
        away.stderr
    );
    assert_eq!(output(sidekeeper(&["trigger"])).await.code, Some(64));
}

#[tokio::test]
async fn what_was_cancelled_is_told_in_words_and_in_json() {
    let endpoint = sidecar().await;
    let told =
        output(sidekeeper(&["cancel", "orders", "--item", "3", "--item", "7", "--endpoint", &endpoint]))
            .await;
    assert_eq!((told.code, told.stderr.as_str()), (Some(0), ""));
    let lines: Vec<_> = told.stdout.lines().collect();
    assert!(lines[0].starts_with("cancelled  item 3  abc-3  of 10.0.0.1@-@"), "{lines:?}");
    assert!(lines[1].ends_with("(was waiting to be tried again)"), "{lines:?}");
    assert!(!told.stdout.contains('\u{1b}'), "{:?}", told.stdout);

    let json =
        output(sidekeeper(&["cancel", "orders", "--item", "7", "--json", "--endpoint", &endpoint])).await;
    let value: serde_json::Value = serde_json::from_str(json.stdout.trim_end()).unwrap();
    assert_eq!(
        (&value["cancelled"][0]["item"], &value["cancelled"][0]["was_waiting"]),
        (&7.into(), &true.into())
    );

    let none = output(sidekeeper(&["cancel", "orders", "--endpoint", &endpoint])).await;
    assert_eq!((none.code, none.stdout.as_str()), (Some(0), "nothing is being executed here\n"));
    let refused = output(sidekeeper(&["cancel", "nobody", "--endpoint", &endpoint])).await;
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("the sidecar answered NotFound"), "{}", refused.stderr);
    assert!(!refused.stderr.contains('\u{7}'));
}
