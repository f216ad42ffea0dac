//! A program whose contenders hold and release locks, with one library. Its folder is `benches/locks`.
//!
//! It reads commands from standard input, a line each, and answers each with lines of a name and times in nanoseconds:
//!
//! - `pairs COUNT`: one contender holds and releases a lock that nobody else wants, again and again. Answers `acquired`, the
//!   time until each hold, and `released`, the time until each release.
//! - `queue CONTENDERS SESSIONS GRANTS`: so many contenders, in turn in so many sessions, hold one lock again and again
//!   without a pause, until it was granted so often; then each of those that wait holds it once more. Answers `grants`: for
//!   each one when the lock was held, and when the release of it began.
//! - `hops COUNT`: calls that the sidecar answers without ZooKeeper. Answers `hops`, the time of each.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long one command may take. It takes a second or a few.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Contenders {
    child: Child,
    commands: ChildStdin,
    lines: Receiver<String>,
}

impl Contenders {
    pub(crate) fn start(program: &mut Command) -> Self {
        let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the contenders");
        let commands = child.stdin.take().expect("standard input");
        let output = child.stdout.take().expect("standard output");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // Nobody reads the lines of a program that is ended.
                let _ = sender.send(line);
            }
        });
        Self { child, commands, lines }
    }

    /// The times until each hold and until each release.
    pub(crate) fn pairs(&mut self, count: usize) -> (Vec<Duration>, Vec<Duration>) {
        self.say(&format!("pairs {count}"));
        (self.hear("acquired"), self.hear("released"))
    }

    /// When the lock was held and when the release began, for each grant in their order.
    pub(crate) fn queue(&mut self, contenders: usize, sessions: usize, grants: usize) -> Vec<Grant> {
        self.say(&format!("queue {contenders} {sessions} {grants}"));
        let times = self.hear("grants");
        let (pairs, _) = times.as_chunks();
        let mut grants: Vec<_> =
            pairs.iter().map(|[held, released]| Grant { held: *held, released: *released }).collect();
        grants.sort_unstable_by_key(|grant| grant.held);
        grants
    }

    /// The times of calls that the sidecar answers without ZooKeeper.
    pub(crate) fn hops(&mut self, count: usize) -> Vec<Duration> {
        self.say(&format!("hops {count}"));
        self.hear("hops")
    }

    fn say(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("to write a command");
    }

    fn hear(&mut self, name: &str) -> Vec<Duration> {
        let line = self.lines.recv_timeout(PATIENCE).expect("an answer; standard error has the reason");
        let mut words = line.split(' ');
        assert_eq!(words.next(), Some(name));
        words.map(|word| Duration::from_nanos(word.parse().expect("nanoseconds"))).collect()
    }
}

impl Drop for Contenders {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One contender had the lock. Times are of the program's own clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) held: Duration,
    pub(crate) released: Duration,
}
