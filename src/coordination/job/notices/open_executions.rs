//! Which executions are open? An application that has reattached gets them.

use crate::coordination::job::contract::event::{Event, Execute};
use crate::coordination::job::execution::Executions;
use crate::coordination::job::execution::checkpoint::Checkpoints;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;

pub(crate) fn resumable_executions(executions: &Executions) -> Vec<String> {
    executions.running().map(|(item, open)| executions.id(item, open.number())).collect()
}

/// Sends the open executions to an application that has reattached; a new application has none.
pub(crate) fn notify_open_executions(
    cx: &Context,
    executions: &Executions,
    checkpoints: &Checkpoints,
    out: &mut Outbox,
) {
    let now = cx.now;
    let mut events = Vec::new();
    for (item, open) in executions.running() {
        let Some(sent) = open.sent() else { continue };
        let mut execute = Execute { resumed: true, ..Execute::clone(sent) };
        // The application may have reported progress since.
        execute.checkpoint = checkpoints.reached(item, open.planned()).or(execute.checkpoint);
        let cancel = open.cancelled().map(|reason| {
            let execution_id = execute.execution_id.clone();
            Event::Cancel { execution_id, item, reason }
        });
        if cancel.is_none() {
            let remaining = open.remaining(now.mono);
            execute.deadline = remaining.and_then(|remaining| now.wall.checked_add(remaining).ok());
        }
        events.push(Event::Execute(execute));
        events.extend(cancel);
    }
    for event in events {
        out.notify(cx, event);
    }
}
