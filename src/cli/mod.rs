//! The command line: the commands, and the errors and exit codes of the program. Shell.
//!
//! The flags of the settings come from the table in [`crate::config::settings`], so that help texts,
//! completions and configuration cannot disagree.

mod backup;
mod bundle;
mod cancel;
mod change_job;
mod child;
mod doctor;
mod drain;
mod election;
mod endpoint;
mod explain;
mod health;
mod held;
mod jobs;
mod lock;
mod logs;
mod names;
mod plan;
mod registry;
mod repeat;
mod run;
mod serve;
mod servers;
mod service;
mod status;
mod sticky;
mod switch;
mod trigger;
mod triggers;
mod trusted;
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
use crate::runner::clock::since_boot;
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
    /// Serves applications until SIGTERM or SIGINT, then drains. A second signal cancels executions at once.
    Serve(ConfigArgs),
    /// Runs a command with a sidecar of its own, and ends as the command ends.
    ///
    /// The command finds the sidecar through SIDEKEEPER_ENDPOINT. The program forwards signals to the
    /// command. Unless `listen` is set, the sidecar serves on a Unix socket in a private directory.
    ///
    /// Exit status: the command's; 128+n if signal n ended it; 127 if it was not found, 126 if it could not
    /// be executed, 125 if the sidecar could not start, 64 if the configuration is wrong.
    Run(RunArgs),
    /// Shows the owners of a job's items, and each change, until interrupted.
    ///
    /// Exit status: 0 if it was interrupted, or has shown the state with `--once`; 1 if the registry has no
    /// such job, or the sidecar refused.
    Watch(watch::WatchArgs),
    /// Shows one sidecar: its session with the registry, and the instances that are attached.
    ///
    /// Exit status: 0 if the sidecar has answered, 1 if it refused or could not be reached, 75 if another attempt may help.
    Status(status::StatusArgs),
    /// Shows the last lines of a sidecar's log, also those that its log filter leaves out.
    ///
    /// The sidecar keeps 10000 lines of level INFO and above in memory. Exit status: 0 if the sidecar has answered, 1 if it refused or could not
    /// be reached, 75 if another attempt may help.
    Logs(logs::LogsArgs),
    /// Changes the log filter of one sidecar for a time; then its setting counts again.
    ///
    /// Exit status: 0 if it is changed, 1 if the sidecar refused or could not be reached, 64 if the command line is wrong, 75 if another attempt
    /// may help.
    LogLevel(status::LogLevelArgs),
    /// Lists the jobs of the namespace, those of Java included.
    ///
    /// Exit status: 0 if the sidecar has answered, 1 if it refused or could not be reached, 75 if another attempt may help.
    Jobs(jobs::JobsArgs),
    /// Shows one job: its configuration, instances, servers and items.
    ///
    /// Exit status: 0 if the sidecar has answered; 1 if it refused (also because the registry has no such job) or could not be reached; 75
    /// if another attempt may help.
    Job(jobs::JobArgs),
    /// Shows the items of a job, and their owners. The exit status is that of `job`.
    Items(jobs::JobArgs),
    /// Shows the instances of a job that are online. The exit status is that of `job`.
    Instances(jobs::JobArgs),
    /// Shows the servers that a job has had, or those of all jobs. The exit status is that of `job`.
    Servers(servers::ServersArgs),
    /// Shows the triggers of a job, and how far they are, as far as the registry's nodes tell. The exit status is that of `job`.
    ///
    /// A trigger that an instance has taken up is shown only if its request had an id, as those of `trigger` have, and for ten minutes at
    /// least.
    Triggers(jobs::JobArgs),
    /// Says why the items of a job run or do not run, and names the remedies.
    ///
    /// Exit status: 0 if the sidecar has answered; 1 if it refused (also because the registry has no such job) or could not be
    /// reached; 75 if another attempt may help; with `--exit-code` 2 if an item or the job is blocked.
    Explain(explain::ExplainArgs),
    /// Shows the owner of each item if the items, the instances or the strategy of a job were others, and which items would move. Changes
    /// nothing.
    ///
    /// Without flags it shows the moves that are due. Exit status: 0 if the sidecar has answered; 1 if it refused (also because the
    /// registry has no such job) or could not be reached; 75 if another attempt may help.
    Plan(plan::PlanArgs),
    /// Checks a sidecar, its session with the registry and its settings, and all jobs of the namespace, and names the remedies.
    ///
    /// Exit status: 0 if no check found an error, 2 if one did, or with `--strict` a warning; 1 if the sidecar refused or could not be reached,
    /// 75 if another attempt may help.
    Doctor(doctor::DoctorArgs),
    /// Collects the facts for a person who helps from afar: settings, status, checks, explanations, nodes, metrics and the log.
    ///
    /// Prints what the bundle will have, and writes it. Addresses and names have pseudonyms; secrets and checkpoints are left out. Exit status: 0 if the
    /// file is written; 1 if the sidecar refused or could not be reached, or the file cannot be written; 64 if the command line is wrong or the file exists; 75 if another attempt may
    /// help.
    Bundle(bundle::BundleArgs),
    /// Makes each online instance of a job fire once, now, independent of its schedule.
    ///
    /// Prints the triggered instances, and does not wait for the executions. Exit status: 0 if the job was
    /// triggered, 1 if the sidecar refused (also because no instance may execute) or could not be reached, 75
    /// if another attempt may help.
    Trigger(trigger::TriggerArgs),
    /// Disables items of a job, servers of a job or of every job, or all servers of a job.
    ///
    /// Asks for a confirmation, unless `--yes` is given. Items and servers that are disabled already stay so. Exit status: 0 if it is disabled now, 1 if
    /// the sidecar refused or could not be reached, 3 if nobody has confirmed it, 75 if another attempt may help.
    Disable(switch::DisableArgs),
    /// Enables items of a job, servers of a job or of every job, or all servers of a job. Any operator may have disabled them.
    ///
    /// Exit status: 0 if it is enabled now, 1 if the sidecar refused or could not be reached, 75 if another attempt may help.
    Enable(switch::EnableArgs),
    /// Compares configurations in files with the registry.
    ///
    /// Absent keys have the defaults of ElasticJob's builder; keys that only other programs know are left out of the comparison. Exit status:
    /// 0 if nothing differs, 2 if something does, 1 if the sidecar refused or could not be reached, 64 if a file is wrong, 75 if another
    /// attempt may help.
    Diff(change_job::DiffArgs),
    /// Makes the configurations of jobs as in files, and creates jobs that do not exist.
    ///
    /// Shows the differences, and asks for a confirmation, unless `--yes` is given. If a job has changed since it was shown, it stays as it is.
    /// Exit status: 0 if all is as in the files now, 1 if the sidecar refused or could not be reached, 3 if nobody has confirmed
    /// it, 64 if a file is wrong, 75 if another attempt may help.
    Apply(change_job::ApplyArgs),
    /// Stops instances of a job, or those on a server in every job, Java's included. They finish their executions, and leave.
    ///
    /// An instance takes part again when its application is started again. Asks for a confirmation, unless `--yes` is given. Exit status: 0 if they
    /// are stopped, 1 if the sidecar refused or could not be reached, 3 if nobody has confirmed it, 75 if another attempt may help.
    Stop(change_job::StopArgs),
    /// Removes a job with all its nodes, or servers of a job or of every job.
    ///
    /// Asks for a confirmation, unless `--yes` is given. If the job has changed since it was shown, it stays. Exit status: 0 if it is removed, 1 if
    /// the sidecar refused (also because instances are online) or could not be reached, 3 if nobody has confirmed it, 75 if another
    /// attempt may help.
    Remove(change_job::RemoveArgs),
    /// Saves all jobs of the namespace and its sticky locks to a file, those of Java included.
    ///
    /// Exit status: 0 if the file is made; 1 if the sidecar refused or could not be reached, or the file exists already; 75 if another attempt may
    /// help.
    Backup(backup::BackupArgs),
    /// Restores the jobs of a backup, after it has shown what that does.
    ///
    /// Nodes that are missing are created. Other differences, and instances that are online, need `--force`. Asks for a confirmation, unless
    /// `--yes` is given. A restore that broke off may be repeated. Exit status: 0 if it is done or shown, 1 if the file is wrong, the
    /// sidecar refused or could not be reached, 3 if nobody has confirmed it, 75 if another attempt may help.
    Restore(backup::RestoreArgs),
    /// Cancels the executions of a job in the applications of one sidecar, or of all.
    ///
    /// Prints the cancelled executions, and does not wait for their end; with `--fleet` also those that are not reached. The next fire executes the items as
    /// usual. Exit status: 0 if the sidecar has answered, 1 if it refused or could not be reached, 75 if
    /// another attempt may help.
    Cancel(cancel::CancelArgs),
    /// Runs a command while a lock is held: one machine of a cluster at a time.
    ///
    /// The command gets the fencing token as SIDEKEEPER_LOCK_TOKEN, the lock as SIDEKEEPER_LOCK_PATH, and the program forwards
    /// signals to it. If the lock is lost, the command is stopped. Exit status: the command's; 75 if the lock was not free in
    /// time, or if another attempt may help; 124 if the lock was lost; 125 if the command was not started for another reason.
    Lock(lock::LockArgs),
    /// Shows the locks below the sidecar's lock root, or the holders and the queue of one lock.
    ///
    /// Exit status: 0 if the sidecar has answered, 1 if it refused or could not be reached, 75 if another attempt may help.
    Locks(lock::LocksArgs),
    /// Shows which candidate leads an election; or stands for election, and runs a command while it leads.
    ///
    /// The command gets the term as SIDEKEEPER_ELECTION_TERM, the election as SIDEKEEPER_ELECTION_PATH, and the program forwards
    /// signals to it. If the leadership is lost, the command is stopped. Exit status with a command: the command's; 75 if another
    /// attempt may help; 124 if the leadership was lost; 125 if the command was not started for another reason. Without a command:
    /// 0 if the sidecar has answered, 1 if it refused or could not be reached, 75 if another attempt may help.
    Election(election::ElectionArgs),
    /// Shows the sticky locks of the namespace, or the state, the owner and the queue of one.
    ///
    /// Exit status: 0 if the sidecar has answered, 1 if it refused or could not be reached, 75 if another attempt may help.
    Sticky(sticky::StickyArgs),
    /// Makes all instances of one sidecar leave, and returns when they have left. Run it before you stop the
    /// sidecar.
    ///
    /// Executions may finish until the timeout, then they are cancelled. The sidecar keeps running, but is
    /// not ready, until it is stopped. Exit status: 0 if all instances have left, 1 if not, or if the sidecar
    /// refused or could not be reached, 75 if another attempt may help, 64 if the command line is wrong.
    Drain(drain::DrainArgs),
    /// Asks a sidecar whether it is ready: it has a session with the registry, and is not stopping. For probes.
    ///
    /// Exit status: 0 if it is, 2 if not, 1 if no sidecar answers. With `--live` 0 if it answers.
    Health(health::HealthArgs),
    /// Prints a completion script for a shell to standard output.
    ///
    /// In bash, zsh and fish it completes the names of jobs and instances, too, which a sidecar tells.
    Completions {
        /// The shell of the script.
        shell: Shell,
    },
    /// Prints the names that fit the word at the end of a command line, for completion scripts.
    #[command(hide = true)]
    CompleteNames(names::NamesArgs),
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
/// The exit code for all other errors.
const FAILED: u8 = 1;
/// The exit code if the command has done its work, and the answer is no.
const ANSWER_IS_NO: u8 = 2;
/// The exit code if nothing was done because nobody has confirmed it.
const NOT_CONFIRMED: u8 = 3;
/// The exit code for a failure after which another attempt may help (`EX_TEMPFAIL` of sysexits).
const TRY_AGAIN: u8 = 75;
/// The exit code of `run` if the program could not start the command, as with `env` and `timeout`.
const NOT_STARTED: u8 = 125;

