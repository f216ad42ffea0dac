//! `jobs --watch`: the jobs of the namespace, and each change of them. Decides which rows a person sees again after a new connection: those that
//! have changed meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use super::endpoint::{Sidecar, authorized};
use super::follow::{Broken, End, broken, follow, next, show, until_interrupted};
use super::jobs::{self, Columns, HEAD, JobsArgs, MESSAGE_LIMIT, summary_in_json, summary_row};
use super::{Failure, json_line};
use crate::proto::job_service_client::JobServiceClient;
use crate::proto::watch_jobs_response::Event;
use crate::proto::{JobSummary, JobsSynced, WatchJobsRequest};
use crate::runner::clock::Clock;

#[derive(Args)]
pub(super) struct ListArgs {
    /// With `--watch`: only jobs with these names, in which `*` stands for any characters.
    #[arg(value_name = "NAME", requires = "watch")]
    names: Vec<String>,
    /// Go on with each change, until interrupted; with `--json` an object a line. Needs a sidecar.
    #[arg(long, conflicts_with = "zookeeper")]
    watch: bool,
    #[command(flatten)]
    common: JobsArgs,
}

/// Lists the jobs, or follows those with these names.
pub(super) async fn jobs(args: ListArgs) -> Result<ExitCode, Failure> {
    let ListArgs { names, watch, common } = args;
    if !watch {
        return jobs::jobs(common).await;
    }
    let sidecar = common.sidecar.sidecar()?;
    let request = WatchJobsRequest { job_names: names };
    let mut shown = Shown { json: common.json, ..Shown::default() };
    let attempt = async |progress: &mut bool| follow_once(&sidecar, &request, &mut shown, progress).await;
    until_interrupted(follow(false, attempt)).await
}

async fn follow_once(
    sidecar: &Sidecar,
    request: &WatchJobsRequest,
    shown: &mut Shown,
    progress: &mut bool,
) -> Result<Infallible, Broken> {
    let channel = sidecar.connect().await.map_err(|error| Broken::Retry(format!("{error:#}")))?;
    let mut client = JobServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let request = authorized(request.clone()).map_err(|error| Broken::End(End::Failed(error)))?;
    let mut changes = client.watch_jobs(request).await.map_err(broken)?.into_inner();
    shown.round = Some(BTreeSet::new());
    loop {
        let Some(event) = next(&mut changes).await?.event else { continue };
        *progress = true;
        let text = shown.text(event, Clock::start().now().wall);
        if !text.is_empty() {
            show(text).await.map_err(Broken::End)?;
        }
    }
}

/// The jobs that were printed.
#[derive(Default)]
struct Shown {
    json: bool,
    jobs: BTreeMap<String, JobSummary>,
    /// The jobs of this connection's first round. `None`: it is complete.
    round: Option<BTreeSet<String>>,
    columns: Columns,
    has_head: bool,
}

impl Shown {
    /// The text for a change.
    fn text(&mut self, event: Event, now: Timestamp) -> String {
        if self.json {
            return json_line(&match &event {
                Event::Job(summary) => json!({ "job": summary_in_json(summary) }),
                Event::RemovedJobName(job) => json!({ "removed_job_name": job }),
                Event::Synced(JobsSynced {}) => json!({ "synced": {} }),
            });
        }
        match event {
            Event::Job(summary) => {
                let name = summary.job_name.clone();
                if let Some(round) = &mut self.round {
                    round.insert(name.clone());
                }
                let is_new = self.jobs.get(&name) != Some(&summary);
                self.jobs.insert(name, summary.clone());
                // The first table is printed as a whole, so that its columns fit.
                if !self.has_head || !is_new {
                    return String::new();
                }
                self.columns.lines(std::iter::once(row(now, summary_row(&summary))))
            }
            Event::RemovedJobName(job) => self.removed(&[job], now),
            Event::Synced(JobsSynced {}) => {
                let round = self.round.take().unwrap_or_default();
                let gone: Vec<_> = self.jobs.keys().filter(|job| !round.contains(*job)).cloned().collect();
                if self.has_head {
                    return self.removed(&gone, now);
                }
                self.has_head = true;
                self.jobs.retain(|job, _| round.contains(job));
                let head = std::iter::once("time").chain(HEAD).map(str::to_owned).collect();
                let rows = self.jobs.values().map(|summary| row(now, summary_row(summary)));
                self.columns.lines(std::iter::once(head).chain(rows))
            }
        }
    }

    fn removed(&mut self, gone: &[String], now: Timestamp) -> String {
        for job in gone {
            self.jobs.remove(job);
        }
        let rows = gone.iter().map(|job| row(now, vec![job.clone(), "removed".to_owned()]));
        self.columns.lines(rows)
    }
}

fn row(now: Timestamp, cells: Vec<String>) -> Vec<String> {
    std::iter::once(format!("{now:.0}")).chain(cells).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::JobState;

    fn job(name: &str, instances: u32) -> Event {
        let state = if instances == 0 { JobState::NoInstances } else { JobState::Ok };
        Event::Job(JobSummary {
            job_name: name.to_owned(),
            state: state.into(),
            sharding_total_count: 6,
            instance_count: instances,
            ..JobSummary::default()
        })
    }

    fn told(shown: &mut Shown, events: Vec<Event>) -> String {
        events.into_iter().map(|event| shown.text(event, Timestamp::UNIX_EPOCH)).collect()
    }

    #[test]
    fn a_person_sees_all_jobs_once_and_then_only_changes_also_after_a_new_connection() {
        let mut shown = Shown { round: Some(BTreeSet::new()), ..Shown::default() };
        let synced = || Event::Synced(JobsSynced {});
        expect_test::expect![[r"
            time                  job         state         items  instances  cron  description
            1970-01-01T00:00:00Z  invoices    ok            6      2
            1970-01-01T00:00:00Z  settlement  no instances  6      0
        "]]
        .assert_eq(&told(&mut shown, vec![job("settlement", 0), job("invoices", 2), synced()]));
        let removed = Event::RemovedJobName("settlement\u{1b}[2J".to_owned());
        expect_test::expect![[r"
            1970-01-01T00:00:00Z  invoices    no instances  6      0
            1970-01-01T00:00:00Z  settlement\u{1b}[2J  removed
        "]]
        .assert_eq(&told(&mut shown, vec![job("invoices", 0), removed]));
        // A new connection tells all jobs again; one that was removed meanwhile is missing.
        shown.round = Some(BTreeSet::new());
        expect_test::expect![[r"
            1970-01-01T00:00:00Z  refunds              ok            6      1
            1970-01-01T00:00:00Z  settlement           removed
        "]]
        .assert_eq(&told(&mut shown, vec![job("invoices", 0), job("refunds", 1), synced()]));
    }

    #[test]
    fn each_message_is_a_line_of_json() {
        let mut shown = Shown { json: true, round: Some(BTreeSet::new()), ..Shown::default() };
        let events = vec![
            job("invoices", 2),
            Event::Synced(JobsSynced {}),
            Event::RemovedJobName("invoices".to_owned()),
        ];
        let text = told(&mut shown, events);
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["job"]["state"], "JOB_STATE_OK");
        assert_eq!(lines[1..], [json!({ "synced": {} }), json!({ "removed_job_name": "invoices" })]);
    }
}
