//! `health`: whether a sidecar is live, or ready, for probes in images without a shell.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tonic::Request;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::endpoint::{SidecarArgs, refused};
use super::{ANSWER_IS_NO, Failure, print};

/// How long to wait for the answer. A sidecar that is busy for longer is not healthy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Args)]
pub(super) struct HealthArgs {
    #[command(flatten)]
    sidecar: SidecarArgs,
    /// Ask only whether the sidecar answers. It may have no session with the registry, or be stopping.
    #[arg(long)]
    live: bool,
}

pub(super) async fn health(args: HealthArgs) -> Result<ExitCode, Failure> {
    let channel = args.sidecar.sidecar()?.connect().await?;
    // Needs no token. The empty name is the sidecar as a whole.
    let mut request = Request::new(HealthCheckRequest { service: String::new() });
    request.set_timeout(ANSWER_TIMEOUT);
    let answer = HealthClient::new(channel).check(request).await.map_err(|status| refused(&status))?;
    let is_ready = answer.get_ref().status() == ServingStatus::Serving;
    let (text, code) = match (args.live, is_ready) {
        (true, _) => ("live\n", ExitCode::SUCCESS),
        (false, true) => ("ready\n", ExitCode::SUCCESS),
        (false, false) => ("not ready\n", ExitCode::from(ANSWER_IS_NO)),
    };
    print(text.as_bytes())?;
    Ok(code)
}
