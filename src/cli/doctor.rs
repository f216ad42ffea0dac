//! `doctor`: all checks of a sidecar and of the jobs of its namespace, or of the manifest of a pod.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use futures::stream::{BoxStream, StreamExt as _, iter};
use serde_json::json;
use tonic::Status;

use super::endpoint::{SidecarArgs, authorized, refused};
use super::explain::finding_in_json;
use super::registry::{Registry, RegistryArgs, failed};
use super::{ANSWER_IS_NO, Failure, json_line, print, printable};
use crate::api::{finding, status};
use crate::coordination::admin::doctor::check;
use crate::coordination::admin::pod;
use crate::proto::diagnostics_service_client::DiagnosticsServiceClient;
use crate::proto::{CheckDeploymentRequest, CheckDeploymentResponse, CheckOutcome};
use crate::runner::admin::check_deployment;

/// How long to wait for all answers: thousands of jobs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);
/// The most bytes of a manifest that are read: more than etcd takes for an object.
const MANIFEST_LIMIT: u64 = 4 * 1024 * 1024;
/// The largest accepted answer, in bytes.
const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;

#[derive(Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    sidecar: SidecarArgs,
    #[command(flatten)]
    registry: RegistryArgs,
    /// Check the manifest of a pod for Kubernetes instead, as JSON (`kubectl get pod NAME -o json`, or `kubectl create
    /// --dry-run=client -o json -f FILE`): a pod, or an object with a template of pods. `-`: standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["zookeeper", "without_jobs"])]
    pod: Option<PathBuf>,
    /// Leave out the jobs.
    #[arg(long)]
    without_jobs: bool,
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

type Checks = BoxStream<'static, Result<CheckDeploymentResponse, Status>>;

pub(super) async fn doctor(args: DoctorArgs) -> Result<ExitCode, Failure> {
    let counts = match &args.pod {
        Some(file) => show(&args, checks_of_pod(file)?, failed).await?,
        None => of_sidecar_or_registry(&args).await?,
    };
    let has_failed = counts.errors > 0 || args.strict && counts.warnings > 0;
    Ok(if has_failed { ExitCode::from(ANSWER_IS_NO) } else { ExitCode::SUCCESS })
}

async fn of_sidecar_or_registry(args: &DoctorArgs) -> Result<Counts, Failure> {
    let registry = args.registry.open().await?;
    let counts = match &registry {
        Some(registry) => {
            let checks = checks_in(registry, args.without_jobs).await;
            match checks {
                Ok(checks) => show(args, checks, failed).await,
                Err(failure) => Err(failure),
            }
        }
        None => show(args, ask(args).await?, refused).await,
    };
    if let Some(registry) = registry {
        registry.session.close().await;
    }
    counts
}

fn checks_of_pod(file: &Path) -> Result<Checks, Failure> {
    let wrong = |reason: String| Failure::from(anyhow::anyhow!("{}: {reason}", file.display()));
    let mut text = Vec::new();
    let read = match file.as_os_str() == "-" {
        true => std::io::stdin().take(MANIFEST_LIMIT).read_to_end(&mut text),
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
    let mut client = DiagnosticsServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let mut request = authorized(CheckDeploymentRequest { without_jobs: args.without_jobs })?;
    request.set_timeout(ANSWER_TIMEOUT);
    let answer = client.check_deployment(request).await.map_err(|status| refused(&status))?;
    Ok(answer.into_inner().boxed())
}

/// The checks that need no sidecar.
async fn checks_in(registry: &Registry, without_jobs: bool) -> Result<Checks, Failure> {
    let (checked, timeout) = (&*registry.registry, registry.session_timeout);
    let facts = check_deployment::facts_of(checked, registry.namespace(), timeout).await;
    let of_sidecar = ["sidecar", "security"];
    let checks = check(&facts).into_iter().filter(move |check| !of_sidecar.contains(&check.category));
    let checks: Vec<_> = checks.map(|check| Ok(finding::check_to_message(&check))).collect();
    if without_jobs {
        return Ok(iter(checks).chain(iter([Ok(finding::jobs_checked(0))])).boxed());
    }
    let namespace = registry.namespace();
    let (session, root, clock) = (namespace.session.clone(), namespace.root.clone(), namespace.clock.clone());
    let jobs = check_deployment::jobs_in(session, root, clock, |_| true).await;
    let jobs = jobs.map_err(|error| failed(&status::of_list(&error)))?;
    Ok(iter(checks).chain(finding::jobs_to_messages(jobs, true)).boxed())
}

/// Prints each check as it comes, and at the end their numbers.
async fn show(
    args: &DoctorArgs,
    mut checks: Checks,
    failure: impl Fn(&Status) -> Failure,
) -> Result<Counts, Failure> {
    let (mut counts, mut category) = (Counts::default(), String::new());
    while let Some(answer) = checks.next().await {
        let answer = answer.map_err(|status| failure(&status))?;
        if let Some(jobs) = answer.jobs_checked {
            counts.jobs = Some(jobs);
            continue;
        }
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
        print(text.as_bytes())?;
    }
    if !args.json {
        let Counts { ok, warnings, errors, skipped, jobs } = &counts;
        let jobs = jobs.map(|jobs| format!("{jobs} jobs and ")).unwrap_or_default();
        let text = format!(
            "{jobs}the checks above: {ok} ok, {skipped} skipped, {warnings} with warnings, {errors} with errors\n"
        );
        print(text.as_bytes())?;
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
        let of_job = if answer.category == "jobs" { format!("{}: ", answer.check) } else { String::new() };
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
