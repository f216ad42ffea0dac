//! `jobs`, `job` and its parts, `trigger`, `cancel`, `disable` and `enable`, against a server with scripted answers.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Mutex;

use nix::sys::signal::Signal;
use sidekeeper::proto::job_service_server::{JobService, JobServiceServer};
use sidekeeper::proto::{
    CancelExecutionsRequest, CancelExecutionsResponse, CancelReach, CancelledExecution, DisableItemsRequest,
    DisableItemsResponse, DisableServersRequest, DisableServersResponse, EnableItemsRequest,
    EnableItemsResponse, EnableServersRequest, EnableServersResponse, FleetExecution, GetJobRequest,
    GetJobResponse, InstanceStatus, ItemStatus, ItemTrigger, JobServers, JobState, JobSummary, JobsSynced,
    LastExecution, ListJobsRequest, ListJobsResponse, ListServersRequest, ListServersResponse,
    ListTriggersRequest, ListTriggersResponse, RemoveJobRequest, RemoveJobResponse, RemoveServersRequest,
    RemoveServersResponse, ServerStatus, StopInstancesRequest, StopInstancesResponse, Trigger,
    TriggerJobRequest, TriggerJobResponse, TriggerState, UpdateJobRequest, UpdateJobResponse,
    WatchJobsRequest, WatchJobsResponse, watch_jobs_response,
};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::{Running, output, sidekeeper};

struct Scripted;

/// The ids of the requests so far.
static IDS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
/// The names of the jobs that were watched so far.
static WATCHED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

#[tonic::async_trait]
impl JobService for Scripted {
    async fn trigger_job(
        &self,
        request: Request<TriggerJobRequest>,
    ) -> Result<Response<TriggerJobResponse>, Status> {
        let request = request.into_inner();
        match request.job_name.as_str() {
            // The first answer to each request is lost. A sidecar that recognises a repetition sends the id back.
            "lost" if IDS.lock().unwrap().insert(request.request_id.clone()) => {
                let id = ("request_id".to_owned(), request.request_id);
                let details = ErrorDetails::with_error_info("OUTCOME_UNKNOWN", "sidekeeper", [id]);
                Err(Status::with_error_details(Code::Unknown, "the answer was lost", details))
            }
            "earlier" => {
                IDS.lock().unwrap().insert(request.request_id);
                let details = ErrorDetails::with_error_info("OUTCOME_UNKNOWN", "sidekeeper", []);
                Err(Status::with_error_details(Code::Unknown, "the answer was lost", details))
            }
            "orders" if !request.items.is_empty() || request.parameter.is_some() => {
                assert_eq!(
                    (&request.items[..], request.parameter.as_deref()),
                    (&[3, 7][..], Some("--day=1"))
                );
                let triggered_items = request.items;
                Ok(Response::new(TriggerJobResponse { triggered_items, ..TriggerJobResponse::default() }))
            }
            "lost" | "orders" | "without-items" => Ok(Response::new(TriggerJobResponse {
                triggered_instance_ids: vec!["10.0.0.1@-@1".to_owned(), "10.0.0.2@-@\u{1b}[2J".to_owned()],
                pending_instance_ids: vec!["10.0.0.3@-@1".to_owned()],
                triggered_items: Vec::new(),
            })),
            _ => Err(Status::not_found("job `nobody` has no\u{7} configuration")),
        }
    }

