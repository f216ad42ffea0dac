//! `disable` and `enable`: items and servers of a job.

use std::collections::BTreeSet;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::net::Ipv4Addr;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use jiff::Timestamp;
use nix::unistd::geteuid;
use serde_json::json;
use tonic::transport::Channel;

use super::endpoint::{SidecarArgs, refused};
use super::printable;
use super::registry::{Registry, RegistryArgs, failed};
use super::servers::{EveryJob, Found};
use super::service::{Service, timed};
use super::{Failure, NOT_CONFIRMED, USAGE, print};
use crate::api::convert::InvalidRequest;
use crate::api::{job, status};
use crate::config;
use crate::coordination::admin::switch::{Switch, Wish};
use crate::job::{Item, JobName};
use crate::proto::job_service_client::JobServiceClient;
use crate::proto::{
    DisableItemsRequest, DisableItemsResponse, DisableServersRequest, DisableServersResponse,
    EnableItemsRequest, EnableServersRequest,
};
use crate::runner::admin::switch;
use crate::runner::clock::Clock;

#[derive(Args)]
#[group(id = "what", required = true, multiple = false)]
pub(super) struct What {
    /// An item; may be given several times.
    #[arg(long = "item", value_name = "ITEM", group = "what")]
    items: Vec<u32>,
    /// A server of the job, or with `--every-job` of any job, by its address; may be given several times.
    #[arg(long = "server", value_name = "IPV4", group = "what")]
    servers: Vec<Ipv4Addr>,
    /// All servers of the job, so the whole job.
    #[arg(long, group = "what")]
    all_servers: bool,
}

#[derive(Args)]
pub(super) struct EnableArgs {
    #[command(flatten)]
    job: EveryJob,
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    sidecar: SidecarArgs,
    #[command(flatten)]
    registry: RegistryArgs,
    /// Print one JSON object, with the field names of the proto; with `--every-job` one for each job, with its name.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(super) struct DisableArgs {
    #[command(flatten)]
    common: EnableArgs,
    /// Why: one line of at most 200 characters. `explain` and `job` show it with your user, the name of your token or your certificate.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    /// Until when, as an instant (`2026-11-28T12:00:00Z`) or from now on (`2h`). A sidecar's instance enables again then.
    #[arg(long, value_name = "WHEN")]
    until: Option<String>,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
}

/// Why, and until when.
#[derive(Default)]
struct Why {
    reason: String,
    until: Option<Timestamp>,
}

/// The items or servers that the command has changed.
enum Changed {
    Items(Vec<u32>),
    Servers(Vec<String>),
}

/// The changes of the command, and whether the disabling ends by itself.
struct Done {
    changed: Changed,
    ends_by_itself: bool,
}

pub(super) async fn disable(args: DisableArgs) -> Result<ExitCode, Failure> {
    let DisableArgs { common: args, reason, until, yes } = args;
    let until = until.as_deref().map(read_until).transpose()?;
    let mut service = Service::open(&args.sidecar, &args.registry).await?;
    let why = Why { reason, until };
    let done = async {
        let found = args.what.of(&args.job, &mut service).await?;
        if !yes {
            confirm(&question(&found.in_words(), &args.what))?;
        }
        carry_out(&mut service, &args, found, Switch::Disabled, &why).await
    };
    let done = done.await;
    service.close().await;
    done
}

pub(super) async fn enable(args: EnableArgs) -> Result<ExitCode, Failure> {
    let mut service = Service::open(&args.sidecar, &args.registry).await?;
    let done = async {
        let found = args.what.of(&args.job, &mut service).await?;
        carry_out(&mut service, &args, found, Switch::Enabled, &Why::default()).await
    };
    let done = done.await;
    service.close().await;
    done
}

