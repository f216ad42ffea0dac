//! `trigger`, `cancel`, `disable` and `enable`, against a server with scripted answers.

use sidekeeper::proto::job_service_server::{JobService, JobServiceServer};
use sidekeeper::proto::{
    CancelExecutionsRequest, CancelExecutionsResponse, CancelledExecution, DisableItemsRequest,
    DisableItemsResponse, DisableServersRequest, DisableServersResponse, EnableItemsRequest,
    EnableItemsResponse, EnableServersRequest, EnableServersResponse, TriggerJobRequest, TriggerJobResponse,
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

    async fn disable_items(
        &self,
        request: Request<DisableItemsRequest>,
    ) -> Result<Response<DisableItemsResponse>, Status> {
        Ok(Response::new(DisableItemsResponse { changed_items: request.into_inner().items }))
    }

    async fn enable_items(
        &self,
        _: Request<EnableItemsRequest>,
    ) -> Result<Response<EnableItemsResponse>, Status> {
        Err(Status::unavailable("the registry does not answer"))
    }

    async fn disable_servers(
        &self,
        request: Request<DisableServersRequest>,
    ) -> Result<Response<DisableServersResponse>, Status> {
        let mut changed_server_ips = request.into_inner().server_ips;
        changed_server_ips.push("10.0.0.2\u{1b}[2J".to_owned());
        Ok(Response::new(DisableServersResponse { changed_server_ips }))
    }

    async fn enable_servers(
        &self,
        _: Request<EnableServersRequest>,
    ) -> Result<Response<EnableServersResponse>, Status> {
        Ok(Response::new(EnableServersResponse { changed_server_ips: Vec::new() }))
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
async fn triggered_instances_are_printed_as_text_and_as_json() {
    let endpoint = sidecar().await;
    let printed = output(sidekeeper(&["trigger", "orders", "--endpoint", &endpoint])).await;
    assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""));
    let lines: Vec<_> = printed.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!(lines[0], "triggered  10.0.0.1@-@1");
    assert!(!printed.stdout.contains('\u{1b}'), "{:?}", printed.stdout);
    assert!(lines[2].starts_with("pending    10.0.0.3@-@1  ("), "{lines:?}");

    let mut command = sidekeeper(&["trigger", "orders", "--json"]);
    command.env("SIDEKEEPER_ENDPOINT", &endpoint);
    let printed = output(command).await;
    let [line] = printed.stdout.lines().collect::<Vec<_>>()[..] else { panic!("{}", printed.stdout) };
    let value: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(value["triggered_instance_ids"][0], "10.0.0.1@-@1");
    assert_eq!(value["pending_instance_ids"], serde_json::json!(["10.0.0.3@-@1"]));
}

#[tokio::test]
async fn a_refusal_is_printed_with_its_reason() {
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
async fn an_invalid_endpoint_is_a_usage_error_and_an_absent_sidecar_is_a_failure() {
    let wrong = output(sidekeeper(&["trigger", "orders", "--endpoint", "ftp://x"])).await;
    assert_eq!(wrong.code, Some(64), "{}", wrong.stderr);
    let absent = output(sidekeeper(&["trigger", "orders", "--endpoint", "unix:///nonexistent/s.sock"])).await;
    assert_eq!(absent.code, Some(1));
    assert!(
        absent.stderr.contains(
            "no sidecar answers at unix:///nonexistent/s.sock; is `sidekeeper serve` running there?"
        ),
        "{}",
        absent.stderr
    );
    assert_eq!(output(sidekeeper(&["trigger"])).await.code, Some(64));
}

#[tokio::test]
async fn cancelled_executions_are_printed_as_text_and_as_json() {
    let endpoint = sidecar().await;
    let printed =
        output(sidekeeper(&["cancel", "orders", "--item", "3", "--item", "7", "--endpoint", &endpoint]))
            .await;
    assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""));
    let lines: Vec<_> = printed.stdout.lines().collect();
    assert!(lines[0].starts_with("cancelled  item 3  abc-3  of 10.0.0.1@-@"), "{lines:?}");
    assert!(lines[1].ends_with("(was waiting to be tried again)"), "{lines:?}");
    assert!(!printed.stdout.contains('\u{1b}'), "{:?}", printed.stdout);

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

#[tokio::test]
async fn what_is_disabled_and_enabled_is_printed_and_needs_to_be_named_and_confirmed() {
    let endpoint = sidecar().await;
    let call = async |words: &[&str]| {
        let words = [words, &["--endpoint", &endpoint]].concat();
        output(sidekeeper(&words)).await
    };
    let printed = call(&["disable", "orders", "--item", "3", "--item", "7", "--yes"]).await;
    assert_eq!(printed.stdout, "disabled  item 3 of orders\ndisabled  item 7 of orders\n");
    let printed = call(&["disable", "orders", "--server", "10.0.0.1", "--yes"]).await;
    assert!(printed.stdout.starts_with("disabled  10.0.0.1 for orders\n"), "{}", printed.stdout);
    assert!(!printed.stdout.contains('\u{1b}'), "{:?}", printed.stdout);
    let printed = call(&["disable", "orders", "--item", "3", "--json", "--yes"]).await;
    assert_eq!(printed.stdout, "{\"changed_items\":[3]}\n");
    let nothing = call(&["enable", "orders", "--all-servers"]).await;
    assert_eq!((nothing.code, nothing.stdout.as_str()), (Some(0), "nothing to do: already enabled\n"));
    let again = call(&["enable", "orders", "--item", "3"]).await;
    assert_eq!(again.code, Some(75), "{}", again.stderr);
    // The test's standard input is no terminal.
    let unconfirmed = call(&["disable", "orders", "--all-servers"]).await;
    assert_eq!((unconfirmed.code, unconfirmed.stdout.as_str()), (Some(3), ""));
    assert!(
        unconfirmed.stderr.contains("No instance will execute any item of orders"),
        "{}",
        unconfirmed.stderr
    );
    for wrong in [
        &["disable", "orders"][..],
        &["enable", "orders", "--item", "1", "--all-servers"],
        &["enable", "orders", "--server", "x"],
    ] {
        assert_eq!(call(wrong).await.code, Some(64), "{wrong:?}");
    }
}
