//! Deliberate bugs, one at a time, for the tests that the simulation finds bugs. Without the feature
//! `mutants` each hook is false, and no build for use has the feature. With it, a test chooses the bug of its
//! thread.
//!
//! A hook is a condition like any other, `mutant!(Name)`, and changes nothing else. `docs/laboratory.md`
//! lists which invariant catches which mutant, and how soon; `make mutants` measures it again.

#[cfg(all(feature = "mutants", not(debug_assertions)))]
compile_error!(
    "the feature `mutants` puts deliberate bugs into the sidecar; it is for tests, never for a build for use"
);

/// Whether a deliberate bug is active.
macro_rules! mutant {
    ($name:ident) => {
        $crate::mutants::is_active($crate::mutants::Mutant::$name)
    };
}
pub(crate) use mutant;

macro_rules! mutants {
    ($(#[doc = $what:literal] $name:ident,)+) => {
        /// A deliberate bug.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mutant {
            $(#[doc = $what] $name,)+
        }

        impl Mutant {
            /// All mutants.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The wrong behaviour, in a sentence.
            pub fn what(self) -> &'static str {
                match self {
                    $(Self::$name => $what.trim_ascii(),)+
                }
            }
        }
    };
}

mutants! {
    // The session and its lease.
    /// The end of the lease is ignored: the instance relies on the session until the registry ends it.
    LeaseIgnored,
    /// Other inputs are handled before the lease is checked.
    LeaseSeenLate,
    /// A watch shows nodes as of several moments.
    TornStates,
    /// An answered read counts as a proof that the session is alive.
    LeaseProvenByRead,
    /// An answered `sync` counts as a proof that the session is alive.
    LeaseProvenBySync,
    /// A lost session does not cancel executions.
    LostSessionKeepsExecutions,
    /// An instance in a session that has ended counts as registered.
    SessionChangeIgnored,
    /// A commit of unknown outcome counts as failed: the view is not read again.
    UnknownOutcomeIsFailure,
    /// Nodes of a start with unknown outcome are not looked up.
    UnknownStartForgotten,
    /// A start that took effect after its outcome had become unknown is planned again beside its failover.
    LateStartPlanned,
    /// A retry whose start takes effect late is dropped, as if another execution had taken its place.
    LateRetryDropped,
    /// A running node of unknown owner is not looked up if another one was looked up a moment before.
    SuspicionForgotten,

    // Locks.
    /// The holder of a lock relies on its session after the end of the lease.
    LockLeaseIgnored,
    /// A contender does not notice that its node was deleted.
    LockRevocationMissed,
    /// A node that a late request has created stays in the queue.
    LockStrayLeft,
    /// A waiting contender holds as soon as the one before it is gone, without another look at the queue.
    LockHeldOutOfTurn,
    /// A request of unknown outcome counts as failed: the contender creates another node, and does not look for the first one.
    LockUnknownForgotten,
    /// The application hears that the lock was given back before its node is deleted.
    LockReleasedEarly,
    /// A holder whose session is lost does not hear of the loss.
    LockLossNotTold,
    /// After an interruption a holder does not look whether its node is still there.
    LockResumedBlindly,
    /// A candidate hears of a leader whose term is older than one that it knows.
    CandidateToldOlderTerm,
    /// A candidate that makes way for a successor leaves its node in the queue.
    CandidateLeavesNode,
    /// A candidate that has lost the leadership ends.
    CandidateNotAgain,
    /// A permit is held although as many are taken as there are.
    SemaphoreNotCounted,
    /// A contender that waits for a permit does not notice that one is given back.
    SemaphoreNotWatched,
    /// The permit's node stays although the contender has lost its first place in the queue.
    SemaphoreOutOfQueue,
    /// A contender that has got its permit keeps its first place in the queue.
    SemaphoreQueueHeld,
    /// The first of the queue holds although the delay of a holder that has vanished is not over.
    LockDelayIgnored,
    /// A holder with a delay holds without its delay's node.
    LockDelayNotAnnounced,
    /// The node of the delay stays when the lock is given back.
    LockDelayKept,

    // Cancels of the whole fleet.
    /// A cancel of the whole fleet concerns executions that have begun after it.
    FleetCancelHitsLater,
    /// A cancel of the whole fleet concerns executions that the registry does not know.
    FleetCancelHitsUnrecorded,

    // Triggers of items.
    /// The start of an item leaves its trigger as one that waits.
    ItemTriggerUnmarked,
    /// The parameter of a trigger is forgotten when its execution is retried or fails over.
    ItemTriggerParameterForgotten,
    /// The owner deletes the trigger of an item as soon as its execution has begun.
    ItemTriggerEndedEarly,

    // Item locks.
    /// An execution starts without waiting for the lock of its item.
    ItemLockNotAwaited,
    /// An instance keeps the lock of an item after the execution.
    ItemLockKept,
    /// A wait goes on though the execution is not wanted any more.
    ItemLockWaitsOn,
    /// An execution waits beyond its limit.
    ItemLockLimitIgnored,
    /// A lost lock does not cancel the execution.
    ItemLockLossIgnored,
    /// An execution that stopped because its lock was lost is recorded as one that failed.
    ItemLockLossIsFailure,
    /// An instance leaves before it knows that running nodes of interrupted executions are its own.
    InterruptedForgotten,
    /// An execution that the application interrupted is recorded as one that failed, also in a job that fails over.
    InterruptionIsFailure,

    // Sticky locks.
    /// The end of the lease is ignored: the owner relies on the session until the registry ends it.
    StickyLeaseIgnored,
    /// A run goes on without an end after its session is lost.
    StickyRunEndless,
    /// Candidates try as soon as the owner has vanished.
    StickyGraceIgnored,
    /// The application does not hear that the lock is lost.
    StickyLossNotTold,
    /// A request of unknown outcome counts as failed.
    StickyUnknownForgotten,
    /// A transaction does not check the record's version.
    StickyRecordUnguarded,
    /// A new owner does not keep the interrupted run of the last one.
    StickyUnfinishedDropped,
    /// An owner does not hear of the interrupted runs.
    StickyUnfinishedUntold,

    // Election and membership.
    /// A leader whose server is disabled goes on leading.
    DisabledLeaderStays,
    /// A leader that leaves does not give up leadership.
    LeadershipKept,
    /// A leader that is not online is never removed.
    LeftoverLeaderKept,
    /// A disabled server's instances are given items.
    DisabledServerGetsItems,
    /// A disabled server's instances execute their items.
    DisabledServerExecutes,
    /// A disabled item is executed.
    DisabledItemExecuted,
    /// Registering again enables a server that an operator has disabled.
    ServerEnabledAgain,
    /// An instance that an operator has stopped continues.
    StopIgnored,
    /// The instance's node stays when it has left.
    InstanceLeft,
    /// An instance that has left ends while its nodes are being read again.
    EndedBeforeRead,
    /// The profile of an instance stays when the instance has left.
    MemberLeft,

    // Sharding.
    /// After a sharding the assignment is not compared any more with the online instances.
    MembershipComparedOnce,
    /// Items that are executed are assigned to other instances.
    ShardedWithoutWaiting,
    /// A sharding does not notice that an item has begun to run in the meantime.
    ShardedWithoutGuard,
    /// A sharding takes several transactions, and shows no flag between them.
    ShardingTorn,
    /// Items are started on an assignment that may be older than the registry's.
    StartedOnOldSharding,
    /// Items are started while a resharding is due.
    StartedWhileResharding,
    /// The running nodes of instances that are online are deleted by a sharding.
    ForeignRunningDeleted,
    /// Owners change without a reason: the allocation ignores the present owners.
    StickyForgetsOwners,
    /// The draws of members for a job leave the job's name out of the hash, and are the same for all jobs.
    JobNotDrawnFor,
    /// A seat beyond the equal share stays with its holder, also when a newcomer ranks above.
    SeatKeptFromNewcomer,
    /// Items are allocated by the present rule also with a sidecar that does not know it.
    OutdatedOverruled,
    /// An instance that had no member node when a resharding was decided counts as a Java instance, although it has written the node since.
    SilenceNotChecked,
    /// A resharding by ElasticJob's rules does not check whether items were handed over in the meantime.
    HandoverUnseen,
    /// A resharding removes the flag at once, although the caches of Java instances are late.
    FlagLoweredWithResharding,
    /// A Java instance that has just registered gets items, although its scheduler may not run at the next fire.
    NewcomerGetsItems,
    /// A Java instance that was given items loses them when the schedule changes and fires before its scheduler may run.
    GivenTakenBack,
    /// An instance that registers beside Java while the flag exists gets items, although a fire waits for their owner.
    JoinedWhileFlagged,
    /// A resharding beside Java instances begins while a fire is being started.
    ReshardedAtFire,
    /// A resharding beside Java instances begins right after the flag was removed, while fires that waited for it are being started.
    LoweringUnnoticed,

    // Handing over.
    /// An item is handed over before its revocation was acknowledged.
    AcknowledgementIgnored,
    /// An item is handed over while it is executed.
    HandedOverWhileBusy,
    /// A handed over item counts as this instance's again when the plan is deleted, until the view shows its new owner.
    GivenForgotten,
    /// An item is handed over by changing its node, so that its token stays.
    HandedOverWithSameToken,
    /// The items of a leader's plan are never handed over.
    NeverHandedOver,
    /// A drained instance leaves though executions have not ended.
    DrainedWithoutWaiting,
    /// An application hears that no execution follows while a start is in flight.
    DrainAnnouncedEarly,

    // Executions.
    /// An execution is sent before its running node exists.
    SentBeforeNode,
    /// An execution is sent with the token of the assignment.
    TokenReused,
    /// Running nodes end with the session although the job has failover.
    RunningNodeEphemeral,
    /// A result counts as recorded before its running node is deleted.
    AnsweredBeforeRecorded,
    /// A result is dropped if it could not be recorded at once.
    CompletionDropped,
    /// A result whose answer was lost is applied once more, to the item's next execution.
    CompletionAppliedTwice,
    /// Executions go on after their deadlines.
    DeadlineIgnored,
    /// An unresponsive application keeps its stream.
    UnresponsiveLeftAlone,
    /// A failed execution is retried for ever.
    RetriedForEver,
    /// An execution that an operator has cancelled is retried.
    CancelledIsRetried,
    /// A failed execution is retried by an instance that does not own the item any more.
    RetriedByFormerOwner,
    /// An execution gets the checkpoint of another fire.
    CheckpointOfAnotherFire,
    /// The checkpoint of a successful execution stays.
    CheckpointLeft,

    // Fires.
    /// A fire that meets a busy item is dropped.
    MisfireDropped,
    /// A missed fire is flagged, and the ledger does not say for which instant.
    FlaggedWithoutLedger,
    /// A start is not written down in the ledger.
    StartedWithoutLedger,
    /// The ledger is not read when items come from another instance.
    LedgerNotRead,
    /// The ledger's entry of an item is not read again when another instance has had the item, nor its version checked.
    LedgerEntryKept,
    /// The next owner of an item does not look at the witnesses of missed fires.
    WitnessIgnored,
    /// A misfire flag stays after the re-run.
    MisfireFlagLeft,
    /// A misfire re-run has the instant of the flagged fire, not of the newest.
    RerunForFlaggedOnly,
    /// The missed fires of busy items are not recorded while a resharding is due.
    UnavailableNotMissed,
    /// The flag of an item that is being started counts as one of a later fire.
    FlagOfStartingFollowed,
    /// A schedule that was written while the session was suspended begins when it is read.
    ChangedScheduleBeginsWhenRead,
    /// A change that arrives late, because the sidecar was stopped, counts as a clock that is ahead.
    DelayCountedAsClock,
    /// A clock that goes back a little fires again.
    FiredAgainAfterClockStep,
    /// After a clock was set back by hours, the sidecar waits until it reaches the former time.
    ClockSetBackIgnored,

    // Failover.
    /// An instance flags its own executions as crashed.
    OwnRunningFailsOver,
    /// The flag of an item is deleted before the nodes of its takeover.
    FlagGoesFirst,
    /// The end of an execution deletes the checkpoint of another instant.
    CheckpointOfAnotherDeleted,
    /// An item that was taken over in a lost session is executed before its instant was read.
    TakenUnread,
    /// An item that was taken over stays flagged.
    TakenItemStaysFlagged,
    /// The nodes of a takeover stay when the item has been executed.
    TakeoverNodesLeft,
    /// A crashed instance leaves no node of its open executions.
    UnfinishedForgotten,
    /// The late flag of a Java instance causes another execution.
    LateFlagTaken,
    /// A flag counts as late before the departure that belongs to it can have been seen.
    LateFlagAtOnce,
    /// A Java instance that reconnects counts as offline.
    JavaGraceForgotten,
    /// A Java leader is not reminded of items without an owner.
    JavaLeaderNotReminded,
    /// A Java leader is not reminded of a sidecar that has registered during a resharding.
    LeftOutOfResharding,

    // Detached instances, names, turns, and the listener that acts once for all.
    /// An instance leaves at once when its stream breaks, in spite of the job's reattach grace.
    GraceForgotten,
    /// A detached instance stays for ever.
    GraceEndless,
    /// The items of a former instance of the same name are not renewed.
    NameNotRenewed,
    /// A name is taken though another instance has it.
    NameTakenFromLiving,
    /// The items of an offline instance with a name move at once.
    ReservationForgotten,
    /// The listener is called again when the barrier was removed in the meantime.
    ListenerCalledTwice,
    /// Executions do not wait for the listener.
    BarrierIgnored,
    /// A latch is never left.
    LatchKept,
    /// The turn of a rotation is not passed on.
    TurnKept,
}

#[cfg(not(feature = "mutants"))]
pub(crate) const fn is_active(_: Mutant) -> bool {
    false
}

#[cfg(feature = "mutants")]
pub(crate) use chosen::is_active;
#[cfg(feature = "mutants")]
pub use chosen::{choose, is_chosen};

#[cfg(feature = "mutants")]
mod chosen {
    use std::cell::Cell;

    use super::Mutant;

    thread_local! {
        static CHOSEN: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Activates a bug for everything that runs on this thread, instead of the bug before; `None`: no bug.
    pub fn choose(mutant: Option<Mutant>) {
        CHOSEN.set(mutant);
    }

    /// Whether the tests' own models have this bug.
    pub fn is_chosen(mutant: Mutant) -> bool {
        CHOSEN.get() == Some(mutant)
    }

    pub(crate) use is_chosen as is_active;
}
