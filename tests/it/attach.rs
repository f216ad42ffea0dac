//! Who joins, who leaves, and what becomes of the items (P1, P3, P6).

use sidekeeper::config::ListenAddress;
use sidekeeper::proto;

use crate::ground::{Event, Ground, JOB, Tree, job, request, ticking};

#[tokio::test]
async fn an_application_is_told_that_it_is_attached_and_then_all_it_owns() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let configuration =
        proto::JobConfiguration { sharding_item_parameters: "0=Beijing,2=Hangzhou".to_owned(), ..job(3) };
    // The helper insists on Attached first and the assignment second.
    let mut app = host.attach(request(configuration)).await;
    assert_eq!((app.attached.job_name.as_str(), app.attached.sidecar_version.as_str()), (JOB, "0.1.0"));
    assert_eq!(app.attached.configuration.as_ref().unwrap().sharding_total_count, 3);
    let id = app.attached.instance_id.clone();
    assert!(id.starts_with("10.0.0.1@-@"), "{id}");

    let told = app.assigned(&[0, 1, 2]).await.clone();
    assert!(told.leader);
    let assignment = told.assignment.unwrap();
    assert_eq!(assignment.sharding_total_count, 3);
    let parameters: Vec<_> = assignment.items.iter().map(|item| item.item_parameter.as_deref()).collect();
    assert_eq!(parameters, [Some("Beijing"), None, Some("Hangzhou")]);
    let tree = ground.outside.quiet().await;
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
async fn instances_without_a_name_have_enough_random_characters_to_be_a_thousand() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    for application_id in ["", "an-application"] {
        let request = proto::AttachRequest { application_id: application_id.to_owned(), ..request(job(1)) };
        let id = host.attach(request).await.attached.instance_id;
        let (_, random) = id.rsplit_once('-').unwrap();
        assert_eq!(random.len(), 12, "{id}");
        assert!(
            !random.contains(char::is_uppercase) && id.split_once("@-@").unwrap().1.contains('-'),
            "{id}"
        );
    }
}

#[tokio::test]
async fn p1_p3_items_are_divided_when_another_joins_and_come_back_when_it_leaves() {
    let ground = Ground::new().await;
    let (one, two) = (ground.sidecar().await, ground.sidecar_with(2, |_| ()).await);
    let mut first = one.attach(request(job(4))).await;
    first.assigned(&[0, 1, 2, 3]).await;
    let (generation_alone, token_alone) = (first.generation(), first.token(0));

    let mut second = two.attach(request(None)).await;
    // The helper checks that what is said to be added and revoked is the difference.
    first.assigned(&[0, 1]).await;
    second.assigned(&[2, 3]).await;
    assert_eq!(first.told().reason(), proto::AssignmentReason::HandedOff);
    assert!(first.generation() > generation_alone && second.generation() > first.generation());
    // What stays, stays as it is; what moves has a new token.
    assert_eq!(first.token(0), token_alone);
    assert!(second.token(2) > token_alone);
    assert!(first.told().leader && !second.told().leader);

    let token_of_second = second.token(2);
    drop(second);
    first.assigned(&[0, 1, 2, 3]).await;
    assert_eq!(first.told().added_items, [2, 3]);
    assert!(first.token(2) > token_of_second);
}

#[tokio::test]
async fn p1_applications_of_one_sidecar_share_the_items_too() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut first = host.attach(request(job(2))).await;
    first.assigned(&[0, 1]).await;
    let mut second = host.attach(request(job(2))).await;
    let told = |event: &Event| match event {
        Event::AssignmentChanged(changed) => Some(changed.assignment.clone().unwrap().items),
        _ => None,
    };
    let revoked = first.until("a share", |event| told(event).filter(|items| items.len() == 1)).await;
    let gained = second.until("a share", |event| told(event).filter(|items| items.len() == 1)).await;
    assert_eq!(revoked[0].item + gained[0].item, 1);
    // The leader goes, and the one that stays leads and has all.
    drop(first);
    second.assigned(&[0, 1]).await;
    assert!(second.told().leader);
}

async fn killed_while_it_executes(failover: bool) {
    let ground = Ground::new().await;
    let (one, two) = (ground.sidecar().await, ground.sidecar_with(2, |_| ()).await);
    let configuration = proto::JobConfiguration { failover: Some(failover), ..ticking(4) };
    let mut stays = one.attach(request(configuration)).await;
    stays.assigned(&[0, 1, 2, 3]).await;
    let mut dies = two.attach(request(None)).await;
    let id = dies.attached.instance_id.clone();
    dies.assigned(&[2, 3]).await;
    dies.executes(2).await;
    let tree = ground.outside.tree().await;
    assert_eq!(tree.text("sharding/3/running"), Some(id.clone()));

    drop(dies);
    let gone = |item: &str| format!("sharding/{item}/running");
    let wanted = id.clone();
    ground
        .outside
        .until("what it left to be gone", move |tree| {
            let ours = |item: &&str| tree.text(&gone(item)).as_ref() == Some(&wanted);
            tree.children("sharding").iter().find(|item| ours(item)).is_none()
                && !tree.has(&format!("instances/{wanted}"))
        })
        .await;
    stays.assigned(&[0, 1, 2, 3]).await;
    // What died with it does not stop its items.
    let mut items = Vec::new();
    while items.len() < 4 {
        items.push(stays.execute().await.item);
    }
    items.sort_unstable();
    assert_eq!(items, [0, 1, 2, 3]);
}

#[tokio::test]
async fn p6_a_killed_application_leaves_nothing_and_its_items_move_at_once() {
    killed_while_it_executes(false).await;
}

#[tokio::test]
async fn p6_neither_do_running_nodes_stay_that_outlive_sessions() {
    killed_while_it_executes(true).await;
}

#[tokio::test]
async fn p6_an_application_that_dies_alone_leaves_its_unfinished_items_to_the_next() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let configuration = proto::JobConfiguration { failover: Some(true), ..ticking(2) };
    let mut app = host.attach(request(configuration)).await;
    app.assigned(&[0, 1]).await;
    app.executes(2).await;
    drop(app);
    // No leader cleans up behind it, and no session ends. What it has not finished waits for the next one.
    let gone = |tree: &Tree| {
        tree.children("leader/failover/items") == ["0", "1"]
            && tree.running().is_empty()
            && tree.children("instances").is_empty()
            && !tree.has("leader/election/instance")
    };
    ground.outside.until("it to be gone", gone).await;
}

#[tokio::test]
async fn everything_works_on_a_unix_socket_too() {
    let ground = Ground::new().await;
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("api.sock");
    let address = ListenAddress::Unix(socket.clone());
    let host = ground.sidecar_with(1, |config| config.listen = vec![address]).await;
    assert_eq!(host.sidecar.endpoints(), [format!("unix://{}", socket.display())]);
    let mut app = host.attach(request(ticking(1))).await;
    let execute = app.execute().await;
    app.done(&execute).await;
    drop(app);
    host.drain().await;
    assert!(!socket.exists());
}
