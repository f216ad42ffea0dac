//! What if the sidecar itself was killed, and its next process is back within the session? (P3, P4, P6.)
//!
//! An heir is the participant of an instance whose nodes a former process has left. It begins as one that is away (see
//! `grace`): what the former process executed counts as busy, and nothing starts. The application, which has
//! gone on meanwhile, comes back and says which executions it has open; those whose running nodes are there are its
//! own again, all others have been interrupted. If it does not come back in time, the instance leaves as any other.
//!
//! Decides only what becomes of the heritage. An heir that finds none, because the session is another one, becomes an
//! ordinary participant, or ends if nobody wants it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::effect::{Effect, EndReason};
use crate::coordination::job::contract::event::{CancelReason, Execute};
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::contract::reattach::{Former, OpenExecution, Return};
use crate::coordination::job::contract::records::LedgerNode;
use crate::coordination::job::contract::request::Request;
use crate::coordination::job::execution::limit::Limit;
use crate::coordination::job::execution::state::{Executions, item_of};
use crate::coordination::job::firing::misfire::Misfires;
use crate::coordination::job::firing::schedule::Fires;
use crate::coordination::job::frame::context::Identity;
use crate::coordination::job::frame::phase::{Phase, Session};
use crate::coordination::job::participant::Participant;
use crate::coordination::job::rotation::Turn;
use crate::coordination::time::Now;
use crate::elasticjob::task_id;
use crate::job::{Item, Problem};
use crate::tree::SessionId;

/// What is known of the former life, as long as it is not known what becomes of it.
#[derive(Debug)]
pub(in crate::coordination) struct Heritage {
    former: Former,
    /// Whether the instance's nodes were found.
    found: bool,
    /// The application is back, and has not been told anything yet.
    back: Option<Return>,
    /// For which instants the ledger says that items were started, if the application does not say so.
    instants: Instants,
}

/// What the ledger says to an heir.
#[derive(Debug)]
enum Instants {
    /// Nobody has asked.
    Unasked,
    /// It is being read.
    Asked,
    /// It was read; or it cannot be, and the items have none.
    Read(BTreeMap<Item, Timestamp>),
}

impl Executions {
    /// Counts what the former process executed as busy, until the application says what it is.
    fn hold(&mut self, item: Item, now: Now) {
        self.open(item, Planned::new(Source::Schedule, now.wall), Limit::default());
    }

    /// The items of which nobody has said what is executed.
    fn held(&self) -> Vec<Item> {
        self.open.iter().filter(|(_, open)| open.told.is_none()).map(|(item, _)| *item).collect()
    }

    /// Nobody executes it.
    fn drop_held(&mut self, item: Item) {
        if let Some(held) = self.open.remove(&item) {
            self.by_number.remove(&held.number);
            self.deadlines.forget(held.number, held.limit);
        }
    }
}

impl Participant {
    /// A participant for an instance whose nodes a former process has left. `request`: what is known of the
    /// application's.
    pub fn heir(identity: Identity, request: Request, former: Former) -> Self {
        let mut heir = Self::new(identity, request);
        heir.cx.phase = Phase::Away { until: None };
        heir.fires = Fires::since(former.since);
        heir.heritage = Some(Heritage { former, found: false, back: None, instants: Instants::Unasked });
        heir
    }

    /// Whether it waits for an application that the former process had.
    pub fn is_heir(&self) -> bool {
        self.heritage.is_some() && matches!(self.cx.phase, Phase::Away { .. })
    }

    /// Whether the instance may leave for another one of its name: not while it is not known what it has.
    pub fn may_yield(&self) -> bool {
        self.heritage.as_ref().is_none_or(|heritage| heritage.found)
    }

    /// The application is back. Gives what it has brought along if there is no heritage.
    pub(in crate::coordination) fn welcome(&mut self, back: Return) -> Option<Return> {
        let away = matches!(self.cx.phase, Phase::Away { .. });
        match self.heritage.as_mut().filter(|_| away) {
            Some(heritage) => {
                heritage.back = Some(back);
                None
            }
            None => Some(back),
        }
    }

    /// Whether an application that was away has a stream again, and does not know yet that it is attached.
    pub(in crate::coordination) fn has_come_back(&self) -> bool {
        match (&self.cx.phase, &self.heritage) {
            (Phase::Away { .. }, Some(heritage)) => heritage.back.is_some(),
            (Phase::Away { until }, None) => until.is_none(),
            _ => false,
        }
    }

    /// The application is gone again. Tells whether it is waited for.
    pub(in crate::coordination) fn misses_again(&mut self) -> bool {
        let away = matches!(self.cx.phase, Phase::Away { .. });
        let heritage = self.heritage.as_mut().filter(|_| away);
        heritage.map(|heritage| heritage.back = None).is_some()
    }

    /// The session of the former process is lost: nothing of its is left.
    pub(in crate::coordination) fn lose_heritage(&mut self) {
        if self.heritage.is_some() {
            for item in self.executions.held() {
                self.executions.drop_held(item);
            }
        }
    }

