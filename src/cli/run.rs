//! `run`: a command with a sidecar of its own. The sidecar serves before the command starts, and drains after
//! it has ended. The program ends as the command did.
//!
//! The process may be the first of a container, so it reaps all its children, also inherited ones.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, anyhow};
use futures::StreamExt as _;
use futures::stream::{BoxStream, SelectAll, poll_fn};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpgrp, tcgetpgrp};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::sync::watch;

use super::{Failure, NOT_STARTED};
use crate::config::{Config, Secret, settings};
use crate::sidecar::Sidecar;

/// The variable through which the command, and any client, finds the sidecar.
const ENDPOINT_VARIABLE: &str = "SIDEKEEPER_ENDPOINT";

/// The beginning of a private directory's name, and the name of the socket in it.
pub(super) const PRIVATE_PREFIX: &str = "sidekeeper-run-";
pub(super) const SOCKET_NAME: &str = "s.sock";

/// A shell's exit codes for a command that cannot be executed, and for a missing one.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// A shell adds this to the number of the signal that ended a command.
const SIGNALLED: i32 = 128;

/// The signals that the program forwards to the command.
const FORWARDED: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

pub(super) async fn run(config: Config, command: Vec<OsString>) -> Result<ExitCode, Failure> {
    // Before anything is started, so that the program misses no signal and no end of a child.
    let mut signals = listen().map_err(Failure::with(NOT_STARTED))?;
    let mut children = signal(SignalKind::child())
        .context("cannot listen to SIGCHLD")
        .map_err(Failure::with(NOT_STARTED))?;

    let token = config.token.clone();
    let mut starting = pin!(Sidecar::start(config));
    let sidecar = loop {
        tokio::select! {
            biased; // A request to stop comes before a start in progress.
            Some(signal) = signals.next() => {
                if !matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2) {
                    return Ok(exit_code(SIGNALLED.saturating_add(number(signal))));
                }
            }
            sidecar = &mut starting => {
                break sidecar.map_err(|error| Failure { code: NOT_STARTED, error: error.into() })?;
            }
        }
    };

    let ended = match start_command(&sidecar, token.as_ref(), command) {
        Ok(mut child) => Ok(exit_code(supervise(&mut child, &mut signals, &mut children).await)),
        Err(failure) => Err(failure),
    };

    let (hurry, hurried) = watch::channel(false);
    let mut drained = pin!(sidecar.drain(hurried));
    loop {
        tokio::select! {
            biased; // A finished drain comes before a request to hurry.
            () = &mut drained => return ended,
            Some(_) = signals.next() => {
                hurry.send_replace(true);
            }
        }
    }
}

fn listen() -> anyhow::Result<SelectAll<BoxStream<'static, Signal>>> {
    let streams = FORWARDED.map(|forwarded| {
        let mut stream =
            signal(SignalKind::from_raw(number(forwarded))).context("cannot listen to signals")?;
        Ok(poll_fn(move |context| stream.poll_recv(context).map(|came| came.map(|()| forwarded))).boxed())
    });
    streams.into_iter().collect()
}

/// The command's process. Killed when this is dropped.
struct Child {
    pid: Pid,
    ended: bool,
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.ended {
            // Reached only after a panic, when no code is left to handle an error.
            let _ = kill(self.pid, Signal::SIGKILL);
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
    let started = command.spawn();
    let child = started.map_err(|error| {
        let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
        Failure { code, error: anyhow!(error).context(format!("cannot run {}", program.display())) }
    })?;
    let pid = i32::try_from(child.id()).context("the command's process id is out of range")?;
    Ok(Child { pid: Pid::from_raw(pid), ended: false })
}

/// Forwards signals until the command has ended. Returns its exit code as a shell would.
async fn supervise(
    child: &mut Child,
    signals: &mut SelectAll<BoxStream<'static, Signal>>,
    children: &mut SignalStream,
) -> i32 {
    loop {
        if let Some(code) = reap(child) {
            child.ended = true;
            return code;
        }
        tokio::select! {
            biased; // A command that has ended needs no signals, and its process id may soon be another's.
            _ = children.recv() => {}
            Some(signal) = signals.next() => {
                // A key on the terminal sends the signal to all processes in its foreground, so it must not
                // be sent twice.
                let from_terminal = matches!(signal, Signal::SIGINT | Signal::SIGQUIT) && in_foreground();
                if !from_terminal && let Err(error) = kill(child.pid, signal) {
                    tracing::warn!(%signal, %error, "cannot pass a signal on to the command");
                }
            }
        }
    }
}

/// Reaps all children that have ended. Returns the command's exit code if it is among them.
fn reap(child: &Child) -> Option<i32> {
    let mut code = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, status)) if pid == child.pid => code = Some(status),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child.pid => {
                code = Some(SIGNALLED.saturating_add(number(signal)));
            }
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return code,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot wait for the command");
                return code;
            }
        }
    }
}

/// Whether this process is in the foreground of a terminal.
fn in_foreground() -> bool {
    let terminal = File::open("/dev/tty").ok();
    terminal.and_then(|terminal| tcgetpgrp(terminal).ok()) == Some(getpgrp())
}

/// The number of a signal.
#[expect(clippy::as_conversions, reason = "the only way from this enum to its number")]
fn number(signal: Signal) -> i32 {
    signal as i32
}

fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
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
            tracing::warn!(path = %self.0.display(), %error, "cannot remove the directory of the socket");
        }
    }
}
