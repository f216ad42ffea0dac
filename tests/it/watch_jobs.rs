//! `WatchJobs`: each job of the namespace once, then each change, Java's jobs included. No node changes, and a slow reader skips states.

use std::collections::BTreeMap;
use std::sync::Arc;

use sidekeeper::proto::job_service_client::JobServiceClient;
use sidekeeper::proto::watch_jobs_response::Event;
use sidekeeper::proto::{JobState, JobSummary, WatchJobsRequest, WatchJobsResponse};
use sidekeeper::registry::{Registry as _, Session};
use sidekeeper::tree::{NodeKind, Operation, Path};
use tonic::{Code, Status, Streaming};

use crate::fleet::{Fleet, JOB, RegistryFault, RunningSidecar, bounded, job, request};

const CONFIG: &str =
    "jobName: orders\ncron: 0 0 0 1 1 ? *\nshardingTotalCount: 4\njobParameter: secret-parameter\n";
const JAVA: &str = "10.0.0.8@-@1";

struct Changes {
    stream: Streaming<WatchJobsResponse>,
}

impl Changes {
    async fn try_of(sidecar: &RunningSidecar, names: &[&str]) -> Result<Self, Status> {
        let mut client = JobServiceClient::new(sidecar.connect().await);
        let job_names = names.iter().map(|name| (*name).to_owned()).collect();
        let answer = bounded("the stream", client.watch_jobs(WatchJobsRequest { job_names })).await?;
        Ok(Self { stream: answer.into_inner() })
    }

    async fn of(sidecar: &RunningSidecar, names: &[&str]) -> Self {
        Self::try_of(sidecar, names).await.unwrap()
    }

    async fn try_next(&mut self) -> Result<Option<Event>, Status> {
        let message = bounded("a change", self.stream.message()).await?;
        Ok(message.map(|message| message.event.expect("an event")))
    }

    async fn next(&mut self) -> Event {
        self.try_next().await.unwrap().expect("the stream goes on")
    }

    /// The job of the next change.
    async fn job(&mut self) -> JobSummary {
        match self.next().await {
            Event::Job(summary) => summary,
            other => panic!("{other:?}"),
        }
    }

    /// The jobs until the first round is complete.
    async fn first_round(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        loop {
            match self.next().await {
                Event::Job(summary) => names.push(summary.job_name),
                Event::Synced(_) => return names,
                Event::RemovedJobName(job) => panic!("{job} is removed in the first round"),
            }
        }
    }

    /// The state of the job that the nodes have when no more changes come: the changes of one moment may be told in two messages.
    async fn until(&mut self, wanted: impl Fn(&JobSummary) -> bool) -> JobSummary {
        loop {
            let summary = self.job().await;
            if wanted(&summary) {
                return summary;
            }
        }
    }
}

#[tokio::test]
async fn each_change_of_a_java_job_is_told_by_any_sidecar_and_no_node_changes() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let nodes = &fleet.nodes;
    let before = nodes.tree().await;
    let mut changes = Changes::of(&sidecar, &[]).await;
    assert_eq!(changes.next().await, Event::Synced(Default::default()), "no job, and no namespace");
    assert_eq!(nodes.tree().await, before, "a watch has created the namespace (OP-5)");
    nodes.put("config", CONFIG).await;
    let known = changes.until(|summary| summary.sharding_total_count == 4).await;
    assert_eq!((known.job_name.as_str(), known.state()), (JOB, JobState::NoInstances));
    nodes.put("servers/10.0.0.8", "ENABLED").await;
    nodes.put(&format!("instances/{JAVA}"), format!("jobInstanceId: {JAVA}\nserverIp: 10.0.0.8\n")).await;
    let known = changes.until(|summary| summary.state() == JobState::Ok).await;
    assert_eq!((known.instance_count, known.java_instance_count), (1, 1));
    // A second watcher gets the state at once, and the first one nothing.
    let before = nodes.tree().await;
    let mut second = Changes::of(&sidecar, &[]).await;
    assert_eq!(second.first_round().await, [JOB]);
    assert_eq!(nodes.tree().await, before, "a watch has changed a node (OP-5)");
    // A change that a list does not show is not told, nor are parameters.
    nodes.put("config", CONFIG.replace("secret", "other")).await;
    nodes.put("config", CONFIG.replace("Count: 4", "Count: 5")).await;
    for changes in [&mut changes, &mut second] {
        let known = changes.job().await;
        assert_eq!(known.sharding_total_count, 5);
        assert!(!format!("{known:?}").contains("parameter"), "{known:?}");
    }
    for name in [&format!("instances/{JAVA}"), "instances", "servers/10.0.0.8", "servers", "config", ""] {
        nodes.try_delete(name).await;
    }
    for mut changes in [changes, second] {
        loop {
            match changes.next().await {
                Event::Job(_) => {}
                other => {
                    assert_eq!(other, Event::RemovedJobName(JOB.to_owned()));
                    break;
                }
            }
        }
    }
}

