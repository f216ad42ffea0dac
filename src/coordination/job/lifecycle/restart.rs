//! A sidecar is killed, and its next process starts within the session (P3, P4, P6).
//!
//! The next process resumes the session, and begins with a participant for each instance whose nodes a former process
//! has left: a restored instance. It begins as if its stream had broken (see `stream`): the items that the former
//! process executed count as busy, and nothing starts. The application, which has gone on in the meantime, reattaches
//! and reports its open executions. Executions whose running nodes exist go on; all others were interrupted. If the
//! application does not reattach in time, the instance leaves like any other.
//!
//! No process writes down its executions, so a fire costs no write to disk: running nodes say which items were
//! executed, the application says which executions, and only an execution that both know goes on. The sidecar writes an
//! instance into the state file before it creates the instance's node, so each node of the session is known. The next
//! process leaves the latches of the former one first, because no other process would ever leave them.
//!
//! Decides only how a restored instance goes on. If none of its nodes is found, because there is another session, it
//! becomes an ordinary participant, or ends if its application does not reattach.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::effect::{Effect, EndReason};
use crate::coordination::job::contract::reattach::{Former, Return};
use crate::coordination::job::execution::Executions;
use crate::coordination::job::execution::checkpoint::Checkpoints;
use crate::coordination::job::firing::Firing;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::{Phase, Session, Verdict};
use crate::coordination::job::lifecycle::{Instants, Lifecycle, Restart};
use crate::coordination::job::membership::Membership;
use crate::coordination::job::notices::assignment::Notified;
use crate::coordination::job::rotation::Rotation;
use crate::coordination::lease::Lease;
use crate::extension::ledger_entry::LedgerNodes;
use crate::findings::problem::{Problem, ProblemCode};
use crate::tree::SessionId;

impl Lifecycle {
    /// The state of an instance whose nodes a former process has left.
    pub(crate) fn restored(former: Former) -> Self {
        let restart = Restart { former, found: false, back: None, instants: Instants::Unasked };
        Self { restart: Some(Box::new(restart)), ..Self::default() }
    }

    /// Whether it waits for an application of the former process.
    pub(crate) fn is_restored(&self, cx: &Context) -> bool {
        self.restart.is_some() && cx.phase.is_detached()
    }

    /// Whether the instance may leave in favour of another one with its name: not before its nodes were looked for.
    pub(crate) fn may_release_name(&self) -> bool {
        self.restart.as_ref().is_none_or(|restart| restart.found)
    }

    /// The application has reattached. Returns what it brought if no former process had it.
    pub(super) fn welcome(&mut self, cx: &Context, back: Return) -> Option<Return> {
        match self.restart.as_mut().filter(|_| cx.phase.is_detached()) {
            Some(restart) => {
                restart.back = Some(back);
                None
            }
            None => Some(back),
        }
    }

    /// Whether the application of a detached instance has reattached, and nothing was sent to it yet.
    pub(crate) fn has_come_back(&self, cx: &Context) -> bool {
        match &self.restart {
            Some(restart) => cx.phase.is_detached() && restart.back.is_some(),
            None => cx.phase == Phase::Reattaching,
        }
    }

    /// The application's stream has broken again. Returns whether the instance still waits for it.
    pub(super) fn detach_again(&mut self, cx: &Context) -> bool {
        let restart = self.restart.as_mut().filter(|_| cx.phase.is_detached());
        restart.map(|restart| restart.back = None).is_some()
    }

    /// The session of the former process is lost, and all its nodes with it.
    pub(crate) fn lose_restart(&self, executions: &mut Executions) {
        if self.restart.is_some() {
            for item in executions.held() {
                executions.drop_held(item);
            }
        }
    }

