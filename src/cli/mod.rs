//! The command line: what can be asked for, and the errors and exit codes of the program. Shell.
//!
//! The flags of the settings are made from the table in [`crate::config::settings`], so that help texts, completions
//! and configuration cannot disagree.

mod cancel;
mod drain;
mod endpoint;
mod run;
mod serve;
mod trigger;
mod watch;

use std::ffi::OsString;
use std::future::Future;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{ArgAction, ArgMatches, Args, CommandFactory as _, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use tokio::runtime::{Builder, Runtime};

use crate::config::settings::{self, Setting};
use crate::config::{Config, ConfigError, Flags, Loaded, Sources, load};
use crate::telemetry::Telemetry;

/// A gRPC coordination sidecar that speaks ElasticJob's ZooKeeper protocol.
///
/// It keeps an application's side of the contract with ZooKeeper: session, registration, leader election, sharding,
/// schedule and failover. Applications in any language attach to it over gRPC on this machine.
#[derive(Parser)]
#[command(name = "sidekeeper", version, max_term_width = 110, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves applications until SIGTERM or SIGINT, then drains; a second signal has executions stop at once.
    Serve(ConfigArgs),
    /// Runs a command with a sidecar of its own, and ends as the command ends.
    ///
    /// The command finds the sidecar through SIDEKEEPER_ENDPOINT. Signals are passed on to it. Unless `listen` is
    /// set, the sidecar serves on a Unix socket in a private directory.
    ///
    /// Exit status: the command's; 128+n if signal n ended it; 127 if it was not found, 126 if it could not be
    /// executed, 125 if the sidecar could not start, 64 if the configuration is wrong.
    Run(RunArgs),
    /// Shows who owns what in a job, and each change of it, until interrupted.
    ///
    /// Exit status: 0 if it was interrupted, or has shown the state with `--once`; 1 if the registry has no such job, or
    /// the sidecar refused.
    Watch(watch::WatchArgs),
    /// Makes each online instance of a job fire once, now, whatever its schedule.
    ///
    /// Prints who was triggered, and does not wait for the executions. Exit status: 0 if the job was triggered, 1 if
    /// the sidecar refused (also because nobody may execute) or could not be reached, 75 if trying again may help.
    Trigger(trigger::TriggerArgs),
    /// Tells the executions of a job to stop that run in applications of one sidecar.
    ///
    /// Prints what was told to stop, and does not wait for it. The next fire executes the items as usual. Exit status: 0
    /// if the sidecar has answered, 1 if it refused or could not be reached, 75 if trying again may help.
    Cancel(cancel::CancelArgs),
    /// Has all instances of one sidecar leave, and returns when they have left; for what runs before a stop.
    ///
    /// Running executions may finish until the timeout, then they are told to stop. The sidecar goes on, and is not ready,
    /// until it is told to stop. Exit status: 0 if everybody has left, 1 if not, or if the sidecar refused or could not be
    /// reached, 75 if trying again may help, 64 if the command line is wrong.
    Drain(drain::DrainArgs),
    /// Prints a completion script for a shell to standard output.
    Completions {
        /// For which shell.
        shell: Shell,
    },
}

#[derive(Args)]
struct ConfigArgs {
    /// A TOML file of settings. [env: SIDEKEEPER_CONFIG]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Print the effective configuration as TOML, with the origin of each value and secrets masked, and exit.
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    settings: SettingArgs,
}

#[derive(Args)]
struct RunArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// The command and its arguments.
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "print_config", value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// The settings given as flags.
struct SettingArgs(Flags);

impl Args for SettingArgs {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.next_help_heading("Settings").args(settings::ALL.iter().map(|setting| argument(setting)))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = settings::ALL.iter().filter_map(|setting| {
            let texts = matches.get_many::<String>(setting.key)?;
            Some((setting.key, texts.cloned().collect()))
        });
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.extend(Self::from_arg_matches(matches)?.0);
        Ok(())
    }
}

fn argument(setting: &Setting) -> clap::Arg {
    let action = if setting.list { ArgAction::Append } else { ArgAction::Set };
    clap::Arg::new(setting.key)
        .long(setting.flag)
        .value_name(setting.value_name)
        .help(format!("{} [default: {}] [env: {}]", setting.help, setting.default.in_words(), setting.env))
        .action(action)
}

/// The exit code for a wrong command line or configuration (`EX_USAGE` of sysexits).
pub const USAGE: u8 = 64;
/// The exit code for anything else that went wrong.
const FAILED: u8 = 1;
/// The exit code for what was not done, and may be if it is tried again (`EX_TEMPFAIL` of sysexits).
const TRY_AGAIN: u8 = 75;
/// The exit code of `run` if the command was not started, and not by its fault; as `env` and `timeout` have it.
const NOT_STARTED: u8 = 125;

