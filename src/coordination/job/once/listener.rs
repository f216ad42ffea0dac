//! How does one instance act for all? The part of a round under the gate's latch (protocol 6.7; H1, H22, H25).
//!
//! The latch is joined when everybody is at the gate, and that is looked at again when it is held. Then the application
//! is called, and when it has answered the gate is removed and the latch left; at last when the time for the answer is
//! over. The owner of the first item goes first, so that not all instances contend for the latch in each round.

use crate::elasticjob::path::Gate;
use crate::excerpt::Excerpt;
use crate::job::Item;
use crate::mutants::mutant;
use crate::tree::Transaction;

use crate::coordination::job::contract::answer::Ticket;
use crate::coordination::job::contract::answer::{Answer, Refusal};
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::event::{Event, ListenerCall};
use crate::coordination::job::frame::limits::HEAD_START;
use crate::coordination::job::once::round::{Acting, Latch, Round};
use crate::coordination::job::participant::Participant;

impl Participant {
    /// Joins the latch when everybody is at the gate; acts; leaves it.
    pub(in crate::coordination) fn attend_latch(&mut self) {
        let now = self.cx.now;
        self.note_complete();
        let waiting = self.guarantee.round.as_ref().and_then(|round| Some((round.gate()?, round)));
        match (self.guarantee.latch, waiting) {
            (None, Some((gate, round))) => {
                let pausing = self.guarantee.retry_at.is_some_and(|at| now.mono < at);
                let ready = !round.registered.is_empty() || gate == Gate::Completed;
                let limit = round.until.saturating_sub(now.mono);
                if ready && !pausing && self.cx.is_connected() && self.goes_first() && !limit.is_zero() {
                    self.guarantee.latch = Some((gate, Latch::Joining));
                    self.out.push(Effect::HoldLatch { gate, limit });
                }
            }
            (Some((held, Latch::Held)), waiting) => {
                let called = waiting.filter(|(gate, _)| *gate == held).map(|(_, round)| round);
                match called {
                    // It was answered in [`Self::listener_reported`], or is late.
                    Some(round) if self.cx.is_staying() && matches!(round.acting, Acting::Called(_)) => {
                        if now.mono >= round.answer_until {
                            self.acted(held, Err("the application did not answer in time".to_owned()));
                        }
                    }
                    Some(_) | None => self.leave_latch(held, Vec::new()),
                }
            }
            (Some((_, Latch::Joining | Latch::Leaving)), _) | (None, None) => {}
        }
    }

    /// Notes since when everybody is at the gate where we wait.
    fn note_complete(&mut self) {
        let now = self.cx.now;
        let gate = self.guarantee.round.as_ref().and_then(Round::gate);
        let complete = gate.is_some_and(|gate| self.is_complete(gate));
        let since = self.guarantee.complete_since.unwrap_or(now.mono);
        self.guarantee.complete_since = complete.then_some(since);
    }

    /// Whether everybody is there and it is ours to act: we own the first item, or who does has had its time.
    fn goes_first(&self) -> bool {
        let now = self.cx.now;
        let owner = self.cx.view.item(Item(0)).and_then(|item| item.owner.as_ref());
        let ours = owner.is_some_and(|owner| owner.instance == self.cx.identity.instance);
        let since = self.guarantee.complete_since;
        let ours = ours || mutant!(ListenerCalledTwice);
        since.is_some_and(|since| ours || now.mono >= since.saturating_add(HEAD_START))
    }

    /// We hold the latch: look again, and act if everybody is still there.
    pub(in crate::coordination) fn latch_held(&mut self, gate: Gate) {
        let now = self.cx.now;
        if self.guarantee.latch != Some((gate, Latch::Joining)) {
            return;
        }
        self.guarantee.latch = Some((gate, Latch::Held));
        let complete = self.is_complete(gate) || mutant!(ListenerCalledTwice);
        let calls = self.guarantee.calls;
        let staying = self.cx.is_staying();
        let round = self.guarantee.round.as_mut().filter(|round| round.gate() == Some(gate));
        match round {
            Some(round) if round.acting == Acting::Done => {
                let removal = self.removal(gate);
                self.leave_latch(gate, removal);
            }
            Some(round) if complete && staying && now.mono < round.answer_until => {
                let call_id = format!("{}-call-{}", self.cx.identity.execution_prefix, calls + 1);
                round.acting = Acting::Called(call_id.clone());
                let (scheduled, remaining) = (round.scheduled, round.answer_until.saturating_sub(now.mono));
                self.guarantee.calls = calls + 1;
                self.out.tell(
                    &self.cx,
                    Event::CallListener(ListenerCall { call_id, gate, scheduled, remaining }),
                );
            }
            Some(_) | None => self.leave_latch(gate, Vec::new()),
        }
    }

    /// The application says how a call ended.
    pub(in crate::coordination) fn listener_reported(
        &mut self,
        ticket: Ticket,
        call: &str,
        outcome: Result<(), String>,
    ) {
        let number = call.strip_prefix(&*self.cx.identity.execution_prefix);
        let number = number.and_then(|rest| rest.strip_prefix("-call-")?.parse::<u64>().ok());
        if !number.is_some_and(|number| (1..=self.guarantee.calls).contains(&number)) {
            let refusal = Refusal::UnknownCall { call_id: Excerpt::of(call) };
            self.out.push(Effect::Answer(ticket, Answer::Refused(refusal)));
            return;
        }
        let round = self.guarantee.round.as_ref();
        let gate =
            round.filter(|round| round.acting == Acting::Called(call.to_owned())).and_then(Round::gate);
        self.out.push(Effect::Answer(ticket, Answer::ListenerReported { in_time: gate.is_some() }));
        if let Some(gate) = gate {
            self.acted(gate, outcome);
        }
    }

    /// The call has ended, one way or the other: let the others go on.
    fn acted(&mut self, gate: Gate, outcome: Result<(), String>) {
        if let Some(round) = &mut self.guarantee.round {
            round.acting = Acting::Done;
        }
        self.guarantee.problem = None;
        if let Err(error) = outcome {
            let then = match gate {
                Gate::Started => "; the items of this instance are not executed, those of others are",
                Gate::Completed => "",
            };
            let message = format!("the once-listener of {} failed: {error}{then}", self.cx.identity.instance);
            self.guarantee.problem = Some((gate, message));
            if gate == Gate::Started {
                if let Some(round) = &mut self.guarantee.round {
                    round.barred = true;
                }
                self.skip_planned(false);
            }
        }
        let removal = self.removal(gate);
        self.leave_latch(gate, removal);
    }

    fn leave_latch(&mut self, gate: Gate, transactions: Vec<Transaction>) {
        self.guarantee.latch = Some((gate, Latch::Leaving));
        if !mutant!(LatchKept) {
            self.out.push(Effect::LeaveLatch { gate, transactions });
        }
    }
}
