//! `status`: one sidecar, its session and its instances. `log-level`: another log filter, for a time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use serde_json::json;

use super::endpoint::{SidecarArgs, authorized, refused};
use super::watch::json::{duration, instant};
use super::{Failure, USAGE, json_line, print, printable};
use crate::config;
use crate::proto::sidecar_service_client::SidecarServiceClient;
use crate::proto::{GetStatusRequest, GetStatusResponse, SessionState, SetLogFilterRequest};

/// How long to wait for the answer. The sidecar asks nobody.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest accepted answer, in bytes: all instances of a large sidecar.
const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;

#[derive(Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    sidecar: SidecarArgs,
    /// Print one JSON object, with the field names of the proto.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(super) struct LogLevelArgs {
    /// The filter, as in the setting `log_level`: `debug`, or `info,sidekeeper::runner=debug`. Without it the setting counts again.
    filter: Option<String>,
    /// For how long, `1s` to `24h`.
    #[arg(long = "for", value_name = "DURATION", default_value = "15m", requires = "filter")]
    time: String,
    #[command(flatten)]
    sidecar: SidecarArgs,
}

pub(super) async fn status(args: StatusArgs) -> Result<ExitCode, Failure> {
    let channel = args.sidecar.sidecar()?.connect().await?;
    let mut client = SidecarServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let mut request = authorized(GetStatusRequest {})?;
    request.set_timeout(ANSWER_TIMEOUT);
    let answer = client.get_status(request).await.map_err(|status| refused(&status))?.into_inner();
    print(if args.json { in_json(&answer) } else { in_words(&answer) }.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn in_json(answer: &GetStatusResponse) -> String {
    let instances = answer.instances.iter();
    let instances = instances.map(|one| json!({ "job_name": one.job_name, "instance_id": one.instance_id }));
    json_line(&json!({
        "version": answer.version,
        "api_level": answer.api_level,
        "namespace": answer.namespace,
        "registry": answer.registry,
        "session_state": answer.session_state().as_str_name(),
        "session_id": answer.session_id,
        "session_timeout": answer.session_timeout.as_ref().map(duration),
        "remaining_lease": answer.remaining_lease.as_ref().map(duration),
        "trouble": answer.trouble,
        "draining": answer.draining,
        "instances": instances.collect::<Vec<_>>(),
        "log_filter": answer.log_filter,
        "log_filter_until": answer.log_filter_until.as_ref().and_then(instant),
        "runtime_stall": answer.runtime_stall.as_ref().map(duration),
    }))
}

fn in_words(answer: &GetStatusResponse) -> String {
    let mut lines = vec![
        ("version", answer.version.clone()),
        ("namespace", answer.namespace.clone()),
        ("registry", answer.registry.clone()),
    ];
    let state = match answer.session_state() {
        SessionState::Connected => "connected",
        SessionState::Suspended => "suspended",
        SessionState::Lost | SessionState::Unspecified => "none",
    };
    let timed = |name: &str, time: Option<&prost_types::Duration>| {
        time.map(|time| format!(", {name} {}", duration(time))).unwrap_or_default()
    };
    let timeout = timed("timeout", answer.session_timeout.as_ref());
    let lease = timed("lease", answer.remaining_lease.as_ref());
    lines.push(("session", format!("{state} {}{timeout}{lease}", answer.session_id)));
    if !answer.trouble.is_empty() {
        lines.push(("trouble", answer.trouble.clone()));
    }
    if answer.draining {
        lines.push(("draining", "nothing more starts here".to_owned()));
    }
    let until = answer.log_filter_until.as_ref().and_then(instant);
    let until = until.map(|until| format!(" until {until}")).unwrap_or_default();
    lines.push(("log", format!("{}{until}", answer.log_filter)));
    let stall = answer.runtime_stall.as_ref().map(duration).unwrap_or_default();
    lines.push(("heartbeat", format!("late by {stall} at most in the last minute")));
    lines.push(("instances", answer.instances.len().to_string()));
    let mut text = String::new();
    for (name, value) in lines {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<10} {}", printable(value.trim_end()));
    }
    let mut jobs = BTreeMap::<_, Vec<_>>::new();
    for one in &answer.instances {
        jobs.entry(&one.job_name).or_default().push(&one.instance_id);
    }
    for (job, mut instances) in jobs {
        instances.sort_unstable();
        for instance in instances {
            let _ = writeln!(text, "  {}  {}", printable(job), printable(instance));
        }
    }
    text
}

pub(super) async fn log_level(args: LogLevelArgs) -> Result<ExitCode, Failure> {
    let sidecar = args.sidecar.sidecar()?;
    let time = config::log_filter_time(&args.time).map_err(|reason| {
        let given = args.time.escape_debug();
        Failure { code: USAGE, error: anyhow!("--for = `{given}`: {reason}") }
    })?;
    let channel = sidecar.connect().await?;
    let time_to_live = args.filter.is_some().then(|| prost_types::Duration::try_from(time)).transpose();
    let time_to_live = time_to_live.map_err(|error| anyhow!("--for: {error}"))?;
    let filter = args.filter.unwrap_or_default();
    let mut request = authorized(SetLogFilterRequest { filter, time_to_live })?;
    request.set_timeout(ANSWER_TIMEOUT);
    let answer = SidecarServiceClient::new(channel).set_log_filter(request).await;
    let answer = answer.map_err(|status| refused(&status))?.into_inner();
    let until = answer.until.as_ref().and_then(instant);
    let until = until.map_or_else(|| "as in the setting".to_owned(), |until| format!("until {until}"));
    print(format!("log  {}, {until}\n", printable(&answer.filter)).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
