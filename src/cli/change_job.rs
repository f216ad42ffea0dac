//! `diff` and `apply`: configurations in files against the registry. `remove`: a job with all its nodes, or servers of it. `stop`: instances.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use serde_json::json;
use tonic::{Code, Status};

use super::endpoint::{SidecarArgs, refused};
use super::registry::{RegistryArgs, failed};
use super::servers::EveryJob;
use super::service::{Service, timed};
use super::switch::confirm;
use super::{ANSWER_IS_NO, Failure, USAGE, json_line, print, printable};
use crate::api::convert::{configuration_to_proto, field_of};
use crate::api::{jobs, status};
use crate::coordination::job::picture::settings::checks;
use crate::elasticjob::config_yaml_editor::Key;
use crate::job::{InstanceId, JobConfiguration, JobName};
use crate::job_files;
use crate::proto::{
    GetJobRequest, RemoveJobRequest, RemoveServersRequest, StopInstancesRequest, UpdateJobRequest,
    UpdateJobResponse,
};
use crate::runner::admin;
use crate::runner::admin::change_job::{self, Stop};

#[derive(Args)]
pub(super) struct DiffArgs {
    /// A file with the configuration of one job, with ElasticJob's keys in YAML, or a directory of such files; may be given several times.
    #[arg(value_name = "FILE", required = true, value_hint = clap::ValueHint::FilePath)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    sidecar: SidecarArgs,
    #[command(flatten)]
    registry: RegistryArgs,
    /// Print one JSON object for each file.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(super) struct ApplyArgs {
    /// A file with the configuration of one job, with ElasticJob's keys in YAML, or a directory of such files; may be given several times.
    #[arg(short, long = "file", value_name = "FILE", required = true, value_hint = clap::ValueHint::FilePath)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    sidecar: SidecarArgs,
    #[command(flatten)]
    registry: RegistryArgs,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    /// Print one JSON object for each file.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[group(id = "whom", required = true, multiple = true)]
pub(super) struct Whom {
    /// An instance, by its id; may be given several times.
    #[arg(long = "instance", value_name = "ID", group = "whom")]
    instances: Vec<String>,
    /// The instances on a server, by its address; may be given several times.
    #[arg(long = "server", value_name = "IPV4", group = "whom")]
    servers: Vec<Ipv4Addr>,
    /// All instances of the job.
    #[arg(long, group = "whom", conflicts_with_all = ["instances", "servers"])]
    all_instances: bool,
}

#[derive(Args)]
pub(super) struct StopArgs {
    #[command(flatten)]
    job: EveryJob,
    #[command(flatten)]
    whom: Whom,
    #[command(flatten)]
    sidecar: SidecarArgs,
    #[command(flatten)]
    registry: RegistryArgs,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    /// Print one JSON object, with the field names of the proto; with `--every-job` one for each job, with its name.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(super) struct RemoveArgs {
    #[command(flatten)]
    job: EveryJob,
    /// Remove only a server of the job, by its address, that has no instance any more; may be given several times.
    #[arg(long = "server", value_name = "IPV4")]
    servers: Vec<Ipv4Addr>,
    /// Remove the job although instances are online. They are stopped, and their executions may end first.
    #[arg(long, conflicts_with = "servers")]
    force: bool,
    #[command(flatten)]
    sidecar: SidecarArgs,
    #[command(flatten)]
    registry: RegistryArgs,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    /// Print one JSON object, with the field names of the proto; with `--every-job` one for each job, with its name.
    #[arg(long)]
    json: bool,
}

/// A file against the registry.
struct Compared {
    job: JobName,
    request: UpdateJobRequest,
    answer: UpdateJobResponse,
    /// The document in the registry. Empty: there is none.
    before: String,
}

pub(super) async fn diff(args: DiffArgs) -> Result<ExitCode, Failure> {
    let files = read(&args.files)?;
    let mut service = Service::open(&args.sidecar, &args.registry).await?;
    let compared = async {
        let mut differs = false;
        for configuration in &files {
            let compared = service.compare(configuration).await?;
            differs |= !compared.answer.changed_fields.is_empty();
            print(compared.show(args.json).as_bytes())?;
        }
        Ok(if differs { ExitCode::from(ANSWER_IS_NO) } else { ExitCode::SUCCESS })
    };
    let compared = compared.await;
    service.close().await;
    compared
}

pub(super) async fn apply(args: ApplyArgs) -> Result<ExitCode, Failure> {
    let files = read(&args.files)?;
    let mut service = Service::open(&args.sidecar, &args.registry).await?;
    let applied = async {
        for configuration in &files {
            let compared = service.compare(configuration).await?;
            print(compared.show(args.json).as_bytes())?;
            if compared.answer.changed_fields.is_empty() {
                continue;
            }
            if !args.yes {
                confirm(&format!("This changes job {}.", printable(compared.job.as_str())))?;
            }
            // The etag of the state that was shown: if the job has changed since, nothing is done.
            let etag = compared.answer.etag.clone();
            service.update(UpdateJobRequest { etag, validate_only: false, ..compared.request }).await?;
            if !args.json {
                print(format!("applied  {}\n", printable(compared.job.as_str())).as_bytes())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    };
    let applied = applied.await;
    service.close().await;
    applied
}

pub(super) async fn remove(args: RemoveArgs) -> Result<ExitCode, Failure> {
    let mut service = Service::open(&args.sidecar, &args.registry).await?;
    let removed = match args.servers.is_empty() {
        true => remove_job(&mut service, &args).await,
        false => remove_servers(&mut service, &args).await,
    };
    service.close().await;
    removed
}

async fn remove_job(service: &mut Service, args: &RemoveArgs) -> Result<ExitCode, Failure> {
    let job = args.job.one()?;
    let (etag, online) = service.get(&job).await?;
    if !args.yes {
        let shown = printable(job.as_str());
        let instances = match online {
            0 => String::new(),
            count => format!(" {count} of its instances are online."),
        };
        confirm(&format!(
            "This removes job {shown}: its configuration, and what is known of its executions.{instances}"
        ))?;
    }
    let count = service.remove(&job, etag, args.force).await?;
    let text = match args.json {
        true => json_line(&json!({ "removed_nodes": count })),
        false => format!("removed  {}, {count} nodes\n", printable(job.as_str())),
    };
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

async fn remove_servers(service: &mut Service, args: &RemoveArgs) -> Result<ExitCode, Failure> {
    let found = args.job.with(service, &args.servers, false).await?;
    if !args.yes {
        let servers: Vec<_> = args.servers.iter().map(ToString::to_string).collect();
        confirm(&format!("This removes {} from the servers of {}.", servers.join(", "), found.in_words()))?;
    }
    found
        .each(async |job, servers| {
            service.remove_servers(&job, &servers).await?;
            let shown = printable(job.as_str());
            let text = match args.json {
                true => json_line(&args.job.named(&job, json!({}))),
                false => servers.iter().map(|server| format!("removed  {server} of {shown}\n")).collect(),
            };
            print(text.as_bytes())?;
            Ok(())
        })
        .await
}

pub(super) async fn stop(args: StopArgs) -> Result<ExitCode, Failure> {
    let mut service = Service::open(&args.sidecar, &args.registry).await?;
    let stopped = stop_at(&mut service, &args).await;
    service.close().await;
    stopped
}

async fn stop_at(service: &mut Service, args: &StopArgs) -> Result<ExitCode, Failure> {
    let Whom { instances, servers, .. } = &args.whom;
    let found = args.job.with(service, servers, !instances.is_empty()).await?;
    if !args.yes {
        let named = instances.iter().map(|id| printable(id)).chain(servers.iter().map(ToString::to_string));
        let named: Vec<_> = named.collect();
        let named = if named.is_empty() { "all instances".to_owned() } else { named.join(", ") };
        let jobs = found.in_words();
        confirm(&format!("This stops {named} of {jobs}: they finish their executions, and leave."))?;
    }
    found
        .each(async |job, servers| {
            let stopped = service.stop(&job, instances, &servers).await?;
            let shown = printable(job.as_str());
            let text = match args.json {
                true => json_line(&args.job.named(&job, json!({ "stopped_instance_ids": stopped }))),
                false if stopped.is_empty() => format!("nothing to do: none of {shown} is online\n"),
                false => {
                    stopped.iter().map(|id| format!("stopped  {} of {shown}\n", printable(id))).collect()
                }
            };
            print(text.as_bytes())?;
            Ok(())
        })
        .await
}

/// Reads all files. All errors are reported, each with its file.
fn read(files: &[PathBuf]) -> Result<Vec<JobConfiguration>, Failure> {
    let mut configurations = Vec::new();
    let mut errors = Vec::new();
    let mut names = BTreeSet::new();
    let mut wrong = |file: &Path, reason: &str| errors.push(format!("{}: {reason}", file.display()));
    let mut expanded = Vec::new();
    for path in files {
        match job_files::expand(path) {
            Ok(files) => expanded.extend(files),
            Err(error) => wrong(path, &error.to_string()),
        }
    }
    for file in &expanded {
        match job_files::read(file, checks()) {
            Err(reasons) => reasons.iter().for_each(|reason| wrong(file, reason)),
            Ok(configuration) if !configuration.job_extra_configurations.is_empty() => {
                wrong(
                    file,
                    "jobExtraConfigurations cannot be applied; remove the key: the registry's value stays",
                );
            }
            Ok(configuration) if !names.insert(configuration.job_name.clone()) => {
                wrong(file, "another file has the same jobName");
            }
            Ok(configuration) => configurations.push(configuration),
        }
    }
    if errors.is_empty() {
        return Ok(configurations);
    }
    Err(Failure { code: USAGE, error: anyhow!(printable(&errors.join("; "))) })
}

impl Service {
    async fn update(&mut self, request: UpdateJobRequest) -> Result<UpdateJobResponse, Failure> {
        match self {
            Self::Sidecar(client) => {
                let answer = client.update_job(timed(request)?).await;
                Ok(answer.map_err(|status| refused(&status))?.into_inner())
            }
            Self::Registry(registry) => {
                let read = jobs::update(&request).map_err(|invalid| failed(&invalid.to_status()));
                let (job, update, dry) = read?;
                let updated = change_job::update_in(registry.namespace(), &job, &update, dry).await;
                Ok(jobs::update_to_message(&updated.map_err(|error| failed(&status::of_change(&error)))?))
            }
        }
    }

    async fn remove(&mut self, job: &JobName, etag: String, force: bool) -> Result<usize, Failure> {
        match self {
            Self::Sidecar(client) => {
                let request = RemoveJobRequest { job_name: job.to_string(), etag, force };
                let answer = client.remove_job(timed(request)?).await;
                let answer = answer.map_err(|status| refused(&status))?.into_inner();
                Ok(usize::try_from(answer.removed_nodes).unwrap_or(usize::MAX))
            }
            Self::Registry(registry) => {
                let removed = change_job::remove_in(registry.namespace(), job, &etag, force).await;
                removed.map_err(|error| failed(&status::of_change(&error)))
            }
        }
    }

    async fn remove_servers(&mut self, job: &JobName, servers: &[Ipv4Addr]) -> Result<(), Failure> {
        match self {
            Self::Sidecar(client) => {
                let server_ips = servers.iter().map(ToString::to_string).collect();
                let request = timed(RemoveServersRequest { job_name: job.to_string(), server_ips })?;
                client.remove_servers(request).await.map(drop).map_err(|status| refused(&status))
            }
            Self::Registry(registry) => {
                let servers = servers.iter().copied().collect();
                let removed = change_job::remove_servers_in(registry.namespace(), job, &servers).await;
                removed.map_err(|error| failed(&status::of_change(&error)))
            }
        }
    }

    /// Returns the ids of the instances that were stopped.
    async fn stop(
        &mut self,
        job: &JobName,
        instances: &[String],
        servers: &[Ipv4Addr],
    ) -> Result<Vec<String>, Failure> {
        match self {
            Self::Sidecar(client) => {
                let request = StopInstancesRequest {
                    job_name: job.to_string(),
                    instance_ids: instances.to_vec(),
                    server_ips: servers.iter().map(ToString::to_string).collect(),
                };
                let answer = client.stop_instances(timed(request)?).await;
                Ok(answer.map_err(|status| refused(&status))?.into_inner().stopped_instance_ids)
            }
            Self::Registry(registry) => {
                let instances = instances.iter().map(|id| InstanceId::from_registry(id.as_str())).collect();
                let stop = Stop { instances, servers: servers.iter().copied().collect() };
                let stopped = change_job::stop_in(registry.namespace(), job, &stop).await;
                let stopped = stopped.map_err(|error| failed(&status::of_change(&error)))?;
                Ok(stopped.iter().map(ToString::to_string).collect())
            }
        }
    }

    /// The etag of a job, and how many of its instances are online.
    async fn get(&mut self, job: &JobName) -> Result<(String, usize), Failure> {
        let found = self.find(job).await.map_err(|status| match self {
            Self::Sidecar(_) => refused(&status),
            Self::Registry(_) => failed(&status),
        })?;
        Ok((found.etag, found.instances.len()))
    }

    async fn find(&mut self, job: &JobName) -> Result<crate::proto::GetJobResponse, Status> {
        match self {
            Self::Sidecar(client) => {
                let request = timed(GetJobRequest { job_name: job.to_string() });
                let request = request.map_err(|error| Status::internal(error.to_string()))?;
                Ok(client.get_job(request).await?.into_inner())
            }
            Self::Registry(registry) => {
                let found = admin::jobs::get_in(registry.namespace(), job).await;
                Ok(jobs::job_to_message(job, &found.map_err(|error| status::of_explain(&error))?, true))
            }
        }
    }

    async fn compare(&mut self, configuration: &JobConfiguration) -> Result<Compared, Failure> {
        let job = configuration.job_name.clone();
        let before = match self.find(&job).await {
            Ok(found) => found.document,
            Err(status) if status.code() == Code::NotFound => String::new(),
            Err(status) => {
                return Err(match self {
                    Self::Sidecar(_) => refused(&status),
                    Self::Registry(_) => failed(&status),
                });
            }
        };
        let paths = Key::ALL.into_iter().map(field_of).collect();
        let request = UpdateJobRequest {
            job_name: job.to_string(),
            configuration: Some(configuration_to_proto(configuration, "")),
            update_mask: Some(prost_types::FieldMask { paths }),
            etag: String::new(),
            validate_only: true,
            allow_missing: true,
        };
        let answer = self.update(request.clone()).await?;
        Ok(Compared { job, request, answer, before })
    }
}

impl Compared {
    fn show(&self, as_json: bool) -> String {
        let UpdateJobResponse { etag, changed_fields, document } = &self.answer;
        if as_json {
            return json_line(&json!({
                "job_name": self.job.as_str(), "etag": etag, "changed_fields": changed_fields, "document": document,
            }));
        }
        let job = printable(self.job.as_str());
        if changed_fields.is_empty() {
            return format!("{job}: as in the file\n");
        }
        let mut text = match self.before.is_empty() {
            true => format!("{job}: a new job\n"),
            false => format!("{job}: {}\n", changed_fields.join(", ")),
        };
        let (before, after): (BTreeSet<_>, BTreeSet<_>) =
            (self.before.lines().collect(), document.lines().collect());
        let gone = self.before.lines().filter(|line| !after.contains(line)).map(|line| ("-", line));
        let new = document.lines().filter(|line| !before.contains(line)).map(|line| ("+", line));
        for (sign, line) in gone.chain(new) {
            text.push_str(&format!("  {sign} {}\n", printable(line)));
        }
        text
    }
}