async fn carry_out(
    service: &mut Service,
    args: &EnableArgs,
    found: Found,
    switch: Switch,
    why: &Why,
) -> Result<ExitCode, Failure> {
    found
        .each(async |job, servers| {
            let wish = args.what.wish(servers, switch);
            let done = service.switch(&job, &wish, why).await?;
            if let Some(until) = why.until.filter(|_| !done.ends_by_itself) {
                let job = printable(job.as_str());
                // A command that cannot tell a person has still done its work.
                let _ = writeln!(
                    io::stderr(),
                    "no sidecar has an instance of {job} online, so nobody enables at {until}: the next application that attaches does, or `sidekeeper enable`"
                );
            }
            done.show(args, &job, switch, why.until)
        })
        .await
}

/// Reads an instant, or a time from now on.
fn read_until(text: &str) -> Result<Timestamp, Failure> {
    let wrong = |reason: String| {
        let given = text.escape_debug();
        Failure { code: USAGE, error: anyhow!("--until = `{given}`: {reason}") }
    };
    if let Ok(until) = text.parse::<Timestamp>() {
        return Ok(until);
    }
    let time = config::disabled_time(text)
        .map_err(|reason| wrong(format!("{reason}; or an instant like `2026-11-28T12:00:00Z`")))?;
    Clock::start().now().wall.checked_add(time).map_err(|error| wrong(error.to_string()))
}

fn to_message(until: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: until.as_second(), nanos: until.subsec_nanosecond() }
}

impl Service {
    /// Disables or enables items or servers.
    async fn switch(&mut self, job: &JobName, wish: &Wish, why: &Why) -> Result<Done, Failure> {
        match self {
            Self::Sidecar(client) => ask(client, job, wish, why).await,
            Self::Registry(registry) => switch_in(registry, job, wish, why).await,
        }
    }
}

async fn ask(
    client: &mut JobServiceClient<Channel>,
    job: &JobName,
    wish: &Wish,
    why: &Why,
) -> Result<Done, Failure> {
    let job_name = job.to_string();
    let numbers = |items: &BTreeSet<Item>| items.iter().map(|item| item.0).collect();
    let addresses = |servers: &BTreeSet<Ipv4Addr>| servers.iter().map(ToString::to_string).collect();
    let (reason, until) = (why.reason.clone(), why.until.map(to_message));
    let done = match wish {
        Wish::Servers(servers, Switch::Disabled) => {
            let server_ips = addresses(servers);
            let request = timed(DisableServersRequest { job_name, server_ips, reason, until })?;
            client.disable_servers(request).await.map(|answer| {
                let DisableServersResponse { changed_server_ips, ends_by_itself } = answer.into_inner();
                Done { changed: Changed::Servers(changed_server_ips), ends_by_itself }
            })
        }
        Wish::Servers(servers, Switch::Enabled) => {
            let request = timed(EnableServersRequest { job_name, server_ips: addresses(servers) })?;
            client.enable_servers(request).await.map(|answer| {
                let changed = Changed::Servers(answer.into_inner().changed_server_ips);
                Done { changed, ends_by_itself: false }
            })
        }
        Wish::Items(items, Switch::Disabled) => {
            let items = numbers(items);
            let request = timed(DisableItemsRequest { job_name, items, reason, until })?;
            client.disable_items(request).await.map(|answer| {
                let DisableItemsResponse { changed_items, ends_by_itself } = answer.into_inner();
                Done { changed: Changed::Items(changed_items), ends_by_itself }
            })
        }
        Wish::Items(items, Switch::Enabled) => {
            let request = timed(EnableItemsRequest { job_name, items: numbers(items) })?;
            client.enable_items(request).await.map(|answer| {
                let changed = Changed::Items(answer.into_inner().changed_items);
                Done { changed, ends_by_itself: false }
            })
        }
    };
    done.map_err(|status| refused(&status))
}

async fn switch_in(registry: &Registry, job: &JobName, wish: &Wish, why: &Why) -> Result<Done, Failure> {
    // No listener knows who asks: this is what the machine says of the command.
    let author = format!("uid {} with `--zookeeper`", geteuid());
    let now = registry.namespace().clock.now().wall;
    let note = job::read_note(&author, &why.reason, why.until.map(to_message), now)
        .map_err(|error| failed(&InvalidRequest(vec![error]).to_status()))?;
    let switched = switch::switch_in(registry.namespace(), job, wish, &note).await;
    let switched = switched.map_err(|error| failed(&status::of_switch(&error)))?;
    let ends_by_itself = switched.ends_by_itself;
    let changed = match wish {
        Wish::Items(..) => Changed::Items(switched.items.into_iter().map(|item| item.0).collect()),
        Wish::Servers(..) => Changed::Servers(switched.servers.iter().map(ToString::to_string).collect()),
    };
    Ok(Done { changed, ends_by_itself })
}

