//! The `sidekeeper` program: parses the arguments, does what they ask for, and turns what went wrong into one line
//! on standard error and an exit code. See [`sidekeeper::cli`].

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use sidekeeper::cli::{Cli, USAGE};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(answer) => {
            // Help and version come this way too; if they cannot be written, there is nobody to read them.
            let _ = answer.print();
            return ExitCode::from(if answer.use_stderr() { USAGE } else { 0 });
        }
    };
    match cli.execute() {
        Ok(code) => code,
        Err(failure) => {
            let _ = writeln!(io::stderr(), "sidekeeper: {:#}", failure.error);
            ExitCode::from(failure.code)
        }
    }
}
