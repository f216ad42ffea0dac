//! What is modelled: the registry's nodes that matter for ownership and execution, and of each instance what it has told
//! its application and the one request that it has on its way.
//!
//! A request is *decided* on what the registry shows, and *takes effect* later, when anything may have changed: that is
//! the same as deciding on a view that is behind. It fails if what its transaction checks is not so any more. In between,
//! the session may end. What an application is told lags behind in the same way.
//!
//! | action | stands for |
//! | --- | --- |
//! | `Register` | `registration::register` |
//! | `Elect` | `election::elect`; the latch and the creation of the leader's node are one step |
//! | `Shard` | `sharding::shard`, with gentle rules: items without an owner that is online are given to members |
//! | `Plan` | `handoff::plan_handoff`, targets as in `sticky::allocate` without weights and labels; members that have one item more are chosen by `former`, which makes no difference to the properties |
//! | `Tell` | `assignment::tell` |
//! | `Acknowledge` | `participant::acknowledge`, and the application's letting go |
//! | `HandOver` | `handoff::release`, policy `drained`; the deadline after which an item goes in any case is left out |
//! | `Start` | `fire::fire` and `execution::start`, of an item that is owned or was taken over |
//! | `Begin` | `execution::started`: the result is there, the application is told to execute |
//! | `Finish` | `completion::complete` |
//! | `Flag`, `Take` | `failover::flag_crashed`, `failover::take_flagged` |
//! | `GiveUp` | `lease::mind_lease`: the lease is over, the application is told to stop |
//! | `Expire` | the registry ends the session, which it does only after the lease is over |
//!
//! Left out: Java instances (ElasticJob's rules), disabled servers and items, the ledger and misfires, names and grace,
//! and requests of unknown outcome; all of these are simulated (`tests/simulation`).

use stateright::{Model, Property};

/// An instance, by its place.
pub type Who = u8;
/// An item, by its number.
pub type What = usize;

/// Instances and items, at most: the size of the arrays.
pub const MOST: usize = 3;

/// What the model can be made to do wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// An item is handed over before the application has acknowledged that it lost it.
    NoAcknowledgement,
    /// An item is handed over while it is executed, and its running node with it.
    HandedOverWhileBusy,
    /// The registry ends a session before the application was told to stop: no safety margin.
    NoLease,
    /// A start does not check the sharding's version, nor a sharding what has begun to run.
    NoVersions,
    /// An execution is told with the token of an earlier one.
    TokenReused,
    /// A crashed execution is not flagged.
    NoFlag,
    /// A request to flag what has crashed comes so late that the item has been taken over, executed, and started again:
    /// the new running node has the version that the old one had. The core counts what is flagged and taken, so that
    /// such a request is refused; Java's instances do not count, so the race is left in mixed fleets, where the token
    /// of the execution that is taken over by mistake is refused by a fenced store.
    LateFlag,
    /// Who starts does not mind a running node of somebody else.
    RunningOverwritten,
}

/// How large the model is.
#[derive(Debug, Clone, Copy)]
pub struct Fleet {
    pub instances: u8,
    pub items: usize,
    /// How many sessions end.
    pub expiries: u8,
    /// How often an item is due, whichever.
    pub fires: u8,
    pub bug: Option<Bug>,
}

/// One state of everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct State {
    // The registry.
    pub leader: Option<Who>,
    pub owner: [Option<Who>; MOST],
    /// The leader's plan, and whose node it is: which item is to go to whom.
    pub plan: Option<(Who, [Option<Who>; MOST])>,
    pub running: [Option<Who>; MOST],
    pub flagged: [bool; MOST],
    pub failover: [Option<Who>; MOST],
    pub failovering: [Option<Who>; MOST],
    /// Whether the newest token of an item was seen by a fenced store. Which number it has does not matter.
    pub seen: [bool; MOST],
    // The instances.
    pub node: [Node; MOST],
    // What is left to happen.
    pub expiries: u8,
    pub fires: u8,
    // What a fenced store and an observer have seen.
    pub stale_token: bool,
    pub taken_untold: bool,
}

