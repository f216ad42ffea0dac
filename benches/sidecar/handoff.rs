//! How long does the handoff of an item take? From the moment when its owner has the revocation, over the
//! owner's acknowledgement, to the moment when the next owner has the assignment.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sidekeeper::proto::attach_response::Event;
use sidekeeper::proto::{AcknowledgeAssignmentRequest, AttachRequest, JobConfiguration};
use sidekeeper::tree::Path;
use tokio::sync::watch;

use crate::application::{Client, connect};
use crate::host::{Host, application_runtime};
use crate::server;
use crate::statistics::{Sorted, milliseconds};

/// Items of the job. Half of them move each time when the second instance comes or goes.
const ITEMS: u32 = 2;
/// How often the second instance comes. It gets each item in a handoff, and gives the item back when it is
/// drained.
const COMINGS: usize = 1_000;
/// Creations of a single node to compare with, and the pause before each.
const CREATIONS: u32 = 400;
const CREATION_PAUSE: Duration = Duration::from_millis(5);

/// When items were revoked, and how long each handoff took.
#[derive(Default)]
struct Log {
    revoked: BTreeMap<u32, Instant>,
    taken: Vec<Duration>,
}

pub(crate) fn on_zookeeper() {
    let server = server::start();
    let runtime = application_runtime();
    let create = || runtime.block_on(server::create_latency(&server, CREATIONS, CREATION_PAUSE));
    let before = create();
    let namespace = Path::root().child("bench-handoff");
    let first = Host::start_in(server::registry(&server), namespace.clone());
    let second = Host::start_in(server::registry(&server), namespace);
    let taken = runtime.block_on(handoffs(&first.endpoint(), &second.endpoint()));
    first.stop();
    second.stop();
    let after = create();
    println!("\n| | times | p50 ms | p99 ms | max ms |\n|---|---|---|---|---|");
    println!("| bare `create`, before | {} | {} |", before.len(), before.columns());
    println!("| bare `create`, after | {} | {} |", after.len(), after.columns());
    println!("| handoffs | {} | {} |", taken.len(), taken.columns());
    let ratio = |percent| {
        let create = before.percentile(percent).min(after.percentile(percent));
        taken.percentile(percent).as_secs_f64() / create.as_secs_f64()
    };
    println!("| round trips | | {:.2} | {:.2} | |", ratio(50), ratio(99));
    let goal = before.percentile(50).min(after.percentile(50)) * 5 + Duration::from_millis(10);
    println!("\ngoal: p99 within five round trips plus 10 ms, {} ms", milliseconds(goal));
}

async fn handoffs(first: &str, second: &str) -> Sorted {
    let log = Arc::new(Mutex::new(Log::default()));
    let (owned, mut owns) = watch::channel(0);
    let stays = follow(connect(first).await, Arc::clone(&log), owned);
    let stays = tokio::spawn(stays);
    let all = usize::try_from(ITEMS).unwrap_or(usize::MAX);
    for _ in 0..COMINGS {
        owns.wait_for(|owned| *owned == all).await.expect("the first instance");
        let (owned, mut owns) = watch::channel(0);
        let comes = tokio::spawn(follow(connect(second).await, Arc::clone(&log), owned));
        owns.wait_for(|owned| *owned == all / 2).await.expect("the second instance");
        // The second instance's end is no handoff: items without an owner are assigned.
        comes.abort();
    }
    stays.abort();
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    Sorted::new(std::mem::take(&mut log.taken))
}

/// Attaches, acknowledges each assignment at once, and records the messages that arrive.
async fn follow(mut client: Client, log: Arc<Mutex<Log>>, owned: watch::Sender<usize>) {
    let props = [("sidekeeper.ownership".to_owned(), "continuous".to_owned())];
    let configuration =
        JobConfiguration { sharding_total_count: ITEMS, props: props.into(), ..JobConfiguration::default() };
    let request = AttachRequest {
        job_name: "handoff".to_owned(),
        configuration: Some(configuration),
        ..AttachRequest::default()
    };
    let mut events = client.attach(request).await.expect("to attach").into_inner();
    let mut attachment_id = String::new();
    while let Ok(Some(message)) = events.message().await {
        let now = Instant::now();
        let changed = match message.event {
            Some(Event::Attached(attached)) => {
                attachment_id = attached.attachment_id;
                continue;
            }
            Some(Event::AssignmentChanged(changed)) => changed,
            _ => continue,
        };
        let assignment = changed.assignment.unwrap_or_default();
        {
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            for item in changed.added_items {
                let since = log.revoked.remove(&item);
                log.taken.extend(since.map(|since| now.saturating_duration_since(since)));
            }
            log.revoked.extend(changed.revoked_items.into_iter().map(|item| (item, now)));
        }
        let generation = assignment.generation;
        let acknowledgement =
            AcknowledgeAssignmentRequest { attachment_id: attachment_id.clone(), generation };
        if client.acknowledge_assignment(acknowledgement).await.is_err() {
            return;
        }
        owned.send_replace(assignment.items.len());
    }
}
