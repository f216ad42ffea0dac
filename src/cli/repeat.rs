//! Repeats a request whose answer was lost, with the same id: it is recognised, and carried out once.

use std::future::Future;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use tonic::{Code, Request, Response, Status};
use tonic_types::StatusExt as _;

use super::endpoint::{authorized, exit_code, in_words, refusal};
use super::{Failure, USAGE};
use crate::api::status::REQUEST_ID;
use crate::extension::request_record::RequestId;

/// How long to wait for an answer: longer than the sidecar may wait for its registry.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How often the request is sent.
const ATTEMPTS_MAX: u32 = 4;
/// The pause before the second attempt; it doubles. A session with the registry is back after such a time if it comes back at all.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Args)]
pub(super) struct RequestArgs {
    /// The id of the request: to repeat an earlier one whose answer was lost, at this sidecar or another one. [default: a new one]
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
}

impl RequestArgs {
    /// The id that was given, or a new one.
    pub(super) fn id(&self) -> Result<String, Failure> {
        match &self.request_id {
            None => Ok(uuid::Uuid::new_v4().to_string()),
            Some(id) => match RequestId::parse(id) {
                Ok(_) => Ok(id.clone()),
                Err(error) => Err(Failure { code: USAGE, error: anyhow!("--request-id: {error}") }),
            },
        }
    }
}

/// The attempts of one request.
struct Attempts<'a> {
    id: &'a str,
    made: u32,
    pause: Duration,
}

impl<'a> Attempts<'a> {
    fn new(id: &'a str) -> Self {
        Self { id, made: 0, pause: PAUSE }
    }

    /// Pauses, if a further attempt may help after this failure. Returns whether it may.
    async fn again(&mut self, status: &Status) -> bool {
        self.made += 1;
        let again = self.made < ATTEMPTS_MAX && may_repeat(status, self.id);
        if again {
            tokio::time::sleep(self.pause).await;
            self.pause = self.pause.saturating_mul(2);
        }
        again
    }
}

/// Sends a request with this id until a sidecar has answered it, some times at most.
pub(super) async fn repeated<M: Clone, T, F>(
    id: &str,
    message: &M,
    mut send: impl FnMut(Request<M>) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    let mut attempts = Attempts::new(id);
    loop {
        let mut request = authorized(message.clone())?;
        request.set_timeout(ANSWER_TIMEOUT);
        match send(request).await {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) => {
                if !attempts.again(&status).await {
                    return Err(failed(&status, in_words(&status), id));
                }
            }
        }
    }
}

/// Carries out a request with this id on a session of the command's own until the registry has answered, some times at most.
pub(super) async fn carried_out<T>(
    id: &str,
    mut carry_out: impl AsyncFnMut() -> Result<T, Status>,
) -> Result<T, Failure> {
    let mut attempts = Attempts::new(id);
    loop {
        match carry_out().await {
            Ok(done) => return Ok(done),
            Err(status) => {
                if !attempts.again(&status).await {
                    return Err(failed(&status, refusal(&status), id));
                }
            }
        }
    }
}

/// Whether another attempt may help, and the sidecar recognises it: one of an earlier version does not send the id back.
fn may_repeat(status: &Status, id: &str) -> bool {
    let is_recognised = || {
        let info = status.get_details_error_info();
        info.is_some_and(|info| info.metadata.get(REQUEST_ID).is_some_and(|known| known == id))
    };
    matches!(status.code(), Code::Unknown | Code::Unavailable) && is_recognised()
}

/// Why a request with this id failed, in these words, and whether it may have been carried out.
fn failed(status: &Status, text: String, id: &str) -> Failure {
    let is_unclear = may_repeat(status, id) || status.get_details_error_info().is_none();
    let unclear = [Code::Unknown, Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled];
    let error = match is_unclear && unclear.contains(&status.code()) {
        true => anyhow!("{text}; it may have been done: repeat it with `--request-id {id}`"),
        false => anyhow!(text),
    };
    Failure { code: exit_code(status), error }
}
