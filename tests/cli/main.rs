//! The program seen by its users: processes, signals, exit codes, standard output.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod descriptors;
mod drain;
mod program;
mod run;
mod trigger;
mod watch;

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::time::timeout;

/// Far more than any step of a test takes.
const LIMIT: Duration = Duration::from_secs(30);

/// The program with these arguments and none of this process's settings; in a process group of its own, so that it
/// is not in the foreground of the terminal that runs the tests.
fn sidekeeper(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidekeeper"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SIDEKEEPER_") {
            command.env_remove(name);
        }
    }
    command.args(arguments).process_group(0).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

struct Output {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

async fn output(mut command: Command) -> Output {
    let output = timeout(LIMIT, command.output()).await.unwrap().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Output { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A running program, whose output is read line by line.
struct Running {
    child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    stderr: Lines<BufReader<ChildStderr>>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        let stderr = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, stdout, stderr }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().unwrap().try_into().unwrap()), signal).unwrap();
    }

    async fn line(&mut self) -> String {
        line(&mut self.stdout).await
    }

    async fn log_line(&mut self) -> String {
        line(&mut self.stderr).await
    }

    async fn end(mut self) -> ExitStatus {
        timeout(LIMIT, self.child.wait()).await.unwrap().unwrap()
    }
}

async fn line<R: AsyncRead + Unpin>(lines: &mut Lines<BufReader<R>>) -> String {
    timeout(LIMIT, lines.next_line()).await.unwrap().unwrap().expect("the output has ended")
}
