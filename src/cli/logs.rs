//! `logs`: the last lines of a sidecar's log, and those that come.

use std::process::ExitCode;

use clap::Args;

use super::endpoint::{SidecarArgs, authorized, refused};
use super::{Failure, print, printable};
use crate::proto::TailLogsRequest;
use crate::proto::sidecar_service_client::SidecarServiceClient;

/// The largest accepted message, in bytes.
const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;

#[derive(Args)]
pub(super) struct LogsArgs {
    /// Go on with the lines that come, until interrupted.
    #[arg(short, long)]
    follow: bool,
    /// How many of the last lines to print; at most 10000.
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 100)]
    lines: u32,
    #[command(flatten)]
    sidecar: SidecarArgs,
}

pub(super) async fn logs(args: LogsArgs) -> Result<ExitCode, Failure> {
    let channel = args.sidecar.sidecar()?.connect().await?;
    let mut client = SidecarServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let request = authorized(TailLogsRequest { lines: args.lines, follow: args.follow })?;
    let mut answers = client.tail_logs(request).await.map_err(|status| refused(&status))?.into_inner();
    while let Some(answer) = answers.message().await.map_err(|status| refused(&status))? {
        let text: String = answer.lines.iter().map(|line| format!("{}\n", printable(line))).collect();
        if !print(text.as_bytes())? {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}
