//! The session with the registry is interrupted or lost (P2, P4, P5).

use std::time::Duration;

use sidekeeper::proto::{AssignmentReason, CancelReason, CompletionStatus, JobConfiguration, SessionState};
use sidekeeper::registry::embedded::Embedded;
use sidekeeper::runner::clock::Clock;

use crate::fleet::{App, Event, Fleet, RunningSidecar, each_second, request, request_for, success};

async fn executing(
    configuration: JobConfiguration,
) -> (Fleet, RunningSidecar, App, sidekeeper::proto::Execute) {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(configuration)).await;
    app.assigned(&[0]).await;
    fleet.nodes.settled_tree().await;
    let execute = app.execute().await;
    (fleet, sidecar, app, execute)
}

#[tokio::test]
async fn p4_an_interruption_moves_nothing_and_cancels_nothing() {
    let (fleet, _sidecar, mut app, execute) = executing(each_second(1)).await;
    // A job at another sidecar, whose session is not interrupted, shows that fires pass.
    let other = fleet.sidecar_with(2, |_| ()).await;
    let mut timekeeper = other.attach(request_for("payments", each_second(1))).await;
    let before = fleet.nodes.tree().await;
    let session = before.session_of(&app.attached.instance_id);
    fleet.registry.suspend(session);
    app.session(SessionState::Suspended).await;
    // Fires pass and nothing starts. A report waits, and is recorded when the session is connected again.
    for _ in 0..2 {
        let execute = timekeeper.execute().await;
        timekeeper.report_success(&execute).await;
    }
    let mut client = app.client.clone();
    let report = client.report_completion(sidekeeper::proto::ReportCompletionRequest {
        attachment_id: app.attached.attachment_id.clone(),
        results: vec![success(&execute.execution_id)],
    });
    let meanwhile = async {
        let execute = timekeeper.execute().await;
        timekeeper.report_success(&execute).await;
        assert_eq!(fleet.nodes.tree().await.running(), ["0"]);
        fleet.registry.resume(session);
        app.until("the session", |event| match event {
            Event::SessionChanged(changed) => {
                assert_eq!(changed.state(), SessionState::Connected);
                Some(())
            }
            other => panic!("{other:?}"),
        })
        .await;
    };
    let (reported, ()) = futures::future::join(report, meanwhile).await;
    assert_eq!(reported.unwrap().into_inner().records[0].status(), CompletionStatus::Recorded);
    let node = "sharding/0/instance";
    assert_eq!(fleet.nodes.tree().await.created(node), before.created(node));
}

async fn expire_session_of_executing_application(failover: bool) {
    let configuration = JobConfiguration { failover: Some(failover), ..each_second(1) };
    let (fleet, _sidecar, mut app, execute) = executing(configuration).await;
    let (generation, token) = (app.generation(), app.token(0));
    let tree = fleet.nodes.tree().await;
    fleet.registry.expire(tree.session_of(&app.attached.instance_id));

    let Event::Cancel(cancel) = app.next().await else { panic!("no Cancel") };
    assert_eq!(cancel.execution_id, execute.execution_id);
    assert_eq!(cancel.reason(), CancelReason::LeaseLost);
    let Event::SessionChanged(changed) = app.next().await else { panic!("no SessionChanged") };
    assert_eq!(changed.state(), SessionState::Lost);
    let Event::AssignmentChanged(changed) = app.next().await else { panic!("no AssignmentChanged") };
    assert_eq!(changed.reason(), AssignmentReason::SessionLost);
    assert_eq!((changed.revoked_items, app.items()), (vec![0], vec![]));

    app.session(SessionState::Connected).await;
    app.assigned(&[0]).await;
    assert!(app.generation() >= generation && app.token(0) >= token);
    let late = vec![success(&execute.execution_id)];
    assert_eq!(app.report(late.clone()).await.unwrap(), [CompletionStatus::LeaseLost]);
    assert_eq!(app.report(late).await.unwrap(), [CompletionStatus::LeaseLost]);
    let next = app.execute().await;
    assert!(next.fencing_token > execute.fencing_token);
    let running = "sharding/0/running";
    let executing = fleet.nodes.tree().await.created(running);
    app.report_success(&next).await;
    // The next fire may have come: its node is another one.
    let after = fleet.nodes.tree().await;
    assert!(!after.has(running) || after.created(running) > executing, "{after:#?}");
}

#[tokio::test]
async fn p2_p4_a_lost_session_cancels_executions_and_revokes_items_until_the_next_session() {
    Box::pin(expire_session_of_executing_application(false)).await;
}

#[tokio::test]
async fn p2_p6_running_nodes_that_outlived_the_session_do_not_block_the_item() {
    Box::pin(expire_session_of_executing_application(true)).await;
}

