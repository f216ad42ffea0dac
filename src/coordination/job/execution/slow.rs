//! Which executions take longer than they should? There is no limit to what an execution takes, unless the job sets one;
//! but one that is still going on a minute after the next fire is probably stuck, and its item misses fires.
//!
//! Decides only what is told. It looks now and then, so that executions that end in time cost nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::coordination::job::execution::state::{Executions, State};
use crate::coordination::job::frame::context::Context;
use crate::job::{Item, Problem};

/// What an execution may take beyond the time until the next fire.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Items that are named; their number is always told.
const NAMED_MAX: usize = 5;

/// The executions that take too long.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Slow {
    /// By their numbers.
    known: BTreeMap<u64, Item>,
    /// When to look again; monotonic.
    look_at: Duration,
}

impl Slow {
    /// When to look next.
    pub(in crate::coordination) fn next_look_at_slow(
        &self,
        cx: &Context,
        executions: &Executions,
    ) -> Option<Duration> {
        let has_schedule = cx.settings.as_ref().is_some_and(|settings| settings.schedule.is_some());
        (has_schedule && !executions.open.is_empty()).then_some(self.look_at)
    }

    /// Looks which executions take too long.
    pub(in crate::coordination) fn look_for_slow(&mut self, cx: &Context, executions: &Executions) {
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
        // Those of one fire have begun at one time.
        let mut limits = BTreeMap::new();
        for (item, open) in executions.open.iter().filter(|(_, open)| open.state == State::Running) {
            let Some(told) = &open.told else { continue };
            let limit = limits.entry(told.fired).or_insert_with(|| {
                let next = schedule.next_after(told.fired)?;
                next.checked_add(PATIENCE).ok()
            });
            if limit.is_some_and(|limit| now.wall > limit) {
                self.known.insert(open.number, *item);
            }
        }
    }

    /// The problem that executions take too long.
    pub(in crate::coordination) fn slow_problem(&self, cx: &Context) -> Option<Problem> {
        let first = self.known.values().next()?;
        let named: Vec<_> = self.known.values().take(NAMED_MAX).map(|item| format!("item {item}")).collect();
        let hidden = self.known.len().saturating_sub(NAMED_MAX);
        let more = if hidden > 0 { format!(" and {hidden} more") } else { String::new() };
        Some(Problem {
            path: cx.identity.paths.item_running(*first),
            message: format!(
                "executed for more than a minute beyond the next fire: {}{more}; the fires that come meanwhile are missed. \
                 Look what the application does, or set `sidekeeper.execution-timeout`",
                named.join(", ")
            ),
        })
    }
}