/// Creates or changes jobs: their cron, time zone and description have this mark, and are long.
async fn mark(session: &Arc<dyn Session>, root: &Path, names: &[String], mark: &str) {
    let long = |mark: &str| format!("{mark}{}", "\u{1f552}".repeat(78));
    for name in names {
        let config = format!(
            "jobName: {name}\nshardingTotalCount: 2\ncron: '{0}'\ntimeZone: '{0}'\ndescription: '{0}'\n",
            long(mark)
        );
        let path = root.child(name).child("config");
        if !session.ensure(&path, NodeKind::Persistent, config.as_bytes()).await.unwrap() {
            session.commit(vec![Operation::set(path, config)]).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_slow_reader_has_one_state_of_each_job_before_it_and_skips_the_others() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let session = fleet.registry.open().await.unwrap();
    let root = Path::parse(&format!("/{}", fleet.namespace)).unwrap();
    // More than all buffers between the sidecar and the reader.
    let names: Vec<_> = (0..1_000).map(|number| format!("job-{number:03}-{}", "x".repeat(190))).collect();
    mark(&session, &root, &names, "v0").await;
    let mut slow = Changes::of(&sidecar, &[]).await;
    assert!(slow.job().await.description.starts_with("v0"));
    let mut quick = Changes::of(&sidecar, &[]).await;
    assert_eq!(quick.first_round().await.len(), names.len());
    for version in ["v1", "v2"] {
        mark(&session, &root, &names, version).await;
        let mut told = BTreeMap::new();
        while told.len() < names.len() {
            let summary = quick.until(|summary| summary.description.starts_with(version)).await;
            told.insert(summary.job_name.clone(), summary);
        }
    }
    assert_eq!(slow.first_round().await.len(), names.len() - 1);
    for _ in &names {
        let summary = slow.job().await;
        assert!(summary.description.starts_with("v2"), "{summary:?}");
    }
}

#[tokio::test]
async fn a_watcher_is_told_only_the_jobs_that_it_names_and_may_name() {
    let fleet = Fleet::new().await;
    let limited = fleet
        .sidecar_with(1, |config| {
            config.jobs_allowed = sidekeeper::config::Names::parse("mine-*").unwrap();
            for listen in &mut config.listen {
                listen.rights = sidekeeper::config::Roles::parse("view").unwrap().into();
            }
        })
        .await;
    let session = fleet.registry.open().await.unwrap();
    let root = Path::parse(&format!("/{}", fleet.namespace)).unwrap();
    let names = ["mine-1", "mine-2", "theirs"].map(str::to_owned);
    mark(&session, &root, &names, "v0").await;
    let all = fleet.sidecar_with(2, |_| ()).await;
    for (sidecar, wanted, told) in [
        (&limited, &[][..], &["mine-1", "mine-2"][..]),
        (&limited, &["*"], &["mine-1", "mine-2"]),
        (&limited, &["theirs"], &[]),
        (&all, &[], &["mine-1", "mine-2", "theirs"]),
        (&all, &["*-2", "theirs"], &["mine-2", "theirs"]),
        (&all, &["nobody"], &[]),
    ] {
        assert_eq!(Changes::of(sidecar, wanted).await.first_round().await, told, "{wanted:?}");
    }
    let Err(wrong) = Changes::try_of(&all, &["mine-1", ""]).await else { panic!("an empty name") };
    assert_eq!(wrong.code(), Code::InvalidArgument);
    assert!(wrong.message().contains("job_names"), "{wrong:?}");
    let Err(wrong) = Changes::try_of(&all, &["x"; 1_001]).await else { panic!("too many names") };
    assert!(wrong.message().contains("at most 1000 names"), "{wrong:?}");
    // A removal of a job that the watcher may not name is not told either.
    let mut changes = Changes::of(&limited, &[]).await;
    changes.first_round().await;
    for name in ["theirs", "mine-2"] {
        let path = root.child(name);
        session.commit(vec![Operation::delete(path.child("config")), Operation::delete(path)]).await.unwrap();
    }
    assert_eq!(changes.next().await, Event::RemovedJobName("mine-2".to_owned()));
}

#[tokio::test]
async fn a_hundred_may_watch_and_one_more_may_when_another_one_ends() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut watching = Vec::new();
    for _ in 0..100 {
        watching.push(Changes::of(&sidecar, &[]).await);
    }
    let Err(refused) = Changes::try_of(&sidecar, &[]).await else { panic!("one too many") };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    watching.pop();
    let again = async {
        while let Err(refused) = Changes::try_of(&sidecar, &[]).await {
            assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
            tokio::task::yield_now().await;
        }
    };
    bounded("a place", again).await;
}

#[tokio::test]
async fn a_watch_ends_with_the_sidecar_and_is_refused_without_a_session() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(job(1))).await;
    app.assigned(&[0]).await;
    let mut changes = Changes::of(&sidecar, &[]).await;
    assert_eq!(changes.first_round().await, [JOB]);
    drop(app);
    let draining = tokio::join!(sidecar.drain(), async {
        while let Some(event) = changes.try_next().await.unwrap() {
            assert!(matches!(event, Event::Job(_)), "{event:?}");
        }
    });
    assert_eq!(draining, ((), ()));
    let away = fleet.sidecar_with_fault(RegistryFault::Unreachable).await;
    let Err(refused) = Changes::try_of(&away, &[]).await else { panic!("no session") };
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
}