    /// Looks for the nodes of the former process, and goes on when its application reattaches.
    #[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
    pub(crate) fn check_restart(
        &mut self,
        cx: &mut Context,
        lease: &mut Lease,
        agenda: &mut Agenda,
        rotation: &Rotation,
        membership: &mut Membership,
        executions: &mut Executions,
        checkpoints: &mut Checkpoints,
        firing: &mut Firing,
        notified: &mut Notified,
        out: &mut Outbox,
    ) -> Verdict {
        let now = cx.now;
        let (Some(restart), Session::Connected(session)) = (&self.restart, cx.session) else {
            return Verdict::Continue;
        };
        if restart.former.session != session {
            return self.discard(cx, agenda, firing, notified);
        }
        if !cx.view.is_loaded() {
            return Verdict::Continue;
        }
        if !restart.found {
            if !is_left(cx, session) {
                return self.discard(cx, agenda, firing, notified);
            }
            if !cx.monitors() {
                // The starts before this are unknown.
                firing.begin_anew(now.wall, agenda);
            }
            self.take_up(cx, lease, membership, executions, session);
        }
        if self.awaits_instants(cx, out) {
            return Verdict::Continue;
        }
        let back = self.restart.as_mut().and_then(|restart| restart.back.take());
        let over = matches!(cx.phase, Phase::Detached { until } if now.mono >= until);
        if let Some(back) = back {
            return self.go_on(
                cx,
                lease,
                rotation,
                membership,
                executions,
                checkpoints,
                firing,
                notified,
                out,
                back,
            );
        }
        if !over {
            return Verdict::Continue;
        }
        self.restart = None;
        Verdict::Leave(if cx.is_registered() { EndReason::Detached } else { EndReason::Stopped })
    }

    /// Has the ledger read if the application does not report the instants of its executions. Returns whether the read
    /// is in flight.
    fn awaits_instants(&mut self, cx: &Context, out: &mut Outbox) -> bool {
        let Some(restart) = &mut self.restart else { return false };
        let is_without_instant = |back: &Return| back.open.iter().any(|open| open.scheduled.is_none());
        if !cx.monitors() || !restart.back.as_ref().is_some_and(is_without_instant) {
            return false;
        }
        if matches!(restart.instants, Instants::Unasked) {
            restart.instants = Instants::Asked;
            out.push(Effect::ReadLedger);
        }
        matches!(restart.instants, Instants::Asked)
    }

    /// The ledger was read, perhaps for a restored instance.
    pub(crate) fn instants_read(&mut self, read: &Result<LedgerNodes, String>) {
        let Some(restart) = &mut self.restart else { return };
        if matches!(restart.instants, Instants::Asked) {
            // After a failed read the instance goes on without the ledger: the application has waited for long.
            let entries = read.iter().flat_map(|read| &read.entries);
            let started = entries.filter_map(|(item, node)| Some((*item, node.entry.started?)));
            restart.instants = Instants::Read(started.collect());
        }
    }

    /// Looks for the nodes of the former process though its application does not reattach: this instance removes them
    /// when it leaves. Returns, if there are some, until when (monotonic) the application may still execute their
    /// items.
    pub(super) fn take_up_to_leave(
        &mut self,
        cx: &mut Context,
        lease: &Lease,
        membership: &mut Membership,
        executions: &mut Executions,
    ) -> Option<Duration> {
        let (Some(restart), Session::Connected(session)) = (&self.restart, cx.session) else {
            return None;
        };
        let unseen = restart.former.session == session && !restart.found;
        let timeout = restart.former.timeout;
        if !unseen || !cx.view.is_loaded() || !is_left(cx, session) {
            return None;
        }
        self.hold_executions(cx, membership, executions, session);
        Some(goes_on_until(cx, lease, timeout))
    }

    /// The instance's node exists: this participant owns it, and its executions count as busy.
    fn take_up(
        &mut self,
        cx: &mut Context,
        lease: &Lease,
        membership: &mut Membership,
        executions: &mut Executions,
        session: SessionId,
    ) {
        let Some(restart) = &self.restart else { return };
        let timeout = restart.former.timeout;
        self.hold_executions(cx, membership, executions, session);
        let until = goes_on_until(cx, lease, timeout);
        cx.unattended = Some(until);
        cx.phase = Phase::Detached { until };
    }

