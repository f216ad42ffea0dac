//! The model: the nodes of the registry for ownership and execution; and of each instance, the notices that it has sent
//! to its application and its one request in flight.
//!
//! A request is *decided* on the current nodes of the registry, and *takes effect* later, when any node may have changed:
//! this is the same as a decision on an old view. The request fails if a check of its transaction does not hold any more.
//! The session may end in between. Notices to an application are late in the same way.
//!
//! | action | stands for |
//! | --- | --- |
//! | `Register` | `registration::register` |
//! | `Elect` | `leadership::elect`; the latch and the creation of the leader's node are one step |
//! | `Shard` | `resharding::shard`, mode `OneByOne`: items without an online owner are assigned to members |
//! | `Plan` | `handoff_plan::plan_handoff`, targets as in `allocation::allocate` without weights and labels. Members that have one
//! item more are chosen by `former_rule`, which makes no difference to the properties |
//! | `Notify` | `assignment::notify` |
//! | `Acknowledge` | `participant::acknowledge`, and the application has stopped using the revoked items |
//! | `HandOver` | `handoff_release::release`, policy `drained`, without the deadline after which it releases an item in any case |
//! | `Start` | `fire::fire` and `start::start`, of an item that is owned or was taken over; when it takes effect, `start::started`: the
//! application gets the execution |
//! | `Finish` | `completion::complete` |
//! | `Flag`, `Take` | `takeover::flag_crashed`, `takeover::take_flagged` |
//! | `GiveUp` | `participant::check_lease`: the lease is over, and the application gets a cancel |
//! | `Expire` | the registry ends the session, only after the end of the lease |
//!
//! Left out: Java instances (ElasticJob's rules), disabled servers and items, the ledger and misfires, instance names and
//! `reattach_grace`, and requests of unknown outcome; `tests/simulation` covers these.

use stateright::{Model, Property};

/// The index of an instance.
pub type Instance = u8;
/// The number of an item.
pub type Item = usize;

/// The largest number of instances and of items: the size of the arrays.
pub const CAPACITY: usize = 3;

/// Deliberate bugs of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// An item is handed over before its application has acknowledged the revocation.
    NoAcknowledgement,
    /// An item is handed over while it is executed, and its running node with it.
    HandedOverWhileBusy,
    /// The registry ends a session before the application gets a cancel: no safety margin.
    NoLease,
    /// A start does not check the version of the sharding, and a sharding does not check for new running nodes.
    NoVersions,
    /// An execution gets the token of an earlier one.
    TokenReused,
    /// A crashed execution is not flagged.
    NoFlag,
    /// A request to flag a crashed item comes so late that the item has been taken over, executed, and started again:
    /// the new running node has the version of the old one. The core counts flags and takeovers, so that it refuses
    /// such a request. Java instances do not count, so the race remains in mixed fleets: there a fenced store refuses
    /// the token of the execution that is taken over by mistake.
    LateFlag,
    /// A start does not check for a running node of another instance.
    RunningOverwritten,
}

/// The size of the model.
#[derive(Debug, Clone, Copy)]
pub struct Fleet {
    pub instances: u8,
    pub items: usize,
    /// The number of sessions that end.
    pub expiries: u8,
    /// The number of fires, of any items.
    pub fires: u8,
    pub bug: Option<Bug>,
}

/// One state of the registry, the instances and their applications.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct State {
    // The registry.
    pub leader: Option<Instance>,
    pub owner: [Option<Instance>; CAPACITY],
    /// The plan of a leader, with the leader: the next owner of each item that is to move.
    pub plan: Option<(Instance, [Option<Instance>; CAPACITY])>,
    pub running: [Option<Instance>; CAPACITY],
    pub flagged: [bool; CAPACITY],
    pub failover: [Option<Instance>; CAPACITY],
    pub failovering: [Option<Instance>; CAPACITY],
    /// Whether a fenced store has seen the newest token of an item. The number of the token does not matter.
    pub seen: [bool; CAPACITY],
    // The instances.
    pub node: [Node; CAPACITY],
    // The events that may still happen.
    pub expiries: u8,
    pub fires: u8,
    // The state of a fenced store and of an observer.
    pub stale_token: bool,
    pub taken_unacknowledged: bool,
}

/// One instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Node {
    pub session: Session,
    /// The items that the application owns, by the newest notice.
    pub notified: [bool; CAPACITY],
    /// Revoked items that the instance still owns: whether the application has acknowledged the revocation.
    pub revoked: [Option<bool>; CAPACITY],
    /// The items that the application executes.
    pub executes: [bool; CAPACITY],
    /// Items that a sharding took while the instance was suspended, and whose application has no notice of it yet.
    pub lost_unnotified: [bool; CAPACITY],
    pub request: Option<Request>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Session {
    /// Not registered.
    #[default]
    None,
    Alive,
    /// Given up by the instance, and not ended by the registry yet.
    GivenUp,
}

