//! The `sidekeeper` program: parses the arguments and runs the command. It turns an error into one line on
//! standard error and an exit code. See [`sidekeeper::cli`].

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use mimalloc::MiMalloc;
use sidekeeper::cli::{Cli, USAGE};

/// An allocator that reserves address space without asking for memory. The ZooKeeper client allocates by the length of a
/// list before it reads the list; one bit that changes on the way makes that tens of GiB. Other allocators refuse these,
/// and a refusal ends the process. Here the list turns out to be too short, and the answer is refused.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    sidekeeper::crypto::install();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(answer) => {
            // clap reports help and version as errors, too. If they cannot be written, no error can be
            // written either.
            let _ = answer.print();
            return ExitCode::from(if answer.use_stderr() { USAGE } else { 0 });
        }
    };
    match cli.execute() {
        Ok(code) => code,
        Err(failure) => {
            let _ = writeln!(io::stderr(), "sidekeeper: {}", in_words(failure.error.chain()));
            ExitCode::from(failure.code)
        }
    }
}

/// An error and its causes, each text once: many errors repeat the text of their cause.
fn in_words<'a>(chain: impl Iterator<Item = &'a (dyn std::error::Error + 'static)>) -> String {
    let mut words = String::new();
    for cause in chain.map(ToString::to_string) {
        if words.is_empty() {
            words = cause;
        } else if !words.contains(&cause) {
            words = format!("{words}: {cause}");
        }
    }
    words
}
