//! Which executions are open is told to an application that has come back.

use crate::coordination::job::contract::event::{Event, Execute};
use crate::coordination::job::execution::checkpoint::Checkpoints;
use crate::coordination::job::execution::state::{Executions, State};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;

/// The ids of the executions that the application has not reported.
pub(in crate::coordination) fn resumable_executions(executions: &Executions) -> Vec<String> {
    let open = executions.open.iter().filter(|(_, open)| open.state == State::Running);
    open.map(|(item, open)| executions.id(*item, open.number)).collect()
}

/// Tells the executions that are open to an application that is back; to one that is new there are none.
pub(in crate::coordination) fn tell_open_executions(
    cx: &Context,
    executions: &Executions,
    checkpoints: &Checkpoints,
    out: &mut Outbox,
) {
    let now = cx.now;
    let mut events = Vec::new();
    for (item, open) in executions.open.iter().filter(|(_, open)| open.state == State::Running) {
        let Some(told) = &open.told else { continue };
        let mut execute = Execute { resumed: true, ..(**told).clone() };
        // It may have said meanwhile how far it is.
        execute.checkpoint = checkpoints.reached(*item, open.planned).or(execute.checkpoint);
        let cancel = open.limit.cancelled.map(|reason| {
            let (execution_id, item) = (execute.execution_id.clone(), *item);
            Event::Cancel { execution_id, item, reason }
        });
        if cancel.is_none() {
            let remaining = open.limit.remaining(now.mono);
            execute.deadline = remaining.and_then(|remaining| now.wall.checked_add(remaining).ok());
        }
        events.push(Event::Execute(execute));
        events.extend(cancel);
    }
    for event in events {
        out.tell(cx, event);
    }
}
