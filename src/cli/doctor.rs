//! `doctor`: all checks of a sidecar and of the jobs of its namespace, or of the manifest of a pod.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use clap::builder::PossibleValuesParser;
use futures::stream::{BoxStream, StreamExt as _, iter};
use serde_json::json;
use tonic::Status;

use super::endpoint::{SidecarArgs, authorized, refused};
use super::explain::finding_in_json;
use super::registry::{Registry, RegistryArgs, failed};
use super::{ANSWER_IS_NO, Failure, TRY_AGAIN, USAGE, json_line, print, printable};
use crate::api::{finding, status};
use crate::config;
use crate::coordination::admin::doctor::{JOBS, check, check_command, names};
use crate::coordination::admin::pod;
use crate::proto::diagnostics_service_client::DiagnosticsServiceClient;
use crate::proto::sidecar_service_client::SidecarServiceClient;
use crate::proto::{CheckDeploymentRequest, CheckDeploymentResponse, CheckOutcome, GetStatusRequest};
use crate::runner::admin::check_deployment;
use crate::runner::clock::Clock;

/// How long to wait for all answers: thousands of jobs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);
/// How long to wait for the version of the sidecar, which asks nobody for it.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of a manifest that are read: more than etcd takes for an object.
const MANIFEST_LIMIT: u64 = 4 * 1024 * 1024;
/// The largest accepted answer, in bytes.
const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;

/// How long to wait before the next round of checks, with `--wait`.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    sidecar: SidecarArgs,
    #[command(flatten)]
    registry: RegistryArgs,
    /// Check the manifest of a pod for Kubernetes instead, as JSON (`kubectl get pod NAME -o json`, or `kubectl create
    /// --dry-run=client -o json -f FILE`): a pod, or an object with a template of pods. `-`: standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["zookeeper", "only", "skip", "wait"])]
    pod: Option<PathBuf>,
    /// Make only these checks: groups (`registry`) or single ones (`quota`), with commas between them.
    #[arg(long, value_name = "CHECK", value_delimiter = ',', value_parser = PossibleValuesParser::new(names()))]
    only: Vec<String>,
    /// Leave these checks out: groups (`jobs`) or single ones.
    #[arg(long, value_name = "CHECK", value_delimiter = ',', value_parser = PossibleValuesParser::new(names()))]
    skip: Vec<String>,
    /// Check again each second until no check finds an error, and with `--strict` no warning either: for this long at most, such as `60s`,
    /// up to `10m`. Prints the last round. A sidecar or a registry that does not answer is awaited, too.
    #[arg(long, value_name = "DURATION", value_parser = config::wait_time)]
    wait: Option<Duration>,
    /// Print only the checks that found something.
    #[arg(long)]
    short: bool,
    /// End with the exit status 2 for warnings, too.
    #[arg(long)]
    strict: bool,
    /// Print one JSON object a check, with the field names of the proto.
    #[arg(long)]
    json: bool,
}

impl DoctorArgs {
    /// Whether a check is to be made. The name of a job is no name of a check.
    fn wants(&self, category: &str, check: &str) -> bool {
        let is_it = |name: &String| name == category || category != JOBS && name == check;
        let is_in = |names: &[String]| names.iter().any(is_it);
        (self.only.is_empty() || is_in(&self.only)) && !is_in(&self.skip)
    }

    fn wants_jobs(&self) -> bool {
        self.wants(JOBS, JOBS)
    }
}

/// How many checks ended in which way.
#[derive(Default)]
struct Counts {
    ok: usize,
    warnings: usize,
    errors: usize,
    skipped: usize,
    /// `None`: none were asked for.
    jobs: Option<u32>,
}

impl Counts {
    /// Whether the answer is no.
    fn has_fault(&self, strict: bool) -> bool {
        self.errors > 0 || strict && self.warnings > 0
    }

    fn faults(&self) -> String {
        format!("{} checks with errors, {} with warnings", self.errors, self.warnings)
    }
}

/// Where the results go.
enum Output {
    /// To standard output, as they come.
    Now,
    /// Nowhere yet: another round may follow.
    Later(String),
}

impl Output {
    fn add(&mut self, text: &str) -> anyhow::Result<()> {
        match self {
            Self::Now => print(text.as_bytes()).map(drop),
            Self::Later(kept) => {
                kept.push_str(text);
                Ok(())
            }
        }
    }

    fn end(self) -> anyhow::Result<()> {
        match self {
            Self::Now => Ok(()),
            Self::Later(kept) => print(kept.as_bytes()).map(drop),
        }
    }
}