    /// Looks what the former process has left, and who wants it.
    pub(in crate::coordination) fn mind_heritage(&mut self) {
        let now = self.cx.now;
        let (Some(heritage), Session::Connected(session)) = (&self.heritage, self.cx.session) else { return };
        if heritage.former.session != session {
            self.renounce();
            return;
        }
        if !self.cx.view.is_loaded() {
            return;
        }
        if !heritage.found {
            if !self.is_left(session) {
                self.renounce();
                return;
            }
            self.take_up(session);
        }
        if self.awaits_instants() {
            return;
        }
        let back = self.heritage.as_mut().and_then(|heritage| heritage.back.take());
        let over = matches!(self.cx.phase, Phase::Away { until: Some(until) } if now.mono >= until);
        if let Some(back) = back {
            self.go_on(back);
        } else if over {
            self.heritage = None;
            let reason = if self.cx.is_registered() { EndReason::Detached } else { EndReason::Stopped };
            self.leave(reason);
        }
    }

    /// Has the ledger read if the application does not say for which instants it executes. Tells whether that is agenda.awaited().
    fn awaits_instants(&mut self) -> bool {
        let keeps = self.cx.monitors();
        let Some(heritage) = &mut self.heritage else { return false };
        let unsaid = |back: &Return| back.open.iter().any(|open| open.scheduled.is_none());
        if !keeps || !heritage.back.as_ref().is_some_and(unsaid) {
            return false;
        }
        if matches!(heritage.instants, Instants::Unasked) {
            heritage.instants = Instants::Asked;
            self.out.push(Effect::ReadLedger);
        }
        matches!(heritage.instants, Instants::Asked)
    }

    /// The ledger was read, perhaps for an heir.
    pub(in crate::coordination) fn instants_read(
        &mut self,
        read: &Result<BTreeMap<Item, LedgerNode>, String>,
    ) {
        let Some(heritage) = &mut self.heritage else { return };
        if matches!(heritage.instants, Instants::Asked) {
            // A ledger that cannot be read is not waited for: the application has waited for long.
            let entries = read.iter().flatten();
            let started = entries.filter_map(|(item, node)| Some((*item, node.says.started?)));
            heritage.instants = Instants::Read(started.collect());
        }
    }

    /// Looks what the former process has left though nobody wants it any more: it goes with us. Gives, if there is
    /// something, until when (monotonic) the application may still execute it.
    pub(in crate::coordination) fn take_up_to_leave(&mut self) -> Option<Duration> {
        let (Some(heritage), Session::Connected(session)) = (&self.heritage, self.cx.session) else {
            return None;
        };
        let unseen = heritage.former.session == session && !heritage.found;
        let timeout = heritage.former.timeout;
        let finds = unseen && self.cx.view.is_loaded() && self.is_left(session);
        finds.then(|| {
            self.hold_heritage(session);
            self.heritage_ends(timeout)
        })
    }

    /// Whether the former process has left something in this session.
    fn is_left(&self, session: SessionId) -> bool {
        let me = &self.cx.identity.instance;
        match self.cx.view.instances().get(me) {
            Some(ours) => ours.session == Some(session),
            // Who had been stopped by an operator may not have ended yet what it executes.
            None => self.cx.view.running_of(me).next().is_some(),
        }
    }

    /// Until when (monotonic) an application goes on that the former process had.
    fn heritage_ends(&self, timeout: Duration) -> Duration {
        let now = self.cx.now;
        // Without word from the former process the application has stopped when its lease is over.
        let lease = self.lease.remaining(now.mono).unwrap_or(timeout);
        // Of a job whose configuration cannot be read it is not known for how long its applications go on.
        let grace = self.cx.settings.as_ref().map_or(lease, |_| self.cx.grace().min(lease));
        now.mono.saturating_add(grace)
    }

    /// The instance is there: it is ours, and what it executes is busy.
    fn take_up(&mut self, session: SessionId) {
        let now = self.cx.now;
        let Some(heritage) = &self.heritage else { return };
        let timeout = heritage.former.timeout;
        self.hold_heritage(session);
        if !self.cx.monitors() {
            // Nobody knows what was started.
            self.begin_fires(Fires::since(now.wall));
        }
        let until = Some(self.heritage_ends(timeout));
        self.cx.unattended = until;
        self.cx.phase = Phase::Away { until };
    }

    /// What the instance has is ours.
    fn hold_heritage(&mut self, session: SessionId) {
        let now = self.cx.now;
        let Some(heritage) = &mut self.heritage else { return };
        heritage.found = true;
        self.cx.registered = Some(session);
        self.names.registered(session);
        self.cx.name_taken = false;
        self.removal.was_seen();
        for item in self.cx.view.running_of(&self.cx.identity.instance).collect::<Vec<_>>() {
            self.executions.hold(item, now);
        }
    }

