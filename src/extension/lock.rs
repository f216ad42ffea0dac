//! The nodes of a lock: Curator's layout of `InterProcessMutex`, `InterProcessReadWriteLock` and `LeaderLatch`, so that
//! programs in Java, and programs in other languages that keep to it, contend in the same queue (locks specification 1.1,
//! 8.1, 8.3, 8.6).
//!
//! A contender's node is `{lock}/_c_{uuid}-{mark}{number}`, ephemeral and sequential. The mark says what the contender
//! asks for, and the number is its place. Nodes of other names are no contenders.
//!
//! Our own: `{lock}/delay-{milliseconds}-{number}`, persistent, with the holder as its data. The contender with this number
//! has a lock delay. It creates the node before it holds, and deletes it when it gives the lock back.

use std::time::Duration;

use uuid::Uuid;

use crate::tree::Path;

/// The node below our root that has the locks with a name. It can be no job's name.
pub(super) const LOCKS: &str = "@-@locks";
/// The node below another lock root that has the elections with a name. It can be no lock's name.
const ELECTIONS: &str = "@-@elections";
/// How the names begin that no lock and no election can have.
const RESERVED: &str = "@-@";
/// The most bytes of a lock's name.
pub const NAME_BYTES_MAX: usize = 200;
/// The most bytes of a contender's data.
pub const HOLDER_BYTES_MAX: usize = 255;
/// The most bytes of a candidate's value.
pub const VALUE_BYTES_MAX: usize = 4_096;
/// The data that Curator's `Revoker` writes into a holder's node to ask for the lock.
pub const REVOKE: &[u8] = b"__REVOKE__";
/// The node of a semaphore that has its queue.
pub const SEMAPHORE_QUEUE: &str = "locks";
/// The node of a semaphore that has a node for each permit that is taken.
pub const SEMAPHORE_PERMITS: &str = "leases";
/// How the name of a delay's node begins. It sorts behind all contenders of Curator.
const DELAY: &str = "delay-";
/// The longest lock delay.
pub const LOCK_DELAY_MAX: Duration = Duration::from_secs(600);
/// The digits of a number.
const DIGITS: usize = 10;
/// The end of a server's counter: it sticks there, and numbers are not unique any more.
pub const NUMBER_MAX: u32 = i32::MAX.unsigned_abs();

/// How a contender holds a lock, or wants to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// To be alone: Curator's `InterProcessMutex`.
    Mutex,
    /// To hold the lock together with other readers: the read lock of Curator's `InterProcessReadWriteLock`.
    Read,
    /// To be alone among readers and writers: the write lock of Curator's `InterProcessReadWriteLock`.
    Write,
    /// To lead an election: Curator's `LeaderLatch`.
    Candidate,
    /// To hold one of several permits: Curator's `InterProcessSemaphoreV2`.
    Permit,
}

impl Mode {
    /// The text before the number in a contender's name.
    fn mark(self) -> &'static str {
        match self {
            Self::Mutex => "lock-",
            Self::Read => "__READ__",
            Self::Write => "__WRIT__",
            Self::Candidate => "latch-",
            Self::Permit => "lease-",
        }
    }

    /// Whether contenders of both kinds stand in one queue.
    pub fn is_with(self, other: Self) -> bool {
        self == other || !(self.is_alone() || other.is_alone())
    }

    /// Whether all contenders of the queue are of this kind.
    fn is_alone(self) -> bool {
        matches!(self, Self::Mutex | Self::Candidate | Self::Permit)
    }

    /// The most bytes of the data of a contender.
    pub fn data_bytes_max(self) -> usize {
        if self == Self::Candidate { VALUE_BYTES_MAX } else { HOLDER_BYTES_MAX }
    }

    /// The word for people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Read => "read",
            Self::Write => "write",
            Self::Candidate => "candidate",
            Self::Permit => "semaphore",
        }
    }
}

/// The data of a leader that hands over: the name of the successor's node, and the leader's value. Written for a moment
/// only, while candidates that stand between the two make way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandOver<'a> {
    /// The successor. `None`: the leader does not hand over.
    pub successor: Option<&'a str>,
    /// The leader's value.
    pub value: &'a [u8],
}

impl<'a> HandOver<'a> {
    /// Before the name of the successor's node.
    const MARK: &'static [u8] = b"__SIDEKEEPER_SUCCESSOR__:";

