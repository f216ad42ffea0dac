//! The words that labels may have. Each label is one of these lists, or the name of a job.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};

/// A closed list of words for a label.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// All words.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The word.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl EncodeLabelValue for $name {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
                self.as_str().encode(encoder)
            }
        }
    };
}

words! {
    /// Why an item is executed.
    Source {
        /// The schedule.
        Schedule = "schedule",
        /// A missed fire.
        Misfire = "misfire",
        /// An operator's trigger.
        Trigger = "trigger",
        /// Another instance crashed during its execution of the item.
        Failover = "failover",
    }
}

words! {
    /// How an execution ended, as the application reported.
    Outcome {
        /// The application executed the item.
        Success = "success",
        /// The application began the item, and failed.
        Failure = "failure",
        /// The application did not begin it.
        Rejected = "rejected",
        /// The application stopped it because another instance might have owned the item.
        Interrupted = "interrupted",
    }
}

words! {
    /// Why a running execution was cancelled.
    Cancel {
        /// The session is lost.
        LeaseLost = "lease_lost",
        /// Its deadline has passed.
        Deadline = "deadline",
        /// An operator cancelled it.
        Operator = "operator",
        /// The drain timeout has passed.
        DrainTimeout = "drain_timeout",
        /// The lock of its item is lost.
        ItemLockLost = "item_lock_lost",
    }
}

words! {
    /// The kind of a request to the registry.
    Request {
        /// A session was opened or resumed.
        Open = "open",
        /// Nodes were read.
        Read = "read",
        /// A transaction was written.
        Write = "write",
        /// A watch was added.
        Watch = "watch",
    }
}

words! {
    /// How the registry answered.
    Answer {
        /// It carried the request out.
        Done = "done",
        /// It refused, because a node was not as expected: another member was first.
        Conflict = "conflict",
        /// It refused for a reason that a person has to remove: an access list, a quota, a password.
        Refused = "refused",
        /// It did not answer: the connection broke, the session ended, or time ran out.
        Away = "away",
    }
}

words! {
    /// The state of the session with the registry.
    Session {
        /// The registry answers.
        Connected = "connected",
        /// The registry does not answer; the session may be alive.
        Suspended = "suspended",
        /// There is none.
        None = "none",
    }
}

words! {
    /// The state of an item. An item may have several at once.
    ItemState {
        /// An instance that is online owns it.
        Owned = "owned",
        /// No instance that is online owns it.
        Unowned = "unowned",
        /// An operator disabled it.
        Disabled = "disabled",
        /// An instance executes it.
        Running = "running",
        /// A fire was missed.
        Misfired = "misfired",
        /// It is being handed over.
        Moving = "moving",
    }
}

words! {
    /// The kind of an instance.
    InstanceKind {
        /// An application of a sidecar.
        Sidecar = "sidecar",
        /// A Java process with ElasticJob.
        Java = "java",
    }
}

words! {
    /// How bad a finding is.
    Severity {
        /// As it should be, and worth knowing.
        Info = "info",
        /// Something does not run as it should, or soon will not.
        Warning = "warning",
        /// Something does not run.
        Error = "error",
    }
}

words! {
    /// The use of a certificate of the sidecar.
    CertificateUse {
        /// Callers see it (`tls_cert`).
        Listener = "listener",
        /// ZooKeeper sees it (`zookeeper_cert`).
        Registry = "registry",
    }
}

words! {
    /// The level of a log line.
    Level {
        /// A warning.
        Warn = "warn",
        /// An error.
        Error = "error",
    }
}

/// The name of a job in a label. A clone costs nothing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Job(pub Arc<str>);

impl EncodeLabelValue for Job {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        (&*self.0).encode(encoder)
    }
}