/// Worker threads: a sidecar is small, and two keep one busy task from delaying the lease.
const WORKERS: usize = 2;
/// Enough for files and name resolution.
const BLOCKING_THREADS: usize = 8;
/// The stack of each of them, in bytes.
const STACK_SIZE: usize = 1024 * 1024;
/// How long threads that block may delay the exit.
const EXIT_PATIENCE: Duration = Duration::from_millis(500);

/// Why the program ends without having done what it was asked for.
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// Why.
    pub error: anyhow::Error,
}

impl Failure {
    fn with(code: u8) -> impl FnOnce(anyhow::Error) -> Self {
        move |error| Self { code, error }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { code: FAILED, error: error.into() }
    }
}

impl Cli {
    /// Does what the command line asks for.
    pub fn execute(self) -> Result<ExitCode, Failure> {
        match self.command {
            Command::Serve(args) => match configure(args, None)? {
                Some(loaded) => {
                    check_entropy()?;
                    with_telemetry(&loaded.config.clone(), serve::serve(loaded.config))
                }
                None => Ok(ExitCode::SUCCESS),
            },
            Command::Run(args) => {
                check_entropy().map_err(Failure::with(NOT_STARTED))?;
                let directory = run::PrivateDirectory::choose();
                let Some(loaded) = configure(args.config, Some(directory.listen_address()))? else {
                    return Ok(ExitCode::SUCCESS);
                };
                // Held until the sidecar has left its socket.
                let _directory = if loaded.listens_by_default() {
                    Some(directory.create().map_err(Failure::with(NOT_STARTED))?)
                } else {
                    None
                };
                with_telemetry(&loaded.config.clone(), run::run(loaded.config, args.command))
            }
            Command::Watch(args) => with_runtime(|runtime| runtime.block_on(watch::watch(args))),
            Command::Trigger(args) => with_runtime(|runtime| runtime.block_on(trigger::trigger(args))),
            Command::Cancel(args) => with_runtime(|runtime| runtime.block_on(cancel::cancel(args))),
            Command::Drain(args) => with_runtime(|runtime| runtime.block_on(drain::drain(args))),
            Command::Completions { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut Self::command(), "sidekeeper", &mut script);
                print(&script)?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// Loads the configuration; `None` if it was only to be printed, and is.
fn configure(args: ConfigArgs, default_listen: Option<String>) -> Result<Option<Loaded>, Failure> {
    let environment = |name: &str| std::env::var_os(name);
    let sources =
        Sources { flags: args.settings.0, file: args.config, environment: &environment, default_listen };
    let loaded = load(&sources).map_err(|error: ConfigError| Failure { code: USAGE, error: error.into() })?;
    if args.print_config {
        print(loaded.to_toml().as_bytes())?;
        return Ok(None);
    }
    Ok(Some(loaded))
}

/// Writes to standard output. Tells whether somebody reads it; that nobody does any more is no error.
fn print(text: &[u8]) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to standard output"),
    }
}

/// A value as a line of JSON. Characters that command a terminal or break a line are escaped, as JSON allows.
fn json_line(value: &serde_json::Value) -> String {
    let mut line = String::new();
    for c in value.to_string().chars() {
        if crate::excerpt::commands(c) {
            let mut units = [0; 2];
            line.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            line.push(c);
        }
    }
    line.push('\n');
    line
}

/// Fails if the system has no entropy, before something needs it that cannot say so: a program that is linked statically
/// reads `/dev/urandom`, which a container may not have.
fn check_entropy() -> anyhow::Result<()> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).context("the system gives no random numbers; mount /dev/urandom")
}

fn with_runtime(body: impl FnOnce(&Runtime) -> Result<ExitCode, Failure>) -> Result<ExitCode, Failure> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_stack_size(STACK_SIZE)
        .thread_name("sidekeeper")
        .enable_all()
        .build()
        .context("cannot start the threads of the program")?;
    let result = body(&runtime);
    runtime.shutdown_timeout(EXIT_PATIENCE);
    result
}

fn with_telemetry(
    config: &Config,
    work: impl Future<Output = Result<ExitCode, Failure>>,
) -> Result<ExitCode, Failure> {
    with_runtime(|runtime| {
        let telemetry = {
            let _runtime = runtime.enter();
            Telemetry::start(config)?
        };
        let result = runtime.block_on(work);
        telemetry.finish();
        result
    })
}

#[cfg(test)]
mod tests;
