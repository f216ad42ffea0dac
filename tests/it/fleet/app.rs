//! An application. It checks each event that a test reads against the stream's contract.

use std::collections::BTreeMap;

use sidekeeper::proto;
use sidekeeper::proto::participant_service_client::ParticipantServiceClient;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::bounded;

pub use sidekeeper::proto::attach_response::Event;

pub fn success(execution_id: &str) -> proto::ExecutionResult {
    proto::ExecutionResult {
        execution_id: execution_id.to_owned(),
        outcome: proto::ExecutionOutcome::Success.into(),
        failure_message: String::new(),
    }
}

pub fn failure(execution_id: &str, message: &str) -> proto::ExecutionResult {
    proto::ExecutionResult {
        outcome: proto::ExecutionOutcome::Failure.into(),
        failure_message: message.to_owned(),
        ..success(execution_id)
    }
}

/// An application on a connection of its own. Dropping it stands for a kill.
pub struct App {
    pub client: ParticipantServiceClient<Channel>,
    pub attached: proto::Attached,
    stream: Streaming<proto::AttachResponse>,
    last_assignment: proto::AssignmentChanged,
    /// The executions without a report: the item of each.
    open: BTreeMap<String, u32>,
    /// All events so far, for messages of failures.
    pub history: Vec<Event>,
}

impl App {
    pub async fn attach(
        mut client: ParticipantServiceClient<Channel>,
        request: proto::AttachRequest,
    ) -> Result<Self, Status> {
        let attach = async {
            let mut stream = client.attach(request).await?.into_inner();
            loop {
                let first = stream.message().await?.and_then(|message| message.event);
                if !matches!(first, Some(Event::Waiting(_))) {
                    return Ok::<_, Status>((first, stream));
                }
            }
        };
        let (first, mut stream) = bounded("Attached", attach).await?;
        let Some(Event::Attached(attached)) = first else { panic!("the first event is {first:?}") };
        let second = bounded("the first assignment", stream.message()).await?;
        let Some(Event::AssignmentChanged(last_assignment)) = second.and_then(|message| message.event) else {
            panic!("the second event is no assignment");
        };
        assert_eq!(last_assignment.reason(), proto::AssignmentReason::Attached);
        assert!(last_assignment.revoked_items.is_empty(), "{last_assignment:?}");
        assert_eq!(last_assignment.added_items, items_of(&last_assignment));
        let history = vec![Event::AssignmentChanged(last_assignment.clone())];
        Ok(Self { client, attached, stream, last_assignment, open: BTreeMap::new(), history })
    }

    /// A client on its connection.
    pub fn participants(&self) -> ParticipantServiceClient<Channel> {
        self.client.clone()
    }

    /// The newest assignment of the stream.
    pub fn last_assignment(&self) -> &proto::AssignmentChanged {
        &self.last_assignment
    }

    pub fn items(&self) -> Vec<u32> {
        items_of(&self.last_assignment)
    }

    pub fn generation(&self) -> i64 {
        self.last_assignment.assignment.as_ref().unwrap().generation
    }

    /// The token that came with an item.
    pub fn token(&self, item: u32) -> i64 {
        let items = &self.last_assignment.assignment.as_ref().unwrap().items;
        items.iter().find(|assigned| assigned.item == item).unwrap().fencing_token
    }

    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// The next event; `None` when the stream has ended without an error.
    async fn read(&mut self) -> Result<Option<Event>, Status> {
        let Some(message) = self.stream.message().await? else { return Ok(None) };
        let event = message.event.expect("an event that this client does not know");
        self.history.push(event.clone());
        self.check_contract(&event);
        Ok(Some(event))
    }

    fn check_contract(&mut self, event: &Event) {
        match event {
            Event::Attached(_) | Event::Waiting(_) => panic!("attached twice: {:#?}", self.history),
            Event::AssignmentChanged(changed) => {
                let (before, after) = (self.items(), items_of(changed));
                let without = |all: &[u32], these: &[u32]| -> Vec<u32> {
                    all.iter().copied().filter(|item| !these.contains(item)).collect()
                };
                assert!(after.is_sorted(), "{changed:?}");
                assert_eq!(changed.added_items, without(&after, &before));
                assert_eq!(changed.revoked_items, without(&before, &after));
                let generation = self.generation();
                self.last_assignment = changed.clone();
                assert!(self.generation() >= generation, "the generation was {generation}: {changed:?}");
            }
            Event::Execute(execute) => {
                let drained = self.history.iter().any(|event| matches!(event, Event::Draining(_)));
                assert!(!drained, "{:#?}", self.history);
                let items = &self.last_assignment.assignment.as_ref().unwrap().items;
                let assigned = items.iter().find(|assigned| assigned.item == execute.item);
                let owned = assigned.is_some_and(|assigned| !assigned.disabled);
                let taken_over = execute.source() == proto::ExecutionSource::Failover;
                assert!(owned || taken_over, "{:#?}", self.history);
                let token = assigned.map_or(0, |assigned| assigned.fencing_token);
                assert!(execute.fencing_token >= token, "{:#?}", self.history);
                assert!(!self.open.values().any(|item| *item == execute.item), "{:#?}", self.history);
                self.open.insert(execute.execution_id.clone(), execute.item);
            }
            Event::Cancel(cancel) => {
                // The application may have reported the execution meanwhile.
                let item = self.open.get(&cancel.execution_id).unwrap_or(&cancel.item);
                assert_eq!(*item, cancel.item, "{:#?}", self.history);
            }
            Event::LeadershipChanged(_)
            | Event::SessionChanged(_)
            | Event::JobChanged(_)
            | Event::BeforeFirst(_)
            | Event::AfterLast(_)
            | Event::Draining(_) => {}
        }
    }