/// A request in flight, with the parts of the state on which it was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Request {
    /// Assigns these items to these instances; `stale`: another sharding took effect since.
    Shard {
        owners: [Option<Instance>; CAPACITY],
        stale: bool,
    },
    /// `stale`: the plan has changed since.
    HandOver {
        item: u8,
        to: Instance,
        stale: bool,
    },
    /// `stale`: a sharding took effect since.
    Start {
        item: u8,
        taken: bool,
        stale: bool,
    },
    Flag {
        item: u8,
        flagged: bool,
        failover: bool,
        running: bool,
        failovering: bool,
        old: bool,
    },
    Take {
        item: u8,
        running: bool,
        failovering: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    Register(Instance),
    Elect(Instance),
    Shard(Instance),
    Plan(Instance),
    Notify(Instance),
    Acknowledge(Instance),
    HandOver(Instance, u8),
    Start(Instance, u8),
    Flag(Instance, u8),
    Take(Instance, u8),
    /// The request of an instance takes effect, or fails.
    TakeEffect(Instance),
    Finish(Instance, u8),
    GiveUp(Instance),
    Expire(Instance),
}

impl State {
    pub fn is_online(&self, instance: Instance) -> bool {
        self.node[usize::from(instance)].session != Session::None
    }

    /// Whether an instance executes an item, or is about to.
    pub fn is_busy(&self, instance: Instance, item: Item) -> bool {
        let node = &self.node[usize::from(instance)];
        node.executes[item] || self.is_starting(instance, item)
    }

    pub fn is_starting(&self, instance: Instance, item: Item) -> bool {
        let starts = |request| match request {
            Request::Start { item, .. } => Some(usize::from(item)),
            _ => None,
        };
        self.node[usize::from(instance)].request.and_then(starts) == Some(item)
    }
}

impl Model for Fleet {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State { expiries: self.expiries, fires: self.fires, ..State::default() };
        let state = &mut state;
        state.leader = Some(0);
        for node in &mut state.node[..usize::from(self.instances)] {
            node.session = Session::Alive;
        }
        for item in 0..self.items {
            (state.owner[item], state.node[0].notified[item]) = (Some(0), true);
        }
        vec![state.clone()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.possible(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        Some(self.after(state, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        Self::promises().into_iter().chain(Self::examples()).collect()
    }
}

impl Fleet {
    /// The invariants of every state.
    pub fn promises() -> Vec<Property<Self>> {
        vec![
            Property::always(ONCE, |fleet: &Self, state: &State| {
                let executors = |item: Item| state.node.iter().filter(|node| node.executes[item]).count();
                (0..fleet.items).all(|item| executors(item) <= 1)
            }),
            Property::always(ONE_OWNER, |fleet: &Self, state: &State| {
                let owns = |node: &&Node, item: Item| node.notified[item] && !node.lost_unnotified[item];
                let owners = |item: Item| state.node.iter().filter(|node| owns(node, item)).count();
                (0..fleet.items).all(|item| owners(item) <= 1)
            }),
            Property::always(TOKENS, |_, state: &State| !state.stale_token),
            Property::always(ACKNOWLEDGED, |_, state: &State| !state.taken_unacknowledged),
            Property::always(SETTLED, |fleet: &Self, state: &State| {
                let waits = |node: &Node| node.request.is_some() || node.session != Session::Alive;
                if state.node[..usize::from(fleet.instances)].iter().any(waits) {
                    return true;
                }
                let mut actions = Vec::new();
                fleet.possible(state, &mut actions);
                let pending =
                    actions.iter().any(|action| !matches!(action, Action::GiveUp(_) | Action::Expire(_)));
                pending || fleet.is_settled(state)
            }),
        ]
    }

    /// States that must be reachable: without them the invariants would prove little.
    fn examples() -> Vec<Property<Self>> {
        vec![
            Property::sometimes("an item is handed over", |_, state: &State| {
                state.expiries > 0 && state.owner.iter().flatten().any(|owner| *owner > 0)
            }),
            Property::sometimes("an item is taken over", |_, state: &State| {
                state.failover.iter().any(Option::is_some)
            }),
            Property::sometimes("the fleet is settled after all expiries", |fleet: &Self, state: &State| {
                state.expiries == 0 && fleet.is_settled(state)
            }),
            Property::sometimes(
                "a sharding takes an item from an owner that has registered again",
                |_, state: &State| state.node.iter().any(|node| node.lost_unnotified.contains(&true)),
            ),
        ]
    }
}

/// P2.
pub const ONCE: &str = "P2: an item is never executed twice at once";
/// P1.
pub const ONE_OWNER: &str = "P1: never do two applications own an item";
/// P3.
pub const TOKENS: &str = "P3: tokens grow";
/// P1.
pub const ACKNOWLEDGED: &str = "an item is handed over only after its owner's acknowledgement";
/// P1, P5, P7.
pub const SETTLED: &str = "without a possible action, every item is owned and no execution is unfinished";
