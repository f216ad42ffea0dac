//! The moves of the model: what is possible, and what follows.

use super::fleet::{Action, Bug, Fleet, MOST, Node, Request, Session, State, What, Who};

impl Fleet {
    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn everybody(&self) -> std::ops::Range<Who> {
        0..self.instances
    }

    /// Whether everything is as it should be when nothing happens any more.
    pub fn is_settled(&self, state: &State) -> bool {
        let owned =
            |item: What| state.owner[item].is_some_and(|owner| state.node[usize::from(owner)].told[item]);
        let done = |item: What| {
            state.running[item].is_none()
                && !state.flagged[item]
                && state.failover[item].is_none()
                && state.failovering[item].is_none()
        };
        state.fires == 0
            && state.leader.is_some()
            && state.plan.is_none()
            && (0..self.items).all(|item| owned(item) && done(item))
            && self.targets(state) == state.owner
    }

    /// Who should own each item: as few as possible move.
    fn targets(&self, state: &State) -> [Option<Who>; MOST] {
        let mut held = [0; MOST];
        for owner in state.owner.iter().flatten() {
            held[usize::from(*owner)] += 1;
        }
        let online = self.everybody().filter(|who| state.is_online(*who));
        let mut targets = [None; MOST];
        let Some(whole) = self.items.checked_div(online.clone().count()) else { return targets };
        let mut rest = self.items % online.clone().count();
        // What is left over stays with those who have more than the whole part.
        let mut room = [0; MOST];
        for much in [true, false] {
            for who in online.clone().map(usize::from).filter(|who| (held[*who] > whole) == much) {
                room[who] = whole + usize::from(rest > 0);
                rest = rest.saturating_sub(1);
            }
        }
        for (target, owner) in targets.iter_mut().zip(state.owner) {
            if let Some(owner) = owner.filter(|owner| room[usize::from(*owner)] > 0) {
                room[usize::from(owner)] -= 1;
                *target = Some(owner);
            }
        }
        for target in targets[..self.items].iter_mut().filter(|target| target.is_none()) {
            let who = online.clone().find(|who| room[usize::from(*who)] > 0).unwrap();
            room[usize::from(who)] -= 1;
            *target = Some(who);
        }
        targets
    }

    /// Whether nobody online owns an item.
    fn is_orphan(&self, state: &State, item: What) -> bool {
        state.owner[item].is_none_or(|owner| !state.is_online(owner))
    }

    fn has_orphans(&self, state: &State) -> bool {
        (0..self.items).any(|item| self.is_orphan(state, item))
    }

    /// What nobody online owns, and who is to have it.
    fn orphans(&self, state: &State) -> [Option<Who>; MOST] {
        let mut owners = self.targets(state);
        for item in (0..self.items).filter(|item| !self.is_orphan(state, *item)) {
            owners[item] = None;
        }
        owners
    }

    /// The plan that there should be: which items are with one who is online and should be with another.
    fn plan(&self, state: &State, leader: Who) -> Option<(Who, [Option<Who>; MOST])> {
        let mut moves = self.targets(state);
        for (target, owner) in moves.iter_mut().zip(state.owner) {
            if owner == *target || owner.is_none_or(|owner| !state.is_online(owner)) {
                *target = None;
            }
        }
        Some((leader, moves)).filter(|(_, moves)| *moves != [None; MOST])
    }

    /// What an instance's application is to know: what it owns, but what is to be somebody else's.
    fn telling(&self, state: &State, who: Who) -> [bool; MOST] {
        let mut told = [false; MOST];
        for (item, told) in told.iter_mut().enumerate() {
            let revoked = state.plan.and_then(|(_, targets)| targets[item]).is_some_and(|to| to != who);
            *told = state.owner[item] == Some(who) && (!revoked || state.is_starting(who, item));
        }
        told
    }