    /// The data of a leader that hands over.
    pub fn write(successor: &str, value: &[u8]) -> Vec<u8> {
        [Self::MARK, successor.as_bytes(), b"\n", value].concat()
    }

    /// Reads the data of a leader.
    pub fn read(data: &'a [u8]) -> Self {
        let named = || {
            let rest = data.strip_prefix(Self::MARK)?;
            let end = rest.iter().position(|byte| *byte == b'\n')?;
            let (name, value) = rest.split_at_checked(end)?;
            Some((std::str::from_utf8(name).ok()?, value.get(1..)?))
        };
        named().map_or(Self { successor: None, value: data }, |(successor, value)| Self {
            successor: Some(successor),
            value,
        })
    }
}

/// A child of a lock's node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Child {
    /// A contender.
    Contender {
        /// How it holds the lock, or wants to.
        mode: Mode,
        /// Its place in the queue.
        number: u32,
    },
    /// A contender whose number is not readable: the server's counter was at its end.
    WithoutNumber(Mode),
    /// The lock delay of the contender with this number.
    Delay {
        /// For how long nobody may hold after the contender has vanished.
        delay: Duration,
        /// The contender's number.
        number: u32,
    },
    /// A node of another recipe, which shares no queue with locks: the semaphore of Curator, the read lock of kazoo.
    OtherRecipe,
    /// Something else.
    Foreign,
}

impl Child {
    /// Reads the name of a child.
    pub fn read(name: &str) -> Self {
        if let Some((delay, number)) = delay(name) {
            return Self::Delay { delay, number };
        }
        let marks = [
            ("lock-", Mode::Mutex),
            ("__lock__", Mode::Mutex),
            ("__READ__", Mode::Read),
            ("__WRIT__", Mode::Write),
            ("latch-", Mode::Candidate),
        ];
        for (mark, mode) in marks {
            let Some((_, text)) = name.rsplit_once(mark) else { continue };
            return number(text).map_or(Self::WithoutNumber(mode), |number| Self::Contender { mode, number });
        }
        if matches!(name, SEMAPHORE_QUEUE | SEMAPHORE_PERMITS) || name.contains("__rlock__") {
            return Self::OtherRecipe;
        }
        Self::Foreign
    }
}

/// A node below a lock's node, by its name there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Below<'a> {
    /// A child of the lock's node.
    Child(Child),
    /// A contender in the queue of a semaphore.
    Queued(&'a str),
    /// A permit of a semaphore that is taken, or that the first of the queue waits for.
    Permit(&'a str),
    /// The node of a semaphore's queue, or the node of its permits.
    Semaphore,
    /// Something else.
    Foreign,
}

impl<'a> Below<'a> {
    /// Reads a name.
    pub fn read(name: &'a str) -> Self {
        match name.split_once('/') {
            Some((SEMAPHORE_QUEUE, name))
                if matches!(Child::read(name), Child::Contender { mode: Mode::Mutex, .. }) =>
            {
                Self::Queued(name)
            }
            Some((SEMAPHORE_PERMITS, name)) if !name.contains('/') => Self::Permit(name),
            Some(_) => Self::Foreign,
            None if matches!(name, SEMAPHORE_QUEUE | SEMAPHORE_PERMITS) => Self::Semaphore,
            None => Self::Child(Child::read(name)),
        }
    }
}

/// Reads the number at the end of a contender's name.
fn number(text: &str) -> Option<u32> {
    let is_number = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_number && *number <= NUMBER_MAX)
}

/// Reads the name of a delay's node.
fn delay(name: &str) -> Option<(Duration, u32)> {
    let (millis, text) = name.strip_prefix(DELAY)?.split_once('-')?;
    let is_number = millis.bytes().all(|byte| byte.is_ascii_digit());
    let delay = millis.parse().ok().filter(|_| is_number).map(Duration::from_millis)?;
    Some((delay, number(text)?)).filter(|(delay, _)| *delay <= LOCK_DELAY_MAX)
}

/// Reads the number of a permit's node. `None`: another program has named it otherwise; it counts nevertheless.
pub fn permit_number(name: &str) -> Option<u32> {
    name.rsplit_once(Mode::Permit.mark()).and_then(|(_, text)| number(text))
}

