//! The stream of a watcher of jobs: rounds of the namespace's jobs to messages. Decides nothing but their order.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::watch;
use tonic::Status;

use crate::config::Names;
use crate::coordination::admin::rounds::{Change, Round, changes};
use crate::elasticjob::field_error::FieldError;
use crate::job::JobName;
use crate::listen::caller::Caller;
use crate::proto;
use crate::proto::watch_jobs_response::Event;
use crate::runner::admin::watch_jobs::Rounds;

use super::convert::InvalidRequest;
use super::jobs::summary_to_message;
use super::status;

/// The most names in a request.
const NAMES_MAX: usize = 1_000;

/// A watcher of jobs.
pub(super) struct JobsWatch {
    rounds: watch::Receiver<Rounds>,
    wanted: Wanted,
    /// The round whose jobs were told, or are in `pending`. `None`: none yet.
    told: Option<Arc<Round>>,
    /// The messages before the next round: at most one for each job.
    pending: VecDeque<Change>,
}

/// The jobs that a watcher wants and may see.
pub(super) struct Wanted {
    caller: Caller,
    /// Empty: all.
    names: Vec<Names>,
}

impl Wanted {
    /// The jobs of a request by this caller.
    pub(super) fn read(caller: Caller, request: &proto::WatchJobsRequest) -> Result<Self, InvalidRequest> {
        let given = &request.job_names;
        if given.len() > NAMES_MAX {
            let (given, allowed) = (format!("{} names", given.len()), format!("at most {NAMES_MAX} names"));
            return Err(InvalidRequest(vec![FieldError::new("job_names", &given, &allowed)]));
        }
        let wrong = |text: &String| {
            let allowed = "names of 1 to 300 bytes, in which `*` stands for any characters, like `billing-*`";
            InvalidRequest(vec![FieldError::new("job_names", text, allowed)])
        };
        let names = given.iter().map(|text| Names::parse(text).map_err(|_| wrong(text)));
        Ok(Self { caller, names: names.collect::<Result<_, _>>()? })
    }

    fn includes(&self, job: &JobName) -> bool {
        let name = job.as_str();
        let is_named = self.names.is_empty() || self.names.iter().any(|names| names.include(name));
        is_named && self.caller.may_use(name)
    }
}

impl JobsWatch {
    /// The watcher of these jobs, in these rounds.
    pub(super) fn new(mut rounds: watch::Receiver<Rounds>, wanted: Wanted) -> Self {
        // The last round may be there already.
        rounds.mark_changed();
        Self { rounds, wanted, told: None, pending: VecDeque::new() }
    }

    /// The next message. `None`: the sidecar is stopping.
    pub(super) async fn next(&mut self) -> Option<Result<proto::WatchJobsResponse, Status>> {
        loop {
            if let Some(change) = self.pending.pop_front() {
                return Some(Ok(proto::WatchJobsResponse { event: Some(event(change)) }));
            }
            self.rounds.changed().await.ok()?;
            let round = match self.rounds.borrow_and_update().clone() {
                None => continue,
                Some(Ok(round)) => round,
                Some(Err(error)) => return Some(Err(status::of_list(&error))),
            };
            self.pending = changes(self.told.as_deref(), &round, |job| self.wanted.includes(job));
            self.told = Some(round);
        }
    }
}

fn event(change: Change) -> Event {
    match change {
        Change::Job(summary) => Event::Job(summary_to_message(&summary)),
        Change::Removed(job) => Event::RemovedJobName(job.to_string()),
        Change::Synced => Event::Synced(proto::JobsSynced {}),
    }
}