    /// Whether what an item's nodes say was left by somebody who is gone.
    fn has_crashed(&self, state: &State, who: Who, item: What) -> bool {
        if state.is_busy(who, item) {
            return false;
        }
        let is_over = |executor: Who| executor == who || !state.is_online(executor);
        match (state.running[item], state.failovering[item]) {
            (Some(executor), _) => is_over(executor),
            (None, Some(taker)) => match taker == who {
                true => state.failover[item] != Some(who),
                false => !state.is_online(taker),
            },
            (None, None) => false,
        }
    }

    /// Everything that may happen next.
    pub fn possible(&self, state: &State, actions: &mut Vec<Action>) {
        for who in self.everybody() {
            let node = &state.node[usize::from(who)];
            if node.request.is_some() {
                actions.push(Action::Arrive(who));
            }
            match node.session {
                Session::None => actions.push(Action::Register(who)),
                Session::GivenUp => actions.push(Action::Expire(who)),
                Session::Alive => self.possible_alive(state, who, actions),
            }
        }
    }

    fn possible_alive(&self, state: &State, who: Who, actions: &mut Vec<Action>) {
        let node = &state.node[usize::from(who)];
        if state.expiries > 0 {
            actions.push(if self.has(Bug::NoLease) { Action::Expire(who) } else { Action::GiveUp(who) });
        }
        let telling = self.telling(state, who);
        if (0..self.items).any(|item| node.told[item] && !telling[item]) {
            actions.push(Action::Tell(who));
        }
        if node.revoked.contains(&Some(false)) {
            actions.push(Action::Acknowledge(who));
        }
        if state.leader.is_none() {
            actions.push(Action::Elect(who));
        }
        let executed = (0..self.items).filter(|item| node.executes[*item]);
        actions.extend(executed.map(|item| Action::Finish(who, item as u8)));
        let leads = state.leader == Some(who);
        let orphans = leads && self.has_orphans(state);
        if leads && !orphans && state.plan != self.plan(state, who) {
            actions.push(Action::Plan(who));
        }
        if node.request.is_some() {
            return;
        }
        if orphans {
            actions.push(Action::Shard(who));
        }
        for item in 0..self.items {
            let number = item as u8;
            if self.may_hand_over(state, who, item) {
                actions.push(Action::HandOver(who, number));
            }
            if self.may_start(state, who, item) {
                actions.push(Action::Start(who, number));
            }
            if self.has_crashed(state, who, item) && !self.has(Bug::NoFlag) {
                actions.push(Action::Flag(who, number));
            }
            let left = state.running[item].is_none_or(|executor| !state.is_online(executor));
            if state.flagged[item] && state.failover[item].is_none() && left && !state.is_busy(who, item) {
                actions.push(Action::Take(who, number));
            }
        }
    }

    fn may_hand_over(&self, state: &State, who: Who, item: What) -> bool {
        let node = &state.node[usize::from(who)];
        let planned = state.plan.and_then(|(_, targets)| targets[item]).is_some_and(|to| to != who);
        // What the application was never told it need not let go.
        let acknowledged = node.revoked[item] != Some(false) || self.has(Bug::NoAcknowledgement);
        let idle = !state.is_busy(who, item) || self.has(Bug::HandedOverWhileBusy);
        planned && state.owner[item] == Some(who) && !node.told[item] && acknowledged && idle
    }

    fn may_start(&self, state: &State, who: Who, item: What) -> bool {
        let free = state.running[item].is_none() || self.has(Bug::RunningOverwritten);
        if state.is_busy(who, item) || !free {
            return false;
        }
        let taken = state.failover[item] == Some(who);
        let due = state.node[usize::from(who)].told[item]
            && state.fires > 0
            && state.failover[item].is_none()
            && !state.flagged[item];
        taken || due
    }

