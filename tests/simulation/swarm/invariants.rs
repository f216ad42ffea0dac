//! The invariants, by number; `docs/reliability.md` has the same list.

use std::fmt;

macro_rules! invariants {
    ($($name:ident $number:literal $promise:literal $text:literal,)*) => {
        /// Something that has to hold.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Invariant { $(#[doc = $text] $name,)* }

        impl Invariant {
            /// Its number, I0 to I20.
            pub fn number(self) -> u8 {
                match self { $(Self::$name => $number,)* }
            }

            /// The promise that it belongs to.
            pub fn promise(self) -> &'static str {
                match self { $(Self::$name => $promise,)* }
            }

            /// In words.
            pub fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

invariants! {
    NoPanic 0 "P7" "nothing panics, and no call is answered with what nobody expects",
    Fenced 1 "P3" "at most one token per item is accepted by a fenced store, and tokens grow",
    OneExecutor 2 "P2" "no two obedient applications execute an item at once",
    Owned 3 "P1" "each item of a job with a live enabled instance is owned within a bound after faults stop",
    RunningNode 4 "P6" "a running node exists exactly while an execution is open, within one round trip",
    Assigned 5 "P1" "nothing is executed outside an assignment that was sent",
    RevokedFirst 6 "P2" "a revocation is told, or expired, before the next owner is told (sidecar fleets)",
    OncePerFire 7 "P5" "one execution per fire and item without faults, at least one with misfire on",
    NothingLeft 8 "P6" "nothing of ours is left after a drain",
    WellFormed 9 "P8" "each node that we write is read by a strict reader of a Java peer",
    FewMoves 10 "P1" "without a named strategy, each instance has its prescribed share, and no more items move than these shares ask for",
    NoSilentWait 11 "P7" "no wait beyond a bound without a reported cause",
    Bounded 12 "P7" "bounds on memory, queues and requests hold",
    RightInstant 13 "P5" "a failover is for the instant that was interrupted, and brings its checkpoint",
    Locked 14 "P2" "an execution of a job with item locks begins while its instance holds the lock of the item",
    LockHolders 15 "P2" "no two obedient applications hold a lock against its kind, or act for a sticky lock",
    LockOrder 16 "P2" "a lock is granted in the order of its queue, and is free when it was given back",
    LockToken 17 "P3" "each holder that is alone has a greater token than all holders before it",
    StickyLock 18 "P2" "the owner of a sticky lock is told of each interrupted run, and nobody owns it within the grace of another",
    Explained 19 "P7" "a fleet in which everything is right has no finding",
    Triggered 20 "P5" "an item is executed once for each of its triggers, with the trigger's parameter, and no other item is",
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "I{} {:?} ({}: {})", self.number(), self, self.promise(), self.text())
    }
}

/// An invariant that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub seed: u64,
    pub invariant: Invariant,
    /// The observation that breaks it.
    pub found: String,
    /// When, in simulated microseconds.
    pub at: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.at as f64 / 1e6;
        write!(f, "seed {}: {} at {seconds:.6} s: {}", self.seed, self.invariant, self.found)
    }
}