    async fn list_triggers(
        &self,
        _: Request<ListTriggersRequest>,
    ) -> Result<Response<ListTriggersResponse>, Status> {
        let trigger = |state: TriggerState, online, running_items: &[u32]| Trigger {
            instance_id: "10.0.0.1@-@\u{1b}[2J".to_owned(),
            state: state.into(),
            trigger_time: Some(prost_types::Timestamp { seconds: 1_800_000_000, nanos: 0 }),
            request_id: "mine".to_owned(),
            online,
            running_items: running_items.to_vec(),
        };
        let of_item = |item, state: TriggerState, instance: &str| ItemTrigger {
            item,
            state: state.into(),
            trigger_time: Some(prost_types::Timestamp { seconds: 1_800_000_000, nanos: 0 }),
            request_id: "mine".to_owned(),
            instance_id: instance.to_owned(),
        };
        Ok(Response::new(ListTriggersResponse {
            triggers: vec![
                trigger(TriggerState::Pending, false, &[]),
                trigger(TriggerState::TakenUp, true, &[3, 4]),
            ],
            item_triggers: vec![
                of_item(3, TriggerState::Pending, ""),
                of_item(3, TriggerState::TakenUp, "10.0.0.1@-@\u{1b}[2J"),
                of_item(7, TriggerState::Done, ""),
            ],
            left_out_requests: 2,
        }))
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
        if request.fleet {
            let one = |item, reach: CancelReach| FleetExecution {
                instance_id: "10.0.0.1@-@\u{1b}[2J".to_owned(),
                item,
                fencing_token: 7,
                reach: reach.into(),
            };
            return Ok(Response::new(CancelExecutionsResponse {
                cancelled: Vec::new(),
                fleet_executions: vec![one(3, CancelReach::Sidecar), one(4, CancelReach::Java)],
            }));
        }
        let cancelled = request.items.into_iter().map(|item| CancelledExecution {
            instance_id: "10.0.0.1@-@\u{1b}[2J".to_owned(),
            item,
            execution_id: format!("abc-{item}"),
            was_waiting: item == 7,
        });
        Ok(Response::new(CancelExecutionsResponse {
            cancelled: cancelled.collect(),
            ..CancelExecutionsResponse::default()
        }))
    }

    async fn list_jobs(
        &self,
        request: Request<ListJobsRequest>,
    ) -> Result<Response<ListJobsResponse>, Status> {
        // Two pages.
        let request = request.into_inner();
        let job = |name: &str, state: JobState| JobSummary {
            job_name: name.to_owned(),
            state: state.into(),
            sharding_total_count: 12,
            cron: "0 0 3 * * ?".to_owned(),
            description: "at night\u{1b}[2J".to_owned(),
            instance_count: 3,
            java_instance_count: 1,
            ..JobSummary::default()
        };
        Ok(Response::new(match request.page_token.as_str() {
            "" => ListJobsResponse {
                jobs: vec![job("orders", JobState::Ok)],
                next_page_token: "orders".to_owned(),
            },
            _ => ListJobsResponse {
                jobs: vec![job("refunds", JobState::NoInstances)],
                next_page_token: String::new(),
            },
        }))
    }

    type WatchJobsStream = Pin<Box<dyn Stream<Item = Result<WatchJobsResponse, Status>> + Send>>;

    async fn watch_jobs(
        &self,
        request: Request<WatchJobsRequest>,
    ) -> Result<Response<Self::WatchJobsStream>, Status> {
        use watch_jobs_response::Event;
        let names = request.into_inner().job_names;
        if names.iter().any(String::is_empty) {
            return Err(Status::invalid_argument("job_names: given ``"));
        }
        let event = |event| Ok(WatchJobsResponse { event: Some(event) });
        let job = |name: &str| {
            let job_name = name.to_owned();
            event(Event::Job(JobSummary { job_name, state: JobState::Ok.into(), ..JobSummary::default() }))
        };
        let synced = event(Event::Synced(JobsSynced {}));
        // The first stream of each test breaks, and the second one goes on.
        let is_first = WATCHED.lock().unwrap().insert(names.concat());
        let told = match is_first {
            true => vec![job("orders\u{7}"), job("refunds"), synced, Err(Status::unavailable("no registry"))],
            false => vec![job("orders\u{7}"), synced, event(Event::RemovedJobName("invoices".to_owned()))],
        };
        Ok(Response::new(Box::pin(tokio_stream::iter(told).chain(tokio_stream::pending()))))
    }

