//! The possible actions of the model, and their results.

use super::fleet::{Action, Bug, CAPACITY, Fleet, Instance, Item, Node, Request, Session, State};

impl Fleet {
    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn instances(&self) -> std::ops::Range<Instance> {
        0..self.instances
    }

    /// Whether the state is as required when no action is left.
    pub fn is_settled(&self, state: &State) -> bool {
        let owned =
            |item: Item| state.owner[item].is_some_and(|owner| state.node[usize::from(owner)].notified[item]);
        let done = |item: Item| {
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

    /// The owner that each item should have, with as few moves as possible.
    fn targets(&self, state: &State) -> [Option<Instance>; CAPACITY] {
        let mut held = [0; CAPACITY];
        for owner in state.owner.iter().flatten() {
            held[usize::from(*owner)] += 1;
        }
        let online = self.instances().filter(|instance| state.is_online(*instance));
        let mut targets = [None; CAPACITY];
        let Some(whole) = self.items.checked_div(online.clone().count()) else { return targets };
        let mut rest = self.items % online.clone().count();
        // The remaining items stay with the owners that have more than the whole part.
        let mut room = [0; CAPACITY];
        for much in [true, false] {
            for instance in
                online.clone().map(usize::from).filter(|instance| (held[*instance] > whole) == much)
            {
                room[instance] = whole + usize::from(rest > 0);
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
            let instance = online.clone().find(|instance| room[usize::from(*instance)] > 0).unwrap();
            room[usize::from(instance)] -= 1;
            *target = Some(instance);
        }
        targets
    }

    /// Whether an item has no online owner.
    fn is_orphan(&self, state: &State, item: Item) -> bool {
        state.owner[item].is_none_or(|owner| !state.is_online(owner))
    }

    fn has_orphans(&self, state: &State) -> bool {
        (0..self.items).any(|item| self.is_orphan(state, item))
    }

    /// The items without an online owner, and their next owners.
    fn orphans(&self, state: &State) -> [Option<Instance>; CAPACITY] {
        let mut owners = self.targets(state);
        for item in (0..self.items).filter(|item| !self.is_orphan(state, *item)) {
            owners[item] = None;
        }
        owners
    }

    /// The required plan: the items with an online owner that should have another owner.
    fn plan(&self, state: &State, leader: Instance) -> Option<(Instance, [Option<Instance>; CAPACITY])> {
        let mut moves = self.targets(state);
        for (target, owner) in moves.iter_mut().zip(state.owner) {
            if owner == *target || owner.is_none_or(|owner| !state.is_online(owner)) {
                *target = None;
            }
        }
        Some((leader, moves)).filter(|(_, moves)| *moves != [None; CAPACITY])
    }

    /// The items of an instance's next notice: those that it owns and that are not to move.
    fn next_notice(&self, state: &State, instance: Instance) -> [bool; CAPACITY] {
        let mut notified = [false; CAPACITY];
        for (item, notified) in notified.iter_mut().enumerate() {
            let revoked = state.plan.and_then(|(_, targets)| targets[item]).is_some_and(|to| to != instance);
            *notified =
                state.owner[item] == Some(instance) && (!revoked || state.is_starting(instance, item));
        }
        notified
    }

    /// Whether the nodes of an item were left by an instance that is offline.
    fn has_crashed(&self, state: &State, instance: Instance, item: Item) -> bool {
        if state.is_busy(instance, item) {
            return false;
        }
        let is_over = |executor: Instance| executor == instance || !state.is_online(executor);
        match (state.running[item], state.failovering[item]) {
            (Some(executor), _) => is_over(executor),
            (None, Some(taker)) => match taker == instance {
                true => state.failover[item] != Some(instance),
                false => !state.is_online(taker),
            },
            (None, None) => false,
        }
    }

    /// All actions that are possible now.
    pub fn possible(&self, state: &State, actions: &mut Vec<Action>) {
        for instance in self.instances() {
            let node = &state.node[usize::from(instance)];
            if node.request.is_some() {
                actions.push(Action::TakeEffect(instance));
            }
            match node.session {
                Session::None => actions.push(Action::Register(instance)),
                Session::GivenUp => actions.push(Action::Expire(instance)),
                Session::Alive => self.possible_alive(state, instance, actions),
            }
        }
    }

    fn possible_alive(&self, state: &State, instance: Instance, actions: &mut Vec<Action>) {
        let node = &state.node[usize::from(instance)];
        if state.expiries > 0 {
            actions.push(if self.has(Bug::NoLease) {
                Action::Expire(instance)
            } else {
                Action::GiveUp(instance)
            });
        }
        let next_notice = self.next_notice(state, instance);
        if (0..self.items).any(|item| node.notified[item] && !next_notice[item]) {
            actions.push(Action::Notify(instance));
        }
        if node.revoked.contains(&Some(false)) {
            actions.push(Action::Acknowledge(instance));
        }
        if state.leader.is_none() {
            actions.push(Action::Elect(instance));
        }
        let executed = (0..self.items).filter(|item| node.executes[*item]);
        actions.extend(executed.map(|item| Action::Finish(instance, item as u8)));
        let leads = state.leader == Some(instance);
        let orphans = leads && self.has_orphans(state);
        if leads && !orphans && state.plan != self.plan(state, instance) {
            actions.push(Action::Plan(instance));
        }
        if node.request.is_some() {
            return;
        }
        if orphans {
            actions.push(Action::Shard(instance));
        }
        for item in 0..self.items {
            let number = item as u8;
            if self.may_hand_over(state, instance, item) {
                actions.push(Action::HandOver(instance, number));
            }
            if self.may_start(state, instance, item) {
                actions.push(Action::Start(instance, number));
            }
            if self.has_crashed(state, instance, item) && !self.has(Bug::NoFlag) {
                actions.push(Action::Flag(instance, number));
            }
            let left = state.running[item].is_none_or(|executor| !state.is_online(executor));
            if state.flagged[item] && state.failover[item].is_none() && left && !state.is_busy(instance, item)
            {
                actions.push(Action::Take(instance, number));
            }
        }
    }

    fn may_hand_over(&self, state: &State, instance: Instance, item: Item) -> bool {
        let node = &state.node[usize::from(instance)];
        let planned = state.plan.and_then(|(_, targets)| targets[item]).is_some_and(|to| to != instance);
        // An application need not acknowledge an item of which it never had a notice.
        let acknowledged = node.revoked[item] != Some(false) || self.has(Bug::NoAcknowledgement);
        let idle = !state.is_busy(instance, item) || self.has(Bug::HandedOverWhileBusy);
        planned && state.owner[item] == Some(instance) && !node.notified[item] && acknowledged && idle
    }

    fn may_start(&self, state: &State, instance: Instance, item: Item) -> bool {
        let free = state.running[item].is_none() || self.has(Bug::RunningOverwritten);
        if state.is_busy(instance, item) || !free {
            return false;
        }
        let taken = state.failover[item] == Some(instance);
        let due = state.node[usize::from(instance)].notified[item]
            && state.fires > 0
            && state.failover[item].is_none()
            && !state.flagged[item];
        taken || due
    }

    /// The result of an action.
    pub fn after(&self, state: &State, action: Action) -> State {
        let mut next = state.clone();
        match action {
            Action::Register(instance) => next.node[usize::from(instance)].session = Session::Alive,
            Action::Elect(instance) => next.leader = Some(instance),
            Action::Plan(instance) => next.set_plan(self.plan(state, instance)),
            Action::Notify(instance) => self.notify(&mut next, instance),
            Action::Acknowledge(instance) => {
                for revoked in next.node[usize::from(instance)].revoked.iter_mut().flatten() {
                    *revoked = true;
                }
            }
            Action::Shard(instance) => {
                next.send(instance, Request::Shard { owners: self.orphans(state), stale: false });
            }
            Action::HandOver(instance, item) => {
                let to = state.plan.and_then(|(_, targets)| targets[usize::from(item)]).unwrap();
                next.send(instance, Request::HandOver { item, to, stale: false });
            }
            Action::Start(instance, item) => {
                let taken = state.failover[usize::from(item)] == Some(instance);
                next.fires -= u8::from(!taken);
                next.send(instance, Request::Start { item, taken, stale: false });
            }
            Action::Flag(instance, item) => {
                let place = usize::from(item);
                let (flagged, failover) = (state.flagged[place], state.failover[place].is_some());
                let running = state.running[place].is_some();
                let failovering = state.failovering[place].is_some();
                next.send(
                    instance,
                    Request::Flag { item, flagged, failover, running, failovering, old: false },
                );
            }
            Action::Take(instance, item) => {
                let running = state.running[usize::from(item)].is_some();
                let failovering = state.failovering[usize::from(item)].is_some();
                next.send(instance, Request::Take { item, running, failovering });
            }
            Action::TakeEffect(instance) => {
                if let Some(request) = next.node[usize::from(instance)].request.take() {
                    self.take_effect(&mut next, instance, request);
                }
            }
            Action::Finish(instance, item) => next.finish(instance, usize::from(item)),
            Action::GiveUp(instance) => {
                next.expiries -= 1;
                next.give_up(instance);
            }
            Action::Expire(instance) => {
                if state.node[usize::from(instance)].session == Session::Alive {
                    next.expiries -= 1;
                }
                next.expire(instance);
            }
        }
        self.notify_additions(&mut next);
        next
    }

    /// Additions are notified at once, before any other action.
    fn notify_additions(&self, next: &mut State) {
        for instance in self.instances() {
            if next.node[usize::from(instance)].session != Session::Alive {
                continue;
            }
            let next_notice = self.next_notice(next, instance);
            for item in (0..self.items).filter(|item| next_notice[*item]) {
                let node = &mut next.node[usize::from(instance)];
                (node.notified[item], node.revoked[item]) = (true, None);
            }
        }
    }

    fn notify(&self, next: &mut State, instance: Instance) {
        let notified = self.next_notice(next, instance);
        let owner = next.owner;
        let node = &mut next.node[usize::from(instance)];
        for item in 0..self.items {
            node.lost_unnotified[item] &= notified[item];
            let is_revoked = node.notified[item] && !notified[item] && owner[item] == Some(instance);
            if is_revoked {
                node.revoked[item] = Some(false);
            } else if notified[item] || owner[item] != Some(instance) {
                node.revoked[item] = None;
            }
        }
        node.notified = notified;
    }

    /// The application gets the execution.
    fn begin(&self, next: &mut State, instance: Instance, item: Item) {
        next.node[usize::from(instance)].executes[item] = true;
        if !self.has(Bug::TokenReused) {
            next.seen[item] = false;
        }
        next.stale_token |= std::mem::replace(&mut next.seen[item], true);
    }

    /// A transaction takes effect if its checks hold.
    fn take_effect(&self, next: &mut State, instance: Instance, request: Request) {
        match request {
            Request::Shard { owners, stale } => {
                let runs = |item: Item| {
                    // An item that an online instance has started since is not assigned; an item of a crashed one is.
                    let executor = next.running[item].filter(|executor| next.is_online(*executor));
                    owners[item].is_some() && executor.is_some() && !self.has(Bug::NoVersions)
                };
                if stale || next.leader != Some(instance) || (0..self.items).any(runs) {
                    return;
                }
                for (item, owner) in owners.into_iter().enumerate().filter(|(_, owner)| owner.is_some()) {
                    if let Some(before) = next.owner[item].filter(|before| next.is_online(*before)) {
                        // The owner has registered again since the decision, and is notified later.
                        next.node[usize::from(before)].lost_unnotified[item] =
                            next.node[usize::from(before)].notified[item];
                    }
                    next.owner[item] = owner;
                    next.seen[item] = false;
                }
                next.bump_version();
            }
            Request::HandOver { item, to, stale } => {
                let item = usize::from(item);
                if stale || !next.is_online(to) || next.owner[item] != Some(instance) {
                    return;
                }
                let node = &mut next.node[usize::from(instance)];
                next.taken_unacknowledged |= node.notified[item] || node.revoked[item] == Some(false);
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
                    // The fire is planned again.
                    next.fires += u8::from(!taken);
                    return;
                }
                next.running[place] = Some(instance);
                for node in &mut next.node {
                    if let Some(Request::Flag { item: flagged, old, .. }) = &mut node.request {
                        *old |= *flagged == item;
                    }
                }
                // After its session was given up, an instance sends no notice.
                if next.node[usize::from(instance)].session == Session::Alive {
                    self.begin(next, instance, place);
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
                next.failover[item] = Some(instance);
                next.failovering[item] = Some(instance);
                next.running[item] = None;
            }
        }
    }
}

impl State {
    fn send(&mut self, instance: Instance, request: Request) {
        self.node[usize::from(instance)].request = Some(request);
    }

    /// Changes or removes the plan: requests that were decided on the old one fail.
    fn set_plan(&mut self, plan: Option<(Instance, [Option<Instance>; CAPACITY])>) {
        self.plan = plan;
        for node in &mut self.node {
            if let Some(Request::HandOver { stale, .. }) = &mut node.request {
                *stale = true;
            }
        }
    }

    /// The version of the sharding grows: requests that were decided on the old one fail.
    fn bump_version(&mut self) {
        for node in &mut self.node {
            if let Some(Request::Start { stale, .. } | Request::Shard { stale, .. }) = &mut node.request {
                *stale = true;
            }
        }
    }

    fn finish(&mut self, instance: Instance, item: Item) {
        self.node[usize::from(instance)].executes[item] = false;
        if self.running[item] == Some(instance) {
            self.running[item] = None;
        }
        if self.failover[item] == Some(instance) {
            self.failover[item] = None;
            self.failovering[item] = None;
        }
    }

    /// The lease is over: the application stops. Sent requests may still take effect.
    fn give_up(&mut self, instance: Instance) {
        let node = &mut self.node[usize::from(instance)];
        *node = Node { session: Session::GivenUp, request: node.request, ..Node::default() };
    }

    /// The session ends, with its ephemeral nodes.
    fn expire(&mut self, instance: Instance) {
        let node = &mut self.node[usize::from(instance)];
        if let Some(Request::Start { taken: false, .. }) = node.request {
            // Another instance catches up on the fire.
            self.fires += 1;
        }
        (node.session, node.request) = (Session::None, None);
        if self.leader == Some(instance) {
            self.leader = None;
        }
        if self.plan.is_some_and(|(leader, _)| leader == instance) {
            self.set_plan(None);
        }
        for failover in self.failover.iter_mut().filter(|failover| **failover == Some(instance)) {
            *failover = None;
        }
    }
}
