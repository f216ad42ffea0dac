//! Is this instance registered, which instance leads, which instances are offline, which servers are of nobody any more, and
//! is this machine's clock right?
//!
//! This file has the interface of the room; each question has a file of its own.

pub(crate) mod announcement;
mod clock_skew;
pub(super) mod instance_name;
pub mod leadership;
pub(crate) mod liveness;
mod registration;
mod stale_servers;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::EndReason;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Verdict;
use crate::coordination::job::membership::announcement::Announcement;
use crate::coordination::job::membership::clock_skew::ClockSkew;
use crate::coordination::job::membership::instance_name::Names;
use crate::coordination::job::membership::leadership::Election;
use crate::coordination::job::membership::liveness::Liveness;
use crate::coordination::job::membership::registration::Registration;
use crate::coordination::job::membership::stale_servers::StaleServers;
use crate::findings::problem::Problem;
use crate::job::{Item, JobConfiguration};
use crate::tree::{CommitError, Operation, OperationResult, SessionId};

/// The registration, the profile and the name of this instance, and the known state of the others.
#[derive(Debug, Default)]
pub(crate) struct Membership {
    registration: Registration,
    names: Names,
    announcement: Announcement,
    election: Election,
    liveness: Liveness,
    clock: ClockSkew,
    stale_servers: StaleServers,
}

impl Membership {
    pub(crate) fn register(&mut self, cx: &Context, out: &mut Outbox) -> Verdict {
        self.registration.register(cx, &mut self.names, out)
    }

    /// This instance is registered.
    pub(crate) fn registered(&mut self, cx: &Context, session: SessionId) {
        self.names.registered(session);
        self.announcement.registered(cx);
        self.registration.was_written();
    }

    /// The nodes of a former process in this session belong to this instance.
    pub(crate) fn resumed(&mut self, session: SessionId) {
        self.names.registered(session);
        self.registration.resumed();
    }

    /// The configuration that this instance has to write, if any.
    pub(crate) fn configuration_to_write(&self, cx: &Context) -> Option<Arc<JobConfiguration>> {
        self.registration.configuration_to_write(cx)
    }

    /// The configuration is in the registry.
    pub(crate) fn configuration_was_written(&mut self) {
        self.registration.was_written();
    }

    /// Whether another session has this instance's name.
    pub(crate) fn is_name_taken(&self) -> bool {
        self.names.is_taken()
    }

    /// The application leaves for good: its items are not reserved.
    pub(crate) fn leaves_for_good(&mut self) {
        self.names.leaves_for_good();
    }

    /// The step that removes the name's node, if its items are not to be reserved.
    pub(crate) fn give_up_name(&self, cx: &Context, reason: &EndReason) -> Option<Operation> {
        self.names.give_up_name(cx, reason)
    }

    /// Renews the items that the name owned before this instance had it.
    pub(crate) fn renew_items(&mut self, cx: &Context, out: &mut Outbox, is_given: impl Fn(Item) -> bool) {
        self.names.renew_items(cx, out, is_given);
    }

    /// Since when the name has owned an item, if it did before this instance had the name, and the item's missed fires
    /// are not known yet.
    pub(crate) fn returned(&self, item: Item) -> Option<Timestamp> {
        self.names.returned(item)
    }

    /// The missed fires of the item are known.
    pub(crate) fn caught_up(&mut self, item: Item) {
        self.names.caught_up(item);
    }

    pub(crate) fn announce(&mut self, cx: &Context, out: &mut Outbox) {
        self.announcement.announce(cx, &self.names, out);
    }

    /// Whether an announcement waits for a pause to end.
    pub(crate) fn is_announcement_waiting(&self, now: Duration) -> bool {
        self.announcement.waits(now)
    }

    pub(crate) fn elect(&mut self, cx: &Context, out: &mut Outbox) {
        self.election.elect(cx, out);
    }

    /// This instance's candidature has ended.
    pub(crate) fn elected(&mut self, now: Duration, well: bool) {
        self.election.ended(now, well);
    }

    pub(crate) fn is_standing(&self) -> bool {
        self.election.is_standing()
    }

    pub(crate) fn update_liveness(
        &mut self,
        cx: &Context,
        has_open: impl Fn(Item) -> bool,
        out: &mut Outbox,
    ) {
        self.liveness.update_liveness(cx, has_open, out);
    }

    /// The leader removes servers without instances, if the job asks for it.
    pub(crate) fn remove_stale_servers(&mut self, cx: &Context, out: &mut Outbox) {
        self.stale_servers.remove_stale(cx, out);
    }

    pub(crate) fn was_read(&mut self) {
        self.liveness.was_read();
    }

    /// The instances that are offline.
    pub(crate) fn liveness(&self) -> &Liveness {
        &self.liveness
    }

    /// Compares this clock with the registry's. `opened`: how many executions this instance has opened so far.
    pub(crate) fn check_clock(&mut self, cx: &Context, opened: u64, out: &mut Outbox) {
        self.clock.check_clock(cx, opened, out);
    }

    /// The session is lost. This instance keeps its name for the next registration.
    pub(crate) fn lose_session(&mut self) {
        self.election = Election::default();
        self.liveness = Liveness::default();
        self.announcement = Announcement::default();
        self.clock.forget();
        self.stale_servers = StaleServers::default();
    }

    /// A transaction of this room has succeeded.
    pub(crate) fn committed(
        &mut self,
        cx: &Context,
        purpose: Purpose,
        opened: u64,
        results: &[OperationResult],
    ) {
        if purpose == Purpose::CheckClock {
            self.clock.clock_checked(cx, opened, results);
        }
    }

    /// A transaction of this room has failed.
    pub(crate) fn failed(&mut self, cx: &Context, purpose: Purpose, opened: u64, error: &CommitError) {
        if purpose == Purpose::CheckClock {
            self.clock.clock_check_failed(cx, opened, error);
        }
        if purpose == Purpose::Register && error.index.is_some() {
            self.registration.refused();
        }
    }

    /// The next times of this room; monotonic.
    pub(crate) fn waits(&self, now: Duration) -> impl Iterator<Item = Duration> {
        let names = self.names.next_retry(now).into_iter().chain(self.announcement.next_retry(now));
        let names = names.chain(self.election.next_retry(now)).chain(self.liveness.next_retry(now));
        names.chain(self.stale_servers.next_retry(now))
    }

    pub(crate) fn problems(&self, cx: &Context) -> impl Iterator<Item = Problem> {
        self.election.problem(&cx.identity.paths).into_iter().chain(self.clock.clock_problem(cx))
    }
}
