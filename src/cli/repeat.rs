//! Repeats a request whose answer was lost, with the same id: the sidecars of the namespace recognise it, and carry it out once.

use std::future::Future;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use tonic::{Code, Request, Response, Status};
use tonic_types::StatusExt as _;

use super::endpoint::{authorized, exit_code, in_words};
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

/// Sends a request with this id until it is answered, some times at most.
pub(super) async fn repeated<M: Clone, T, F>(
    id: &str,
    message: &M,
    mut send: impl FnMut(Request<M>) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    let mut pause = PAUSE;
    let mut attempt = 1;
    loop {
        let mut request = authorized(message.clone())?;
        request.set_timeout(ANSWER_TIMEOUT);
        match send(request).await {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) if attempt < ATTEMPTS_MAX && may_repeat(&status, id) => {
                tokio::time::sleep(pause).await;
                pause = pause.saturating_mul(2);
                attempt += 1;
            }
            Err(status) => return Err(not_done(&status, id)),
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

/// Why a request with this id failed, and whether it may have been carried out.
pub(super) fn not_done(status: &Status, id: &str) -> Failure {
    let text = in_words(status);
    let is_unclear = may_repeat(status, id) || status.get_details_error_info().is_none();
    let unclear = [Code::Unknown, Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled];
    let error = match is_unclear && unclear.contains(&status.code()) {
        true => anyhow!("{text}; it may have been done: repeat it with `--request-id {id}`"),
        false => anyhow!(text),
    };
    Failure { code: exit_code(status), error }
}