    /// What follows from an action.
    pub fn after(&self, state: &State, action: Action) -> State {
        let mut next = state.clone();
        match action {
            Action::Register(who) => next.node[usize::from(who)].session = Session::Alive,
            Action::Elect(who) => next.leader = Some(who),
            Action::Plan(who) => next.set_plan(self.plan(state, who)),
            Action::Tell(who) => self.tell(&mut next, who),
            Action::Acknowledge(who) => {
                for revoked in next.node[usize::from(who)].revoked.iter_mut().flatten() {
                    *revoked = true;
                }
            }
            Action::Shard(who) => {
                next.ask(who, Request::Shard { owners: self.orphans(state), stale: false });
            }
            Action::HandOver(who, item) => {
                let to = state.plan.and_then(|(_, targets)| targets[usize::from(item)]).unwrap();
                next.ask(who, Request::HandOver { item, to, stale: false });
            }
            Action::Start(who, item) => {
                let taken = state.failover[usize::from(item)] == Some(who);
                next.fires -= u8::from(!taken);
                next.ask(who, Request::Start { item, taken, stale: false });
            }
            Action::Flag(who, item) => {
                let place = usize::from(item);
                let (flagged, failover) = (state.flagged[place], state.failover[place].is_some());
                let running = state.running[place].is_some();
                let failovering = state.failovering[place].is_some();
                next.ask(who, Request::Flag { item, flagged, failover, running, failovering, old: false });
            }
            Action::Take(who, item) => {
                let running = state.running[usize::from(item)].is_some();
                let failovering = state.failovering[usize::from(item)].is_some();
                next.ask(who, Request::Take { item, running, failovering });
            }
            Action::Arrive(who) => {
                if let Some(request) = next.node[usize::from(who)].request.take() {
                    self.arrive(&mut next, who, request);
                }
            }
            Action::Finish(who, item) => next.finish(who, usize::from(item)),
            Action::GiveUp(who) => {
                next.expiries -= 1;
                next.give_up(who);
            }
            Action::Expire(who) => {
                if state.node[usize::from(who)].session == Session::Alive {
                    next.expiries -= 1;
                }
                next.expire(who);
            }
        }
        self.tell_additions(&mut next);
        next
    }

    /// What has come is told at once: nothing happens to it before.
    fn tell_additions(&self, next: &mut State) {
        for who in self.everybody() {
            if next.node[usize::from(who)].session != Session::Alive {
                continue;
            }
            let telling = self.telling(next, who);
            for item in (0..self.items).filter(|item| telling[*item]) {
                let node = &mut next.node[usize::from(who)];
                (node.told[item], node.revoked[item]) = (true, None);
            }
        }
    }

    fn tell(&self, next: &mut State, who: Who) {
        let told = self.telling(next, who);
        let owner = next.owner;
        let node = &mut next.node[usize::from(who)];
        for item in 0..self.items {
            node.outvoted[item] &= told[item];
            let let_go = node.told[item] && !told[item] && owner[item] == Some(who);
            if let_go {
                node.revoked[item] = Some(false);
            } else if told[item] || owner[item] != Some(who) {
                node.revoked[item] = None;
            }
        }
        node.told = told;
    }

    /// The application is told to execute.
    fn begin(&self, next: &mut State, who: Who, item: What) {
        next.node[usize::from(who)].executes[item] = true;
        if !self.has(Bug::TokenReused) {
            next.seen[item] = false;
        }
        next.stale_token |= std::mem::replace(&mut next.seen[item], true);
    }

