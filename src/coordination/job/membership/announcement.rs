//! The profile of the instance for the other sidecars: written at registration, and again when the instance is about to
//! leave, is detached, or is back.

use std::time::Duration;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::EndReason;
use crate::coordination::job::contract::profile::Profile;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::{Phase, Session};
use crate::coordination::job::membership::instance_name::Names;
use crate::mutants::mutant;
use crate::tree::{NodeKind, Operation, SessionId, Transaction};

/// How long we wait to see what we have said; before the others take us for one that is silent. What somebody deleted in
/// the meantime is not seen at all.
const WORD_SEEN: Duration = Duration::from_millis(500);
/// How long a departing instance waits for others to take its items. They are given to somebody in any case.
const DEPARTURE_MAX: Duration = Duration::from_secs(5);

/// The announcements, and since when.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Announcement {
    leaving_since: Option<Duration>,
    /// What was known of the fleet when we registered, which says what we can; and when that was.
    said: Option<(u64, Duration)>,
}

impl Announcement {
    /// Our profile is written; the fleet's view does not show it yet.
    pub(in crate::coordination) fn registered(&mut self, cx: &Context) {
        self.said = Some((cx.fleet.revision(), cx.now.mono));
    }

    /// Whether a departure may still wait until others have our items.
    pub(in crate::coordination) fn waits(&self, now: Duration) -> bool {
        self.leaving_since.is_some_and(|since| now < since.saturating_add(DEPARTURE_MAX))
    }

    /// When a departure waits no longer, or the view should show our profile.
    pub(in crate::coordination) fn next_retry(&self, now: Duration) -> Option<Duration> {
        let departure = self.leaving_since.map(|since| since.saturating_add(DEPARTURE_MAX));
        let word = self.said.map(|(_, since)| since.saturating_add(WORD_SEEN));
        [word, departure].into_iter().flatten().filter(|at| *at > now).min()
    }

    /// Announces that the instance is about to leave, is detached or is back; and writes its profile again if that is gone.
    pub(in crate::coordination) fn announce(&mut self, cx: &Context, names: &Names, out: &mut Outbox) {
        let now = cx.now;
        let Session::Connected(session) = cx.session else { return };
        let leaving =
            matches!(cx.phase, Phase::Draining { reason: EndReason::Drained, .. }) && !names.keeps_items(cx);
        if leaving {
            self.leaving_since.get_or_insert(now.mono);
        }
        if !cx.is_registered() || !cx.fleet.is_loaded() || matches!(cx.phase, Phase::Leaving(_)) {
            return;
        }
        let away = matches!(cx.phase, Phase::Away { until: Some(_) });
        let profile = Profile { leaving, away, ..cx.request.profile.clone() };
        let path = cx.identity.paths.fleet().member(&cx.identity.instance);
        let data = profile.write();
        let is_on_its_way = |(revision, since): (u64, Duration)| {
            revision == cx.fleet.revision() && now.mono < since.saturating_add(WORD_SEEN)
        };
        let mut transaction = Transaction::new();
        match cx.fleet.member(&cx.identity.instance) {
            Some(known) if known.session == Some(session) && known.profile == profile => return,
            Some(known) if known.session == Some(session) => {
                let version = Some(known.version);
                transaction.push(Operation::Set { path, data: data.as_bytes().into(), version });
            }
            None if self.said.is_some_and(is_on_its_way) => return,
            known => {
                transaction.extend(known.map(|_| Operation::delete(path.clone())));
                transaction.push(Operation::create(path, NodeKind::Ephemeral, data));
            }
        }
        if out.may_commit(cx, Purpose::Announce) {
            out.commit(Purpose::Announce, transaction);
        }
    }
}

/// The steps that write our profile, as a part of our registration.
pub(in crate::coordination) fn first_word(cx: &Context) -> Transaction {
    let me = &cx.identity.instance;
    let path = cx.identity.paths.fleet().member(me);
    let left = cx.fleet.member(me).map(|_| Operation::delete(path.clone()));
    let say = Operation::create(path, NodeKind::Ephemeral, cx.request.profile.write());
    left.into_iter().chain([say]).collect()
}

/// The steps that take our profile and our plan back.
pub(in crate::coordination) fn fall_silent(cx: &Context) -> Transaction {
    let member = cx.fleet.member(&cx.identity.instance);
    let member = member.filter(|member| is_in_our_session(cx, member.session) && !mutant!(MemberLeft));
    let path = cx.identity.paths.fleet().member(&cx.identity.instance);
    member.map(|_| Operation::delete(path)).into_iter().chain(withdraw_plan(cx)).collect()
}

/// The step that takes back the plan of a leader that leads no more.
pub(in crate::coordination) fn withdraw_plan(cx: &Context) -> Option<Operation> {
    let plan = cx.fleet.plan().filter(|plan| is_in_our_session(cx, plan.session));
    plan.map(|_| Operation::delete(cx.identity.paths.fleet().handoff()))
}

fn is_in_our_session(cx: &Context, session: Option<SessionId>) -> bool {
    matches!(cx.session, Session::Connected(ours) if session == Some(ours))
}
