//! Which executions take too long? An execution has no limit, unless the job sets one. But an execution that still runs
//! a minute after the next fire is probably stuck, and its item misses fires.
//!
//! The execution is only reported as a problem, and not ended. The room checks now and then, so that executions that
//! end in time cost nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::coordination::job::execution::{Executions, State};
use crate::coordination::job::frame::context::Context;
use crate::findings::problem::{Problem, ProblemCode};
use crate::job::Item;

/// How long an execution may run after the next fire.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two checks.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// How many items the problem names; their number is always given.
const NAMED_MAX: usize = 5;

#[derive(Debug, Default)]
pub(crate) struct Slow {
    /// The slow executions by their numbers.
    known: BTreeMap<u64, Item>,
    /// The time of the next check; monotonic.
    look_at: Duration,
}

impl Slow {
    /// When to check next.
    pub(crate) fn next_look(&self, cx: &Context, executions: &Executions) -> Option<Duration> {
        let has_schedule = cx.settings.as_ref().is_some_and(|settings| settings.schedule.is_some());
        (has_schedule && !executions.open.is_empty()).then_some(self.look_at)
    }

    /// Checks which executions take too long.
    pub(crate) fn update_slow(&mut self, cx: &Context, executions: &Executions) {
        let now = cx.now;
        self.known.retain(|number, item| {
            let open = executions.open.get(item).filter(|open| open.number == *number);
            open.is_some_and(|open| open.state == State::Running)
        });
        if executions.open.is_empty() || now.mono < self.look_at {
            return;
        }
        self.look_at = now.mono.saturating_add(LOOK_INTERVAL);
        let Some(schedule) = cx.settings.as_ref().and_then(|settings| settings.schedule.as_ref()) else {
            return;
        };
        // The executions of one fire began at the same time.
        let mut limits = BTreeMap::new();
        for (item, open) in executions.open.iter().filter(|(_, open)| open.state == State::Running) {
            let Some(sent) = &open.sent else { continue };
            let limit = limits.entry(sent.fired).or_insert_with(|| {
                let next = schedule.next_after(sent.fired)?;
                next.checked_add(PATIENCE).ok()
            });
            if limit.is_some_and(|limit| now.wall > limit) {
                self.known.insert(open.number, *item);
            }
        }
    }

    /// The problem that executions take too long.
    pub(crate) fn slow_problem(&self, cx: &Context) -> Option<Problem> {
        let first = self.known.values().next()?;
        let named: Vec<_> = self.known.values().take(NAMED_MAX).map(|item| format!("item {item}")).collect();
        let hidden = self.known.len().saturating_sub(NAMED_MAX);
        let more = if hidden > 0 { format!(" and {hidden} more") } else { String::new() };
        Some(Problem {
            path: cx.identity.paths.item_running(*first),
            message: format!(
                "executed for more than a minute beyond the next fire: {}{more}; the fires in the meantime are missed. \
                 Look what the application does, or set `sidekeeper.execution-timeout`",
                named.join(", ")
            ),
            code: ProblemCode::ItemRunningLong,
        })
    }
}
