//! `servers`: the servers of one job, or of all; and, for the commands that change servers, the jobs that have them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use serde_json::{Value, json};

use super::endpoint::refused;
use super::jobs::{JobArgs, JobsArgs, Part, job, job_name, table};
use super::registry::failed;
use super::service::{Service, timed};
use super::{FAILED, Failure, USAGE, json_line, print, printable};
use crate::api::jobs::{PAGE_SIZE_MAX, page, servers_to_message};
use crate::api::status;
use crate::job::JobName;
use crate::proto::{JobServers, ListServersRequest, ListServersResponse, ServerStatus};
use crate::runner::admin;

#[derive(Args)]
pub(super) struct ServersArgs {
    /// The job's name. Without it: the servers of all jobs.
    job: Option<String>,
    #[command(flatten)]
    common: JobsArgs,
}

pub(super) async fn servers(args: ServersArgs) -> Result<ExitCode, Failure> {
    let ServersArgs { job: name, common } = args;
    if let Some(name) = name {
        return job(JobArgs { job: name, common }, Part::Servers).await;
    }
    let JobsArgs { sidecar, registry, json } = common;
    let mut service = Service::open(&sidecar, &registry).await?;
    let listed = service.list_servers(&[]).await;
    service.close().await;
    let listed = listed?;
    let of_servers = by_server(&listed);
    let text = if json {
        let servers: Vec<_> = of_servers.iter().map(in_json).collect();
        json_line(&json!({ "servers": servers }))
    } else {
        table(&["server", "jobs", "disabled in", "instances"], of_servers.iter().map(row))
    };
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The jobs of each server.
type OfServer<'a> = Vec<(&'a str, &'a ServerStatus)>;

fn by_server(listed: &[JobServers]) -> BTreeMap<Option<Ipv4Addr>, OfServer<'_>> {
    let mut of_servers: BTreeMap<_, OfServer<'_>> = BTreeMap::new();
    for of_job in listed {
        for server in &of_job.servers {
            of_servers.entry(server.server_ip.parse().ok()).or_default().push((&of_job.job_name, server));
        }
    }
    of_servers
}

/// The word for a server in a table: its address.
fn address(server: Option<&Ipv4Addr>) -> String {
    server.map(ToString::to_string).unwrap_or_default()
}