    /// This participant owns the nodes of the instance.
    fn hold_executions(
        &mut self,
        cx: &mut Context,
        membership: &mut Membership,
        executions: &mut Executions,
        session: SessionId,
    ) {
        let Some(restart) = &mut self.restart else { return };
        restart.found = true;
        cx.registered = Some(session);
        membership.resumed(session);
        cx.name_taken = false;
        self.seen = true;
        for item in cx.view.running_of(&cx.identity.instance).collect::<Vec<_>>() {
            executions.hold(item, cx.now);
        }
    }

    /// The application has reattached: its open executions go on.
    #[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
    fn go_on(
        &mut self,
        cx: &mut Context,
        lease: &mut Lease,
        rotation: &Rotation,
        membership: &mut Membership,
        executions: &mut Executions,
        checkpoints: &mut Checkpoints,
        firing: &mut Firing,
        notified: &mut Notified,
        out: &mut Outbox,
        back: Return,
    ) -> Verdict {
        let instants = match self.restart.take().map(|restart| restart.instants) {
            Some(Instants::Read(instants)) => instants,
            Some(Instants::Unasked | Instants::Asked) | None => BTreeMap::new(),
        };
        cx.unattended = None;
        cx.request = back.request;
        // The application may know a configuration that cannot be read in the registry.
        if let Some(change) = cx.compile_settings() {
            firing.reschedule(cx, change);
        }
        if cx.objection().is_some() || membership.configuration_to_write(cx).is_some() {
            // Another application than that of the former process: it attaches anew.
            return Verdict::Disconnect(EndReason::Detached);
        }
        membership.configuration_was_written();
        if !cx.grace().is_zero() {
            for open in back.open {
                executions.restore(cx, rotation, open, &instants);
            }
        }
        for item in executions.held() {
            // As after a crash: the item fails over, or its running node is removed.
            executions.drop_held(item);
            let message = "the former process of this sidecar has begun to execute the item, and the application does \
                           not; the execution counts as interrupted";
            let path = cx.identity.paths.item_running(item);
            out.push(Effect::Warn(Problem {
                path,
                message: message.to_owned(),
                code: ProblemCode::ItemInterrupted,
            }));
        }
        checkpoints.restore(executions.iter().map(|(item, _)| item));
        cx.phase = Phase::Active;
        notify_anew(cx, lease, notified);
        Verdict::Continue
    }

    /// No node was found: begins as any other instance, if the application has reattached.
    fn discard(
        &mut self,
        cx: &mut Context,
        agenda: &mut Agenda,
        firing: &mut Firing,
        notified: &mut Notified,
    ) -> Verdict {
        match self.restart.take().map(|restart| restart.back) {
            Some(Some(back)) => {
                cx.request = back.request;
                firing.begin_anew(cx.now.wall, agenda);
                cx.assigned.renew();
                notified.renew();
                cx.phase = Phase::Joining;
                Verdict::Continue
            }
            Some(None) => Verdict::Leave(EndReason::Detached),
            None => Verdict::Continue,
        }
    }
}

/// The application has another stream: everything is sent again.
pub(crate) fn notify_anew(cx: &mut Context, lease: &mut Lease, notified: &mut Notified) {
    cx.assigned.renew();
    notified.renew();
    lease.notify_again();
}

/// Whether the former process has left nodes in this session.
fn is_left(cx: &Context, session: SessionId) -> bool {
    let me = &cx.identity.instance;
    match cx.view.instances().get(me) {
        Some(ours) => ours.session == Some(session),
        // After an operator's stop the instance may still execute items.
        None => cx.view.running_of(me).next().is_some(),
    }
}

/// Until when (monotonic) an application of the former process goes on.
fn goes_on_until(cx: &Context, lease: &Lease, timeout: Duration) -> Duration {
    let now = cx.now;
    // Without a message of the former process the application has stopped when its lease is over.
    let lease = lease.remaining(now.mono).unwrap_or(timeout);
    // If the job's configuration cannot be read, `reattach_grace` is not known.
    let grace = cx.settings.as_ref().map_or(lease, |_| cx.grace().min(lease));
    now.mono.saturating_add(grace)
}
