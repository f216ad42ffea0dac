//! The state of the sidecar and of its jobs at the moment of a scrape. Reads only the memory of the sidecar: no request to the
//! registry, no watch. Decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::admin::explain::Evidence;
use crate::coordination::job::picture::Picture;
use crate::credential_file::CertificateEnds;
use crate::elasticjob::path::JobPaths;
use crate::findings::{Finding, Severity};
use crate::job::{InstanceId, JobName};
use crate::metrics::meters::Format;
use crate::metrics::process::ProcessState;
use crate::metrics::state::{FleetState, JobState, SessionState, State};
use crate::metrics::words::{self, CertificateUse, InstanceKind, ItemState, Job, Level};
use crate::registry;
use crate::runner::attachments::registry::Attachments;
use crate::runner::heartbeat::Heartbeat;
use crate::runner::shared::Shared;
use crate::telemetry;
use crate::tree::SessionId;

/// The state now.
pub fn read(attachments: &Attachments, heartbeat: &Heartbeat) -> State {
    let shared = attachments.shared();
    let now = shared.clock.now();
    let session = shared.current.borrow().clone();
    let id = session.as_ref().map(|session| session.id());
    let named = shared.meters.jobs();
    let (count, jobs) = attachments.count_jobs();
    let session = session.map(|session| {
        let proof = shared.lease.proof.borrow().filter(|proof| proof.session == session.id());
        SessionState {
            is_connected: *session.state().borrow() == registry::SessionState::Connected,
            lease: proof.map(|proof| proof.until.saturating_sub(now.mono)),
            timeout: Some(session.timeout()).filter(|timeout| *timeout < Duration::MAX),
        }
    });
    State {
        version: env!("CARGO_PKG_VERSION"),
        session,
        attachments: count,
        jobs_without_label: jobs.saturating_sub(named.len()),
        runtime_stall: heartbeat.longest_delay(),
        certificates: certificates(&shared.certificates),
        spans_dropped: telemetry::spans_dropped(),
        process: ProcessState::read(),
        jobs: named
            .into_iter()
            .map(|(job, last_fire)| {
                let own = attachments.instances_of(&job);
                (Job(job.as_str().into()), of_job(shared, &job, id, &own, last_fire, now.wall))
            })
            .collect(),
    }
}

fn certificates(ends: &CertificateEnds) -> BTreeMap<CertificateUse, f64> {
    let ends = [(CertificateUse::Listener, &ends.listener), (CertificateUse::Registry, &ends.registry)];
    ends.into_iter().filter_map(|(r#use, end)| Some((r#use, unix_seconds(end.get()?)))).collect()
}

/// A time in seconds of the Unix time.
fn unix_seconds(at: Timestamp) -> f64 {
    Duration::try_from(at.duration_since(Timestamp::UNIX_EPOCH)).unwrap_or_default().as_secs_f64()
}

/// The metrics now, as Prometheus gets them. May take a while: megabytes of text.
pub fn render(
    format: Format,
    attachments: &Attachments,
    heartbeat: &Heartbeat,
) -> Result<String, fmt::Error> {
    let shared = attachments.shared();
    let (warnings, errors) = telemetry::lines();
    let lines = [(Level::Warn, warnings), (Level::Error, errors)];
    shared.meters.render(format, read(attachments, heartbeat), lines, shared.clock.now().mono)
}

fn of_job(
    shared: &Shared,
    job: &JobName,
    session: Option<SessionId>,
    own: &BTreeSet<InstanceId>,
    last_fire: Option<u64>,
    now: Timestamp,
) -> JobState {
    let last_fire = last_fire.map(|at| Duration::from_millis(at).as_secs_f64());
    let Some(picture) = session.and_then(|session| shared.feeds.peek(job, session)) else {
        return JobState { last_fire, ..JobState::default() };
    };
    let paths = JobPaths::new(&shared.namespace, job);
    let mut evidence = Evidence::of(&paths, picture.clone(), now);
    shared.outcomes.add_to(job, &mut evidence.status);
    shared.lock_waits.add_to(job, &mut evidence.status);
    let next_fire = evidence.status.next_fire;
    let period = next_fire.and_then(|next| {
        let after = evidence.fire_after(next)?;
        Duration::try_from(after.duration_since(next)).ok()
    });
    JobState {
        next_fire: next_fire.map(unix_seconds),
        last_fire,
        period,
        fleet: Some(of_fleet(&picture, &evidence, own)),
    }
}

fn of_fleet(picture: &Picture, evidence: &Evidence, own: &BTreeSet<InstanceId>) -> FleetState {
    let status = &evidence.status;
    let online = picture.nodes.instances();
    let total = status.configuration.as_ref().map_or(0, |configuration| configuration.sharding_total_count);
    let mut items = BTreeMap::<ItemState, usize>::new();
    let mut owned = 0_usize;
    let mut items_owned = 0;
    for item in status.items.iter().filter(|item| item.item.0 < total) {
        let owner = item.owner.as_ref().map(|(owner, _)| owner).filter(|owner| online.contains_key(*owner));
        owned += usize::from(owner.is_some());
        items_owned += usize::from(owner.is_some_and(|owner| own.contains(owner)));
        let states = [
            (ItemState::Disabled, item.disabled),
            (ItemState::Running, item.running),
            (ItemState::Misfired, item.misfire),
            (ItemState::Moving, item.next.is_some()),
        ];
        for (state, _) in states.into_iter().filter(|(_, is_so)| *is_so) {
            *items.entry(state).or_default() += 1;
        }
    }
    items.insert(ItemState::Owned, owned);
    // An item without any node has no owner.
    items.insert(ItemState::Unowned, usize::try_from(total).unwrap_or(usize::MAX).saturating_sub(owned));
    let java = online.keys().filter(|instance| instance.is_java()).count();
    let explanation = evidence.explain(&BTreeSet::new());
    let mut findings = BTreeMap::<_, usize>::new();
    let found = explanation.findings.iter().chain(explanation.items.iter().flat_map(|item| &item.because));
    for Finding { cause, .. } in found {
        *findings.entry((cause.code(), severity(cause.severity()))).or_default() += 1;
    }
    FleetState {
        items,
        instances: [(InstanceKind::Java, java), (InstanceKind::Sidecar, online.len().saturating_sub(java))]
            .into(),
        has_leader: explanation.leader.is_some(),
        is_resharding: status.resharding,
        items_owned,
        leads: explanation.leader.is_some_and(|leader| own.contains(&leader)),
        findings,
    }
}

fn severity(severity: Severity) -> words::Severity {
    match severity {
        Severity::Info => words::Severity::Info,
        Severity::Warning => words::Severity::Warning,
        Severity::Error => words::Severity::Error,
    }
}
