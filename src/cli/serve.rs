//! `serve`: a sidecar for as long as nobody tells it to stop.

use std::pin::pin;
use std::process::ExitCode;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::Failure;
use crate::config::Config;
use crate::sidecar::Sidecar;

/// SIGTERM and SIGINT, the requests to stop.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn listen() -> anyhow::Result<Self> {
        let on = |kind| signal(kind).context("cannot listen to signals");
        Ok(Self { terminate: on(SignalKind::terminate())?, interrupt: on(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            biased; // Either will do; the order only has to be fixed.
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

pub(super) async fn serve(config: Config) -> Result<ExitCode, Failure> {
    let mut stop = StopSignals::listen()?;
    let sidecar = tokio::select! {
        biased; // A request to stop counts more than a start that is under way.
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
    tracing::info!(signal, "draining; a second signal has executions stop at once");
    let (hurry, hurried) = watch::channel(false);
    let mut drained = pin!(sidecar.drain(hurried));
    loop {
        tokio::select! {
            biased; // What is done is done, whatever else is asked for.
            () = &mut drained => break,
            signal = stop.next() => {
                tracing::warn!(signal, "hurrying: executions are told to stop");
                hurry.send_replace(true);
            }
        }
    }
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}