impl What {
    /// The jobs to change.
    async fn of(&self, job: &EveryJob, service: &mut Service) -> Result<Found, Failure> {
        job.with(service, &self.servers, !self.items.is_empty() || self.all_servers).await
    }

    /// The items, or if there are none these servers of one job: none are all.
    fn wish(&self, servers: Vec<Ipv4Addr>, switch: Switch) -> Wish {
        match self.items.is_empty() {
            true => Wish::Servers(servers.into_iter().collect(), switch),
            false => Wish::Items(self.items.iter().copied().map(Item).collect(), switch),
        }
    }

    fn server_ips(&self) -> Vec<String> {
        self.servers.iter().map(ToString::to_string).collect()
    }
}

/// The effect of a disabling, for the question.
fn question(job: &str, what: &What) -> String {
    if !what.items.is_empty() {
        let items: Vec<_> = what.items.iter().map(ToString::to_string).collect();
        return format!("No instance will execute item {} of {job} until it is enabled.", items.join(", "));
    }
    if what.all_servers {
        return format!("No instance will execute any item of {job} until its servers are enabled.");
    }
    let servers = what.server_ips().join(", ");
    format!(
        "The instances of {job} on {servers} will lose their items to others until the server is enabled."
    )
}

/// Asks on the terminal. Fails if the answer is not yes, or if there is no terminal.
pub(super) fn confirm(question: &str) -> Result<(), Failure> {
    let not_confirmed = |reason: String| Failure { code: NOT_CONFIRMED, error: anyhow!(reason) };
    if !io::stdin().is_terminal() {
        return Err(not_confirmed(format!(
            "nothing was done. {question} There is no terminal to confirm it: give `--yes`"
        )));
    }
    let mut to_person = io::stderr().lock();
    let mut answer = String::new();
    write!(to_person, "{question}\nGo on? [y/N] ")
        .and_then(|()| to_person.flush())
        .and_then(|()| io::stdin().lock().read_line(&mut answer))
        .map_err(anyhow::Error::from)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(not_confirmed("nothing was done".to_owned())),
    }
}

impl Done {
    fn show(
        &self,
        args: &EnableArgs,
        job: &JobName,
        switch: Switch,
        until: Option<Timestamp>,
    ) -> Result<(), Failure> {
        let how = match switch {
            Switch::Disabled => "disabled",
            Switch::Enabled => "enabled",
        };
        let until = until.map(|until| format!(" until {until}")).unwrap_or_default();
        let mut as_object = match &self.changed {
            Changed::Items(items) => json!({ "changed_items": items }),
            Changed::Servers(servers) => json!({ "changed_server_ips": servers }),
        };
        if let Some(fields) = as_object.as_object_mut().filter(|_| switch == Switch::Disabled) {
            fields.insert("ends_by_itself".to_owned(), self.ends_by_itself.into());
        }
        let shown = printable(job.as_str());
        let lines: Vec<_> = match &self.changed {
            Changed::Items(items) => {
                items.iter().map(|item| format!("{how}  item {item} of {shown}{until}\n")).collect()
            }
            Changed::Servers(servers) => {
                let line = |server: &String| format!("{how}  {} for {shown}{until}\n", printable(server));
                servers.iter().map(line).collect()
            }
        };
        let text = match (args.json, lines.is_empty()) {
            (true, _) => super::json_line(&args.job.named(job, as_object)),
            (false, true) => format!("nothing to do: already {how}{until}\n"),
            (false, false) => lines.concat(),
        };
        print(text.as_bytes())?;
        Ok(())
    }
}