fn row((server, jobs): (&Option<Ipv4Addr>, &OfServer<'_>)) -> Vec<String> {
    let disabled = jobs.iter().filter(|(_, server)| server.disabled).count();
    let instances: u64 = jobs.iter().map(|(_, server)| u64::from(server.instance_count)).sum();
    let disabled = if disabled == 0 { String::new() } else { disabled.to_string() };
    vec![address(server.as_ref()), jobs.len().to_string(), disabled, instances.to_string()]
}

fn in_json((server, jobs): (&Option<Ipv4Addr>, &OfServer<'_>)) -> Value {
    let of_job = |(job_name, server): &(&str, &ServerStatus)| {
        let ServerStatus { server_ip: _, disabled, instance_count } = server;
        json!({ "job_name": job_name, "disabled": disabled, "instance_count": instance_count })
    };
    json!({ "server_ip": address(server.as_ref()), "jobs": jobs.iter().map(of_job).collect::<Vec<_>>() })
}

/// One job, or all jobs that have some servers.
#[derive(Args)]
pub(super) struct EveryJob {
    /// The job's name.
    #[arg(required_unless_present = "every_job")]
    job: Option<String>,
    /// With `--server`: in every job that has had an instance on it, one job after the other.
    #[arg(long, conflicts_with = "job", requires = "servers")]
    every_job: bool,
}

/// The jobs that a command changes, with the servers that each has.
pub(super) struct Found(Vec<(JobName, Vec<Ipv4Addr>)>);

impl EveryJob {
    /// The job that the command line names.
    pub(super) fn one(&self) -> Result<JobName, Failure> {
        job_name(self.job.as_deref().unwrap_or_default())
    }

    /// The jobs to change: the one that is named, with all these servers, or those that have some of them. Fails if no job has one of them.
    /// `names_more`: whether the command line names something else than servers, which is of one job.
    pub(super) async fn with(
        &self,
        service: &mut Service,
        servers: &[Ipv4Addr],
        names_more: bool,
    ) -> Result<Found, Failure> {
        if !self.every_job {
            return Ok(Found(vec![(self.one()?, servers.to_vec())]));
        }
        // The parser lets an option pass that excludes the needed one.
        if servers.is_empty() || names_more {
            let error = anyhow!("--every-job goes with --server alone: items and instances are of one job");
            return Err(Failure { code: USAGE, error });
        }
        let listed = service.list_servers(servers).await?;
        let of_servers = by_server(&listed);
        if let Some(unknown) = servers.iter().find(|server| !of_servers.contains_key(&Some(**server))) {
            let error = anyhow!("no job has had an instance on {unknown}; look with `sidekeeper servers`");
            return Err(Failure { code: FAILED, error });
        }
        let of_job = |of_job: &JobServers| {
            let servers: BTreeSet<_> = of_job.servers.iter().flat_map(|one| one.server_ip.parse()).collect();
            Ok((job_name(&of_job.job_name)?, servers.into_iter().collect()))
        };
        listed.iter().map(of_job).collect::<Result<_, _>>().map(Found)
    }

    /// The JSON object of a job: of several, each has its name.
    pub(super) fn named(&self, job: &JobName, mut object: Value) -> Value {
        if let Some(fields) = object.as_object_mut().filter(|_| self.every_job) {
            fields.insert("job_name".to_owned(), job.as_str().into());
        }
        object
    }
}

impl Found {
    /// The jobs, for a question.
    pub(super) fn in_words(&self) -> String {
        match &self.0[..] {
            [(job, _)] => format!("job {}", printable(job.as_str())),
            jobs => format!("{} jobs", jobs.len()),
        }
    }

    /// Carries out a change, one job after the other. A job that fails does not keep the others from it; the first failure is the command's.
    pub(super) async fn each(
        self,
        mut change: impl AsyncFnMut(JobName, Vec<Ipv4Addr>) -> Result<(), Failure>,
    ) -> Result<ExitCode, Failure> {
        let is_one = self.0.len() == 1;
        let mut first = None;
        for (job, servers) in self.0 {
            let Err(failure) = change(job.clone(), servers).await else { continue };
            if is_one {
                return Err(failure);
            }
            // A command that cannot tell a person goes on all the same.
            let _ = writeln!(io::stderr(), "{}: {:#}", printable(job.as_str()), failure.error);
            first.get_or_insert(Failure { error: anyhow!("not done for every job"), ..failure });
        }
        first.map_or(Ok(ExitCode::SUCCESS), Err)
    }
}

impl Service {
    /// The servers of all jobs that the caller may name. `wanted`: only these; empty: all.
    async fn list_servers(&mut self, wanted: &[Ipv4Addr]) -> Result<Vec<JobServers>, Failure> {
        let (mut jobs, mut page_token) = (Vec::new(), String::new());
        loop {
            let ListServersResponse { jobs: more, next_page_token } = match self {
                Self::Sidecar(client) => {
                    let server_ips = wanted.iter().map(ToString::to_string).collect();
                    let request = ListServersRequest { server_ips, page_size: PAGE_SIZE_MAX, page_token };
                    let answer = client.list_servers(timed(request)?).await;
                    answer.map_err(|status| refused(&status))?.into_inner()
                }
                Self::Registry(registry) => {
                    let page = page(PAGE_SIZE_MAX, &page_token);
                    let page = page.map_err(|invalid| failed(&invalid.to_status()))?;
                    let wanted = wanted.iter().copied().collect();
                    let listed =
                        admin::servers::list_in(registry.namespace(), &page, &wanted, |_| true).await;
                    servers_to_message(listed.map_err(|error| failed(&status::of_list(&error)))?)
                }
            };
            jobs.extend(more);
            if next_page_token.is_empty() {
                return Ok(jobs);
            }
            page_token = next_page_token;
        }
    }
}
