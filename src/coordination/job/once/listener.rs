//! How does one instance act for all? The part of a round under the gate's latch (protocol 6.7; H1, H22, H25).
//!
//! The latch is joined when everybody is at the gate, and that is looked at again when it is held. Then the application
//! is called, and when it has answered the gate is removed and the latch left; at last when the time for the answer is
//! over. The owner of the first item goes first, so that not all instances contend for the latch in each round.

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::answer::{Answer, Refusal, Ticket};
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::event::{Event, ListenerCall};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::limits::HEAD_START;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::once::barrier::{is_complete, removal, skip_planned};
use crate::coordination::job::once::state::{Acting, Guarantee, Latch, Round};
use crate::elasticjob::path::Gate;
use crate::excerpt::Excerpt;
use crate::job::Item;
use crate::mutants::mutant;
use crate::tree::Transaction;

impl Guarantee {
    /// Joins the latch when everybody is at the gate; acts; leaves it.
    pub(in crate::coordination) fn attend_latch(
        &mut self,
        cx: &Context,
        agenda: &mut Agenda,
        out: &mut Outbox,
    ) {
        let now = cx.now;
        self.note_complete(cx);
        let waiting = self.round.as_ref().and_then(|round| Some((round.gate()?, round)));
        match (self.latch, waiting) {
            (None, Some((gate, round))) => {
                let pausing = self.retry_at.is_some_and(|at| now.mono < at);
                let ready = !round.registered.is_empty() || gate == Gate::Completed;
                let limit = round.until.saturating_sub(now.mono);
                if ready && !pausing && cx.is_connected() && self.goes_first(cx) && !limit.is_zero() {
                    self.latch = Some((gate, Latch::Joining));
                    out.push(Effect::HoldLatch { gate, limit });
                }
            }
            (Some((held, Latch::Held)), waiting) => {
                let called = waiting.filter(|(gate, _)| *gate == held).map(|(_, round)| round);
                match called {
                    // It was answered in [`Self::listener_reported`], or is late.
                    Some(round) if cx.is_staying() && matches!(round.acting, Acting::Called(_)) => {
                        if now.mono >= round.answer_until {
                            self.acted(
                                cx,
                                agenda,
                                out,
                                held,
                                Err("the application did not answer in time".to_owned()),
                            );
                        }
                    }
                    Some(_) | None => self.leave_latch(out, held, Vec::new()),
                }
            }
            (Some((_, Latch::Joining | Latch::Leaving)), _) | (None, None) => {}
        }
    }

    /// Notes since when everybody is at the gate where we wait.
    fn note_complete(&mut self, cx: &Context) {
        let now = cx.now;
        let gate = self.round.as_ref().and_then(Round::gate);
        let complete = gate.is_some_and(|gate| is_complete(cx, gate));
        let since = self.complete_since.unwrap_or(now.mono);
        self.complete_since = complete.then_some(since);
    }

    /// Whether everybody is there and it is ours to act: we own the first item, or who does has had its time.
    fn goes_first(&self, cx: &Context) -> bool {
        let now = cx.now;
        let owner = cx.view.item(Item(0)).and_then(|item| item.owner.as_ref());
        let ours = owner.is_some_and(|owner| owner.instance == cx.identity.instance);
        let since = self.complete_since;
        let ours = ours || mutant!(ListenerCalledTwice);
        since.is_some_and(|since| ours || now.mono >= since.saturating_add(HEAD_START))
    }

    /// We hold the latch: look again, and act if everybody is still there.
    pub(in crate::coordination) fn latch_held(&mut self, cx: &Context, out: &mut Outbox, gate: Gate) {
        let now = cx.now;
        if self.latch != Some((gate, Latch::Joining)) {
            return;
        }
        self.latch = Some((gate, Latch::Held));
        let complete = is_complete(cx, gate) || mutant!(ListenerCalledTwice);
        let calls = self.calls;
        let staying = cx.is_staying();
        let round = self.round.as_mut().filter(|round| round.gate() == Some(gate));
        match round {
            Some(round) if round.acting == Acting::Done => {
                let removal = removal(cx, gate);
                self.leave_latch(out, gate, removal);
            }
            Some(round) if complete && staying && now.mono < round.answer_until => {
                let call_id = format!("{}-call-{}", cx.identity.execution_prefix, calls + 1);
                round.acting = Acting::Called(call_id.clone());
                let (scheduled, remaining) = (round.scheduled, round.answer_until.saturating_sub(now.mono));
                self.calls = calls + 1;
                out.tell(cx, Event::CallListener(ListenerCall { call_id, gate, scheduled, remaining }));
            }
            Some(_) | None => self.leave_latch(out, gate, Vec::new()),
        }
    }

    /// The application says how a call ended.
    pub(in crate::coordination) fn listener_reported(
        &mut self,
        cx: &Context,
        agenda: &mut Agenda,
        out: &mut Outbox,
        ticket: Ticket,
        call: &str,
        outcome: Result<(), String>,
    ) {
        let number = call.strip_prefix(&*cx.identity.execution_prefix);
        let number = number.and_then(|rest| rest.strip_prefix("-call-")?.parse::<u64>().ok());
        if !number.is_some_and(|number| (1..=self.calls).contains(&number)) {
            let refusal = Refusal::UnknownCall { call_id: Excerpt::of(call) };
            out.push(Effect::Answer(ticket, Answer::Refused(refusal)));
            return;
        }
        let round = self.round.as_ref();
        let gate =
            round.filter(|round| round.acting == Acting::Called(call.to_owned())).and_then(Round::gate);
        out.push(Effect::Answer(ticket, Answer::ListenerReported { in_time: gate.is_some() }));
        if let Some(gate) = gate {
            self.acted(cx, agenda, out, gate, outcome);
        }
    }

    /// The call has ended, one way or the other: let the others go on.
    fn acted(
        &mut self,
        cx: &Context,
        agenda: &mut Agenda,
        out: &mut Outbox,
        gate: Gate,
        outcome: Result<(), String>,
    ) {
        if let Some(round) = &mut self.round {
            round.acting = Acting::Done;
        }
        self.problem = None;
        if let Err(error) = outcome {
            let then = match gate {
                Gate::Started => "; the items of this instance are not executed, those of others are",
                Gate::Completed => "",
            };
            let message = format!("the once-listener of {} failed: {error}{then}", cx.identity.instance);
            self.problem = Some((gate, message));
            if gate == Gate::Started {
                if let Some(round) = &mut self.round {
                    round.barred = true;
                }
                skip_planned(cx, agenda, out, false);
            }
        }
        let removal = removal(cx, gate);
        self.leave_latch(out, gate, removal);
    }

    fn leave_latch(&mut self, out: &mut Outbox, gate: Gate, transactions: Vec<Transaction>) {
        self.latch = Some((gate, Latch::Leaving));
        if !mutant!(LatchKept) {
            out.push(Effect::LeaveLatch { gate, transactions });
        }
    }
}
