//! Is this machine's clock right? Compares it with the registry's if the job asks for that, and reports a difference as
//! a problem (protocol 2.2; H20). Execution goes on.
//!
//! The registry stamps a node whose data is set with its own time. Setting it is one request, whose result carries the
//! stamp, where Java peers need three. There is at most one such request a minute, and none while nothing is executed.

use std::time::Duration;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::time::Now;
use crate::elasticjob::path::Folder;
use crate::findings::problem::{Problem, ProblemCode};
use crate::tree::{CommitError, Error, NodeKind, Operation, OperationResult, Transaction};

/// How long a comparison is valid: within a minute a clock drifts by less than matters, and people rarely set it.
const INTERVAL: Duration = Duration::from_secs(60);
/// A difference that changes by less than this, and less than the allowed one, is not reported again.
const SAME_MS: i64 = 1_000;

#[derive(Debug, Default)]
pub(crate) struct ClockSkew {
    /// When the request in flight was made; monotonic.
    asked: Duration,
    /// When the last request ended (monotonic), and how many executions had been started by then.
    done: Option<(Duration, u64)>,
    /// By how much this clock is certainly ahead of the registry's, whatever the round trip took; as reported.
    ahead_ms: i64,
}

impl ClockSkew {
    /// There will be another session, perhaps with another server. The reported difference stays.
    pub(crate) fn forget(&mut self) {
        self.done = None;
    }

    fn is_due(&self, now: Duration, started: u64) -> bool {
        self.done.is_none_or(|(at, before)| started != before && now >= at.saturating_add(INTERVAL))
    }

    fn found(&mut self, ahead_ms: i64, allowed_ms: i64) {
        let same = self.ahead_ms.abs_diff(ahead_ms) <= allowed_ms.saturating_add(SAME_MS).unsigned_abs();
        let still_wrong =
            self.ahead_ms.saturating_abs() > allowed_ms && ahead_ms.saturating_abs() > allowed_ms;
        if !(same && still_wrong) {
            self.ahead_ms = ahead_ms;
        }
    }
}

/// By how much this clock is certainly ahead, if a request that was made at `asked` and has ended now got this stamp:
/// the registry stamped it at some time in between, half-way by assumption.
fn certainly_ahead_ms(asked: Duration, now: Now, stamp_ms: i64) -> i64 {
    let half = now.mono.saturating_sub(asked).as_millis().div_ceil(2);
    let half = i64::try_from(half).unwrap_or(i64::MAX);
    let ahead = now.wall.as_millisecond().saturating_sub(half).saturating_sub(stamp_ms);
    let certain = ahead.saturating_abs().saturating_sub(half).max(0);
    certain.saturating_mul(ahead.signum())
}

impl ClockSkew {
    /// Asks for the registry's time after the registration, and then with fires.
    pub(crate) fn check_clock(&mut self, cx: &Context, started: u64, out: &mut Outbox) {
        let now = cx.now;
        if cx.phase != Phase::Active || !cx.is_registered() || allowed_difference_ms(cx).is_none() {
            return;
        }
        let due = self.is_due(now.mono, started);
        if !due || !out.may_commit(cx, Purpose::CheckClock) {
            return;
        }
        let paths = &cx.identity.paths;
        let mut transaction = Transaction::new();
        if !cx.view.has_folder(Folder::RegistryTime) {
            let folder = paths.folder(Folder::RegistryTime);
            transaction.push(Operation::create(folder, NodeKind::Persistent, ""));
        }
        transaction.push(match cx.view.has_registry_time() {
            true => Operation::set(paths.registry_time(), ""),
            false => Operation::create(paths.registry_time(), NodeKind::Persistent, ""),
        });
        self.asked = now.mono;
        out.commit(Purpose::CheckClock, transaction);
    }

    /// The registry has stamped the node.
    pub(crate) fn clock_checked(&mut self, cx: &Context, started: u64, results: &[OperationResult]) {
        let now = cx.now;
        self.done = Some((now.mono, started));
        let (Some(OperationResult::Created { stat, .. } | OperationResult::Set { stat }), Some(allowed)) =
            (results.last(), allowed_difference_ms(cx))
        else {
            return;
        };
        let ahead = certainly_ahead_ms(self.asked, now, stat.modified_ms);
        self.found(ahead, allowed);
    }

    /// A peer has created or removed the node at the same time: the request is made again at once. After any other
    /// error it waits.
    pub(crate) fn clock_check_failed(&mut self, cx: &Context, started: u64, error: &CommitError) {
        let now = cx.now;
        if !matches!(error.error, Error::NoNode(_) | Error::NodeExists(_)) {
            self.done = Some((now.mono, started));
        }
    }

    /// The problem that this clock differs by more than the job allows.
    pub(crate) fn clock_problem(&self, cx: &Context) -> Option<Problem> {
        let (allowed, ahead) = (allowed_difference_ms(cx)?, self.ahead_ms);
        if ahead.saturating_abs() <= allowed {
            return None;
        }
        let (side, fires) = if ahead > 0 { ("ahead of", "early") } else { ("behind", "late") };
        let (difference, allowed) = (ahead.unsigned_abs(), allowed.unsigned_abs());
        let message = format!(
            "the clock of {} is {}.{:03} s {side} the registry's, and maxTimeDiffSeconds is {}: its fires come too \
             {fires}; set the clock",
            cx.identity.server_ip,
            difference / 1_000,
            difference % 1_000,
            allowed / 1_000
        );
        Some(Problem { path: cx.identity.paths.registry_time(), message, code: ProblemCode::ClockSkew })
    }
}

/// The difference that the job allows; `None`: any.
fn allowed_difference_ms(cx: &Context) -> Option<i64> {
    let seconds = cx.settings.as_ref()?.configuration.max_time_diff_seconds;
    (seconds >= 0).then(|| i64::from(seconds).saturating_mul(1_000))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn ahead(round_trip_ms: u64, stamp_ms: i64) -> i64 {
        let asked = Duration::from_secs(5);
        let wall = Timestamp::from_millisecond(100_000).unwrap();
        certainly_ahead_ms(asked, Now { wall, mono: asked + Duration::from_millis(round_trip_ms) }, stamp_ms)
    }

    #[test]
    fn a_difference_within_the_round_trip_is_none() {
        assert_eq!(ahead(0, 100_000), 0);
        assert_eq!((ahead(0, 98_000), ahead(0, 102_000)), (2_000, -2_000));
        // Stamped at the beginning, half-way and at the end of four seconds.
        assert_eq!((ahead(4_000, 96_000), ahead(4_000, 98_000), ahead(4_000, 100_000)), (0, 0, 0));
        assert_eq!((ahead(4_000, 95_000), ahead(4_000, 101_000)), (1_000, -1_000));
        assert_eq!(ahead(0, i64::MIN), i64::MAX);
        assert_eq!(ahead(u64::MAX, i64::MAX), 0);
    }

    #[test]
    fn a_difference_that_hardly_changes_is_not_reported_again() {
        let mut check = ClockSkew::default();
        for (found, reported) in
            [(4_000, 4_000), (60_000, 60_000), (65_500, 60_000), (70_000, 70_000), (-70_000, -70_000), (0, 0)]
        {
            check.found(found, 5_000);
            assert_eq!(check.ahead_ms, reported);
        }
    }
}
