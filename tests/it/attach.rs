//! Instances that join and leave, and the assignment of the items (P1, P3, P6).

use sidekeeper::config::ListenAddress;
use sidekeeper::proto;

use crate::fleet::{Event, Fleet, JOB, Tree, each_second, job, request};

#[tokio::test]
async fn a_stream_begins_with_attached_and_then_the_whole_assignment() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let configuration =
        proto::JobConfiguration { sharding_item_parameters: "0=Beijing,2=Hangzhou".to_owned(), ..job(3) };
    // `App` checks that Attached comes first and the assignment second.
    let mut app = sidecar.attach(request(configuration)).await;
    assert_eq!((app.attached.job_name.as_str(), app.attached.sidecar_version.as_str()), (JOB, "0.1.0"));
    assert_eq!(app.attached.configuration.as_ref().unwrap().sharding_total_count, 3);
    let id = app.attached.instance_id.clone();
    assert!(id.starts_with("10.0.0.1@-@"), "{id}");

    let notice = app.assigned(&[0, 1, 2]).await.clone();
    assert!(notice.leader);
    let assignment = notice.assignment.unwrap();
    assert_eq!(assignment.sharding_total_count, 3);
    let parameters: Vec<_> = assignment.items.iter().map(|item| item.item_parameter.as_deref()).collect();
    assert_eq!(parameters, [Some("Beijing"), None, Some("Hangzhou")]);
    let tree = fleet.nodes.settled_tree().await;
    for item in &assignment.items {
        let node = format!("sharding/{}/instance", item.item);
        assert_eq!((tree.text(&node).unwrap(), tree.created(&node)), (id.clone(), item.fencing_token));
        assert!(!item.disabled);
    }
    assert_eq!(assignment.generation, tree.created("sharding/2/instance"));
    assert!(tree.is_ephemeral(&format!("instances/{id}")));
    assert_eq!(tree.text("leader/election/instance"), Some(id));
}

#[tokio::test]
async fn an_instance_without_a_name_has_an_id_with_twelve_random_characters() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    for application_id in ["", "an-application"] {
        let request = proto::AttachRequest { application_id: application_id.to_owned(), ..request(job(1)) };
        let id = sidecar.attach(request).await.attached.instance_id;
        let (_, random) = id.rsplit_once('-').unwrap();
        assert_eq!(random.len(), 12, "{id}");
        assert!(
            !random.contains(char::is_uppercase) && id.split_once("@-@").unwrap().1.contains('-'),
            "{id}"
        );
    }
}

#[tokio::test]
async fn p1_p3_items_move_to_an_instance_that_joins_and_back_when_it_leaves() {
    let fleet = Fleet::new().await;
    let (one, two) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let mut first = one.attach(request(job(4))).await;
    first.assigned(&[0, 1, 2, 3]).await;
    let (generation_alone, token_alone) = (first.generation(), first.token(0));

    let mut second = two.attach(request(None)).await;
    // `App` checks that the added and the revoked items are the difference.
    first.assigned(&[0, 1]).await;
    second.assigned(&[2, 3]).await;
    assert_eq!(first.last_assignment().reason(), proto::AssignmentReason::HandedOff);
    assert!(first.generation() > generation_alone && second.generation() > first.generation());
    // An item that stays keeps its token; an item that moves gets a new one.
    assert_eq!(first.token(0), token_alone);
    assert!(second.token(2) > token_alone);
    assert!(first.last_assignment().leader && !second.last_assignment().leader);

    let token_of_second = second.token(2);
    drop(second);
    first.assigned(&[0, 1, 2, 3]).await;
    assert_eq!(first.last_assignment().added_items, [2, 3]);
    assert!(first.token(2) > token_of_second);
}

#[tokio::test]
async fn p1_two_applications_of_one_sidecar_share_the_items() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut first = sidecar.attach(request(job(2))).await;
    first.assigned(&[0, 1]).await;
    let mut second = sidecar.attach(request(job(2))).await;
    let items_of = |event: &Event| match event {
        Event::AssignmentChanged(changed) => Some(changed.assignment.clone().unwrap().items),
        _ => None,
    };
    let revoked = first.until("a share", |event| items_of(event).filter(|items| items.len() == 1)).await;
    let gained = second.until("a share", |event| items_of(event).filter(|items| items.len() == 1)).await;
    assert_eq!(revoked[0].item + gained[0].item, 1);
    // When the leader leaves, the other instance leads and owns all items.
    drop(first);
    second.assigned(&[0, 1]).await;
    assert!(second.last_assignment().leader);
}

async fn kill_executing_application(failover: bool) {
    let fleet = Fleet::new().await;
    let (one, two) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let configuration = proto::JobConfiguration { failover: Some(failover), ..each_second(4) };
    let mut survivor = one.attach(request(configuration)).await;
    survivor.assigned(&[0, 1, 2, 3]).await;
    let mut killed = two.attach(request(None)).await;
    let id = killed.attached.instance_id.clone();
    killed.assigned(&[2, 3]).await;
    killed.executes(2).await;
    let tree = fleet.nodes.tree().await;
    assert_eq!(tree.text("sharding/3/running"), Some(id.clone()));

    drop(killed);
    let running = |item: &str| format!("sharding/{item}/running");
    let wanted = id.clone();
    fleet
        .nodes
        .until("the nodes of the killed application to be removed", move |tree| {
            let is_own = |item: &&str| tree.text(&running(item)).as_ref() == Some(&wanted);
            tree.children("sharding").iter().find(|item| is_own(item)).is_none()
                && !tree.has(&format!("instances/{wanted}"))
        })
        .await;
    survivor.assigned(&[0, 1, 2, 3]).await;
    // The nodes of the killed application do not block its items.
    let mut items = Vec::new();
    while items.len() < 4 {
        items.push(survivor.execute().await.item);
    }
    items.sort_unstable();
    assert_eq!(items, [0, 1, 2, 3]);
}

#[tokio::test]
async fn p6_a_killed_application_leaves_no_nodes_and_its_items_move_at_once() {
    Box::pin(kill_executing_application(false)).await;
}

#[tokio::test]
async fn p6_a_killed_application_of_a_failover_job_leaves_no_running_nodes() {
    Box::pin(kill_executing_application(true)).await;
}

#[tokio::test]
async fn p6_the_only_application_that_dies_leaves_failover_flags_for_its_unfinished_items() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let configuration = proto::JobConfiguration { failover: Some(true), ..each_second(2) };
    let mut app = sidecar.attach(request(configuration)).await;
    app.assigned(&[0, 1]).await;
    app.executes(2).await;
    drop(app);
    // No other instance exists and no session ends. The unfinished items wait for the next instance.
    let offline = |tree: &Tree| {
        tree.children("leader/failover/items") == ["0", "1"]
            && tree.running().is_empty()
            && tree.children("instances").is_empty()
            && !tree.has("leader/election/instance")
    };
    fleet.nodes.until("the application to be offline", offline).await;
}

#[tokio::test]
async fn a_sidecar_serves_on_a_unix_socket() {
    let fleet = Fleet::new().await;
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("api.sock");
    let address = ListenAddress::Unix(socket.clone().into()).into();
    let sidecar = fleet.sidecar_with(1, |config| config.listen = vec![address]).await;
    assert_eq!(sidecar.inner.endpoints(), [format!("unix://{}", socket.display())]);
    let mut app = sidecar.attach(request(each_second(1))).await;
    let execute = app.execute().await;
    app.report_success(&execute).await;
    drop(app);
    sidecar.drain().await;
    assert!(!socket.exists());
}
