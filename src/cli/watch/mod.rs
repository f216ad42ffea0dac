//! `watch`: the owners of a job's items, live. Reconnects until it is interrupted or its reader has closed
//! the pipe.

pub(super) mod json;
mod table;

use std::convert::Infallible;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use jiff::Timestamp;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::signal::unix::{SignalKind, signal};
use tonic::{Code, Status};

use super::endpoint::{Sidecar, SidecarArgs, authorized, in_words};
use super::{Failure, print, printable};
use crate::proto::assignment_service_client::AssignmentServiceClient;
use crate::proto::{Problem, WatchAssignmentsRequest, WatchAssignmentsResponse};
use crate::runner::clock::Clock;

/// The pauses between attempts, doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(4);
/// How often to check whether the reader has closed the pipe.
const READER_CHECK: Duration = Duration::from_millis(500);
/// The largest state that is accepted, in bytes: 10000 items with long parameters.
const MESSAGE_LIMIT: usize = 64 * 1024 * 1024;

#[derive(Args)]
pub(super) struct WatchArgs {
    /// The job's name.
    job: String,
    #[command(flatten)]
    sidecar: SidecarArgs,
    /// Show the state once, and end.
    #[arg(long)]
    once: bool,
    /// Wait for a job that the registry does not have yet.
    #[arg(long)]
    wait: bool,
    /// Print one JSON object a line for each change, with the field names of the proto.
    #[arg(long)]
    json: bool,
}

pub(super) async fn watch(args: WatchArgs) -> Result<ExitCode, Failure> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let sidecar = args.sidecar.sidecar()?;
    let request = WatchAssignmentsRequest { job_name: args.job, wait_for_job: args.wait };
    let mut screen = Screen::new(args.json, args.once);
    tokio::select! {
        biased; // An interrupt comes before further output.
        _ = interrupt.recv() => Ok(ExitCode::SUCCESS),
        _ = terminate.recv() => Ok(ExitCode::SUCCESS),
        () = reader_closed() => Ok(ExitCode::SUCCESS),
        result = follow(&sidecar, &request, &mut screen) => match result {
            Ok(never) => match never {},
            Err(End::Shown | End::ReaderClosed) => Ok(ExitCode::SUCCESS),
            Err(End::Failed(error)) => Err(error.into()),
        },
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

/// Why watching ends.
enum End {
    /// The requested state has been shown.
    Shown,
    /// The reader has closed the pipe.
    ReaderClosed,
    /// Another attempt cannot help.
    Failed(anyhow::Error),
}

/// Why one connection ended.
enum Broken {
    /// Another attempt may succeed.
    Retry(String),
    End(End),
}

async fn follow(
    sidecar: &Sidecar,
    request: &WatchAssignmentsRequest,
    screen: &mut Screen,
) -> Result<Infallible, End> {
    let mut pause = FIRST_PAUSE;
    let mut reported = None;
    loop {
        let mut progress = false;
        match follow_once(sidecar, request, screen, &mut progress).await {
            Ok(never) => match never {},
            Err(Broken::End(end)) => return Err(end),
            Err(Broken::Retry(reason)) if screen.once => return Err(End::Failed(anyhow!(reason))),
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

async fn follow_once(
    sidecar: &Sidecar,
    request: &WatchAssignmentsRequest,
    screen: &mut Screen,
    progress: &mut bool,
) -> Result<Infallible, Broken> {
    let channel = sidecar.connect().await.map_err(|error| Broken::Retry(format!("{error:#}")))?;
    let mut client = AssignmentServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let request = authorized(request.clone());
    let request = request.map_err(|error| Broken::End(End::Failed(error)))?;
    let mut states = client.watch_assignments(request).await.map_err(broken)?.into_inner();
    loop {
        let state = states.message().await.map_err(broken)?;
        let state = state.ok_or_else(|| Broken::Retry("the sidecar has ended the stream".to_owned()))?;
        *progress = true;
        screen.show(state).await.map_err(Broken::End)?;
        if screen.once {
            return Err(Broken::End(End::Shown));
        }
    }
}

/// Whether another attempt may help after a failed call.
fn broken(status: Status) -> Broken {
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

/// The output for states, and its form.
struct Screen {
    json: bool,
    once: bool,
    terminal: bool,
    shown: bool,
}

impl Screen {
    fn new(json: bool, once: bool) -> Self {
        Self { json, once, terminal: io::stdout().is_terminal() && !once, shown: false }
    }

    async fn show(&mut self, state: WatchAssignmentsResponse) -> Result<(), End> {
        let text = self.text(&state, Clock::start().now().wall);
        self.shown = true;
        // In a thread of its own, so that a blocked reader does not keep the program from being interrupted.
        let written = tokio::task::spawn_blocking(move || print(text.as_bytes())).await;
        match written {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(End::ReaderClosed),
            Ok(Err(error)) => Err(End::Failed(error)),
            Err(error) => Err(End::Failed(error.into())),
        }
    }

    fn text(&self, state: &WatchAssignmentsResponse, now: Timestamp) -> String {
        if self.json {
            return super::json_line(&json::json(state));
        }
        let table = table::table(state);
        match (self.terminal, self.shown) {
            (true, false) => format!("\x1b[2J{}", in_place(&table)),
            (true, true) => in_place(&table),
            // Readers of a file need the time of each state.
            (false, false) => format!("{now:.3}\n{table}"),
            (false, true) => format!("\n{now:.3}\n{table}"),
        }
    }
}

/// A problem in a line: where, what, and its code.
pub(super) fn problem_in_words(place: &str, problem: &Problem) -> String {
    let code = printable(&problem.code);
    format!("problem: {}: {}  {code}", printable(place), printable(&problem.message)).trim_end().to_owned()
}

/// Writes the text over the text on the screen. Clearing the screen first would flicker.
fn in_place(text: &str) -> String {
    format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_written_over_and_a_pipe_is_written_on() {
        let state = WatchAssignmentsResponse { job_name: "j".to_owned(), ..Default::default() };
        let table = table::table(&state);
        let now = Timestamp::UNIX_EPOCH;
        let mut screen = Screen { json: false, once: false, terminal: true, shown: false };
        assert!(screen.text(&state, now).starts_with("\x1b[2J\x1b[Hj"));
        screen.shown = true;
        let again = screen.text(&state, now);
        assert!(again.starts_with("\x1b[Hj") && again.ends_with("\x1b[K\n\x1b[J"), "{again:?}");
        screen.terminal = false;
        assert_eq!(screen.text(&state, now), format!("\n1970-01-01T00:00:00.000Z\n{table}"));
        screen.json = true;
        assert!(screen.text(&state, now).starts_with('{') && screen.text(&state, now).ends_with("}\n"));
    }
}
