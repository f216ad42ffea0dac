//! Every deliberate bug is found: for each one, schedules are run from seed 0 on until an invariant is broken. `make
//! mutants` does so, and prints which invariant found which bug, and after how many seeds.
//!
//! Random schedules do not find a bug that needs a certain order of events; a directed test makes that order.
//! [`DIRECTED`] lists these tests.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use sidekeeper::mutants::{Mutant, choose};

use crate::swarm::{Options, schedule, schedule_of_interruptions};

/// How many schedules there are for each mutant, at most. `MUTANT_SEEDS` asks for another number.
const SEEDS: u64 = 1_500;
/// How many mutants are looked for at once.
const THREADS: usize = 2;

/// A test that finds a mutant: its name, and itself.
type Directed = (Mutant, &'static str, fn());

macro_rules! directed {
    ($mutant:ident, $module:ident::$test:ident) => {
        (Mutant::$mutant, concat!(stringify!($module), "::", stringify!($test)), crate::$module::$test)
    };
}

/// The mutants that random schedules do not find, and which test does.
const DIRECTED: &[Directed] = &[
    directed!(GraceEndless, stream::p1_p2_p5_p6_hold_while_applications_reattach_in_time_or_do_not),
    directed!(
        RerunForFlaggedOnly,
        misfire::a_new_owner_reruns_the_fires_missed_before_and_after_the_flag_at_once
    ),
    directed!(CheckpointOfAnotherFire, checkpoint::a_checkpoint_of_another_instant_is_passed_to_no_execution),
    directed!(DisabledServerExecutes, start::a_disabled_server_that_is_alone_executes_nothing),
    directed!(
        FiredAgainAfterClockStep,
        schedule::p5_without_a_ledger_a_clock_set_back_by_seconds_fires_no_instant_again
    ),
    (Mutant::FlagGoesFirst, "simulate: interruptions", interruptions),
    directed!(TakenUnread, failover::p5_a_takeover_in_a_lost_session_is_executed_for_its_own_instant),
    directed!(CheckpointOfAnotherDeleted, checkpoint::a_retry_gets_the_checkpoint_and_the_next_fire_does_not),
    directed!(
        DelayCountedAsClock,
        catch_up::p5_a_schedule_written_while_the_sidecar_was_stopped_counts_from_then
    ),
    directed!(
        ChangedScheduleBeginsWhenRead,
        catch_up::p5_a_schedule_written_while_the_connection_was_broken_counts_from_then
    ),
    directed!(
        UnavailableNotMissed,
        misfire::p5_the_next_owner_knows_the_fires_that_a_busy_item_missed_before_a_resharding
    ),
    directed!(FlagOfStartingFollowed, misfire::p5_a_fire_during_a_rerun_is_not_taken_for_a_missed_one),
    directed!(LeaseIgnored, lease::p4_a_process_that_slept_through_the_lease_gives_everything_up_first),
    directed!(LeaseSeenLate, lease::p4_a_process_that_slept_through_the_lease_gives_everything_up_first),
    directed!(LeaseSeenLate, lease::p4_a_start_from_before_a_sleep_beyond_the_lease_is_not_sent),
    directed!(LostSessionKeepsExecutions, fleet::p1_p2_p3_hold_while_instances_come_and_go),
    directed!(
        LateStartPlanned,
        start::p5_an_item_whose_start_takes_effect_late_is_executed_once_for_its_instant
    ),
    directed!(LateRetryDropped, start::p5_a_retry_whose_start_takes_effect_late_is_executed_at_once),
    directed!(
        SuspicionForgotten,
        completion::h4_an_unknown_running_node_is_looked_up_also_soon_after_another_one
    ),
    directed!(
        UnknownStartForgotten,
        start::p5_p6_a_start_whose_answer_was_lost_is_sent_once_with_its_source_and_instant
    ),
    directed!(
        UnknownOutcomeIsFailure,
        start::p5_p6_a_start_whose_answer_was_lost_is_sent_once_with_its_source_and_instant
    ),
    directed!(
        FleetCancelHitsLater,
        fleet_cancel::each_execution_of_the_fleet_is_cancelled_once_and_the_next_ones_go_on
    ),
    directed!(
        FleetCancelHitsUnrecorded,
        fleet_cancel::an_execution_that_the_registry_does_not_know_is_not_cancelled
    ),
    directed!(
        ItemTriggerUnmarked,
        item_trigger::only_the_named_items_are_executed_once_and_the_next_fire_has_the_job_s_parameter_again
    ),
    directed!(
        ItemTriggerParameterForgotten,
        item_trigger::a_failover_and_a_retry_keep_the_parameter_and_the_instant
    ),
    directed!(ItemTriggerEndedEarly, item_trigger::a_failover_and_a_retry_keep_the_parameter_and_the_instant),
    directed!(ItemLockNotAwaited, item_lock::s53_an_execution_waits_until_the_other_job_gives_the_lock_back),
    directed!(ItemLockKept, item_lock::s53_an_execution_waits_until_the_other_job_gives_the_lock_back),
    directed!(
        ItemLockLimitIgnored,
        item_lock::s54_an_execution_that_has_waited_for_too_long_is_not_run_and_counts_as_missed
    ),
    directed!(ItemLockWaitsOn, item_lock::s55_an_item_that_moves_away_while_it_waits_leaves_the_queue),
    directed!(
        ItemLockLossIgnored,
        item_lock::s56_a_lost_lock_cancels_the_execution_which_then_counts_as_interrupted
    ),
    directed!(
        ItemLockLossIsFailure,
        item_lock::s56_a_lost_lock_cancels_the_execution_which_then_counts_as_interrupted
    ),
    directed!(
        InterruptedForgotten,
        retry::p5_an_execution_that_is_interrupted_shortly_before_its_instance_leaves_is_taken_over
    ),
    directed!(
        InterruptionIsFailure,
        retry::p5_an_interrupted_execution_fails_over_or_else_is_retried_as_one_that_failed
    ),
    directed!(DisabledLeaderStays, leadership::a_disabled_server_gets_no_items_and_does_not_lead),
    directed!(LeftoverLeaderKept, leadership::p7_a_leader_that_is_not_online_is_removed),
    directed!(DisabledServerGetsItems, leadership::a_disabled_server_gets_no_items_and_does_not_lead),
    directed!(DisabledItemExecuted, start::a_disabled_item_is_owned_and_not_executed),
    directed!(
        ServerEnabledAgain,
        registration::h15_a_server_that_an_operator_disabled_stays_disabled_in_a_new_session
    ),
    directed!(StopIgnored, removal::an_instance_whose_node_an_operator_removes_stops_for_good),
    directed!(ShardedWithoutWaiting, resharding::p2_an_item_that_a_java_instance_executes_is_not_moved),
    directed!(
        ShardedWithoutGuard,
        resharding::p2_an_item_that_begins_just_before_a_resharding_keeps_its_owner
    ),
    directed!(ShardingTorn, resharding::p8_the_flag_is_up_between_the_transactions_of_a_resharding),
    directed!(
        SilenceNotChecked,
        resharding::p2_a_member_that_announces_itself_again_is_not_taken_for_a_java_instance
    ),
    directed!(HandoverUnseen, resharding::p2_a_resharding_that_has_not_seen_a_handover_is_decided_anew),
    directed!(
        FlagLoweredWithResharding,
        java_peers::p5_a_fire_right_after_a_resharding_is_not_lost_though_javas_cache_is_behind
    ),
    directed!(
        NewcomerGetsItems,
        java_peers::p5_a_java_instance_that_has_just_registered_gets_no_item_before_a_fire
    ),
    directed!(
        JoinedWhileFlagged,
        java_peers::p5_a_sidecar_that_registers_after_a_fire_that_waits_for_the_flag_gets_no_item_while_it_is_up
    ),
    directed!(
        GivenTakenBack,
        java_peers::a_java_instance_keeps_its_items_when_the_schedule_comes_to_fire_sooner
    ),
    directed!(ReshardedAtFire, java_peers::p5_no_resharding_begins_while_a_fire_is_being_started),
    directed!(
        LoweringUnnoticed,
        java_peers::p5_no_resharding_begins_while_fires_that_waited_for_the_flag_are_being_started
    ),
    directed!(
        StartedOnOldSharding,
        resharding::p2_p5_a_start_on_the_former_assignment_creates_nothing_and_is_decided_anew
    ),
    directed!(StartedWhileResharding, start::p8_nothing_starts_while_a_java_leader_has_to_reshard),
    directed!(ForeignRunningDeleted, resharding::p2_an_item_that_a_java_instance_executes_is_not_moved),
    directed!(StickyForgetsOwners, handoff::p1_a_newcomer_gets_its_share_and_no_other_item_moves),
    directed!(
        SeatKeptFromNewcomer,
        allocation::p1_a_seat_moves_only_to_a_newcomer_that_ranks_above_its_holder
    ),
    directed!(
        OutdatedOverruled,
        allocation::p1_beside_an_earlier_version_all_leaders_use_its_rule_and_report_that
    ),
    directed!(
        AcknowledgementIgnored,
        handoff::p2_without_an_acknowledgement_an_item_is_handed_over_at_the_deadline
    ),
    directed!(HandedOverWhileBusy, handoff::p2_a_running_item_is_handed_over_when_it_has_ended),
    directed!(DrainedWithoutWaiting, handoff::p5_a_leaving_instance_hands_its_items_over_first),
    directed!(
        DrainAnnouncedEarly,
        departure::p5_an_application_that_stops_gets_what_was_starting_and_then_nothing
    ),
    directed!(RunningNodeEphemeral, failover::p5_with_failover_every_interrupted_execution_is_taken_over),
    directed!(DeadlineIgnored, deadline::an_execution_gets_its_deadline_and_is_cancelled_when_it_has_passed),
    directed!(
        UnresponsiveLeftAlone,
        deadline::p2_an_unresponsive_application_is_disconnected_and_its_items_are_executed_by_others
    ),
    directed!(RetriedForEver, retry::after_the_last_attempt_the_next_fire_begins_anew),
    directed!(CancelledIsRetried, retry::an_execution_that_an_operator_cancels_is_not_retried),
    directed!(
        RetriedByFormerOwner,
        retry::p2_a_retry_does_not_survive_a_change_of_owner_a_lost_session_or_a_drain
    ),
    directed!(CheckpointLeft, checkpoint::a_takeover_gets_the_checkpoint_and_its_success_deletes_it),
    directed!(MisfireDropped, misfire::one_rerun_covers_all_missed_fires_and_names_the_newest),
    directed!(
        WitnessIgnored,
        witness::p5_an_instance_that_came_after_a_missed_fire_learns_of_it_from_the_witness
    ),
    directed!(FlaggedWithoutLedger, misfire::a_flagged_fire_keeps_its_instant_though_the_schedule_changes),
    directed!(ClockSetBackIgnored, schedule::p7_a_clock_set_back_by_hours_does_not_stop_the_job),
    directed!(
        EndedBeforeRead,
        leadership::p6_an_instance_that_is_elected_after_its_departure_leaves_no_leader
    ),
    directed!(UnfinishedForgotten, failover::p5_with_failover_every_interrupted_execution_is_taken_over),
    directed!(LateFlagAtOnce, late_flags::h11_a_flag_seen_before_its_departure_is_not_a_late_flag),
    directed!(LateFlagTaken, late_flags::h11_a_late_flag_of_a_java_peer_does_not_repeat_a_completed_takeover),
    directed!(
        JavaGraceForgotten,
        failover::h2_the_executions_of_a_java_instance_that_reconnects_are_not_taken_over
    ),
    directed!(
        JavaLeaderNotReminded,
        leader_reminder::h5_a_java_leader_that_leaves_an_item_without_a_living_owner_is_reminded
    ),
    directed!(
        LeftOutOfResharding,
        java_peers::h5_a_sidecar_that_registers_while_a_java_leader_reshards_gets_items
    ),
    directed!(GraceForgotten, stream::a_detached_instance_keeps_its_items_and_gets_no_new_ones),
    directed!(
        NameNotRenewed,
        instance_name::p1_p3_p5_a_named_instance_that_restarts_in_time_finds_its_items_with_new_tokens
    ),
    directed!(NameTakenFromLiving, instance_name::an_instance_whose_name_is_in_use_waits_and_takes_nothing),
    directed!(
        ReservationForgotten,
        instance_name::p1_p3_p5_a_named_instance_that_restarts_in_time_finds_its_items_with_new_tokens
    ),
    directed!(
        ListenerCalledTwice,
        once::the_listener_is_called_once_before_the_first_item_and_once_after_the_last
    ),
    directed!(
        BarrierIgnored,
        once::the_listener_is_called_once_before_the_first_item_and_once_after_the_last
    ),
    directed!(LatchKept, once::the_listener_is_called_once_before_the_first_item_and_once_after_the_last),
    directed!(TurnKept, rotation::a_single_item_rotates_over_the_servers_with_one_execution_each),
];

/// As the check of the same name in `simulate.rs`.
fn interruptions() {
    if let Some(violation) = (0..250).find_map(|seed| schedule_of_interruptions(seed).err()) {
        panic!("{violation}");
    }
}

/// The mutants of the runner, which is not in this simulation: `tests/runner_simulation/mutants.rs` finds them.
const OF_THE_RUNNER: &[Mutant] = &[Mutant::LeaseProvenByRead, Mutant::LeaseProvenBySync];

/// How a mutant was found.
struct Found {
    by: String,
    /// How many seeds that took; `None`: it was a directed test.
    seeds: Option<u64>,
    how: String,
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The bugs of locks, which the schedules of a lock find.
const OF_LOCKS: &[Mutant] = &[
    Mutant::LockLeaseIgnored,
    Mutant::LockRevocationMissed,
    Mutant::LockStrayLeft,
    Mutant::LockHeldOutOfTurn,
    Mutant::LockUnknownForgotten,
    Mutant::LockReleasedEarly,
    Mutant::LockLossNotTold,
    Mutant::LockResumedBlindly,
    Mutant::CandidateToldOlderTerm,
    Mutant::CandidateLeavesNode,
    Mutant::CandidateNotAgain,
    Mutant::SemaphoreNotCounted,
    Mutant::SemaphoreNotWatched,
    Mutant::SemaphoreOutOfQueue,
    Mutant::SemaphoreQueueHeld,
    Mutant::LockDelayIgnored,
    Mutant::LockDelayNotAnnounced,
    Mutant::LockDelayKept,
];

/// The bugs of sticky locks, which the schedules of a sticky lock find.
const OF_STICKY_LOCKS: &[Mutant] = &[
    Mutant::StickyLeaseIgnored,
    Mutant::StickyRunEndless,
    Mutant::StickyGraceIgnored,
    Mutant::StickyLossNotTold,
    Mutant::StickyUnknownForgotten,
    Mutant::StickyRecordUnguarded,
    Mutant::StickyUnfinishedDropped,
    Mutant::StickyUnfinishedUntold,
];

/// How many schedules of the general world look for a bug of locks, at most. Applications hold locks in each sixteenth one.
const GENERAL_SEEDS: u64 = 1_000;

/// In words: what finds a bug of locks in the general world.
fn also_in_general(mutant: Mutant) -> String {
    choose(Some(mutant));
    let found = (0..GENERAL_SEEDS).find_map(|place| {
        let violation = schedule(3 + 16 * place, &Options::default()).err()?;
        Some((place + 1, violation.invariant))
    });
    match found {
        Some((seeds, invariant)) => format!("I{} {invariant:?} after {seeds}", invariant.number()),
        None => format!("not within {GENERAL_SEEDS}"),
    }
}

/// Looks for a bug of sticky locks.
fn find_in_sticky_locks(mutant: Mutant, seeds: u64) -> Option<Found> {
    choose(Some(mutant));
    (0..seeds).find_map(|seed| {
        let how = crate::sticky::schedule(seed).err()?;
        let by = format!("the schedules of a sticky lock; in the general world {}", also_in_general(mutant));
        Some(Found { by, seeds: Some(seed + 1), how })
    })
}

/// Looks for a bug of locks.
fn find_in_locks(mutant: Mutant, seeds: u64) -> Option<Found> {
    choose(Some(mutant));
    (0..seeds).find_map(|seed| {
        let how = crate::lock::schedule(seed).err()?;
        let by = format!("the schedules of a lock; in the general world {}", also_in_general(mutant));
        Some(Found { by, seeds: Some(seed + 1), how })
    })
}

/// Looks for a mutant, first with random schedules, then with the test that is known to find it.
fn find(mutant: Mutant, seeds: u64) -> Option<Found> {
    choose(Some(mutant));
    for seed in 0..seeds {
        if let Err(violation) = schedule(seed, &Options::default()) {
            choose(None);
            let sound = schedule(seed, &Options::default()).is_ok();
            choose(Some(mutant));
            if !sound {
                // That is another bug, which needs no mutant.
                continue;
            }
            let by = format!("I{} {:?}", violation.invariant.number(), violation.invariant);
            return Some(Found { by, seeds: Some(seed + 1), how: violation.found });
        }
    }
    DIRECTED.iter().filter(|(known, ..)| *known == mutant).find_map(|(_, name, test)| {
        let panic = catch_unwind(AssertUnwindSafe(test)).err()?;
        let how = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        Some(Found { by: format!("`{name}`"), seeds: None, how })
    })
}

#[test]
fn every_mutant_is_found() {
    let only = std::env::var("MUTANT").ok();
    let wanted = |mutant: &&Mutant| only.as_ref().is_none_or(|only| *only == format!("{mutant:?}"));
    let mutants: Vec<Mutant> = Mutant::ALL.iter().filter(wanted).copied().collect();
    let of_the_runner: Vec<_> = mutants.iter().filter(|mutant| OF_THE_RUNNER.contains(mutant)).collect();
    println!("looked for elsewhere: {of_the_runner:?}");
    let mutants: Vec<Mutant> =
        mutants.iter().filter(|mutant| !OF_THE_RUNNER.contains(mutant)).copied().collect();
    if mutants.is_empty() && !of_the_runner.is_empty() {
        return;
    }
    assert!(!mutants.is_empty(), "MUTANT: there is no {only:?}; there are {:?}", Mutant::ALL);
    let seeds = number("MUTANT_SEEDS", SEEDS);
    let results: Mutex<BTreeMap<Mutant, Option<Found>>> = Mutex::default();
    let next = AtomicUsize::new(0);
    let hook = std::panic::take_hook();
    // A panic is the expected result here.
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let look = match mutant {
                        mutant if OF_LOCKS.contains(mutant) => find_in_locks,
                        mutant if OF_STICKY_LOCKS.contains(mutant) => find_in_sticky_locks,
                        _ => find,
                    };
                    let found = look(*mutant, seeds);
                    println!("{}", line(*mutant, found.as_ref()));
                    results.lock().unwrap().insert(*mutant, found);
                }
            });
        }
    });
    std::panic::set_hook(hook);
    let results = results.into_inner().unwrap();
    println!("\n| mutant | what is wrong | found by | seeds |\n| --- | --- | --- | ---: |");
    for (mutant, found) in &results {
        let (by, seeds) = found.as_ref().map_or(("nothing", "-".to_owned()), |found| {
            (found.by.as_str(), found.seeds.map_or("-".to_owned(), |seeds| seeds.to_string()))
        });
        println!("| {mutant:?} | {} | {by} | {seeds} |", mutant.what());
    }
    let survivors: Vec<_> =
        results.iter().filter(|(_, found)| found.is_none()).map(|(mutant, _)| mutant).collect();
    assert!(survivors.is_empty(), "not found within {seeds} seeds: {survivors:?}; an invariant is missing");
}

/// One line that says how a mutant was found.
fn line(mutant: Mutant, found: Option<&Found>) -> String {
    let Some(Found { by, seeds, how }) = found else { return format!("{mutant:?}: NOT FOUND") };
    let how: String = how.lines().next().unwrap_or_default().chars().take(160).collect();
    format!("{mutant:?}: {by}, seeds {seeds:?}: {how}")
}
