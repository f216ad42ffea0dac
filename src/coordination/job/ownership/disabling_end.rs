//! When does a disabling end by itself? When the instant has come until which an operator wanted it.
//!
//! One instance enables: the leader, or the first one of a sidecar if no sidecar leads. It looks at all notes at each step, so an instance that
//! begins to lead later, or was stopped meanwhile, finds what is overdue. The transaction checks the version of the note: a disabling that an operator
//! has repeated meanwhile, with another end or without one, stays. A note says nothing about a disabling of ElasticJob's console, so that one
//! stays, too.

use jiff::Timestamp;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::picture::disabling::{ends, keeper};
use crate::extension::path::Noted;
use crate::tree::{Operation, Transaction};

/// Whether this instance ends disablings.
fn is_keeper(cx: &Context) -> bool {
    let ours = Some(&cx.identity.instance);
    cx.is_registered() && cx.phase.is_there() && !cx.name_taken && keeper(&cx.view, &cx.fleet) == ours
}

/// Enables what is disabled until now, if that is this instance's part.
pub(crate) fn end_disablings(cx: &Context, out: &mut Outbox) {
    let due = || ends(&cx.view, &cx.fleet).filter(|(_, _, until)| *until <= cx.now.wall);
    if due().next().is_none() || !is_keeper(cx) || !out.may_commit(cx, Purpose::Enable) {
        return;
    }
    let paths = &cx.identity.paths;
    let mut transaction = Transaction::new();
    let mut size = 0;
    for (about, note, _) in due() {
        if size >= cx.transaction_bytes {
            break;
        }
        let enable = match about {
            Noted::Item(item) => Operation::delete(paths.item_child(item, "disabled")),
            Noted::Server(server) => {
                let (path, version) = (paths.server(server), cx.view.server_version(server));
                Operation::Set { path, data: b"ENABLED".as_slice().into(), version }
            }
        };
        let (path, version) = (cx.fleet.paths().note(about), Some(note.version));
        let steps = [Operation::Delete { path, version }, enable];
        size += steps.iter().map(Operation::wire_size).sum::<usize>();
        transaction.extend(steps);
    }
    out.commit(Purpose::Enable, transaction);
}

/// When the next disabling ends that this instance is to end.
pub(crate) fn next_end(cx: &Context) -> Option<Timestamp> {
    let next = ends(&cx.view, &cx.fleet).map(|(_, _, until)| until).filter(|until| *until > cx.now.wall);
    next.min().filter(|_| is_keeper(cx))
}