/// The nodes of one lock.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockPaths {
    lock: Path,
}

impl LockPaths {
    /// The lock at a path.
    pub fn at(lock: Path) -> Self {
        Self { lock }
    }

    /// The lock with a name, below the root of all locks with names. `None`: it cannot be the name of a lock.
    pub fn named(root: &Path, name: &str) -> Option<Self> {
        let is_name = name.len() <= NAME_BYTES_MAX && !name.starts_with(RESERVED);
        Some(Self { lock: root.try_child(name).ok().filter(|_| is_name)? })
    }

    /// The queue of the semaphore at this node.
    pub fn semaphore_queue(&self) -> Self {
        Self { lock: self.lock.child(SEMAPHORE_QUEUE) }
    }

    /// The permits of the semaphore at this node.
    pub fn semaphore_permits(&self) -> Self {
        Self { lock: self.lock.child(SEMAPHORE_PERMITS) }
    }

    /// The node of the lock.
    pub fn lock(&self) -> &Path {
        &self.lock
    }

    /// The contender's node that a request of this attempt creates, without its number.
    pub fn contender(&self, mode: Mode, attempt: Uuid) -> Path {
        self.lock.child(&format!("{}{}", prefix(attempt), mode.mark()))
    }

    /// The node of a contender's lock delay. `None`: the contender's name has no number.
    pub fn delay(&self, delay: Duration, contender: &str) -> Option<Path> {
        let Child::Contender { number, .. } = Child::read(contender) else { return None };
        self.child(&format!("{DELAY}{}-{number:0DIGITS$}", delay.as_millis()))
    }

    /// A child. `None`: it cannot be a node's name.
    pub fn child(&self, name: &str) -> Option<Path> {
        self.lock.try_child(name).ok()
    }

    /// The node with this name below the lock's node: a child, or one in a semaphore's queue or among its permits. `None`: it
    /// cannot be a node's name.
    pub fn below(&self, name: &str) -> Option<Path> {
        match name.split_once('/') {
            Some((SEMAPHORE_QUEUE, child)) => self.semaphore_queue().child(child),
            Some((SEMAPHORE_PERMITS, child)) => self.semaphore_permits().child(child),
            Some(_) => None,
            None => self.child(name),
        }
    }

    /// The name of a node below the lock's node. `None`: it is somewhere else.
    pub fn name_below<'a>(&self, node: &'a Path) -> Option<&'a str> {
        node.as_str().strip_prefix(self.lock.as_str())?.strip_prefix('/')
    }
}

/// The beginning of the name of the node that an attempt creates. No other node's name begins so.
pub fn prefix(attempt: Uuid) -> String {
    format!("_c_{}-", attempt.hyphenated())
}

/// Where the locks and the elections with names are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// The root of the locks.
    pub locks: Path,
    /// The root of the elections.
    pub elections: Path,
}

impl Roots {
    /// The roots of a namespace, or those that the setting `lock_root` says.
    pub fn new(namespace: &Path, lock_root: Option<&Path>) -> Self {
        if let Some(root) = lock_root {
            return Self { locks: root.clone(), elections: root.child(ELECTIONS) };
        }
        let own = namespace.sibling_with_suffix("-sidekeeper").child(LOCKS);
        Self { locks: own.child("queues"), elections: own.child("elections") }
    }