    /// The application is back: what it has open is its own again.
    fn go_on(&mut self, back: Return) {
        let instants = match self.heritage.take().map(|heritage| heritage.instants) {
            Some(Instants::Read(instants)) => instants,
            Some(Instants::Unasked | Instants::Asked) | None => BTreeMap::new(),
        };
        self.cx.unattended = None;
        self.cx.request = back.request;
        // It may know what cannot be read in the registry.
        self.compile_settings();
        if self.cx.objection().is_some() || self.registration.configuration_to_write(&self.cx).is_some() {
            // It is not the one that the former process knew; it attaches anew.
            self.turn_away(EndReason::Detached);
            return;
        }
        self.registration.was_written();
        if !self.cx.grace().is_zero() {
            for open in back.open {
                self.adopt(open, &instants);
            }
        }
        for item in self.executions.held() {
            // As after a crash: it fails over, or its running node is removed.
            self.executions.drop_held(item);
            let message = "the former process of this sidecar has begun to execute the item, and the application does \
                           not; the execution counts as interrupted";
            let path = self.cx.identity.paths.item_running(item);
            self.out.push(Effect::Warn(Problem { path, message: message.to_owned() }));
        }
        self.checkpoints.inherit(self.executions.open.keys().copied());
        self.cx.phase = Phase::Active;
        self.cx.assigned.renew();
        self.told.renew();
        self.lease.tell_again();
    }

    /// Goes on with an execution, if it is what the running node says.
    fn adopt(&mut self, claimed: OpenExecution, instants: &BTreeMap<Item, Timestamp>) {
        let now = self.cx.now;
        let Some(item) = item_of(&claimed.execution_id) else { return };
        let Some(settings) = self.cx.settings.clone() else { return };
        let held = self.executions.open.get(&item).is_some_and(|open| open.told.is_none());
        let running = self.cx.view.item(item).and_then(|view| view.running.as_ref());
        let same = running.is_some_and(|running| {
            running.token == Some(claimed.token) && running.owner.as_ref() == Some(&self.cx.identity.instance)
        });
        let lost = claimed.cancelled == Some(CancelReason::LeaseLost);
        if !held || !same || lost || !self.is_still_ours(item) {
            return;
        }
        let inferred = if self.cx.has_taken(item) { Source::Failover } else { Source::Schedule };
        let source = claimed.source.unwrap_or(inferred);
        let scheduled = claimed.scheduled.or_else(|| instants.get(&item).copied()).unwrap_or(now.wall);
        let planned = Planned { source, scheduled, attempt: claimed.attempt };
        let timeout = settings.policy.timeout;
        let deadline =
            claimed.deadline.or_else(|| timeout.and_then(|timeout| now.wall.checked_add(timeout).ok()));
        let execute = Execute {
            execution_id: claimed.execution_id.clone(),
            item,
            parameter: settings.parameter(item).map(str::to_owned),
            configuration: Arc::clone(&settings.configuration),
            task_id: task_id::build(&self.cx.identity.job, &[item], &self.cx.identity.instance).into(),
            source,
            attempt: claimed.attempt,
            checkpoint: None,
            scheduled,
            fired: scheduled,
            deadline,
            token: claimed.token,
            resumed: true,
        };
        let remaining = deadline.map(|deadline| {
            // One that has passed is past for us as well; one that is too far off was not ours.
            let left = Duration::try_from(deadline.duration_since(now.wall)).unwrap_or_default();
            timeout.map_or(left, |timeout| left.min(timeout))
        });
        let at = |left: Duration| now.mono.saturating_add(left);
        let limit = match claimed.cancelled {
            Some(reason) => Limit::told_to_stop(at(settings.policy.cancel_grace), reason),
            None => Limit::until(remaining.map(at)),
        };
        let executions = &mut self.executions;
        let Some(open) = executions.open.get_mut(&item) else { return };
        open.planned = planned;
        open.taken_over = planned.is_first_of(Source::Failover);
        open.told = Some(Box::new(execute));
        if open.limit.cancelled.is_none() {
            executions.deadlines.forget(open.number, open.limit);
            open.limit = limit;
            executions.deadlines.watch(open.number, limit);
        }
        let number = open.number;
        executions.call(number, claimed.execution_id);
        executions.raise_token(item, claimed.token);
    }

    /// Whether an item of ours is ours to execute. What somebody executes whom an operator has stopped is others'
    /// already, and they wait for the end of it.
    fn is_still_ours(&self, item: Item) -> bool {
        let owner = self.cx.view.item(item).and_then(|view| view.owner.as_ref());
        owner.is_some_and(|owner| owner.instance == self.cx.identity.instance)
            || !self.cx.is_registered()
            || self.cx.has_taken(item)
            || matches!(self.relay.turn(&self.cx), Turn::Ours(_))
    }

    fn begin_fires(&mut self, fires: Fires) {
        self.fires = fires;
        self.agenda.forget();
        self.misfires = Misfires::default();
    }

    /// There is nothing to inherit: begins as anybody, if the application is back.
    fn renounce(&mut self) {
        let now = self.cx.now;
        let Some(heritage) = self.heritage.take() else { return };
        match heritage.back {
            Some(back) => {
                self.cx.request = back.request;
                self.begin_fires(Fires::since(now.wall));
                self.cx.assigned.renew();
                self.told.renew();
                self.cx.phase = Phase::Joining;
            }
            None => self.leave(EndReason::Detached),
        }
    }
}
