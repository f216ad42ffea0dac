//! `watch`: the owners of a job's items, live.

pub(super) mod json;
mod table;

use std::convert::Infallible;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;

use super::endpoint::{Sidecar, SidecarArgs, authorized};
use super::follow::{Broken, End, broken, follow, next, show, until_interrupted};
use super::{Failure, printable};
use crate::proto::assignment_service_client::AssignmentServiceClient;
use crate::proto::{Problem, WatchAssignmentsRequest, WatchAssignmentsResponse};
use crate::runner::clock::Clock;

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
    let sidecar = args.sidecar.sidecar()?;
    let request = WatchAssignmentsRequest { job_name: args.job, wait_for_job: args.wait };
    let mut screen = Screen::new(args.json, args.once);
    let attempt = async |progress: &mut bool| follow_once(&sidecar, &request, &mut screen, progress).await;
    until_interrupted(follow(args.once, attempt)).await
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
        let state = next(&mut states).await?;
        *progress = true;
        screen.show(&state).await.map_err(Broken::End)?;
        if screen.once {
            return Err(Broken::End(End::Shown));
        }
    }
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

    async fn show(&mut self, state: &WatchAssignmentsResponse) -> Result<(), End> {
        let text = self.text(state, Clock::start().now().wall);
        self.shown = true;
        show(text).await
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
