//! The faults, by kind. Each kind can be switched off by itself, and each that was inflicted is counted.

use std::fmt;

macro_rules! faults {
    ($($name:ident = $text:literal,)*) => {
        /// A kind of fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault { $(#[doc = $text] $name,)* }

        impl Fault {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

faults! {
    ConnectionLoss = "connection lost",
    LostRequest = "request lost on its way",
    LostAnswer = "answer lost, request took effect",
    LateEffect = "request took effect after its connection broke",
    LateAnswer = "answer later than the client waits",
    Partition = "sidecar cut off from the registry",
    ServerLag = "server behind the leader",
    LeaderChange = "no leader for a while",
    SlowNotification = "changes told late and merged",
    SidecarPause = "sidecar stopped for a while",
    ApplicationPause = "application stopped for a while",
    MachinePause = "machine stopped for a while",
    ClockStep = "time of day set",
    ClockRate = "clock runs at another rate",
    SidecarCrash = "sidecar killed",
    ApplicationCrash = "application killed",
    MachineCrash = "machine lost",
    StreamBreak = "stream broken",
    RollingRestart = "drained and started again",
    Departure = "drained for good",
    Arrival = "another instance joins",
    SlowApplication = "execution longer than the period",
    HungApplication = "execution that never ends",
    Disobedience = "application does not stop when told",
    FailedExecution = "execution failed or was rejected",
    DuplicateReport = "result reported twice",
    LateReport = "result reported late",
    ServerSwitch = "operator disabled or enabled a server",
    ItemSwitch = "operator disabled or enabled an item",
    Trigger = "operator triggered the job",
    CancelledByOperator = "operator cancelled executions",
    TotalChange = "operator changed the total count",
    ScheduleChange = "operator changed the schedule",
    RemoteStop = "operator stopped an instance",
    DeletedNode = "operator deleted a node",
    Garbage = "garbage in a node",
    SplitTransaction = "changes of one transaction told in parts",
    SlowSnapshot = "snapshot read while nodes change",
    ApplicationStop = "application stopped in order",
    ItemTrigger = "operator triggered an item with a parameter",
}

impl Fault {
    /// Whether it has dice of its own, so that it changes no other draw.
    pub fn has_own_dice(self) -> bool {
        matches!(
            self,
            Self::SplitTransaction | Self::SlowSnapshot | Self::ApplicationStop | Self::ItemTrigger
        )
    }

    /// As a bit.
    pub fn bit(self) -> u64 {
        1 << (self as u64)
    }

    /// The kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|fault| format!("{fault:?}") == name)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// How many of each kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts([u64; Fault::ALL.len()]);

impl Default for Counts {
    fn default() -> Self {
        Self([0; Fault::ALL.len()])
    }
}

impl Counts {
    pub fn add(&mut self, fault: Fault) {
        self.0[fault as usize] += 1;
    }

    pub fn extend(&mut self, others: &Self) {
        for (count, other) in self.0.iter_mut().zip(&others.0) {
            *count += other;
        }
    }

    pub fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize]
    }

    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Each kind with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Fault, u64)> + '_ {
        Fault::ALL.iter().copied().zip(self.0.iter().copied())
    }
}
