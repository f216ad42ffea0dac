//! `run`: a command with a sidecar of its own. The sidecar serves before the command starts, and drains after
//! it has ended. The program ends as the command did.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, anyhow};
use futures::StreamExt as _;
use nix::sys::signal::Signal;
use tokio::sync::watch;

use super::child::{Child, Signals, signalled, supervise};
use super::{Failure, NOT_STARTED};
use crate::config::{Config, Secret, settings};
use crate::sidecar::Sidecar;

/// The variable through which the command, and any client, finds the sidecar.
pub(super) const ENDPOINT_VARIABLE: &str = "SIDEKEEPER_ENDPOINT";

/// The beginning of a private directory's name, and the name of the socket in it.
pub(super) const PRIVATE_PREFIX: &str = "sidekeeper-run-";
pub(super) const SOCKET_NAME: &str = "s.sock";

pub(super) async fn run(config: Config, command: Vec<OsString>) -> Result<ExitCode, Failure> {
    let mut signals = Signals::listen().map_err(Failure::with(NOT_STARTED))?;

    let token = config.token.clone();
    let mut starting = pin!(Sidecar::start(config));
    let sidecar = loop {
        tokio::select! {
            biased; // A request to stop comes before a start in progress.
            Some(signal) = signals.forwarded.next() => {
                if !matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2) {
                    return Ok(signalled(signal));
                }
            }
            sidecar = &mut starting => {
                break sidecar.map_err(|error| Failure { code: NOT_STARTED, error: error.into() })?;
            }
        }
    };

    let ended = match start_command(&sidecar, token.as_ref(), command) {
        Ok(mut child) => Ok(supervise(&mut child, &mut signals).await),
        Err(failure) => Err(failure),
    };

    let (hurry, hurried) = watch::channel(false);
    let mut drained = pin!(sidecar.drain(hurried));
    loop {
        tokio::select! {
            biased; // A finished drain comes before a request to hurry.
            () = &mut drained => return ended,
            Some(_) = signals.forwarded.next() => {
                hurry.send_replace(true);
            }
        }
    }
}

fn start_command(
    sidecar: &Sidecar,
    token: Option<&Secret>,
    command: Vec<OsString>,
) -> Result<Child, Failure> {
    let mut words = command.into_iter();
    let program = words.next().ok_or_else(|| anyhow!("there is no command to run"))?;
    let endpoint = sidecar.endpoints().first().ok_or_else(|| anyhow!("the sidecar serves nowhere"))?;
    let mut command = Command::new(&program);
    command.args(words).env(ENDPOINT_VARIABLE, endpoint);
    // The registry's password is for the sidecar only.
    command.env_remove(settings::DIGEST.env);
    if let Some(token) = token {
        command.env(settings::TOKEN.env, token.reveal());
    }
    Child::start(&mut command)
}

/// A directory for the sidecar's socket that only this user can enter. Removed at the end.
pub(super) struct PrivateDirectory {
    path: PathBuf,
}

impl PrivateDirectory {
    /// Chooses an unused path, and creates nothing.
    pub(super) fn choose() -> Self {
        let name = format!("{PRIVATE_PREFIX}{}", uuid::Uuid::new_v4().simple());
        Self { path: std::env::temp_dir().join(name) }
    }

    /// The address of a socket in it, as the setting `listen` has it.
    pub(super) fn listen_address(&self) -> String {
        format!("unix:{}", self.path.join(SOCKET_NAME).display())
    }

    /// Creates the directory, which must not exist.
    pub(super) fn create(self) -> anyhow::Result<CreatedDirectory> {
        let created = DirBuilder::new().mode(0o700).create(&self.path);
        created.with_context(|| format!("cannot create the directory {}", self.path.display()))?;
        Ok(CreatedDirectory(self.path))
    }
}

/// A private directory that exists until this is dropped.
pub(super) struct CreatedDirectory(PathBuf);

impl Drop for CreatedDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(event = "SOCKET_NOT_REMOVED", path = %self.0.display(), %error, "cannot remove the directory of the socket");
        }
    }
}
