//! A child process that ends as the program ends: signals are passed on, and the exit code is the child's.
//!
//! The process may be the first of a container, so it reaps all its children, also inherited ones.

use std::fs::File;
use std::io;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, anyhow};
use futures::StreamExt as _;
use futures::stream::{BoxStream, SelectAll, poll_fn};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpgrp, tcgetpgrp};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};

use super::Failure;

/// A shell's exit codes for a command that cannot be executed, and for a missing one.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// A shell adds this to the number of the signal that ended a command.
const SIGNALLED: i32 = 128;

/// The signals that the program forwards to the command.
const FORWARDED: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// The signals that the program forwards, and the ends of its children.
pub(super) struct Signals {
    pub(super) forwarded: SelectAll<BoxStream<'static, Signal>>,
    children: SignalStream,
}

impl Signals {
    /// Listens from now on. Called before a child is started, so that the program misses no signal and no end of a child.
    pub(super) fn listen() -> anyhow::Result<Self> {
        let children = signal(SignalKind::child()).context("cannot listen to SIGCHLD")?;
        Ok(Self { forwarded: listen()?, children })
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
pub(super) struct Child {
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

impl Child {
    /// Starts a command.
    pub(super) fn start(command: &mut Command) -> Result<Self, Failure> {
        let started = command.spawn();
        let child = started.map_err(|error| {
            let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
            let program = command.get_program().display();
            Failure { code, error: anyhow!(error).context(format!("cannot run {program}")) }
        })?;
        let pid = i32::try_from(child.id()).context("the command's process id is out of range")?;
        Ok(Self { pid: Pid::from_raw(pid), ended: false })
    }

    /// Sends a signal to the command.
    pub(super) fn signal(&self, signal: Signal) {
        if let Err(error) = kill(self.pid, signal) {
            tracing::warn!(event = "COMMAND_NOT_SIGNALLED", %signal, %error, "cannot pass a signal on to the command");
        }
    }
}

/// The exit code of a shell whose command a signal has ended.
pub(super) fn signalled(signal: Signal) -> ExitCode {
    exit_code(SIGNALLED.saturating_add(number(signal)))
}

/// Forwards signals until the command has ended. Returns its exit code as a shell would.
pub(super) async fn supervise(child: &mut Child, signals: &mut Signals) -> ExitCode {
    loop {
        if let Some(code) = reap(child) {
            child.ended = true;
            return exit_code(code);
        }
        tokio::select! {
            biased; // A command that has ended needs no signals, and its process id may soon be another's.
            _ = signals.children.recv() => {}
            Some(signal) = signals.forwarded.next() => {
                // A key on the terminal sends the signal to all processes in its foreground, so it must not
                // be sent twice.
                let from_terminal = matches!(signal, Signal::SIGINT | Signal::SIGQUIT) && in_foreground();
                if !from_terminal {
                    child.signal(signal);
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
                tracing::warn!(event = "COMMAND_NOT_AWAITED", %error, "cannot wait for the command");
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
