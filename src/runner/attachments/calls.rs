//! The calls of applications and operators: finds the task of the participant, and waits for its answer. Decides nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::coordination::job::contract::answer::{Answer, Cancelled, Refusal};
use crate::coordination::job::contract::input::CancelWish;
use crate::coordination::job::contract::report::{ExecutionResult, ProgressReport};
use crate::coordination::time::Wakeup;
use crate::excerpt::Excerpt;
use crate::job::{Generation, InstanceId, JobName};
use crate::runner::job::command::{Command, Handle};

use super::registry::Attachments;

/// How long a call waits for its answer while the registry does not answer. The application reports again after that.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// Why a call was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No stream with this id is attached.
    #[error("attachment_id `{0}` is not attached to this sidecar; attach, and use the id from Attached")]
    UnknownAttachment(Excerpt),
    /// The stream ended before the call was answered.
    #[error("the stream ended before the call was answered")]
    Ended,
    /// The registry does not answer.
    #[error("the registry is away, and the result is not recorded yet; report it again")]
    NotYet,
    /// The registry cannot write.
    #[error("the result is not recorded yet; report it again: {0}")]
    Unwritable(String),
    /// An execution belongs to another stream.
    #[error("results[{index}].execution_id `{execution_id}` belongs to another attachment")]
    Foreign {
        /// Its index in the request.
        index: usize,
        /// The id in the request.
        execution_id: Excerpt,
    },
    /// The participant refused it.
    #[error("{}", refusal_text(.0))]
    Refused(Refusal),
}

fn refusal_text(refusal: &Refusal) -> String {
    match refusal {
        Refusal::UnknownExecution { index, execution_id } => format!(
            "results[{index}].execution_id `{execution_id}` is no execution of this attachment; use the id from Execute"
        ),
        Refusal::UnknownProgress { execution_id } => format!(
            "execution_id `{execution_id}` is no execution of this attachment; use the id from Execute"
        ),
        Refusal::ExecutionOver { execution_id } => format!(
            "execution_id `{execution_id}` is over: its result was reported, or the session with the registry was lost"
        ),
        Refusal::UnknownCall { call_id } => format!(
            "call_id `{call_id}` is no call of this attachment; use the id from BeforeFirst or AfterLast"
        ),
        Refusal::UnknownItem { item, total } => {
            format!("items: given item {item}; the job has {total} items, from 0")
        }
        Refusal::UnknownGeneration { given, newest } => {
            format!("generation {} was never told; the newest is {}", given.0, newest.0)
        }
    }
}

impl Attachments {
    fn handle(&self, attachment_id: &str) -> Result<Handle, CallError> {
        let inner = self.lock();
        let attachment = inner.attachments.get(attachment_id);
        let handle = attachment.map(|attachment| attachment.handle.clone());
        handle.ok_or_else(|| CallError::UnknownAttachment(Excerpt::of(attachment_id)))
    }

    /// Records results. Ends when they are recorded, or with the reason why not.
    pub async fn report(
        &self,
        attachment_id: &str,
        results: Vec<ExecutionResult>,
    ) -> Result<Answer, CallError> {
        let answer = tokio::select! {
            biased; // An answer counts. Without one, the participant has the result all the same, and records it when it can.
            answer = self.call(attachment_id, |reply| Command::Report(results, reply)) => answer,
            obstacle = self.unwritable() => Err(CallError::Unwritable(obstacle)),
        };
        match answer {
            Err(CallError::Refused(Refusal::UnknownExecution { index, execution_id }))
                if self.belongs_to_another(attachment_id, &execution_id.to_string()) =>
            {
                Err(CallError::Foreign { index, execution_id })
            }
            answer => answer,
        }
    }

    /// Has an instance start nothing more and leave after its executions, because its application is stopping.
    /// `for_good`: no items are reserved for its name.
    pub async fn drain_attachment(&self, attachment_id: &str, for_good: bool) -> Result<(), CallError> {
        let handle = self.handle(attachment_id)?;
        let drain = Command::Drain { deadline: None, for_good };
        handle.send(drain).await.then_some(()).ok_or(CallError::Ended)
    }

    /// Has an instance leave, because its application says so. `for_good`: no items are reserved for its name.
    pub async fn detach(&self, attachment_id: &str, for_good: bool) -> Result<(), CallError> {
        let handle = self.handle(attachment_id)?;
        handle.send(Command::Leave { for_good }).await.then_some(()).ok_or(CallError::Ended)
    }