type Checks = BoxStream<'static, Result<CheckDeploymentResponse, Status>>;

pub(super) async fn doctor(args: DoctorArgs) -> Result<ExitCode, Failure> {
    let Some(limit) = args.wait else {
        let mut output = Output::Now;
        let round = round(&args, &mut output).await;
        return conclude(&args, output, round);
    };
    let clock = Clock::start();
    let mut last = None;
    let rounds = async {
        loop {
            let mut output = Output::Later(String::new());
            let round = round(&args, &mut output).await;
            let (is_over, reason) = match &round {
                Ok(counts) => (!counts.has_fault(args.strict), counts.faults()),
                Err(failure) => (failure.code == USAGE, printable(&format!("{:#}", failure.error))),
            };
            if !is_over && last.as_ref().is_none_or(|(_, _, told)| *told != reason) {
                // A closed standard error does not matter.
                let _ = writeln!(io::stderr(), "sidekeeper: {reason}; checking again");
            }
            last = Some((output, round, reason));
            if is_over {
                return;
            }
            clock.sleep(PAUSE).await;
        }
    };
    // The time may also end a round: a sidecar that hangs answers nothing.
    tokio::select! {
        () = rounds => {}
        () = clock.sleep(limit) => {}
    }
    let Some((output, round, _)) = last else {
        return Err(Failure { code: TRY_AGAIN, error: anyhow!("the checks did not end within {limit:?}") });
    };
    conclude(&args, output, round)
}

/// Prints what is left, and ends with the status of a round.
fn conclude(args: &DoctorArgs, output: Output, round: Result<Counts, Failure>) -> Result<ExitCode, Failure> {
    output.end()?;
    let has_fault = round?.has_fault(args.strict);
    Ok(if has_fault { ExitCode::from(ANSWER_IS_NO) } else { ExitCode::SUCCESS })
}

/// Makes all checks once.
async fn round(args: &DoctorArgs, output: &mut Output) -> Result<Counts, Failure> {
    if let Some(file) = &args.pod {
        return show(args, checks_of_pod(file)?, output, failed).await;
    }
    let Some(registry) = args.registry.open().await? else {
        return show(args, ask(args).await?, output, refused).await;
    };
    let counts = match checks_in(&registry, args.wants_jobs()).await {
        Ok(checks) => show(args, checks, output, failed).await,
        Err(failure) => Err(failure),
    };
    registry.session.close().await;
    counts
}

fn checks_of_pod(file: &Path) -> Result<Checks, Failure> {
    let wrong = |reason: String| Failure::from(anyhow::anyhow!("{}: {reason}", file.display()));
    let mut text = Vec::new();
    let read = match file.as_os_str() == "-" {
        true => io::stdin().take(MANIFEST_LIMIT).read_to_end(&mut text),
        false => File::open(file).and_then(|file| file.take(MANIFEST_LIMIT).read_to_end(&mut text)),
    };
    read.map_err(|error| wrong(error.to_string()))?;
    let manifest = serde_json::from_slice(&text).map_err(|error| wrong(format!("it is no JSON: {error}")))?;
    let checks = pod::check(&manifest).map_err(wrong)?;
    let checks: Vec<_> = checks.iter().map(|check| Ok(finding::check_to_message(check))).collect();
    Ok(iter(checks).boxed())
}

async fn ask(args: &DoctorArgs) -> Result<Checks, Failure> {
    let channel = args.sidecar.sidecar()?.connect().await?;
    let mut status = authorized(GetStatusRequest {})?;
    status.set_timeout(STATUS_TIMEOUT);
    let mut client = SidecarServiceClient::new(channel.clone()).max_decoding_message_size(MESSAGE_LIMIT);
    // If the sidecar refuses it, it may still answer the rest.
    let version = client.get_status(status).await.ok().map(|status| status.into_inner().version);
    let command = check_command(env!("CARGO_PKG_VERSION"), version.as_deref());
    let command = iter([Ok(finding::check_to_message(&command))]);
    let mut client = DiagnosticsServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let mut request = authorized(CheckDeploymentRequest { without_jobs: !args.wants_jobs() })?;
    request.set_timeout(ANSWER_TIMEOUT);
    let answer = client.check_deployment(request).await.map_err(|status| refused(&status))?;
    Ok(command.chain(answer.into_inner()).boxed())
}