    /// A transaction takes effect, if what it checks is so.
    fn arrive(&self, next: &mut State, who: Who, request: Request) {
        match request {
            Request::Shard { owners, stale } => {
                let runs = |item: What| {
                    // What has begun to run since is not given away; what was left running is.
                    let executor = next.running[item].filter(|executor| next.is_online(*executor));
                    owners[item].is_some() && executor.is_some() && !self.has(Bug::NoVersions)
                };
                if stale || next.leader != Some(who) || (0..self.items).any(runs) {
                    return;
                }
                for (item, owner) in owners.into_iter().enumerate().filter(|(_, owner)| owner.is_some()) {
                    if let Some(before) = next.owner[item].filter(|before| next.is_online(*before)) {
                        // It has come back since this was decided, and is told later.
                        next.node[usize::from(before)].outvoted[item] =
                            next.node[usize::from(before)].told[item];
                    }
                    next.owner[item] = owner;
                    next.seen[item] = false;
                }
                next.divided();
            }
            Request::HandOver { item, to, stale } => {
                let item = usize::from(item);
                if stale || !next.is_online(to) || next.owner[item] != Some(who) {
                    return;
                }
                let node = &mut next.node[usize::from(who)];
                next.taken_untold |= node.told[item] || node.revoked[item] == Some(false);
                node.revoked[item] = None;
                next.owner[item] = Some(to);
                next.seen[item] = false;
                if self.has(Bug::HandedOverWhileBusy) {
                    next.running[item] = None;
                }
            }
            Request::Start { item, taken, stale } => {
                let place = usize::from(item);
                let old = stale && !taken && !self.has(Bug::NoVersions);
                if old || (next.running[place].is_some() && !self.has(Bug::RunningOverwritten)) {
                    // It is planned again.
                    next.fires += u8::from(!taken);
                    return;
                }
                next.running[place] = Some(who);
                for node in &mut next.node {
                    if let Some(Request::Flag { item: flagged, old, .. }) = &mut node.request {
                        *old |= *flagged == item;
                    }
                }
                // Nobody is told on behalf of a session that was given up.
                if next.node[usize::from(who)].session == Session::Alive {
                    self.begin(next, who, place);
                }
            }
            Request::Flag { item, flagged, failover, running, failovering, old } => {
                let item = usize::from(item);
                if old && !self.has(Bug::LateFlag) {
                    return;
                }
                let same = next.failover[item].is_some() == failover
                    && (!running || next.running[item].is_some())
                    && (!failovering || next.failovering[item].is_some());
                if !same || (!flagged && next.flagged[item]) {
                    return;
                }
                next.flagged[item] = true;
                next.failover[item] = None;
                if failovering {
                    next.failovering[item] = None;
                }
                if running {
                    next.running[item] = None;
                }
            }
            Request::Take { item, running, failovering } => {
                let item = usize::from(item);
                let same = next.running[item].is_some() == running
                    && next.failovering[item].is_some() == failovering
                    && next.flagged[item]
                    && next.failover[item].is_none();
                if !same {
                    return;
                }
                next.flagged[item] = false;
                next.failover[item] = Some(who);
                next.failovering[item] = Some(who);
                next.running[item] = None;
            }
        }
    }
}

impl State {
    fn ask(&mut self, who: Who, request: Request) {
        self.node[usize::from(who)].request = Some(request);
    }

    /// The plan is another one, or none: what was decided on the old one fails.
    fn set_plan(&mut self, plan: Option<(Who, [Option<Who>; MOST])>) {
        self.plan = plan;
        for node in &mut self.node {
            if let Some(Request::HandOver { stale, .. }) = &mut node.request {
                *stale = true;
            }
        }
    }

    /// The sharding's version has grown.
    fn divided(&mut self) {
        for node in &mut self.node {
            if let Some(Request::Start { stale, .. } | Request::Shard { stale, .. }) = &mut node.request {
                *stale = true;
            }
        }
    }

    fn finish(&mut self, who: Who, item: What) {
        self.node[usize::from(who)].executes[item] = false;
        if self.running[item] == Some(who) {
            self.running[item] = None;
        }
        if self.failover[item] == Some(who) {
            self.failover[item] = None;
            self.failovering[item] = None;
        }
    }

    /// The lease is over: the application stops, what has been asked for may still take effect.
    fn give_up(&mut self, who: Who) {
        let node = &mut self.node[usize::from(who)];
        *node = Node { session: Session::GivenUp, request: node.request, ..Node::default() };
    }

    /// The session ends, and what was in it goes.
    fn expire(&mut self, who: Who) {
        let node = &mut self.node[usize::from(who)];
        if let Some(Request::Start { taken: false, .. }) = node.request {
            // Somebody else makes up for it.
            self.fires += 1;
        }
        (node.session, node.request) = (Session::None, None);
        if self.leader == Some(who) {
            self.leader = None;
        }
        if self.plan.is_some_and(|(leader, _)| leader == who) {
            self.set_plan(None);
        }
        for failover in self.failover.iter_mut().filter(|failover| **failover == Some(who)) {
            *failover = None;
        }
    }
}
