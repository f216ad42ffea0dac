//! The profile of the instance for the other sidecars: written at registration, and again when the instance is about to
//! leave, is detached, or has reattached.

use std::time::Duration;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::EndReason;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::{Phase, Session};
use crate::coordination::job::membership::instance_name::Names;
use crate::extension::profile::Profile;
use crate::mutants::mutant;
use crate::tree::{NodeKind, Operation, SessionId, Transaction};

/// How long this instance waits for the view to show its profile, before it writes it again; the other instances wait
/// longer before they take it for silent. The view does not show at all that an operator deleted the profile in the
/// meantime.
const PROFILE_SEEN: Duration = Duration::from_millis(500);
/// How long a departing instance waits until its items are handed over. After that the leader assigns them by a
/// resharding.
const DEPARTURE_MAX: Duration = Duration::from_secs(5);

/// The start of the wait of each announcement.
#[derive(Debug, Default)]
pub(crate) struct Announcement {
    leaving_since: Option<Duration>,
    /// The fleet's revision at the registration, which wrote the profile; and the time.
    published: Option<(u64, Duration)>,
}

impl Announcement {
    /// The profile is written; the fleet's view does not show it yet.
    pub(crate) fn registered(&mut self, cx: &Context) {
        self.published = Some((cx.fleet.revision(), cx.now.mono));
    }

    /// Whether a departure may still wait until the items are handed over.
    pub(crate) fn waits(&self, now: Duration) -> bool {
        self.leaving_since.is_some_and(|since| now < since.saturating_add(DEPARTURE_MAX))
    }

    /// When a departure waits no longer, or the view should show the profile.
    pub(crate) fn next_retry(&self, now: Duration) -> Option<Duration> {
        let departure = self.leaving_since.map(|since| since.saturating_add(DEPARTURE_MAX));
        let seen = self.published.map(|(_, since)| since.saturating_add(PROFILE_SEEN));
        [seen, departure].into_iter().flatten().filter(|at| *at > now).min()
    }

    /// Announces that the instance is about to leave, is detached or has reattached; and writes its profile again if it
    /// was deleted.
    pub(crate) fn announce(&mut self, cx: &Context, names: &Names, out: &mut Outbox) {
        let now = cx.now;
        let Session::Connected(session) = cx.session else { return };
        let drained = matches!(cx.phase, Phase::Draining { reason: EndReason::Drained, .. });
        let leaving = (drained || cx.phase.is_application_stopping()) && !names.keeps_items(cx);
        if leaving {
            self.leaving_since.get_or_insert(now.mono);
        }
        if !cx.is_registered() || !cx.fleet.is_loaded() || matches!(cx.phase, Phase::Leaving(_)) {
            return;
        }
        let detached = matches!(cx.phase, Phase::Detached { .. });
        let profile = Profile { leaving, detached, ..cx.request.profile.clone() };
        let known = cx.fleet.member(&cx.identity.instance);
        let is_ours = known.is_some_and(|known| known.session == Some(session));
        let is_on_its_way = |(revision, since): (u64, Duration)| {
            revision == cx.fleet.revision() && now.mono < since.saturating_add(PROFILE_SEEN)
        };
        let is_done = match known {
            Some(known) => is_ours && known.profile == profile,
            None => self.published.is_some_and(is_on_its_way),
        };
        if is_done {
            return;
        }
        let path = cx.identity.own_paths.fleet().member(&cx.identity.instance);
        let data = profile.write();
        let transaction = match known {
            Some(known) if is_ours => {
                vec![Operation::Set { path, data: data.as_bytes().into(), version: Some(known.version) }]
            }
            known => {
                let left = known.map(|_| Operation::delete(path.clone()));
                left.into_iter().chain([Operation::create(path, NodeKind::Ephemeral, data)]).collect()
            }
        };
        if out.may_commit(cx, Purpose::Announce) {
            out.commit(Purpose::Announce, transaction);
        }
    }
}

/// The steps that write the profile, as a part of the registration.
pub(crate) fn first_announcement(cx: &Context) -> Transaction {
    let me = &cx.identity.instance;
    let path = cx.identity.own_paths.fleet().member(me);
    let left = cx.fleet.member(me).map(|_| Operation::delete(path.clone()));
    let say = Operation::create(path, NodeKind::Ephemeral, cx.request.profile.write());
    left.into_iter().chain([say]).collect()
}

/// The steps that remove this instance's profile and plan.
pub(crate) fn withdraw_profile(cx: &Context) -> Transaction {
    let member = cx.fleet.member(&cx.identity.instance);
    let member = member.filter(|member| is_in_our_session(cx, member.session) && !mutant!(MemberLeft));
    let path = cx.identity.own_paths.fleet().member(&cx.identity.instance);
    member.map(|_| Operation::delete(path)).into_iter().chain(withdraw_plan(cx)).collect()
}

/// The step that removes the plan of a former leader.
pub(crate) fn withdraw_plan(cx: &Context) -> Option<Operation> {
    let plan = cx.fleet.plan().filter(|plan| is_in_our_session(cx, plan.session));
    plan.map(|_| Operation::delete(cx.identity.own_paths.fleet().handoff()))
}

fn is_in_our_session(cx: &Context, session: Option<SessionId>) -> bool {
    matches!(cx.session, Session::Connected(ours) if session == Some(ours))
}
