//! `serve`: a sidecar that runs until it is stopped.

use std::future::pending;
use std::pin::pin;
use std::process::ExitCode;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::Failure;
use crate::config::Config;
use crate::sidecar::Sidecar;

/// SIGTERM, SIGINT and SIGHUP, the requests to stop. SIGHUP comes when a terminal is closed; without a
/// handler it would end the process without a drain.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    /// `None`: the parent process ignores it, as `nohup` does.
    hangup: Option<Signal>,
}

impl StopSignals {
    fn listen() -> anyhow::Result<Self> {
        let on = |kind| signal(kind).context("cannot listen to signals");
        let (terminate, interrupt) = (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
        let hangup = if is_hangup_ignored() { None } else { Some(on(SignalKind::hangup())?) };
        Ok(Self { terminate, interrupt, hangup })
    }

    async fn next(&mut self) -> &'static str {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased; // Any order will do, but it has to be fixed.
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = hangup => "SIGHUP",
        }
    }
}

/// Whether SIGHUP is ignored. `false` if the system has no such file.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // One bit for each signal; SIGHUP is the first.
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}

pub(super) async fn serve(config: Config) -> Result<ExitCode, Failure> {
    let mut stop = StopSignals::listen()?;
    let sidecar = tokio::select! {
        biased; // A request to stop comes before a start in progress.
        signal = stop.next() => {
            tracing::info!(signal, "stopping before the start was complete");
            return Ok(ExitCode::SUCCESS);
        }
        sidecar = Sidecar::start(config) => sidecar?,
    };
    tracing::info!(
        endpoints = sidecar.endpoints().join(", "),
        version = env!("CARGO_PKG_VERSION"),
        "serving"
    );

    let signal = stop.next().await;
    tracing::info!(signal, "draining; a second signal cancels executions at once");
    let (hurry, hurried) = watch::channel(false);
    let mut drained = pin!(sidecar.drain(hurried));
    loop {
        tokio::select! {
            biased; // A finished drain comes before a request to hurry.
            () = &mut drained => break,
            signal = stop.next() => {
                tracing::warn!(event = "SECOND_SIGNAL", signal, "second signal: executions are cancelled");
                hurry.send_replace(true);
            }
        }
    }
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}