    async fn list_servers(
        &self,
        request: Request<ListServersRequest>,
    ) -> Result<Response<ListServersResponse>, Status> {
        // Two pages, the first of them without jobs.
        if request.into_inner().page_token.is_empty() {
            let next_page_token = "a".to_owned();
            return Ok(Response::new(ListServersResponse { jobs: Vec::new(), next_page_token }));
        }
        let server = |ip: &str, disabled, instance_count| ServerStatus {
            server_ip: ip.to_owned(),
            disabled,
            instance_count,
        };
        let of_job = |name: &str, servers| JobServers { job_name: name.to_owned(), servers };
        let jobs = vec![
            of_job("nobody", vec![server("10.0.0.1", true, 0)]),
            of_job("orders", vec![server("10.0.0.1", false, 2), server("10.0.0.10", false, 1)]),
        ];
        Ok(Response::new(ListServersResponse { jobs, next_page_token: String::new() }))
    }

    async fn get_job(&self, request: Request<GetJobRequest>) -> Result<Response<GetJobResponse>, Status> {
        let job_name = request.into_inner().job_name;
        if job_name != "orders" {
            return Err(Status::not_found("the registry has no nodes of job `nobody`"));
        }
        Ok(Response::new(GetJobResponse {
            job_name,
            etag: "\"1a.3\"".to_owned(),
            document: "jobName: orders\ncron: '0 0 3 * * ?'\n".to_owned(),
            instances: vec![InstanceStatus {
                instance_id: "10.0.0.1@-@1".to_owned(),
                server_ip: "10.0.0.1".to_owned(),
                enabled: false,
                leader: true,
            }],
            servers: vec![ServerStatus {
                server_ip: "10.0.0.1".to_owned(),
                disabled: true,
                instance_count: 1,
            }],
            items: vec![
                ItemStatus {
                    instance_id: "10.0.0.1@-@1".to_owned(),
                    running: true,
                    running_since: Some(prost_types::Timestamp { seconds: 1_800_000_000, nanos: 0 }),
                    last_execution: Some(LastExecution {
                        last_success_time: Some(prost_types::Timestamp { seconds: 1_799_999_940, nanos: 0 }),
                        ..LastExecution::default()
                    }),
                    item_parameter: Some("Lyon\u{7}".to_owned()),
                    ..ItemStatus::default()
                },
                ItemStatus { item: 1, disabled: true, misfire: true, ..ItemStatus::default() },
            ],
            ..GetJobResponse::default()
        }))
    }

    async fn update_job(&self, _: Request<UpdateJobRequest>) -> Result<Response<UpdateJobResponse>, Status> {
        Err(Status::aborted("the configuration of job `orders` has changed"))
    }

    async fn remove_job(&self, _: Request<RemoveJobRequest>) -> Result<Response<RemoveJobResponse>, Status> {
        Ok(Response::new(RemoveJobResponse { removed_nodes: 17 }))
    }

    async fn stop_instances(
        &self,
        request: Request<StopInstancesRequest>,
    ) -> Result<Response<StopInstancesResponse>, Status> {
        let StopInstancesRequest { job_name, instance_ids, server_ips } = request.into_inner();
        if job_name != "orders" {
            return Err(Status::permission_denied(format!("job `{job_name}` may not be changed")));
        }
        let of_servers = server_ips.iter().map(|server| format!("{server}@-@1"));
        let stopped_instance_ids = instance_ids.into_iter().chain(of_servers).collect();
        Ok(Response::new(StopInstancesResponse { stopped_instance_ids }))
    }

    async fn remove_servers(
        &self,
        _: Request<RemoveServersRequest>,
    ) -> Result<Response<RemoveServersResponse>, Status> {
        Ok(Response::new(RemoveServersResponse {}))
    }

