//! Streams that a command follows until it is interrupted, or until its reader has closed the pipe. Decides after which failures it connects
//! again, and when.

use std::convert::Infallible;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::signal::unix::{SignalKind, signal};
use tonic::{Code, Status};

use super::endpoint::in_words;
use super::{Failure, print};

/// The pauses between attempts, doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(4);
/// How often to check whether the reader has closed the pipe.
const READER_CHECK: Duration = Duration::from_millis(500);

/// Why following ends.
pub(super) enum End {
    /// The requested state has been shown.
    Shown,
    /// The reader has closed the pipe.
    ReaderClosed,
    /// Another attempt cannot help.
    Failed(anyhow::Error),
}

/// Why one connection ended.
pub(super) enum Broken {
    /// Another attempt may succeed.
    Retry(String),
    End(End),
}

/// Follows until the program is interrupted, or until the reader has closed the pipe.
pub(super) async fn until_interrupted(
    follow: impl Future<Output = Result<Infallible, End>>,
) -> Result<ExitCode, Failure> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        biased; // An interrupt comes before further output.
        _ = interrupt.recv() => Ok(ExitCode::SUCCESS),
        _ = terminate.recv() => Ok(ExitCode::SUCCESS),
        () = reader_closed() => Ok(ExitCode::SUCCESS),
        result = follow => match result {
            Ok(never) => match never {},
            Err(End::Shown | End::ReaderClosed) => Ok(ExitCode::SUCCESS),
            Err(End::Failed(error)) => Err(error.into()),
        },
    }
}

/// Connects again and again. `once`: not. `attempt` follows one connection, and says whether it has brought something.
pub(super) async fn follow(
    once: bool,
    mut attempt: impl AsyncFnMut(&mut bool) -> Result<Infallible, Broken>,
) -> Result<Infallible, End> {
    let mut pause = FIRST_PAUSE;
    let mut reported = None;
    loop {
        let mut progress = false;
        match attempt(&mut progress).await {
            Ok(never) => match never {},
            Err(Broken::End(end)) => return Err(end),
            Err(Broken::Retry(reason)) if once => return Err(End::Failed(anyhow!(reason))),
            Err(Broken::Retry(reason)) => {
                if progress {
                    (pause, reported) = (FIRST_PAUSE, None);
                }
                if reported.as_ref() != Some(&reason) {
                    // If standard error is closed, too, the error cannot be reported.
                    let _ = writeln!(io::stderr(), "sidekeeper: {reason}; trying again");
                    reported = Some(reason);
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LAST_PAUSE);
            }
        }
    }
}

/// Whether another attempt may help after a failed call.
pub(super) fn broken(status: Status) -> Broken {
    let reason = in_words(&status);
    let is_final = matches!(
        status.code(),
        Code::NotFound
            | Code::InvalidArgument
            | Code::Unimplemented
            | Code::PermissionDenied
            | Code::Unauthenticated
    );
    if is_final { Broken::End(End::Failed(anyhow!(reason))) } else { Broken::Retry(reason) }
}

/// The next message of a stream.
pub(super) async fn next<M>(messages: &mut tonic::Streaming<M>) -> Result<M, Broken> {
    let message = messages.message().await.map_err(broken)?;
    message.ok_or_else(|| Broken::Retry("the sidecar has ended the stream".to_owned()))
}

/// Prints a text. In a thread of its own, so that a blocked reader does not keep the program from being interrupted.
pub(super) async fn show(text: String) -> Result<(), End> {
    match tokio::task::spawn_blocking(move || print(text.as_bytes())).await {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err(End::ReaderClosed),
        Ok(Err(error)) => Err(End::Failed(error)),
        Err(error) => Err(End::Failed(error.into())),
    }
}

/// Ends when the reader has closed our standard output, which would otherwise show only at the next change.
/// Never ends if standard output is not a pipe.
async fn reader_closed() {
    let out = io::stdout();
    loop {
        // `poll` reports errors even for an empty set of events.
        let mut asked = [PollFd::new(out.as_fd(), PollFlags::empty())];
        let found = poll(&mut asked, PollTimeout::ZERO);
        let is_closed =
            asked.iter().filter_map(PollFd::revents).any(|events| events.contains(PollFlags::POLLERR));
        if found.is_ok() && is_closed {
            return;
        }
        tokio::time::sleep(READER_CHECK).await;
    }
}