/// Worker threads. A sidecar is small; with two, one busy task does not delay the lease.
const WORKERS: usize = 2;
/// Enough for files and name resolution.
const BLOCKING_THREADS: usize = 8;
/// The stack of each thread, in bytes.
const STACK_SIZE: usize = 1024 * 1024;
/// How long blocking threads may delay the exit.
const EXIT_PATIENCE: Duration = Duration::from_millis(500);

/// Why the program ends without success.
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
    /// Runs the command of the command line.
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
                // Held until the sidecar has removed its socket.
                let _directory = if loaded.listens_by_default() {
                    Some(directory.create().map_err(Failure::with(NOT_STARTED))?)
                } else {
                    None
                };
                with_telemetry(&loaded.config.clone(), run::run(loaded.config, args.command))
            }
            Command::Watch(args) => with_runtime(|runtime| runtime.block_on(watch::watch(args))),
            Command::Status(args) => with_runtime(|runtime| runtime.block_on(status::status(args))),
            Command::Logs(args) => with_runtime(|runtime| runtime.block_on(logs::logs(args))),
            Command::LogLevel(args) => with_runtime(|runtime| runtime.block_on(status::log_level(args))),
            Command::Jobs(args) => with_runtime(|runtime| runtime.block_on(jobs::jobs(args))),
            Command::Job(args) => with_runtime(|runtime| runtime.block_on(jobs::job(args, jobs::Part::Job))),
            Command::Items(args) => {
                with_runtime(|runtime| runtime.block_on(jobs::job(args, jobs::Part::Items)))
            }
            Command::Instances(args) => {
                with_runtime(|runtime| runtime.block_on(jobs::job(args, jobs::Part::Instances)))
            }
            Command::Servers(args) => with_runtime(|runtime| runtime.block_on(servers::servers(args))),
            Command::Diff(args) => with_runtime(|runtime| runtime.block_on(change_job::diff(args))),
            Command::Apply(args) => with_runtime(|runtime| runtime.block_on(change_job::apply(args))),
            Command::Stop(args) => with_runtime(|runtime| runtime.block_on(change_job::stop(args))),
            Command::Remove(args) => with_runtime(|runtime| runtime.block_on(change_job::remove(args))),
            Command::Explain(args) => with_runtime(|runtime| runtime.block_on(explain::explain(args))),
            Command::Plan(args) => with_runtime(|runtime| runtime.block_on(plan::plan(args))),
            Command::Doctor(args) => with_runtime(|runtime| runtime.block_on(doctor::doctor(args))),
            Command::Triggers(args) => with_runtime(|runtime| runtime.block_on(triggers::triggers(args))),
            Command::Bundle(args) => with_runtime(|runtime| runtime.block_on(bundle::bundle(args))),
            Command::Trigger(args) => with_runtime(|runtime| runtime.block_on(trigger::trigger(args))),
            Command::Disable(args) => with_runtime(|runtime| runtime.block_on(switch::disable(args))),
            Command::Enable(args) => with_runtime(|runtime| runtime.block_on(switch::enable(args))),
            Command::Backup(args) => with_runtime(|runtime| runtime.block_on(backup::backup(args))),
            Command::Restore(args) => with_runtime(|runtime| runtime.block_on(backup::restore(args))),
            Command::Cancel(args) => with_runtime(|runtime| runtime.block_on(cancel::cancel(args))),
            Command::Lock(args) => {
                check_entropy().map_err(Failure::with(NOT_STARTED))?;
                with_runtime(|runtime| runtime.block_on(lock::lock(args)))
            }
            Command::Election(args) => {
                check_entropy().map_err(Failure::with(NOT_STARTED))?;
                with_runtime(|runtime| runtime.block_on(election::election(args)))
            }
            Command::Locks(args) => with_runtime(|runtime| runtime.block_on(lock::locks(args))),
            Command::Sticky(args) => with_runtime(|runtime| runtime.block_on(sticky::sticky(args))),
            Command::Drain(args) => with_runtime(|runtime| runtime.block_on(drain::drain(args))),
            Command::Health(args) => with_runtime(|runtime| runtime.block_on(health::health(args))),
            Command::Completions { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut Self::command(), "sidekeeper", &mut script);
                script.extend_from_slice(names::script(shell).as_bytes());
                print(&script)?;
                Ok(ExitCode::SUCCESS)
            }
            Command::CompleteNames(args) => names::complete(&args),
        }
    }
}

/// Loads the configuration. `None`: it was printed, and nothing else is to be done.
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

/// Writes to standard output. False: the reader has closed it, which is no error.
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

/// Fails if the system has no entropy, before code needs it that cannot report the error. A statically linked
/// program reads `/dev/urandom`, which a container may not have.
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
            Telemetry::start(config, since_boot)?
        };
        let result = runtime.block_on(work);
        telemetry.finish();
        result
    })
}

#[cfg(test)]
mod tests;

/// Text from the registry with escaped control characters, because they could command the terminal.
fn printable(text: &str) -> String {
    crate::excerpt::printable(text.chars())
}