/// The checks that need no sidecar.
async fn checks_in(registry: &Registry, with_jobs: bool) -> Result<Checks, Failure> {
    let (checked, timeout) = (&*registry.registry, registry.session_timeout);
    let facts = check_deployment::facts_of(checked, registry.namespace(), timeout).await;
    let of_sidecar = ["sidecar", "security"];
    let checks = check(&facts).into_iter().filter(move |check| !of_sidecar.contains(&check.category));
    let checks: Vec<_> = checks.map(|check| Ok(finding::check_to_message(&check))).collect();
    if !with_jobs {
        return Ok(iter(checks).chain(iter([Ok(finding::jobs_checked(0))])).boxed());
    }
    let namespace = registry.namespace();
    let (session, root, clock) = (namespace.session.clone(), namespace.root.clone(), namespace.clock.clone());
    let jobs = check_deployment::jobs_in(session, root, clock, |_| true).await;
    let jobs = jobs.map_err(|error| failed(&status::of_list(&error)))?;
    Ok(iter(checks).chain(finding::jobs_to_messages(jobs, true)).boxed())
}

/// Gives each wanted check out as it comes, and at the end their numbers.
async fn show(
    args: &DoctorArgs,
    mut checks: Checks,
    output: &mut Output,
    failure: impl Fn(&Status) -> Failure,
) -> Result<Counts, Failure> {
    let (mut counts, mut category, mut is_empty) = (Counts::default(), String::new(), true);
    while let Some(answer) = checks.next().await {
        let answer = answer.map_err(|status| failure(&status))?;
        if let Some(jobs) = answer.jobs_checked {
            counts.jobs = Some(jobs).filter(|_| args.wants_jobs());
            continue;
        }
        if !args.wants(&answer.category, &answer.check) {
            continue;
        }
        is_empty = false;
        let is_well = match answer.outcome() {
            CheckOutcome::Ok => {
                counts.ok += 1;
                true
            }
            CheckOutcome::Skipped | CheckOutcome::Unspecified => {
                counts.skipped += 1;
                true
            }
            CheckOutcome::Warning => {
                counts.warnings += 1;
                false
            }
            CheckOutcome::Error => {
                counts.errors += 1;
                false
            }
        };
        if is_well && args.short {
            continue;
        }
        let mut text = String::new();
        if !args.json && answer.category != category {
            category.clone_from(&answer.category);
            let _ = writeln!(text, "{}", printable(&category));
        }
        text.push_str(&if args.json { in_json(&answer) } else { in_words(&answer) });
        output.add(&text)?;
    }
    if is_empty && counts.jobs.is_none() {
        let error =
            anyhow!("no check is left: see --only and --skip, and --zookeeper, which checks no sidecar");
        return Err(Failure { code: USAGE, error });
    }
    if !args.json {
        let Counts { ok, warnings, errors, skipped, jobs } = &counts;
        let jobs = jobs.map(|jobs| format!("{jobs} jobs and ")).unwrap_or_default();
        let text = format!(
            "{jobs}the checks above: {ok} ok, {skipped} skipped, {warnings} with warnings, {errors} with errors\n"
        );
        output.add(&text)?;
    }
    Ok(counts)
}

fn in_json(answer: &CheckDeploymentResponse) -> String {
    json_line(&json!({
        "category": answer.category,
        "check": answer.check,
        "expects": answer.expects,
        "outcome": answer.outcome().as_str_name(),
        "findings": answer.findings.iter().map(finding_in_json).collect::<Vec<_>>(),
    }))
}

fn in_words(answer: &CheckDeploymentResponse) -> String {
    let word = match answer.outcome() {
        CheckOutcome::Ok => "ok  ",
        CheckOutcome::Warning => "WARN",
        CheckOutcome::Error => "FAIL",
        CheckOutcome::Skipped | CheckOutcome::Unspecified => "--  ",
    };
    let mut text = String::new();
    // Writing to a string cannot fail.
    if answer.findings.is_empty() {
        let _ = writeln!(text, "  {word}  {}", printable(&answer.expects));
    }
    for finding in &answer.findings {
        let of_job = if answer.category == JOBS { format!("{}: ", answer.check) } else { String::new() };
        let item = match finding.subject.as_ref().and_then(|subject| subject.subject.as_ref()) {
            Some(crate::proto::finding_subject::Subject::Item(item)) => format!("item {item}: "),
            Some(_) | None => String::new(),
        };
        let line = format!("{of_job}{item}{}", finding.message);
        let _ = writeln!(text, "  {word}  {}  {}", printable(&line), printable(&finding.code));
        if !finding.remedy.is_empty() {
            let _ = writeln!(text, "        -> {}", printable(&finding.remedy));
        }
    }
    text
}
