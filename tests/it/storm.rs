//! More instances attach at once than join at a time (`src/runner/turns.rs`).

use futures::future::join_all;
use sidekeeper::proto::AttachResponse;
use sidekeeper::proto::attach_response::Event;
use tonic::Streaming;

use crate::fleet::{Fleet, RunningSidecar, bounded, job, request, request_for};

/// So many streams, each for a job of its own: twice as many as join at a time, and some.
const STREAMS: usize = 600;
/// The streams of one connection.
const TOGETHER: usize = 150;

async fn attach_all(sidecar: &RunningSidecar) -> Vec<Streaming<AttachResponse>> {
    let mut streams = Vec::new();
    for first in (0..STREAMS).step_by(TOGETHER) {
        let client = sidecar.participants().await;
        let attaching = (first..first + TOGETHER).map(|number| {
            let mut client = client.clone();
            async move {
                let answer = client.attach(request_for(&format!("storm-{number}"), job(1))).await;
                answer.unwrap().into_inner()
            }
        });
        streams.extend(bounded("the streams", join_all(attaching)).await);
    }
    streams
}

async fn is_attached(stream: &mut Streaming<AttachResponse>) {
    while let Some(event) = bounded("the next event", stream.message()).await.unwrap() {
        if matches!(event.event, Some(Event::Attached(_))) {
            return;
        }
    }
    panic!("the stream has ended");
}

/// No instance can join while the session is suspended, and half of the applications leave meanwhile.
#[tokio::test]
async fn p1_instances_join_although_those_before_them_could_not_and_others_have_left() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let first = sidecar.attach(request(job(1))).await;
    let session = fleet.nodes.tree().await.session_of(&first.attached.instance_id);
    fleet.registry.suspend(session);
    let streams = attach_all(&sidecar).await;
    let mut stay: Vec<_> = streams.into_iter().step_by(2).collect();
    fleet.registry.resume(session);
    for stream in &mut stay {
        is_attached(stream).await;
    }
    drop((first, stay));
    sidecar.drain().await;
}

/// Most instances have not joined when the sidecar drains.
#[tokio::test]
async fn p6_a_drain_ends_the_streams_of_instances_that_have_not_joined() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut streams = attach_all(&sidecar).await;
    sidecar.drain().await;
    for stream in &mut streams {
        while let Ok(Some(_)) = bounded("the end of a stream", stream.message()).await {}
    }
}
