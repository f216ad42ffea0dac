//! Every deliberate bug is found: for each one, schedules are run from seed 0 on until an invariant is broken. `make
//! mutants` does so, and prints which invariant found which bug, and after how many seeds.
//!
//! What random schedules cannot reach, because it takes a certain order of events, is found by a test that makes that
//! order: [`DIRECTED`] says which.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use sidekeeper::mutants::{Mutant, choose};

use crate::swarm::{Options, schedule};

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
    directed!(
        GraceEndless,
        streams::p1_p2_p5_p6_hold_while_applications_come_back_within_their_grace_or_do_not
    ),
    directed!(
        MadeUpForFlaggedOnly,
        misfires::a_new_owner_makes_up_for_what_was_missed_before_and_after_the_flag_at_once
    ),
    directed!(
        CheckpointOfAnotherFire,
        progress::what_an_execution_of_another_instant_left_is_handed_to_nobody
    ),
    directed!(DisabledServerExecutes, windows::a_disabled_server_that_is_alone_executes_nothing),
    directed!(
        FiredAgainAfterClockStep,
        windows::p5_without_a_ledger_a_clock_set_back_a_little_fires_nothing_again
    ),
    directed!(
        FlagGoesFirst,
        interrupted::p5_what_was_interrupted_is_told_again_for_its_own_instant_with_its_checkpoint
    ),
    directed!(TakenUnread, interrupted::p5_a_failover_taken_in_a_lost_session_is_told_for_its_own_instant),
    directed!(
        CheckpointOfAnotherDeleted,
        progress::a_further_attempt_gets_the_checkpoint_and_the_next_fire_does_not
    ),
    directed!(
        DelayTakenForClock,
        misfires::p5_a_schedule_that_was_written_while_the_sidecar_was_stopped_is_owed_since_then
    ),
    directed!(
        ChangedScheduleBeginsWhenRead,
        misfires::p5_a_schedule_that_was_written_while_the_registry_was_away_is_owed_since_then
    ),
    directed!(
        UnavailableNotMissed,
        windows::p5_what_a_busy_item_misses_while_it_is_to_change_hands_is_known_to_who_comes_later
    ),
    directed!(
        FlagOfStartingFollowed,
        windows::p5_a_fire_that_comes_while_missed_ones_are_being_made_up_for_is_not_taken_for_one_of_them
    ),
    directed!(LeaseIgnored, lease::p4_whoever_slept_through_the_lease_learns_it_before_anything_else),
    directed!(LeaseSeenLate, lease::p4_whoever_slept_through_the_lease_learns_it_before_anything_else),
    directed!(LeaseSeenLate, lease::p4_what_was_started_before_a_sleep_beyond_the_lease_is_not_told_any_more),
    directed!(LostSessionKeepsExecutions, scenarios::p1_p2_p3_hold_while_instances_come_and_go),
    directed!(
        UnknownStartForgotten,
        windows::p5_p6_a_start_whose_answer_was_lost_is_told_once_for_what_it_was
    ),
    directed!(UnknownOutcomeIsFailure, scenarios::p1_p2_p3_hold_while_instances_come_and_go),
    directed!(DisabledLeaderStays, cases::a_disabled_server_gets_nothing_and_does_not_lead),
    directed!(LeftoverLeaderKept, neighbours::p7_a_leader_that_is_not_online_is_removed),
    directed!(DisabledServerGetsItems, cases::a_disabled_server_gets_nothing_and_does_not_lead),
    directed!(DisabledItemExecuted, cases::a_disabled_item_is_owned_and_not_executed),
    directed!(
        ServerEnabledAgain,
        neighbours::h15_a_server_that_an_operator_has_disabled_stays_so_in_a_new_session
    ),
    directed!(StopIgnored, cases::removing_the_instance_stops_it_for_good),
    directed!(ShardedWithoutWaiting, neighbours::p2_what_a_java_instance_executes_is_not_given_to_others),
    directed!(
        ShardedWithoutGuard,
        divisions::p2_an_item_that_begins_just_before_a_division_stays_where_it_runs
    ),
    directed!(ShardingTorn, divisions::p8_between_the_transactions_of_a_division_the_flag_is_up),
    directed!(SilenceNotChecked, divisions::p2_who_has_spoken_again_is_not_taken_for_one_of_javas),
    directed!(
        HandoverUnseen,
        divisions::p2_a_division_that_has_not_seen_what_was_handed_over_is_thought_over
    ),
    directed!(
        FlagLoweredWithDivision,
        java_peers::p5_a_fire_right_after_a_division_is_not_lost_because_javas_cache_is_behind
    ),
    directed!(
        NewcomerGetsItems,
        java_peers::p5_a_java_instance_that_has_just_registered_gets_no_item_before_a_fire
    ),
    directed!(JoinedWhileFlagged, java_peers::p5_no_fire_is_lost_beside_java_while_a_sidecar_leads),
    directed!(
        GivenTakenBack,
        java_peers::a_java_instance_keeps_its_items_when_the_schedule_comes_to_fire_sooner
    ),
    directed!(DividedAtFire, java_peers::p5_no_division_begins_while_a_fire_is_being_started),
    directed!(
        LoweringUnnoticed,
        java_peers::p5_no_division_begins_while_fires_that_waited_for_the_flag_are_being_started
    ),
    directed!(
        StartedOnOldSharding,
        divisions::p2_p5_a_start_on_what_was_owned_before_a_division_creates_nothing_and_is_thought_over
    ),
    directed!(
        StartedWhileResharding,
        neighbours::p8_nothing_starts_while_a_java_leader_is_to_divide_the_items
    ),
    directed!(ForeignRunningDeleted, neighbours::p2_what_a_java_instance_executes_is_not_given_to_others),
    directed!(StickyForgetsOwners, handoff::p1_who_joins_gets_its_share_and_nothing_else_is_touched),
    directed!(
        SeatKeptFromNewcomer,
        balance::p1_a_seat_moves_to_a_newcomer_that_ranks_above_its_holder_and_to_nobody_else
    ),
    directed!(
        OutdatedOverruled,
        balance::p1_while_a_sidecar_of_an_earlier_version_is_there_all_leaders_divide_by_its_rule_and_say_so
    ),
    directed!(
        AcknowledgementIgnored,
        handoff::p2_without_an_acknowledgement_an_item_changes_hands_at_the_deadline
    ),
    directed!(HandedOverWhileBusy, handoff::p2_an_item_that_runs_changes_hands_when_it_has_ended),
    directed!(DrainedWithoutWaiting, handoff::p5_who_leaves_hands_over_first),
    directed!(RunningNodeEphemeral, scenarios::p5_with_failover_what_was_interrupted_is_executed_by_somebody),
    directed!(DeadlineIgnored, deadlines::an_execution_is_told_its_deadline_and_to_stop_when_it_has_passed),
    directed!(
        DisobedienceIgnored,
        deadlines::p2_who_does_not_stop_is_expelled_and_its_items_are_executed_by_others
    ),
    directed!(RetriedForEver, deadlines::after_the_last_attempt_it_is_given_up_and_the_next_fire_begins_anew),
    directed!(
        CancelledIsRetried,
        deadlines::what_an_operator_cancels_is_not_tried_again_and_the_next_fire_goes_on
    ),
    directed!(
        RetriedByFormerOwner,
        deadlines::p2_a_retry_does_not_survive_a_change_of_owner_a_lost_session_or_a_drain
    ),
    directed!(
        CheckpointLeft,
        progress::who_takes_an_item_over_gets_the_checkpoint_and_its_success_deletes_it
    ),
    directed!(
        MisfireDropped,
        misfires::one_execution_makes_up_for_all_that_was_missed_and_is_told_for_the_newest
    ),
    directed!(
        FlaggedWithoutLedger,
        misfires::what_was_flagged_is_told_for_its_instant_though_the_schedule_has_changed
    ),
    directed!(ClockSetBackIgnored, cases::p7_a_clock_set_back_by_hours_does_not_stop_the_job),
    directed!(
        EndedBeforeRead,
        streams::p6_an_instance_that_is_elected_when_it_has_left_and_reads_again_leaves_no_leader
    ),
    directed!(UnfinishedForgotten, scenarios::p5_with_failover_what_was_interrupted_is_executed_by_somebody),
    directed!(EchoAtOnce, cases::h11_a_flag_that_is_seen_before_the_departure_that_raised_it_is_no_echo),
    directed!(EchoObeyed, cases::h11_what_a_java_peer_flags_late_has_been_made_good_already),
    directed!(
        JavaGraceForgotten,
        neighbours::h2_what_a_java_instance_executes_is_not_taken_from_it_while_it_reconnects
    ),
    directed!(JavaLeaderNotReminded, cases::h5_a_java_leader_that_has_forgotten_somebody_is_reminded),
    directed!(
        LeftOutOfDivision,
        java_peers::h5_a_sidecar_that_registers_while_a_java_leader_divides_gets_items
    ),
    directed!(GraceForgotten, streams::who_is_away_keeps_its_items_and_gets_no_new_ones),
    directed!(
        NameNotRenewed,
        names::p1_p3_p5_who_is_restarted_within_the_grace_finds_its_items_with_new_tokens
    ),
    directed!(NameTakenFromLiving, names::who_finds_its_name_in_use_waits_and_takes_nothing),
    directed!(
        AbsenceForgotten,
        names::p1_p3_p5_who_is_restarted_within_the_grace_finds_its_items_with_new_tokens
    ),
    directed!(
        ListenerCalledTwice,
        once::the_listener_is_called_once_before_the_first_and_once_after_the_last
    ),
    directed!(GateIgnored, once::the_listener_is_called_once_before_the_first_and_once_after_the_last),
    directed!(LatchKept, once::the_listener_is_called_once_before_the_first_and_once_after_the_last),
    directed!(TurnKept, cases::a_single_item_walks_over_the_servers_one_execution_each),
];

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
    // What panics here is what is looked for.
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = find(*mutant, seeds);
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