#[tokio::test]
async fn p1_the_items_of_a_lost_session_move_to_others_and_are_shared_again() {
    let fleet = Fleet::new().await;
    let (one, two) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let mut first = one.attach(request(each_second(2))).await;
    first.assigned(&[0, 1]).await;
    let mut second = two.attach(request(None)).await;
    first.assigned(&[0]).await;
    second.assigned(&[1]).await;
    let tree = fleet.nodes.settled_tree().await;
    let token = first.token(0);
    fleet.registry.expire(tree.session_of(&first.attached.instance_id));
    first.session(SessionState::Lost).await;
    first.assigned(&[]).await;
    first.session(SessionState::Connected).await;
    first.assigned(&[0]).await;
    second.assigned(&[1]).await;
    assert!(first.token(0) >= token);
}

#[tokio::test]
async fn p4_a_session_that_is_not_proven_alive_in_time_is_given_up_before_the_registry_ends_it() {
    // This registry ends no session by itself: every notice here comes from the end of the lease.
    let fleet = Fleet::on(Embedded::in_memory().with_session_timeout(Duration::from_secs(2))).await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(each_second(1))).await;
    app.assigned(&[0]).await;
    let execute = app.execute().await;
    let session = fleet.nodes.tree().await.session_of(&app.attached.instance_id);
    let clock = Clock::start();
    let before = boottime(&clock);
    fleet.registry.suspend(session);
    let changed = app.until("SUSPENDED", suspended).await;
    let remaining: Duration = changed.remaining_lease.unwrap().try_into().unwrap();
    let most = Duration::from_millis(1_500);
    assert!(remaining <= most, "{remaining:?} of a lease of 2 s less the margin of 0.5 s");
    if cfg!(target_os = "linux") {
        // The notice also has the end of the lease on a clock that all processes of the machine share.
        assert_eq!(changed.boottime_clock, clock.boottime().unwrap().clock);
        let sent_at = Duration::from_nanos(changed.lease_end_boottime_ns).checked_sub(remaining);
        assert!((before..=boottime(&clock)).contains(&sent_at.unwrap()), "{changed:?}");
    }

    let Event::Cancel(cancel) = app.next().await else { panic!("no Cancel") };
    assert_eq!(
        (cancel.execution_id.clone(), cancel.reason()),
        (execute.execution_id.clone(), CancelReason::LeaseLost)
    );
    app.session(SessionState::Lost).await;
    app.assigned(&[]).await;
    // The instance goes on in another session, without the executions of the old one.
    app.session(SessionState::Connected).await;
    app.assigned(&[0]).await;
    assert_ne!(fleet.nodes.tree().await.session_of(&app.attached.instance_id), session);
    assert_eq!(
        app.report(vec![success(&execute.execution_id)]).await.unwrap(),
        [CompletionStatus::LeaseLost]
    );
    let next = app.execute().await;
    app.report_success(&next).await;
}

/// The time on the clock that all processes of the machine share; zero without such a clock.
fn boottime(clock: &Clock) -> Duration {
    let now = clock.boottime().and_then(|boottime| boottime.nanoseconds(clock.now().mono));
    Duration::from_nanos(now.unwrap_or_default())
}

fn suspended(event: &Event) -> Option<sidekeeper::proto::SessionChanged> {
    match event {
        Event::SessionChanged(changed) if changed.state() == SessionState::Suspended => Some(changed.clone()),
        _ => None,
    }
}

#[tokio::test]
async fn p4_the_application_receives_the_lease_at_the_beginning_and_at_each_renewal() {
    let fleet = Fleet::on(Embedded::in_memory().with_session_timeout(Duration::from_secs(2))).await;
    let sidecar = fleet.sidecar().await;
    // `attach` has read `Attached` and the first assignment.
    let mut app = sidecar.attach(request(JobConfiguration { cron: String::new(), ..each_second(1) })).await;
    for _ in 0..4 {
        let remaining = app
            .until("a lease", |event| match event {
                Event::SessionChanged(changed) => {
                    assert_eq!(changed.state(), SessionState::Connected);
                    Some(Duration::try_from(changed.remaining_lease.unwrap()).unwrap())
                }
                _ => None,
            })
            .await;
        let most = Duration::from_millis(1_500);
        assert!(remaining <= most, "{remaining:?} of 2 s less the margin of 0.5 s");
    }
}

#[tokio::test]
async fn p4_a_registry_that_ends_no_sessions_gives_no_lease() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(each_second(1))).await;
    for _ in 0..3 {
        let executed = |event: &Event| match event {
            Event::SessionChanged(changed) => panic!("{changed:?}"),
            Event::Execute(execute) => Some(execute.clone()),
            _ => None,
        };
        let execute = app.until("Execute", executed).await;
        app.report_success(&execute).await;
    }
}