    async fn disable_items(
        &self,
        request: Request<DisableItemsRequest>,
    ) -> Result<Response<DisableItemsResponse>, Status> {
        Ok(Response::new(DisableItemsResponse {
            changed_items: request.into_inner().items,
            ends_by_itself: false,
        }))
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
        Ok(Response::new(DisableServersResponse { changed_server_ips, ends_by_itself: false }))
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
async fn a_request_with_a_lost_answer_is_repeated_if_the_sidecar_recognises_it() {
    let endpoint = sidecar().await;
    let trigger = async |job: &str, more: &[&str]| {
        output(sidekeeper(&[&["trigger", job, "--endpoint", &endpoint], more].concat())).await
    };
    let repeated = trigger("lost", &["--request-id", "mine"]).await;
    assert_eq!((repeated.code, repeated.stderr.as_str()), (Some(0), ""));
    assert!(IDS.lock().unwrap().contains("mine"));
    // Without the option each command has an id of its own.
    assert_eq!(trigger("lost", &[]).await.code, Some(0));
    assert_eq!(trigger("lost", &[]).await.code, Some(0));

    let before = IDS.lock().unwrap().clone();
    let earlier = trigger("earlier", &[]).await;
    assert_eq!(earlier.code, Some(1), "{}", earlier.stderr);
    assert!(!earlier.stderr.contains("--request-id"), "{}", earlier.stderr);
    let sent = IDS.lock().unwrap().difference(&before).count();
    assert_eq!(sent, 1, "a request was repeated that the sidecar would not have recognised");
    assert_eq!(trigger("lost", &["--request-id", "a/b"]).await.code, Some(64));
}

#[tokio::test]
async fn triggers_are_printed_as_text_and_as_json() {
    let endpoint = sidecar().await;
    let printed = output(sidekeeper(&["triggers", "orders", "--endpoint", &endpoint])).await;
    assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""));
    let lines: Vec<_> = printed.stdout.lines().collect();
    assert!(lines[1].contains("pending, not online  "), "{lines:?}");
    assert!(lines[2].contains("taken up, executes 3, 4  2027-01-15T08:00:00Z  mine"), "{lines:?}");
    expect_test::expect![[r#"
        item  state                             since                 request
        3     pending                           2027-01-15T08:00:00Z  mine
        3     taken up by 10.0.0.1@-@\u{1b}[2J  2027-01-15T08:00:00Z  mine
        7     done                              2027-01-15T08:00:00Z  mine
        2 more requests are left out"#]]
    .assert_eq(&lines[3..].join("\n"));
    assert!(!printed.stdout.contains('\u{1b}'), "{:?}", printed.stdout);
    let json = output(sidekeeper(&["triggers", "orders", "--json", "--endpoint", &endpoint])).await;
    let value: serde_json::Value = serde_json::from_str(json.stdout.trim_end()).unwrap();
    assert_eq!(value["triggers"][1]["state"], "TRIGGER_STATE_TAKEN_UP");
    assert_eq!(value["triggers"][1]["running_items"], serde_json::json!([3, 4]));
    assert_eq!((&value["triggers"][0]["online"], &value["left_out_requests"]), (&false.into(), &2.into()));
    expect_test::expect![[r#"[{"instance_id":"","item":3,"request_id":"mine","state":"TRIGGER_STATE_PENDING","trigger_time":"2027-01-15T08:00:00Z"},{"instance_id":"10.0.0.1@-@\u001b[2J","item":3,"request_id":"mine","state":"TRIGGER_STATE_TAKEN_UP","trigger_time":"2027-01-15T08:00:00Z"},{"instance_id":"","item":7,"request_id":"mine","state":"TRIGGER_STATE_DONE","trigger_time":"2027-01-15T08:00:00Z"}]"#]]
    .assert_eq(&value["item_triggers"].to_string());
}

#[tokio::test]
async fn triggered_items_are_printed_and_a_sidecar_that_does_not_know_items_is_a_failure() {
    let wanted = ["--item", "3", "--item", "7", "--parameter", "--day=1"];
    let items = |job, more: &[&'static str]| [&["trigger", job], &wanted[..], more].concat();
    assert_eq!(printed(&items("orders", &[])).await, "triggered  item 3\ntriggered  item 7\n");
    expect_test::expect![[r#"
        {"pending_instance_ids":[],"triggered_instance_ids":[],"triggered_items":[3,7]}
    "#]]
    .assert_eq(&printed(&items("orders", &["--json"])).await);
    let mut earlier = sidekeeper(&items("without-items", &[]));
    earlier.env("SIDEKEEPER_ENDPOINT", sidecar().await);
    let earlier = output(earlier).await;
    assert_eq!(earlier.code, Some(1), "{}", earlier.stderr);
    assert!(earlier.stderr.contains("the sidecar is of an earlier version"), "{}", earlier.stderr);
    assert!(!earlier.stderr.contains("day"), "{}", earlier.stderr);
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

    let fleet = output(sidekeeper(&["cancel", "orders", "--fleet", "--endpoint", &endpoint])).await;
    let lines: Vec<_> = fleet.stdout.lines().collect();
    assert!(lines[0].starts_with("cancelled    item 3  of 10.0.0.1@-@"), "{lines:?}");
    assert!(
        lines[1].starts_with("not reached  item 4") && lines[1].ends_with("(a Java instance)"),
        "{lines:?}"
    );
    let json = output(sidekeeper(&["cancel", "orders", "--fleet", "--json", "--endpoint", &endpoint])).await;
    let value: serde_json::Value = serde_json::from_str(json.stdout.trim_end()).unwrap();
    assert_eq!(value["fleet_executions"][1]["reach"], "CANCEL_REACH_JAVA");
    let alone = output(sidekeeper(&["cancel", "orders", "--zookeeper", "127.0.0.1:1"])).await;
    assert_eq!(alone.code, Some(64), "{}", alone.stderr);

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
    assert_eq!(printed.stdout, "{\"changed_items\":[3],\"ends_by_itself\":false}\n");
    let nothing = call(&["enable", "orders", "--all-servers"]).await;
    assert_eq!((nothing.code, nothing.stdout.as_str()), (Some(0), "nothing to do: already enabled\n"));
    let again = call(&["enable", "orders", "--item", "3"]).await;
    assert_eq!(again.code, Some(75), "{}", again.stderr);
    // The test's standard input is no terminal.
    let unconfirmed = call(&["disable", "orders", "--all-servers"]).await;
    assert_eq!((unconfirmed.code, unconfirmed.stdout.as_str()), (Some(3), ""));
    assert!(
        unconfirmed.stderr.contains("No instance will execute any item of job orders"),
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

/// The output of a command, which has to succeed.
async fn printed(words: &[&str]) -> String {
    let endpoint = sidecar().await;
    let mut command = sidekeeper(words);
    command.env("SIDEKEEPER_ENDPOINT", &endpoint);
    let printed = output(command).await;
    assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""));
    assert!(!printed.stdout.contains('\u{1b}') && !printed.stdout.contains('\u{7}'));
    printed.stdout
}

#[tokio::test]
async fn jobs_are_listed_page_by_page_as_text_and_as_json() {
    expect_test::expect![[r#"
        job      state         items  instances   cron         description
        orders   ok            12     3 (1 Java)  0 0 3 * * ?  at night\u{1b}[2J
        refunds  no instances  12     3 (1 Java)  0 0 3 * * ?  at night\u{1b}[2J
    "#]]
    .assert_eq(&printed(&["jobs"]).await);
    expect_test::expect![[r#"
        {"jobs":[{"cron":"0 0 3 * * ?","description":"at night\u001b[2J","instance_count":3,"java_instance_count":1,"job_name":"orders","sharding_total_count":12,"state":"JOB_STATE_OK","time_zone":""},{"cron":"0 0 3 * * ?","description":"at night\u001b[2J","instance_count":3,"java_instance_count":1,"job_name":"refunds","sharding_total_count":12,"state":"JOB_STATE_NO_INSTANCES","time_zone":""}]}
    "#]].assert_eq(&printed(&["jobs", "--json"]).await);
}

#[tokio::test]
async fn a_job_is_shown_as_a_whole_and_in_parts_as_text_and_as_json() {
    expect_test::expect![[r#"
        orders, next fire none

        configuration "1a.3"
          jobName: orders
          cron: '0 0 3 * * ?'

        instances
        instance
        10.0.0.1@-@1  leads  server disabled

        servers
        server    state     instances  disabled
        10.0.0.1  disabled  1

        items
        item  owner         state                               last success          parameter  disabled
        0     10.0.0.1@-@1  running since 2027-01-15T08:00:00Z  2027-01-15T07:59:00Z  Lyon\u{7}
        1     none          disabled, misfired
    "#]]
    .assert_eq(&printed(&["job", "orders"]).await);
    expect_test::expect![[r#"
        item  owner         state                               last success          parameter  disabled
        0     10.0.0.1@-@1  running since 2027-01-15T08:00:00Z  2027-01-15T07:59:00Z  Lyon\u{7}
        1     none          disabled, misfired
    "#]]
    .assert_eq(&printed(&["items", "orders"]).await);
    expect_test::expect![[r#"
        instance
        10.0.0.1@-@1  leads  server disabled
    "#]]
    .assert_eq(&printed(&["instances", "orders"]).await);
    expect_test::expect![[r#"
        server    state     instances  disabled
        10.0.0.1  disabled  1
    "#]]
    .assert_eq(&printed(&["servers", "orders"]).await);
    expect_test::expect![[r#"
        {"configuration":null,"disablings":[],"document":"jobName: orders\ncron: '0 0 3 * * ?'\n","etag":"\"1a.3\"","instances":[{"enabled":false,"instance_id":"10.0.0.1@-@1","leader":true,"server_ip":"10.0.0.1"}],"items":[{"disabled":false,"fencing_token":0,"instance_id":"10.0.0.1@-@1","item":0,"item_parameter":"Lyon\u0007","last_execution":{"at":null,"last_success_time":"2027-01-15T07:59:00Z","message":"","outcome":"EXECUTION_OUTCOME_UNSPECIFIED","since":null,"times_in_a_row":0},"misfire":false,"next_instance_id":"","running":true,"running_since":"2027-01-15T08:00:00Z","waiting_for_lock":null},{"disabled":true,"fencing_token":0,"instance_id":"","item":1,"item_parameter":null,"last_execution":null,"misfire":true,"next_instance_id":"","running":false,"running_since":null,"waiting_for_lock":null}],"job_name":"orders","next_fire_time":null,"parameters_hidden":false,"problems":[],"resharding":false,"servers":[{"disabled":true,"instance_count":1,"server_ip":"10.0.0.1"}]}
    "#]].assert_eq(&printed(&["job", "orders", "--json"]).await);
    expect_test::expect![[r#"
        {"disablings":[],"items":[{"disabled":false,"fencing_token":0,"instance_id":"10.0.0.1@-@1","item":0,"item_parameter":"Lyon\u0007","last_execution":{"at":null,"last_success_time":"2027-01-15T07:59:00Z","message":"","outcome":"EXECUTION_OUTCOME_UNSPECIFIED","since":null,"times_in_a_row":0},"misfire":false,"next_instance_id":"","running":true,"running_since":"2027-01-15T08:00:00Z","waiting_for_lock":null},{"disabled":true,"fencing_token":0,"instance_id":"","item":1,"item_parameter":null,"last_execution":null,"misfire":true,"next_instance_id":"","running":false,"running_since":null,"waiting_for_lock":null}],"job_name":"orders"}
    "#]].assert_eq(&printed(&["items", "orders", "--json"]).await);
    let refused = output(sidekeeper(&["job", "nobody", "--endpoint", &sidecar().await])).await;
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""));
    assert!(refused.stderr.contains("no nodes of job `nobody`"), "{}", refused.stderr);
}

#[tokio::test]
async fn the_servers_of_all_jobs_are_printed_as_text_and_as_json() {
    expect_test::expect![[r#"
        server     jobs  disabled in  instances
        10.0.0.1   2     1            2
        10.0.0.10  1                  1
    "#]]
    .assert_eq(&printed(&["servers"]).await);
    expect_test::expect![[r#"
        {"servers":[{"jobs":[{"disabled":true,"instance_count":0,"job_name":"nobody"},{"disabled":false,"instance_count":2,"job_name":"orders"}],"server_ip":"10.0.0.1"},{"jobs":[{"disabled":false,"instance_count":1,"job_name":"orders"}],"server_ip":"10.0.0.10"}]}
    "#]]
    .assert_eq(&printed(&["servers", "--json"]).await);
}

#[tokio::test]
async fn a_server_is_changed_in_every_job_that_has_it() {
    let every = ["--server", "10.0.0.1", "--every-job"];
    expect_test::expect![[r#"
        {"changed_server_ips":[],"job_name":"nobody"}
        {"changed_server_ips":[],"job_name":"orders"}
    "#]]
    .assert_eq(&printed(&[&["enable", "--json"], &every[..]].concat()).await);
    let endpoint = sidecar().await;
    let call = async |words: &[&str]| output(sidekeeper(&[words, &["--endpoint", &endpoint]].concat())).await;
    let asked = call(&[&["disable"], &every[..]].concat()).await;
    assert_eq!((asked.code, asked.stdout.as_str()), (Some(3), ""));
    assert!(asked.stderr.contains("The instances of 2 jobs on 10.0.0.1 will lose"), "{}", asked.stderr);
    // One job is refused, and the other one is done.
    let stopped = call(&[&["stop", "--yes"], &every[..]].concat()).await;
    assert_eq!(stopped.code, Some(1), "{}", stopped.stderr);
    assert!(stopped.stderr.starts_with("nobody: ") && stopped.stderr.contains("not done for every job"));
    assert!(stopped.stdout.contains(" of orders\n"), "{}", stopped.stdout);
    for wrong in [
        &["disable", "orders", "--server", "10.0.0.1", "--every-job", "--yes"][..],
        &["disable", "--every-job", "--yes"],
        &["disable", "--item", "1", "--every-job", "--yes"],
        &["remove", "--every-job", "--yes"],
        &["stop", "--all-instances", "--every-job", "--yes"],
        &["stop", "--instance", "10.0.0.1@-@1", "--server", "10.0.0.1", "--every-job", "--yes"],
    ] {
        assert_eq!(call(wrong).await.code, Some(64), "{wrong:?}");
    }
}

#[tokio::test]
async fn a_job_is_removed_only_after_a_confirmation() {
    let endpoint = sidecar().await;
    let asked = output(sidekeeper(&["remove", "orders", "--endpoint", &endpoint])).await;
    assert_eq!((asked.code, asked.stdout.as_str()), (Some(3), ""), "{}", asked.stderr);
    assert!(asked.stderr.contains("This removes job orders") && asked.stderr.contains("1 of its instances"));
    assert_eq!(printed(&["remove", "orders", "--yes"]).await, "removed  orders, 17 nodes\n");
    assert_eq!(printed(&["remove", "orders", "--yes", "--json"]).await, "{\"removed_nodes\":17}\n");
}

#[tokio::test]
async fn a_wrong_file_changes_nothing_and_a_refusal_that_may_pass_has_its_exit_status() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("orders.yaml");
    let path = file.to_str().unwrap();
    let endpoint = sidecar().await;
    let apply = ["apply", "-f", path, "--yes", "--endpoint", &endpoint];
    for (text, reason) in [
        ("shardingTotalCount: 0", "jobName"),
        ("jobName: orders\nshardingTotalCount: 1\ncron: x", "cron"),
        ("jobName: orders\nshardingTotalCount: 1\njobExtraConfigurations:\n- a: 1", "jobExtraConfigurations"),
    ] {
        std::fs::write(&file, text).unwrap();
        let wrong = output(sidekeeper(&apply)).await;
        assert_eq!(wrong.code, Some(64), "{}", wrong.stderr);
        assert!(wrong.stderr.contains(reason) && wrong.stderr.contains(path), "{}", wrong.stderr);
    }
    std::fs::write(&file, "jobName: orders\nshardingTotalCount: 1\n").unwrap();
    let refused = output(sidekeeper(&apply)).await;
    assert_eq!(refused.code, Some(75), "{}", refused.stderr);
}

#[tokio::test]
async fn instances_are_stopped_and_servers_removed_only_after_a_confirmation() {
    let endpoint = sidecar().await;
    let id = "10.0.0.1@-@1\u{1b}[2J";
    let asked = output(sidekeeper(&["stop", "orders", "--instance", id, "--endpoint", &endpoint])).await;
    assert_eq!((asked.code, asked.stdout.as_str()), (Some(3), ""), "{}", asked.stderr);
    assert!(asked.stderr.contains("This stops 10.0.0.1@-@1") && !asked.stderr.contains('\u{1b}'));
    let stopped = printed(&["stop", "orders", "--instance", id, "--yes"]).await;
    assert_eq!(stopped, "stopped  10.0.0.1@-@1\\u{1b}[2J of orders\n");
    let whom = output(sidekeeper(&["stop", "orders", "--yes", "--endpoint", &endpoint])).await;
    assert_eq!(whom.code, Some(64), "{}", whom.stderr);
    let asked =
        output(sidekeeper(&["remove", "orders", "--server", "10.0.0.1", "--endpoint", &endpoint])).await;
    assert_eq!((asked.code, asked.stdout.as_str()), (Some(3), ""), "{}", asked.stderr);
    let removed = printed(&["remove", "orders", "--server", "10.0.0.1", "--yes"]).await;
    assert_eq!(removed, "removed  10.0.0.1 of orders\n");
}

#[tokio::test]
async fn jobs_are_followed_over_a_broken_stream_until_an_interrupt() {
    let endpoint = sidecar().await;
    let watch = |name: &'static str| ["jobs", name, "--watch", "--endpoint", &endpoint].map(str::to_owned);
    let started = |words: &[String], json: bool| {
        let mut words: Vec<_> = words.iter().map(String::as_str).collect();
        words.extend(json.then_some("--json"));
        Running::start(sidekeeper(&words))
    };
    let mut lines = started(&watch("json-*"), true);
    let mut next = async || serde_json::from_str::<serde_json::Value>(&lines.line().await).unwrap();
    assert_eq!(next().await["job"]["job_name"], "orders\u{7}");
    assert_eq!(next().await["job"]["state"], "JOB_STATE_OK");
    assert_eq!(next().await, serde_json::json!({ "synced": {} }));
    // All is told again after a new connection.
    assert_eq!(next().await["job"]["job_name"], "orders\u{7}");
    assert_eq!(next().await, serde_json::json!({ "synced": {} }));
    assert_eq!(next().await, serde_json::json!({ "removed_job_name": "invoices" }));
    assert!(lines.log_line().await.contains("no registry; trying again"));
    lines.signal(Signal::SIGINT);
    assert_eq!(lines.end().await.code(), Some(0));

    // A person sees only what has changed meanwhile.
    let mut rows = started(&watch("table-*"), false);
    let mut next =
        async || rows.line().await.split_whitespace().skip(1).take(2).collect::<Vec<_>>().join(" ");
    assert_eq!(next().await, "job state");
    assert_eq!(next().await, "orders\\u{7} ok");
    assert_eq!(next().await, "refunds ok");
    assert_eq!(next().await, "refunds removed");
    assert_eq!(next().await, "invoices removed");
    rows.signal(Signal::SIGTERM);
    assert_eq!(rows.end().await.code(), Some(0));

    let wrong = output(sidekeeper(&["jobs", "", "--watch", "--endpoint", &endpoint])).await;
    assert_eq!(wrong.code, Some(1), "{}", wrong.stderr);
    for words in [&["jobs", "orders"][..], &["jobs", "--watch", "--zookeeper", "127.0.0.1:1"]] {
        assert_eq!(output(sidekeeper(words)).await.code, Some(64), "{words:?}");
    }
}
