//! The effects of a participant are carried out, as the runner does it.

use sidekeeper::coordination::job::contract::answer::Ticket;
use sidekeeper::coordination::job::contract::answer::{Answer, CompletionStatus, Refusal};
use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::coordination::job::contract::effect::{Effect, EndReason};
use sidekeeper::coordination::job::contract::event::Event as Told;
use sidekeeper::tree::Operation;

use super::client::Ask;
use super::invariants::Invariant;
use super::latch::Errand;
use super::machine::{Letter, StreamEnd, Word};
use super::step::short;
use super::world::{Event, World};

impl World {
    pub(super) fn perform(&mut self, m: usize, effect: Effect) {
        if self.options.whole {
            self.note(m, || format!("effect {effect:?}"));
        }
        match effect {
            Effect::Commit { id, purpose, transaction } => {
                self.note(m, || format!("commit {}: {purpose}{}", id.0, steps(&transaction)));
                self.check_request(m, purpose, &transaction);
                if purpose == Purpose::Start {
                    self.note_starting(m);
                    self.note_asked(m);
                }
                self.ask(m, Ask::Commit(id, purpose, transaction));
            }
            Effect::Elect(transaction) => self.begin_latch(m, Errand::Elect(transaction), None),
            Effect::TakeOver { transaction, items } => {
                self.begin_latch(m, Errand::TakeOver(transaction, items), None);
            }
            Effect::HoldLatch { barrier, limit } => {
                let limit = u64::try_from(limit.as_micros()).unwrap();
                self.begin_latch(m, Errand::Barrier(barrier), Some(limit));
            }
            Effect::LeaveLatch { barrier, transactions } => self.release_gate(m, barrier, transactions),
            Effect::GiveUpSession => {
                self.note(m, || "gives the session up".to_owned());
                self.give_up_session(m);
            }
            Effect::Refresh { forget } => {
                if let Some(seat) = self.machines[m].seat().filter(|_| forget) {
                    seat.picture.forget_nodes();
                }
                self.note(m, || "looks again".to_owned());
                self.watch(m);
            }
            Effect::ReadLedger => self.ask(m, Ask::ReadLedger),
            Effect::FindCheckpoints(items) => self.ask(m, Ask::FindCheckpoints(items)),
            Effect::Notify(event) => self.tell_application(m, event),
            Effect::Answer(ticket, answer) => self.answered(m, ticket, &answer),
            Effect::Warn(problem) => self.note(m, || format!("warns: {} {}", problem.path, problem.message)),
            Effect::Reported(..) | Effect::ExecutionLost { .. } => {}
            Effect::AskItemLock { number, lock } => self.ask_item_lock(m, number, lock),
            Effect::GiveBackItemLock(number) => self.give_item_lock_back(m, number),
            Effect::LockWait(item, wait) => self.note(m, || format!("item {item}: {wait:?}")),
            Effect::Retry(item, news) => self.note(m, || format!("item {item}: {news:?}")),
            Effect::Skipped { item, scheduled } => {
                self.note(m, || format!("skips item {item} for {scheduled}"));
            }
            Effect::CloseStream(reason) => self.close_stream(m, &reason),
            Effect::End(reason) => {
                self.note(m, || format!("ends: {reason:?}"));
                self.check_end(m);
                self.close_stream(m, &reason);
            }
        }
    }

    /// An event goes to the application, if there is a stream.
    fn tell_application(&mut self, m: usize, event: Told) {
        if let Told::Execute(execute) = &event {
            self.check_told(m, execute);
        }
        if let Told::AssignmentChanged { assignment, reason, .. } = &event {
            self.check_assignment(m, assignment, *reason);
        }
        if self.is_traced() {
            self.note(m, || format!("tells {}", brief(&event)));
        }
        let now = self.now;
        if let Told::Attached { .. } = &event
            && let Some(seat) = self.machines[m].seat()
        {
            seat.was_registered = true;
            seat.registered_at.get_or_insert(now);
        }
        if let Told::JobChanged { problems, .. } = &event
            && let Some(seat) = self.machines[m].seat()
        {
            seat.problems = problems.len();
        }
        self.post(m, Word::Told(event));
    }

    fn close_stream(&mut self, m: usize, reason: &EndReason) {
        let end = match reason {
            EndReason::Stopped | EndReason::JobRemoved => StreamEnd::Stopped,
            _ => StreamEnd::Ended,
        };
        self.post(m, Word::Closed(end));
        if let Some(seat) = self.machines[m].seat() {
            seat.stream = None;
        }
    }

    /// Puts a message on the present stream.
    pub(super) fn post(&mut self, m: usize, word: Word) {
        let at = self.now + 20 + self.network.below(500);
        let machine = &mut self.machines[m];
        let Some(stream) = machine.seat().and_then(|seat| seat.stream) else { return };
        let inbox = &mut machine.application.inbox;
        let at = inbox.back().map_or(at, |last| at.max(last.at));
        inbox.push_back(Letter { at, stream, word });
        self.checks_line(m);
        self.at(at, Event::Read(m));
    }

    fn answered(&mut self, m: usize, ticket: Ticket, answer: &Answer) {
        let is_read = self.machines[m].seat().is_none_or(|seat| ticket.0 > seat.unread);
        let expected = match answer {
            Answer::Recorded(records) => {
                for (id, status) in records {
                    if *status == CompletionStatus::Recorded {
                        self.check_recorded(m, id);
                    }
                    self.machines[m].application.unanswered.retain(|done| done.execution_id != *id);
                }
                true
            }
            Answer::Progressed { superseded, .. } => {
                self.note_progressed(m, ticket.0, *superseded);
                true
            }
            Answer::Acknowledged
            | Answer::Lease { .. }
            | Answer::Cancelled(_)
            | Answer::ListenerReported { .. }
            // A call of a listener is forgotten with the session.
            | Answer::Refused(Refusal::ExecutionOver { .. } | Refusal::UnknownCall { .. }) => true,
            // An execution that was reported twice, or on another stream than it was sent on.
            Answer::Refused(
                Refusal::UnknownExecution { .. }
                | Refusal::UnknownProgress { .. }
                | Refusal::UnknownGeneration { .. }
                | Refusal::UnknownItem { .. },
            ) => self.machines[m].application.may_be_unknown,
        };
        if !expected && is_read {
            self.fail(Invariant::NoPanic, || format!("m{m} was answered {answer:?}"));
        }
    }
}

/// The steps of a transaction, for the timeline.
fn steps(transaction: &[Operation]) -> String {
    let mut text = String::new();
    for step in transaction {
        let sign = match step {
            Operation::Create { .. } => '+',
            Operation::Set { .. } => '=',
            Operation::Delete { .. } => '-',
            Operation::Check { .. } => '?',
        };
        text.push_str(&format!(" {sign}{}", short(step.path())));
    }
    text
}

fn brief(event: &Told) -> String {
    match event {
        Told::Execute(execute) => format!(
            "Execute {} item {} for {} ({:?}, attempt {}, token {})",
            execute.execution_id,
            execute.item,
            execute.scheduled,
            execute.source,
            execute.attempt,
            execute.token.0
        ),
        Told::AssignmentChanged { assignment, reason, .. } => {
            let items: Vec<_> = assignment.items.iter().map(|assigned| assigned.item).collect();
            format!("assignment {items:?} ({reason:?}, generation {})", assignment.generation.0)
        }
        Told::JobChanged { problems, .. } => format!("job changed, problems {problems:?}"),
        Told::Attached { instance, resumed, .. } => format!("attached as {instance}, resumed {resumed:?}"),
        other => format!("{other:?}"),
    }
}
