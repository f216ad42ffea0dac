//! The session with the registry is interrupted or lost (P2, P4, P5).

use std::time::Duration;

use sidekeeper::proto::{AssignmentReason, CancelReason, CompletionStatus, JobConfiguration, SessionState};
use sidekeeper::registry::embedded::Embedded;
use sidekeeper::runner::clock::Clock;

use crate::ground::{App, Event, Ground, Host, request, request_for, success, ticking};

async fn executing(configuration: JobConfiguration) -> (Ground, Host, App, sidekeeper::proto::Execute) {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(configuration)).await;
    app.assigned(&[0]).await;
    ground.outside.quiet().await;
    let execute = app.execute().await;
    (ground, host, app, execute)
}

#[tokio::test]
async fn p4_an_interruption_moves_nothing_and_cancels_nothing() {
    let (ground, _host, mut app, execute) = executing(ticking(1)).await;
    // Somebody whose session is not interrupted tells the time.
    let other = ground.sidecar_with(2, |_| ()).await;
    let mut timekeeper = other.attach(request_for("payments", ticking(1))).await;
    let before = ground.outside.tree().await;
    let session = before.session_of(&app.attached.instance_id);
    ground.registry.suspend(session);
    app.session(SessionState::Suspended).await;
    // Nothing new starts, though fires pass; a report waits, and is recorded when the registry is back.
    for _ in 0..2 {
        let execute = timekeeper.execute().await;
        timekeeper.done(&execute).await;
    }
    let mut client = app.client.clone();
    let report = client.report_completion(sidekeeper::proto::ReportCompletionRequest {
        attachment_id: app.attached.attachment_id.clone(),
        results: vec![success(&execute.execution_id)],
    });
    let meanwhile = async {
        let execute = timekeeper.execute().await;
        timekeeper.done(&execute).await;
        assert_eq!(ground.outside.tree().await.running(), ["0"]);
        ground.registry.resume(session);
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
    assert_eq!(ground.outside.tree().await.created(node), before.created(node));
}

async fn expires_while_it_executes(failover: bool) {
    let configuration = JobConfiguration { failover: Some(failover), ..ticking(1) };
    let (ground, _host, mut app, execute) = executing(configuration).await;
    let (generation, token) = (app.generation(), app.token(0));
    let tree = ground.outside.tree().await;
    ground.registry.expire(tree.session_of(&app.attached.instance_id));

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
    app.done(&next).await;
    assert!(ground.outside.tree().await.running().is_empty());
}

#[tokio::test]
async fn p2_p4_a_lost_session_cancels_and_empties_and_then_all_begins_anew() {
    expires_while_it_executes(false).await;
}

#[tokio::test]
async fn p2_p6_running_nodes_that_outlived_the_session_do_not_stop_the_item() {
    expires_while_it_executes(true).await;
}

#[tokio::test]
async fn p1_the_items_of_a_lost_session_go_to_others_and_are_shared_again() {
    let ground = Ground::new().await;
    let (one, two) = (ground.sidecar().await, ground.sidecar_with(2, |_| ()).await);
    let mut first = one.attach(request(ticking(2))).await;
    first.assigned(&[0, 1]).await;
    let mut second = two.attach(request(None)).await;
    first.assigned(&[0]).await;
    second.assigned(&[1]).await;
    let tree = ground.outside.quiet().await;
    let token = first.token(0);
    ground.registry.expire(tree.session_of(&first.attached.instance_id));
    first.session(SessionState::Lost).await;
    first.assigned(&[]).await;
    first.session(SessionState::Connected).await;
    first.assigned(&[0]).await;
    second.assigned(&[1]).await;
    assert!(first.token(0) >= token);
}

#[tokio::test]
async fn p4_a_session_that_is_not_proven_alive_in_time_is_given_up_before_the_registry_ends_it() {
    // This registry ends nothing by itself: whatever the application is told, it is the lease's end.
    let ground = Ground::on(Embedded::in_memory().with_session_timeout(Duration::from_secs(2))).await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(ticking(1))).await;
    app.assigned(&[0]).await;
    let execute = app.execute().await;
    let session = ground.outside.tree().await.session_of(&app.attached.instance_id);
    let clock = Clock::start();
    let before = boottime(&clock);
    ground.registry.suspend(session);
    let changed = app.until("SUSPENDED", suspended).await;
    let remaining: Duration = changed.remaining_lease.unwrap().try_into().unwrap();
    let most = Duration::from_millis(1_500);
    assert!(remaining <= most, "{remaining:?} of a lease of 2 s less the margin of 0.5 s");
    if cfg!(target_os = "linux") {
        // The end is told, too, on a clock that everybody on the machine reads.
        assert_eq!(changed.boottime_clock, clock.boottime().unwrap().clock);
        let told = Duration::from_nanos(changed.lease_end_boottime_ns).checked_sub(remaining);
        assert!((before..=boottime(&clock)).contains(&told.unwrap()), "{changed:?}");
    }

    let Event::Cancel(cancel) = app.next().await else { panic!("no Cancel") };
    assert_eq!(
        (cancel.execution_id.clone(), cancel.reason()),
        (execute.execution_id.clone(), CancelReason::LeaseLost)
    );
    app.session(SessionState::Lost).await;
    app.assigned(&[]).await;
    // It goes on in another session, and what the old one held is gone.
    app.session(SessionState::Connected).await;
    app.assigned(&[0]).await;
    assert_ne!(ground.outside.tree().await.session_of(&app.attached.instance_id), session);
    assert_eq!(
        app.report(vec![success(&execute.execution_id)]).await.unwrap(),
        [CompletionStatus::LeaseLost]
    );
    let next = app.execute().await;
    app.done(&next).await;
}

/// The time that other processes read, too; zero if they cannot.
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
async fn p4_the_application_is_told_the_lease_at_the_beginning_and_again_and_again() {
    let ground = Ground::on(Embedded::in_memory().with_session_timeout(Duration::from_secs(2))).await;
    let host = ground.sidecar().await;
    // It has read `Attached` and the first assignment.
    let mut app = host.attach(request(JobConfiguration { cron: String::new(), ..ticking(1) })).await;
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
async fn p4_no_lease_is_told_of_a_registry_that_ends_no_sessions() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(ticking(1))).await;
    for _ in 0..3 {
        let executed = |event: &Event| match event {
            Event::SessionChanged(changed) => panic!("{changed:?}"),
            Event::Execute(execute) => Some(execute.clone()),
            _ => None,
        };
        let execute = app.until("Execute", executed).await;
        app.done(&execute).await;
    }
}