    /// The next event.
    pub async fn next(&mut self) -> Event {
        self.until("an event", |event| Some(event.clone())).await
    }

    /// The first event that `pick` accepts; others are skipped.
    pub async fn until<T>(&mut self, what: &str, mut pick: impl FnMut(&Event) -> Option<T>) -> T {
        let search = async {
            loop {
                match self.read().await {
                    Ok(Some(event)) => {
                        if let Some(picked) = pick(&event) {
                            return Ok(picked);
                        }
                    }
                    ended => return Err(ended),
                }
            }
        };
        match tokio::time::timeout(super::LIMIT, search).await {
            Ok(Ok(picked)) => picked,
            Ok(Err(ended)) => panic!("the stream ended ({ended:?}) before {what}: {:#?}", self.history),
            Err(_) => panic!("waited for {what}; received: {:#?}", self.history),
        }
    }

    /// Waits until the assignment is exactly these items. The current assignment counts.
    pub async fn assigned(&mut self, items: &[u32]) -> &proto::AssignmentChanged {
        if self.items() != items {
            let what = format!("the items {items:?}");
            self.until(&what, |event| match event {
                Event::AssignmentChanged(changed) if items_of(changed) == items => Some(()),
                _ => None,
            })
            .await;
        }
        &self.last_assignment
    }

    pub async fn execute(&mut self) -> proto::Execute {
        self.until("Execute", |event| match event {
            Event::Execute(execute) => Some(execute.clone()),
            _ => None,
        })
        .await
    }

    /// The executions of so many items.
    pub async fn executes(&mut self, count: usize) -> Vec<proto::Execute> {
        let mut executes = Vec::new();
        while executes.len() < count {
            executes.push(self.execute().await);
        }
        executes
    }

    pub async fn cancel(&mut self) -> proto::Cancel {
        self.until("Cancel", |event| match event {
            Event::Cancel(cancel) => Some(cancel.clone()),
            _ => None,
        })
        .await
    }

    pub async fn session(&mut self, state: proto::SessionState) {
        let what = format!("{state:?}");
        self.until(&what, |event| match event {
            Event::SessionChanged(changed) if changed.state() == state => Some(()),
            _ => None,
        })
        .await;
    }

    /// The next problems that `wanted` accepts.
    pub async fn problems(
        &mut self,
        what: &str,
        wanted: impl Fn(&[proto::Problem]) -> bool,
    ) -> Vec<proto::Problem> {
        self.until(what, |event| match event {
            Event::JobChanged(changed) if wanted(&changed.problems) => Some(changed.problems.clone()),
            _ => None,
        })
        .await
    }

    pub async fn report(
        &mut self,
        results: Vec<proto::ExecutionResult>,
    ) -> Result<Vec<proto::CompletionStatus>, Status> {
        let ids: Vec<_> = results.iter().map(|result| result.execution_id.clone()).collect();
        let attachment_id = self.attached.attachment_id.clone();
        let request = proto::ReportCompletionRequest { attachment_id, results };
        let records =
            bounded("the report", self.client.report_completion(request)).await?.into_inner().records;
        assert!(records.iter().map(|record| &record.execution_id).eq(&ids), "{ids:?}: {records:?}");
        for id in &ids {
            self.open.remove(id);
        }
        Ok(records.iter().map(proto::CompletionRecord::status).collect())
    }

    /// Reports the progress of an execution.
    pub async fn progress(
        &self,
        execution_id: &str,
        extend_deadline: bool,
        checkpoint: Option<&[u8]>,
    ) -> Result<proto::ReportProgressResponse, Status> {
        let request = proto::ReportProgressRequest {
            attachment_id: self.attached.attachment_id.clone(),
            execution_id: execution_id.to_owned(),
            extend_deadline,
            checkpoint: checkpoint.map(<[u8]>::to_vec),
        };
        let mut client = self.client.clone();
        bounded("the answer", client.report_progress(request)).await.map(tonic::Response::into_inner)
    }

    /// Reports the success of an execution, which must be recorded.
    pub async fn report_success(&mut self, execute: &proto::Execute) {
        let records = self.report(vec![success(&execute.execution_id)]).await;
        assert_eq!(records.unwrap(), [proto::CompletionStatus::Recorded]);
    }

    /// Reports the success of all open executions.
    pub async fn report_all_open(&mut self) {
        let results: Vec<_> = self.open.keys().map(|id| success(id)).collect();
        if !results.is_empty() {
            self.report(results).await.unwrap();
        }
    }

    pub async fn acknowledge(&mut self, generation: i64) -> Result<(), Status> {
        let attachment_id = self.attached.attachment_id.clone();
        let request = proto::AcknowledgeAssignmentRequest { attachment_id, generation };
        self.client.acknowledge_assignment(request).await.map(drop)
    }

    /// Waits for the end of the stream; its status, and the events before.
    pub async fn end(&mut self) -> (Result<(), Status>, Vec<Event>) {
        let before = self.history.len();
        let end = async {
            loop {
                match self.read().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return Ok(()),
                    Err(status) => return Err(status),
                }
            }
        };
        let ended = bounded("the end of the stream", end).await;
        (ended, self.history.split_off(before))
    }
}

fn items_of(changed: &proto::AssignmentChanged) -> Vec<u32> {
    changed.assignment.iter().flat_map(|assignment| &assignment.items).map(|item| item.item).collect()
}
