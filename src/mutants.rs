//! Deliberate bugs, one at a time, for tests that show that the simulation finds bugs. Decides nothing by itself: a line
//! of the core that asks for a mutant is false for ever, unless the crate is built with the feature `mutants`, which no
//! build for use has. Then a test says which bug is to be there on its thread.
//!
//! A hook is a condition like any other, `mutant!(Name)`, and changes nothing else. Which invariant catches which
//! mutant, and how soon, is in `docs/reliability.md`; `make mutants` finds it out again.

#[cfg(all(feature = "mutants", not(debug_assertions)))]
compile_error!(
    "the feature `mutants` puts deliberate bugs into the sidecar; it is for tests, never for a build for use"
);

/// Whether a deliberate bug is to be there.
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
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// What is wrong then.
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
    /// The end of the lease is not looked at: the session is acted on until the registry says that it is gone.
    LeaseIgnored,
    /// What has happened meanwhile is taken in before the lease is looked at.
    LeaseSeenLate,
    /// A watch tells what it reads as of several moments.
    TornStates,
    /// An answered read counts as a proof that the session is alive.
    LeaseProvenByRead,
    /// An answered `sync` counts as a proof that the session is alive.
    LeaseProvenBySync,
    /// A lost session does not stop what is executed.
    LostSessionKeepsExecutions,
    /// An instance in a session that is gone counts as registered.
    SessionChangeIgnored,
    /// A commit of unknown outcome counts as failed: the view is not read again.
    UnknownOutcomeIsFailure,
    /// What a start of unknown outcome has created is not looked for.
    UnknownStartForgotten,

    // Election and membership.
    /// A leader whose server is disabled goes on leading.
    DisabledLeaderStays,
    /// Who leaves does not give up leading.
    LeadershipKept,
    /// A leader that is not online is never removed.
    LeftoverLeaderKept,
    /// A disabled server's instances are given items.
    DisabledServerGetsItems,
    /// A disabled server's instances execute what they own.
    DisabledServerExecutes,
    /// A disabled item is executed.
    DisabledItemExecuted,
    /// Registering again enables a server that an operator has disabled.
    ServerEnabledAgain,
    /// Who was stopped by an operator goes on.
    StopIgnored,
    /// The instance's node stays when it has left.
    InstanceLeft,
    /// An instance that has left ends while its nodes are being read again.
    EndedBeforeRead,
    /// What was told to the other sidecars stays when the instance has left.
    MemberLeft,

    // Sharding.
    /// After a sharding it is not compared any more with who is online.
    MembershipComparedOnce,
    /// Items that are executed are given to others.
    ShardedWithoutWaiting,
    /// A sharding does not notice that an item has begun to run meanwhile.
    ShardedWithoutGuard,
    /// A sharding takes several transactions, and shows no flag between them.
    ShardingTorn,
    /// Items are started on an assignment that may be older than the registry's.
    StartedOnOldSharding,
    /// Items are started while a resharding is due.
    StartedWhileResharding,
    /// The running nodes of instances that are online are deleted by a sharding.
    ForeignRunningDeleted,
    /// Owners change though nobody asks for it: the sticky strategy does not look who has an item.
    StickyForgetsOwners,
    /// The draws of members for a job leave the job's name out of the hash, and are the same for all jobs.
    JobNotDrawnFor,
    /// A seat beyond the equal share stays with its holder, also when a newcomer ranks above.
    SeatKeptFromNewcomer,
    /// Items are divided by the rule of today also with a sidecar that does not know it.
    OutdatedOverruled,
    /// Who was silent when a division was decided is taken for one of Java's, though it has spoken since.
    SilenceNotChecked,
    /// A division by ElasticJob's rules does not look whether items were handed over meanwhile.
    HandoverUnseen,
    /// A division takes the flag down at once, though there are Java instances, whose caches are behind.
    FlagLoweredWithDivision,
    /// A Java instance that has just registered is given items, though its scheduler may not run at the next fire.
    NewcomerGetsItems,
    /// A Java instance that was given items loses them when the schedule changes and fires before its scheduler may run.
    GivenTakenBack,
    /// An instance that registers while the flag is up beside Java gets items, though a fire has come that waits for their owner.
    JoinedWhileFlagged,
    /// A division beside Java instances begins while a fire is being started.
    DividedAtFire,
    /// A division beside Java instances begins right after the flag went down, while fires that have waited for it are being started.
    LoweringUnnoticed,

    // Handing over.
    /// An item is handed over before its revocation was acknowledged.
    AcknowledgementIgnored,
    /// An item is handed over while it is executed.
    HandedOverWhileBusy,
    /// An item that was given to somebody is ours again when the plan is gone, until it is seen to be somebody else's.
    GivenForgotten,
    /// An item is handed over by changing its node, so that its token stays.
    HandedOverWithSameToken,
    /// The items of a leader's plan are never handed over.
    NeverHandedOver,
    /// Who is drained leaves though executions have not ended.
    DrainedWithoutWaiting,

    // Executions.
    /// An execution is told before its running node exists.
    ToldBeforeNode,
    /// An execution is told with the token of the assignment.
    TokenReused,
    /// Running nodes go with the session also where items fail over.
    RunningNodeEphemeral,
    /// A result counts as recorded before its running node is gone.
    AnsweredBeforeRecorded,
    /// A result is dropped if it could not be recorded at once.
    CompletionDropped,
    /// A result whose answer was lost is applied once more, to whatever the item does then.
    CompletionAppliedTwice,
    /// Executions go on for as long as they like.
    DeadlineIgnored,
    /// Who does not stop is left alone.
    DisobedienceIgnored,
    /// What fails is tried again for ever.
    RetriedForEver,
    /// What an operator has cancelled is tried again.
    CancelledIsRetried,
    /// What has failed is tried again by who does not own it any more.
    RetriedByFormerOwner,
    /// An execution gets the checkpoint of another fire.
    CheckpointOfAnotherFire,
    /// The checkpoint of an execution that has ended well stays.
    CheckpointLeft,

    // Fires.
    /// A fire that meets a busy item is dropped.
    MisfireDropped,
    /// A missed fire is flagged, and the ledger does not say for which instant.
    FlaggedWithoutLedger,
    /// A start is not written down in the ledger.
    StartedWithoutLedger,
    /// The ledger is not read when items come from somebody else.
    LedgerNotRead,
    /// The ledger's entry of an item is not read again when somebody else has had it, nor its version checked.
    LedgerEntryKept,
    /// A misfire flag stays when it has been made up for.
    MisfireFlagLeft,
    /// Making up for missed fires is told for the fire that was flagged, not for the newest.
    MadeUpForFlaggedOnly,
    /// What busy items miss while the job is to be divided is not noted.
    UnavailableNotMissed,
    /// The flag of what is being started counts as one of a later fire.
    FlagOfStartingFollowed,
    /// A schedule that was written while the registry was away begins when it is read.
    ChangedScheduleBeginsWhenRead,
    /// A change that was told late, because the sidecar was stopped, is taken for a clock that is ahead.
    DelayTakenForClock,
    /// A clock that goes back a little fires again.
    FiredAgainAfterClockStep,
    /// A clock that was set back by hours is waited for.
    ClockSetBackIgnored,

    // Failover.
    /// What we execute ourselves is flagged as crashed.
    OwnRunningFailsOver,
    /// The flag of an item goes before the nodes that say who has taken it.
    FlagGoesFirst,
    /// The end of an execution deletes the checkpoint of another instant.
    CheckpointOfAnotherDeleted,
    /// An item that was taken over in a lost session is executed before it was read for which instant.
    TakenUnread,
    /// An item that was taken over stays flagged.
    TakenItemStaysFlagged,
    /// What says that an item was taken over stays when it has been executed.
    TakeoverNodesLeft,
    /// Who dies leaves nothing that tells what it had not finished.
    UnfinishedForgotten,
    /// What a late Java survivor flags again is executed again.
    EchoObeyed,
    /// A flag is taken for an echo before the departure that belongs to it can have been seen.
    EchoAtOnce,
    /// A Java instance that reconnects counts as gone.
    JavaGraceForgotten,
    /// A Java leader is not reminded of items that belong to nobody.
    JavaLeaderNotReminded,
    /// A Java leader is not reminded of a sidecar that has registered while it divided.
    LeftOutOfDivision,

    // Absence, names, turns, and the listener that acts once for all.
    /// An instance leaves at once when its stream breaks, whatever grace its job asks for.
    GraceForgotten,
    /// An instance whose stream has broken stays for ever.
    GraceEndless,
    /// What a former instance of the same name had is not renewed.
    NameNotRenewed,
    /// A name is taken though somebody else has it.
    NameTakenFromLiving,
    /// The items of a name that is away are given to others at once.
    AbsenceForgotten,
    /// The listener is called again when the gate was opened meanwhile.
    ListenerCalledTwice,
    /// Executions do not wait for the listener.
    GateIgnored,
    /// A latch is never left.
    LatchKept,
    /// The turn of a relay is not passed on.
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

    /// Puts a bug into everything that runs on this thread, instead of the one before; `None`: no bug.
    pub fn choose(mutant: Option<Mutant>) {
        CHOSEN.set(mutant);
    }

    /// Whether the tests' own models are to have this bug.
    pub fn is_chosen(mutant: Mutant) -> bool {
        CHOSEN.get() == Some(mutant)
    }

    pub(crate) use is_chosen as is_active;
}