    /// The names of locks among the children of the root of the locks, in alphabetical order.
    pub fn names(mut children: Vec<String>) -> Vec<String> {
        children.retain(|name| !name.starts_with(RESERVED));
        children.sort_unstable();
        children
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_curator_kazoo_and_go_are_contenders_and_others_are_not() {
        let contender = |mode, number| Child::Contender { mode, number };
        let cases = [
            ("_c_f7a7133d-7e1c-4c1e-9c0e-0a1b2c3d4e5f-lock-0000000007", contender(Mode::Mutex, 7)),
            ("ab07fcc629914d64b5ca6523cd7b880elock-0000000002", contender(Mode::Mutex, 2)),
            ("_c_a8f0c1e2d3b4a5968778695a4b3c2d1e-lock-2147483647", contender(Mode::Mutex, NUMBER_MAX)),
            ("36aafd065e734758ae1e05c347fb872f__lock__0000000001", contender(Mode::Mutex, 1)),
            ("_c_d45e510d-1111-4111-8111-111111111111-__WRIT__0000000003", contender(Mode::Write, 3)),
            ("_c_d45e510d-1111-4111-8111-111111111111-__READ__0000000004", contender(Mode::Read, 4)),
            ("_c_9a01a6fa-1111-4111-8111-111111111111-lock--2147483648", Child::WithoutNumber(Mode::Mutex)),
            ("_c_9a01a6fa-1111-4111-8111-111111111111-lock-9999999999", Child::WithoutNumber(Mode::Mutex)),
            ("lock-", Child::WithoutNumber(Mode::Mutex)),
            ("_c_98f85861-1111-4111-8111-111111111111-latch-0000000002", contender(Mode::Candidate, 2)),
            ("cc1548518ea34578b5eee27623a225fe__rlock__0000000001", Child::OtherRecipe),
            ("leases", Child::OtherRecipe),
            ("readme", Child::Foreign),
            ("000", Child::Foreign),
            ("!x", Child::Foreign),
            ("lease-1", Child::Foreign),
            ("", Child::Foreign),
        ];
        for (name, expected) in cases {
            assert_eq!(Child::read(name), expected, "{name}");
        }
    }

    #[test]
    fn a_semaphore_has_a_queue_and_permits_below_its_node() {
        let lock = LockPaths::at(Path::parse("/locks/bill").unwrap());
        let cases = [
            ("locks/a-lock-0000000001", Below::Queued("a-lock-0000000001")),
            ("leases/a-lease-0000000001", Below::Permit("a-lease-0000000001")),
            ("leases/by hand", Below::Permit("by hand")),
            ("locks/readme", Below::Foreign),
            ("leases/a/b", Below::Foreign),
            ("other/a-lock-0000000001", Below::Foreign),
            ("leases", Below::Semaphore),
            ("readme", Below::Child(Child::Foreign)),
        ];
        for (name, expected) in cases {
            assert_eq!(Below::read(name), expected, "{name}");
        }
        let node = lock.below("leases/a-lease-0000000001").unwrap();
        assert_eq!(node.as_str(), "/locks/bill/leases/a-lease-0000000001");
        assert_eq!(lock.name_below(&node), Some("leases/a-lease-0000000001"));
        assert_eq!(lock.name_below(&Path::parse("/locks/billing/x").unwrap()), None);
        for name in ["other/x", "leases/..", "leases/a/b"] {
            assert_eq!(lock.below(name), None, "{name}");
        }
    }

    #[test]
    fn a_contender_has_curators_name() {
        let roots = Roots::new(&Path::parse("/ns").unwrap(), None);
        let paths = LockPaths::named(&roots.locks, "bill").unwrap();
        let uuid = Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        let path = paths.contender(Mode::Write, uuid);
        let parent = "/ns-sidekeeper/@-@locks/queues/bill";
        assert_eq!(path.as_str(), format!("{parent}/_c_01234567-89ab-cdef-0123-456789abcdef-__WRIT__"));
        for name in ["a/b", "", "..", "@-@elections", &"x".repeat(201)] {
            assert_eq!(LockPaths::named(&roots.locks, name), None, "{name}");
        }
    }

    #[test]
    fn the_data_of_a_leader_is_its_value_unless_it_hands_over() {
        let data = HandOver::write("a-latch-0000000001", b"one\ntwo");
        let read = HandOver { successor: Some("a-latch-0000000001"), value: b"one\ntwo" };
        assert_eq!(HandOver::read(&data), read);
        for data in
            [b"".as_slice(), b"value", b"__SIDEKEEPER_SUCCESSOR__:", b"__SIDEKEEPER_SUCCESSOR__:\xff\nx"]
        {
            assert_eq!(HandOver::read(data), HandOver { successor: None, value: data });
        }
    }

    #[test]
    fn a_lock_root_has_the_elections_as_well_and_they_are_no_locks() {
        let roots = Roots::new(&Path::parse("/ns").unwrap(), Some(&Path::parse("/shared").unwrap()));
        assert_eq!(roots.elections.as_str(), "/shared/@-@elections");
        let children = ["b", "@-@elections", "a"].map(str::to_owned).to_vec();
        assert_eq!(Roots::names(children), ["a", "b"]);
    }
}
