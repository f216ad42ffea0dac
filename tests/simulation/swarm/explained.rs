//! The explanation of a fleet in which everything is right has no finding (OP-4).

use std::collections::BTreeSet;

use sidekeeper::coordination::admin::explain::{Evidence, Verdict};
use sidekeeper::findings::Severity;

use super::ensemble::subtree;
use super::invariants::Invariant;
use super::world::World;
use super::{MILLISECOND, SECOND};

/// Findings of fleets that are right: a plan may have a setting without an effect, and executions that take longer than the period.
const RIGHT: [&str; 3] = ["JOB_SETTING_WRONG", "JOB_NEVER_FIRES_AGAIN", "ITEM_RUNNING_LONG"];

impl World {
    /// Fails if the job is explained as one in which something is wrong, again and again: an election may be going on.
    pub(super) fn check_no_finding(&mut self) {
        // The first assignment of a static job stays, even if its owner is not online.
        if self.plan.configuration.static_sharding {
            return;
        }
        let end = self.now + 3 * SECOND;
        while !self.has_failed() {
            let wrong = self.findings();
            if wrong.is_empty() {
                return;
            }
            if self.now >= end {
                return self
                    .fail(Invariant::Explained, || format!("all is right, and it is said: {wrong:?}"));
            }
            self.run_until(self.now + 250 * MILLISECOND);
        }
    }

    /// The faults that any sidecar of the namespace would name.
    fn findings(&mut self) -> Vec<String> {
        let Some(now) = self.machines.first().map(|machine| machine.now(self.now)) else { return Vec::new() };
        let tree = self.tree();
        let nodes = subtree(&tree, self.paths.root());
        let fleet = subtree(&tree, self.own_paths.fleet().root());
        let evidence = Evidence::new(&self.paths, &self.own_paths, nodes, fleet, now);
        let explanation = evidence.explain(&BTreeSet::new());
        let of_items = explanation.items.iter().flat_map(|item| &item.because);
        let is_wrong = |severity, code| severity > Severity::Info && !RIGHT.contains(&code);
        let wrong = explanation.findings.iter().chain(of_items).map(|finding| &finding.cause);
        let wrong = wrong.filter(|cause| is_wrong(cause.severity(), cause.code()));
        let blocked = explanation.items.iter().filter(|item| item.verdict == Verdict::Blocked);
        let blocked = blocked.map(|item| format!("item {} is blocked", item.item));
        wrong.map(|cause| format!("{}: {}", cause.code(), cause.message())).chain(blocked).collect()
    }
}