/// One instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Node {
    pub session: Session,
    /// What the application owns, as it was told.
    pub told: [bool; MOST],
    /// What it was told to let go, and is still ours: whether it has acknowledged that.
    pub revoked: [Option<bool>; MOST],
    /// What it executes.
    pub executes: [bool; MOST],
    /// What it was told and has lost to a sharding that was decided while it was away, without a word yet.
    pub outvoted: [bool; MOST],
    pub request: Option<Request>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Session {
    /// Not registered.
    #[default]
    None,
    Alive,
    /// Given up, and not ended by the registry yet.
    GivenUp,
}

/// A request on its way, with what it remembers of the state on which it was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Request {
    /// Gives these items to these instances; `stale`: somebody else has divided since.
    Shard {
        owners: [Option<Who>; MOST],
        stale: bool,
    },
    /// `stale`: the plan is another one.
    HandOver {
        item: u8,
        to: Who,
        stale: bool,
    },
    /// `stale`: the items were divided since.
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
    Register(Who),
    Elect(Who),
    Shard(Who),
    Plan(Who),
    Tell(Who),
    Acknowledge(Who),
    HandOver(Who, u8),
    Start(Who, u8),
    Flag(Who, u8),
    Take(Who, u8),
    /// The request of an instance takes effect, or fails.
    Arrive(Who),
    Finish(Who, u8),
    GiveUp(Who),
    Expire(Who),
}

impl State {
    pub fn is_online(&self, who: Who) -> bool {
        self.node[usize::from(who)].session != Session::None
    }

    /// Whether an instance executes an item, or is about to.
    pub fn is_busy(&self, who: Who, item: What) -> bool {
        let node = &self.node[usize::from(who)];
        node.executes[item] || self.is_starting(who, item)
    }

    pub fn is_starting(&self, who: Who, item: What) -> bool {
        let starts = |request| match request {
            Request::Start { item, .. } => Some(usize::from(item)),
            _ => None,
        };
        self.node[usize::from(who)].request.and_then(starts) == Some(item)
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
            (state.owner[item], state.node[0].told[item]) = (Some(0), true);
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
    /// What holds in every state.
    pub fn promises() -> Vec<Property<Self>> {
        vec![
            Property::always(ONCE, |fleet: &Self, state: &State| {
                let executors = |item: What| state.node.iter().filter(|node| node.executes[item]).count();
                (0..fleet.items).all(|item| executors(item) <= 1)
            }),
            Property::always(ONE_OWNER, |fleet: &Self, state: &State| {
                let owns = |node: &&Node, item: What| node.told[item] && !node.outvoted[item];
                let owners = |item: What| state.node.iter().filter(|node| owns(node, item)).count();
                (0..fleet.items).all(|item| owners(item) <= 1)
            }),
            Property::always(TOKENS, |_, state: &State| !state.stale_token),
            Property::always(ACKNOWLEDGED, |_, state: &State| !state.taken_untold),
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

    /// What can be reached: without it, the rest would say little.
    fn examples() -> Vec<Property<Self>> {
        vec![
            Property::sometimes("an item is handed over", |_, state: &State| {
                state.expiries > 0 && state.owner.iter().flatten().any(|owner| *owner > 0)
            }),
            Property::sometimes("an item is taken over", |_, state: &State| {
                state.failover.iter().any(Option::is_some)
            }),
            Property::sometimes("all is well after all expiries", |fleet: &Self, state: &State| {
                state.expiries == 0 && fleet.is_settled(state)
            }),
            Property::sometimes("a sharding comes too late for an owner that is back", |_, state: &State| {
                state.node.iter().any(|node| node.outvoted.contains(&true))
            }),
        ]
    }
}

/// P2.
pub const ONCE: &str = "P2: an item is never executed twice at once";
/// P1.
pub const ONE_OWNER: &str = "P1: never two applications were told that they own an item";
/// P3.
pub const TOKENS: &str = "P3: tokens grow";
/// P1.
pub const ACKNOWLEDGED: &str = "an item is handed over only when its owner has let go of it";
/// P1, P5, P7.
pub const SETTLED: &str = "when nothing is left to do, every item is owned and nothing is unfinished";
