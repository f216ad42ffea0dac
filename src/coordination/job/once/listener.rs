//! How does one instance act for all? The part of a round under the barrier's latch (protocol 6.7; H1, H22, H25).
//!
//! An instance joins the latch when all items are at the barrier, and checks the barrier again when it holds the latch.
//! Then it calls its application. When the application has answered, or its time is over, the instance removes the
//! barrier and leaves the latch. The owner of the first item goes first, so that not all instances contend for the
//! latch in each round.

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::answer::{Answer, Refusal, Ticket};
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::event::{Event, ListenerCall};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::limits::HEAD_START;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::once::barrier::{is_complete, removal, skip_planned};
use crate::coordination::job::once::{Acting, Latch, Once, Round};
use crate::elasticjob::path::Barrier;
use crate::excerpt::Excerpt;
use crate::job::Item;
use crate::mutants::mutant;
use crate::tree::Transaction;

impl Once {
    /// Joins the latch when all items are at the barrier; acts; leaves it.
    pub(crate) fn attend_latch(&mut self, cx: &Context, agenda: &mut Agenda, out: &mut Outbox) {
        let now = cx.now;
        self.record_complete(cx);
        let waiting = self.round.as_ref().and_then(|round| Some((round.barrier()?, round)));
        match (self.latch, waiting) {
            (None, Some((barrier, round))) => {
                let pausing = self.retry_at.is_some_and(|at| now.mono < at);
                let ready = !round.registered.is_empty() || barrier == Barrier::Completed;
                let limit = round.until.saturating_sub(now.mono);
                if ready && !pausing && cx.is_connected() && self.goes_first(cx) && !limit.is_zero() {
                    self.latch = Some((barrier, Latch::Joining));
                    out.push(Effect::HoldLatch { barrier, limit });
                }
            }
            (Some((held, Latch::Held)), waiting) => {
                let called = waiting.filter(|(barrier, _)| *barrier == held).map(|(_, round)| round);
                match called {
                    // The call was answered in [`Self::listener_reported`], or is late.
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

    /// Records since when the barrier of this round is complete.
    fn record_complete(&mut self, cx: &Context) {
        let now = cx.now;
        let barrier = self.round.as_deref().and_then(Round::barrier);
        let complete = barrier.is_some_and(|barrier| is_complete(cx, barrier));
        let since = self.complete_since.unwrap_or(now.mono);
        self.complete_since = complete.then_some(since);
    }

    /// Whether it is this instance's turn to act: it owns the first item, or the owner of that has had its time.
    fn goes_first(&self, cx: &Context) -> bool {
        let now = cx.now;
        let owner = cx.view.item(Item(0)).and_then(|item| item.owner.as_ref());
        let ours = owner.is_some_and(|owner| owner.instance == cx.identity.instance);
        let since = self.complete_since;
        let ours = ours || mutant!(ListenerCalledTwice);
        since.is_some_and(|since| ours || now.mono >= since.saturating_add(HEAD_START))
    }

    /// This session holds the latch: check the barrier again, and act if it is still complete.
    pub(crate) fn latch_held(&mut self, cx: &Context, out: &mut Outbox, barrier: Barrier) {
        let now = cx.now;
        if self.latch != Some((barrier, Latch::Joining)) {
            return;
        }
        self.latch = Some((barrier, Latch::Held));
        let complete = is_complete(cx, barrier) || mutant!(ListenerCalledTwice);
        let calls = self.calls;
        let staying = cx.is_staying();
        let round = self.round.as_mut().filter(|round| round.barrier() == Some(barrier));
        match round {
            Some(round) if round.acting == Acting::Done => {
                let removal = removal(cx, barrier);
                self.leave_latch(out, barrier, removal);
            }
            Some(round) if complete && staying && now.mono < round.answer_until => {
                let call_id = format!("{}-call-{}", cx.identity.execution_prefix, calls + 1);
                round.acting = Acting::Called(call_id.clone());
                let (scheduled, remaining) = (round.scheduled, round.answer_until.saturating_sub(now.mono));
                self.calls = calls + 1;
                out.notify(cx, Event::CallListener(ListenerCall { call_id, barrier, scheduled, remaining }));
            }
            Some(_) | None => self.leave_latch(out, barrier, Vec::new()),
        }
    }

    /// The application reports how a call ended.
    pub(crate) fn listener_reported(
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
        let round = self.round.as_deref();
        let barrier =
            round.filter(|round| round.acting == Acting::Called(call.to_owned())).and_then(Round::barrier);
        out.push(Effect::Answer(ticket, Answer::ListenerReported { in_time: barrier.is_some() }));
        if let Some(barrier) = barrier {
            self.acted(cx, agenda, out, barrier, outcome);
        }
    }

    /// The call has ended, with or without success: let the other instances go on.
    fn acted(
        &mut self,
        cx: &Context,
        agenda: &mut Agenda,
        out: &mut Outbox,
        barrier: Barrier,
        outcome: Result<(), String>,
    ) {
        if let Some(round) = &mut self.round {
            round.acting = Acting::Done;
        }
        self.problem = None;
        if let Err(error) = outcome {
            let then = match barrier {
                Barrier::Started => "; the items of this instance are not executed, those of others are",
                Barrier::Completed => "",
            };
            let message = format!("the once-listener of {} failed: {error}{then}", cx.identity.instance);
            self.problem = Some((barrier, message));
            if barrier == Barrier::Started {
                if let Some(round) = &mut self.round {
                    round.barred = true;
                }
                skip_planned(cx, agenda, out, false);
            }
        }
        let removal = removal(cx, barrier);
        self.leave_latch(out, barrier, removal);
    }

    fn leave_latch(&mut self, out: &mut Outbox, barrier: Barrier, transactions: Vec<Transaction>) {
        self.latch = Some((barrier, Latch::Leaving));
        if !mutant!(LatchKept) {
            out.push(Effect::LeaveLatch { barrier, transactions });
        }
    }
}