    /// Records an acknowledgement.
    pub async fn acknowledge(
        &self,
        attachment_id: &str,
        generation: Generation,
    ) -> Result<Answer, CallError> {
        self.call(attachment_id, |reply| Command::Acknowledge(generation, reply)).await
    }

    /// Records the outcome of a call of the listener. Returns whether it came in time.
    pub async fn report_listener(
        &self,
        attachment_id: &str,
        call_id: String,
        outcome: Result<(), String>,
    ) -> Result<bool, CallError> {
        let answer = self.call(attachment_id, |reply| Command::Listener(call_id, outcome, reply)).await?;
        Ok(matches!(answer, Answer::ListenerReported { in_time: true }))
    }

    /// Answers until when the session may be acted on.
    pub async fn ask_lease(&self, attachment_id: &str) -> Result<Answer, CallError> {
        self.call(attachment_id, Command::AskLease).await
    }

    /// Records the progress of an execution. Ends when its checkpoint is recorded.
    pub async fn progress(&self, attachment_id: &str, report: ProgressReport) -> Result<Answer, CallError> {
        self.call(attachment_id, |reply| Command::Progress(report, reply)).await
    }

    /// Cancels executions of a job that run here, or only names them. Returns them by instance. `None`: no application is attached for the job.
    /// If the job does not have one of the items, no execution is cancelled.
    pub async fn cancel(
        &self,
        job: &JobName,
        wish: &CancelWish,
    ) -> Result<Option<BTreeMap<InstanceId, Vec<Cancelled>>>, CallError> {
        let attached: Vec<_> = {
            let inner = self.lock();
            let ours = inner.attachments.of_job(job);
            ours.map(|(id, attachment)| (id.clone(), attachment.instance.clone())).collect()
        };
        if attached.is_empty() {
            return Ok(None);
        }
        let mut cancelled = BTreeMap::new();
        for (attachment_id, instance) in attached {
            match self.call(&attachment_id, |reply| Command::Cancel(wish.clone(), reply)).await {
                Ok(Answer::Cancelled(executions)) => {
                    cancelled.insert(instance, executions);
                }
                Err(refused @ CallError::Refused(Refusal::UnknownItem { .. })) => return Err(refused),
                // A participant that has ended meanwhile executes nothing.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(Some(cancelled))
    }

    /// Sends a command to a participant's task, and waits for the answer.
    async fn call(
        &self,
        attachment_id: &str,
        command: impl FnOnce(oneshot::Sender<Answer>) -> Command,
    ) -> Result<Answer, CallError> {
        let handle = self.handle(attachment_id)?;
        let (reply, answer) = oneshot::channel();
        handle.send(command(reply)).await.then_some(()).ok_or(CallError::Ended)?;
        let deadline = self.shared().clock.now().mono.saturating_add(ANSWER_WAIT);
        let answer = tokio::select! {
            biased; // An answer counts, also if this task reads it late.
            answer = answer => answer.map_err(|_| CallError::Ended)?,
            () = self.shared().clock.sleep_until(Wakeup { wall: None, mono: Some(deadline) }) => {
                return Err(CallError::NotYet);
            }
        };
        match answer {
            Answer::Refused(refusal) => Err(CallError::Refused(refusal)),
            Answer::Recorded(_)
            | Answer::Acknowledged
            | Answer::Lease { .. }
            | Answer::Cancelled(_)
            | Answer::Progressed { .. }
            | Answer::ListenerReported { .. } => Ok(answer),
        }
    }

    /// Whether an execution belongs to another attachment.
    fn belongs_to_another(&self, attachment_id: &str, execution_id: &str) -> bool {
        let prefix = execution_id.rsplit_once('-').map_or(execution_id, |(prefix, _)| prefix);
        self.lock().attachments.with_prefix(prefix).is_some_and(|id| id != attachment_id)
    }

    /// Ends with the reason when the registry cannot write. May never end.
    async fn unwritable(&self) -> String {
        let session = self.shared().current.borrow().clone();
        if let Some(session) = session {
            let mut state = session.state();
            loop {
                // The state is marked as read before the obstacle is read, so that no change is missed.
                state.mark_unchanged();
                if let Some(obstacle) = session.obstacle() {
                    return obstacle;
                }
                if state.changed().await.is_err() {
                    break;
                }
            }
        }
        std::future::pending().await
    }
}
