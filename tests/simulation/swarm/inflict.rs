//! The faults that come at a time, and the calm after them.

use sidekeeper::coordination::job::contract::answer::Ticket;
use sidekeeper::coordination::job::contract::input::{CancelWish, Input};
use sidekeeper::elasticjob::config_yaml;
use sidekeeper::elasticjob::path::Place;
use sidekeeper::job::{Item, JobConfiguration};
use sidekeeper::tree::{NodeKind, Operation, Path};

use crate::random::Random;

use super::faults::Fault;
use super::plan::{Planned, cron};
use super::world::{Event, World};
use super::{MILLISECOND, Micros, SECOND};

/// Data for any node: nothing, binary data, numbers, ids with too few and too many parts, YAML of all kinds.
const GARBAGE: [&[u8]; 10] = [
    b"",
    b"\xff\xfe\0\x80",
    b"99999999999999999999",
    b"nobody",
    b"10.9.9.9@-@1@-@2",
    b"10.9.9.9@-@4711",
    b"a: &a [*a, *a]\nb: &b [*a, *a]\nc: [*b, *b]",
    b"jobName: job\nshardingTotalCount: 2147483648",
    b"!!java.lang.Runtime {}",
    b"jobName: [job]\nshardingTotalCount: {}",
];

/// Where it may stand.
const PLACES: [&str; 20] = [
    "config",
    "servers/10.9.9.9",
    "servers/here",
    "instances/nobody",
    "instances/10.9.9.9@-@4711",
    "instances/10.9.9.9@-@1@-@2",
    "instances2/x",
    "leader/election/elsewhere",
    "leader/failover/items/0",
    "leader/failover/items/99",
    "leader/failover/items/x",
    "leader/sharding/necessary",
    "leader/sharding/processing",
    "sharding/99/instance",
    "sharding/-1",
    "sharding/4294967296/running",
    "sharding/0/unknown",
    "sharding/1/misfire",
    "trigger/10.9.9.9@-@4711",
    "next-job-instance-ip",
];

impl World {
    /// A fault of the plan comes.
    pub(super) fn inflict(&mut self, index: usize) {
        let Planned { fault, dice, .. } = self.plan.faults[index];
        if self.is_calm {
            return;
        }
        let mut random = Random::new(dice);
        let alive: Vec<usize> = (0..self.machines.len()).filter(|m| !self.machines[*m].retired).collect();
        let Some(m) = alive.get(random.below(alive.len().max(1) as u64) as usize).copied() else { return };
        let done = self.inflict_on(m, alive.len(), fault, &mut random);
        if done {
            self.counts.add(fault);
            self.note(m, || format!("FAULT {index}: {fault}"));
        }
    }

    fn inflict_on(&mut self, m: usize, alive: usize, fault: Fault, random: &mut Random) -> bool {
        let timeout = self.plan.session_timeout;
        // Shorter than the lease, about as long, or longer than the session.
        let hole = |random: &mut Random| match random.below(4) {
            0 => 20 * MILLISECOND + random.below(300 * MILLISECOND),
            1 => random.below(timeout),
            2 => timeout / 2 + random.below(timeout),
            _ => timeout + random.below(timeout),
        };
        let now = self.now;
        match fault {
            Fault::ConnectionLoss => self.break_connection(m, false),
            Fault::Partition => {
                let until = now + hole(random);
                self.machines[m].cut_off_until = self.machines[m].cut_off_until.max(until);
                // The client notices when nothing has come for two thirds of the timeout.
                let epoch = self.machines[m].sidecar.as_ref().map_or(0, |sidecar| sidecar.client.epoch);
                let silence = timeout * 2 / 3;
                self.at(now + silence.min(until - now), Event::Silence(m, epoch));
            }
            Fault::ServerLag => {
                let server = random.below(self.ensemble.servers() as u64) as usize;
                let until = now + 20 * MILLISECOND + random.below(1_500 * MILLISECOND);
                self.ensemble.stall(server, until);
            }
            Fault::LeaderChange => {
                let takes = 20 * MILLISECOND + random.below(1_500 * MILLISECOND);
                self.ensemble.leaderless_until = now + takes;
                for m in 0..self.machines.len() {
                    self.break_connection(m, false);
                }
                self.at(now + takes, Event::Settle);
            }
            Fault::SidecarPause => self.stop_process(m, hole(random), true, false),
            Fault::ApplicationPause => self.stop_process(m, hole(random), false, true),
            Fault::MachinePause => self.stop_process(m, hole(random), true, true),
            Fault::ClockStep => {
                let by = random.below(4_000_000) as i64 - 2_000_000;
                self.checks.shown = self.checks.shown.max(Some(self.machines[m].now(self.now).wall));
                self.machines[m].clock.ahead += by;
                self.wake(m, 0);
            }
            Fault::SidecarCrash => {
                self.kill_sidecar(m);
                self.start_again(m, 50 * MILLISECOND + random.below(3 * SECOND));
            }
            Fault::ApplicationCrash => {
                self.kill_application(m);
                let life = self.machines[m].application.life;
                self.at(now + 50 * MILLISECOND + random.below(2 * SECOND), Event::Revive(m, life));
            }
            Fault::MachineCrash => {
                self.lose_machine(m);
                self.start_again(m, 500 * MILLISECOND + random.below(6 * SECOND));
            }
            Fault::ApplicationStop => {
                // Some wait for all executions, some for a moment.
                let patience = if random.once_in(3) { random.below(300 * MILLISECOND) } else { 8 * SECOND };
                return self.stop_application(m, patience);
            }
            Fault::StreamBreak => self.break_stream(m),
            Fault::RollingRestart => {
                self.drain_sidecar(m, 2 * SECOND + random.below(2 * SECOND), false);
                self.start_again(m, 5 * SECOND + random.below(2 * SECOND));
            }
            Fault::Departure if alive > 1 => {
                self.drain_sidecar(m, 3 * SECOND, true);
                self.machines[m].retired = true;
            }
            Fault::Arrival if alive < 7 && self.machines.len() < self.options.machines_max => {
                self.add_machine();
            }
            Fault::Departure | Fault::Arrival => return false,
            _ => return self.operate_on(m, fault, random),
        }
        true
    }

    /// The actions of operators.
    fn operate_on(&mut self, m: usize, fault: Fault, random: &mut Random) -> bool {
        let total = u64::from(self.plan.configuration.sharding_total_count);
        let item = Item(random.below(total) as u32);
        let after = 500 * MILLISECOND + random.below(4 * SECOND);
        let seat = self.machines[m].sidecar.as_ref().and_then(|sidecar| sidecar.participant.as_ref());
        let instance = seat.map(|seat| seat.identity.instance.clone());
        match fault {
            Fault::ServerSwitch => {
                let path = self.paths.server(self.machines[m].ip);
                let done = self.operate(vec![Operation::set(path.clone(), "DISABLED")]);
                self.checks.disabled.push((self.now, self.now + after));
                self.later(after, vec![Operation::set(path, "ENABLED")]);
                done
            }
            Fault::ItemSwitch => {
                let path = self.paths.item(item).child("disabled");
                let done = self.operate(vec![Operation::create(path.clone(), NodeKind::Persistent, "")]);
                self.later(after, vec![Operation::delete(path)]);
                done
            }
            Fault::Trigger => {
                let folder = self.paths.root().child("trigger");
                let Some(instance) = instance else { return false };
                let _ = self.operate(vec![Operation::create(folder, NodeKind::Persistent, "")]);
                let path = self.paths.trigger(&instance);
                self.operate(vec![Operation::create(path, NodeKind::Persistent, "")])
            }
            Fault::ItemTrigger => self.trigger_item(item),
            Fault::CancelledByOperator => {
                let Some(seat) = self.machines[m].seat() else { return false };
                seat.tickets += 1;
                let ticket = Ticket(seat.tickets);
                self.call(m, Input::Cancel(ticket, CancelWish::default()));
                true
            }
            Fault::TotalChange => {
                let total = 1 + random.below(9) as u32;
                self.reconfigure(|job| job.sharding_total_count = total)
            }
            Fault::ScheduleChange if self.plan.period > 0 => {
                let period = [2, 3, 4, 5][random.below(4) as usize];
                self.plan.period = period;
                self.checks.rescheduled_at = Some(self.now);
                self.reconfigure(|job| job.cron = Some(cron(period)))
            }
            Fault::RemoteStop => {
                let Some(instance) = instance else { return false };
                if self.ensemble.get(&self.own_paths.fleet().member(&instance)).is_none() {
                    // An operator has deleted it: without it an instance that is stopped as well would leave no trace.
                    return false;
                }
                let done = self.operate(vec![Operation::delete(self.paths.instance(&instance))]);
                if let Some(seat) = self.machines[m].seat().filter(|_| done) {
                    seat.is_stopped = true;
                }
                done
            }
            Fault::DeletedNode => {
                let fleet = self.own_paths.fleet();
                let path = match (random.below(6), instance) {
                    (0, _) => self.paths.leader(),
                    (1, _) => self.paths.server(self.machines[m].ip),
                    (2, _) => {
                        self.checks.disowned.insert(item, self.now);
                        self.paths.item_instance(item)
                    }
                    // An instance that is stopped leaves only this.
                    (3, Some(instance)) if self.ensemble.get(&self.paths.instance(&instance)).is_some() => {
                        fleet.member(&instance)
                    }
                    (4, _) => fleet.handoff(),
                    _ => self.paths.necessary(),
                };
                self.operate(vec![Operation::delete(path)])
            }
            Fault::Garbage => {
                let place = PLACES[random.below(PLACES.len() as u64) as usize];
                let garbage = GARBAGE[random.below(GARBAGE.len() as u64) as usize];
                self.put_garbage(place, garbage);
                true
            }
            _ => false,
        }
    }

    fn put_garbage(&mut self, place: &str, data: &[u8]) {
        let path = self.paths.root().child(place);
        let mut above = Vec::new();
        let mut parent = path.parent();
        while let Some(missing) = parent.filter(|missing| self.ensemble.get(missing).is_none()) {
            parent = missing.parent();
            above.push(missing);
        }
        for folder in above.into_iter().rev() {
            self.create_garbage(&folder, b"");
        }
        if !self.create_garbage(&path, data) {
            self.operate(vec![Operation::set(path, data)]);
        }
    }

    fn create_garbage(&mut self, path: &Path, data: &[u8]) -> bool {
        let created = self.operate(vec![Operation::create(path.clone(), NodeKind::Persistent, data)]);
        let node = self.ensemble.get(path).filter(|_| created);
        self.garbage.extend(node.map(|node| (path.clone(), node.stat.created)));
        created
    }

    /// An operator writes another configuration.
    fn reconfigure(&mut self, change: impl FnOnce(&mut JobConfiguration)) -> bool {
        change(&mut self.plan.configuration);
        self.write_configuration()
    }

    fn write_configuration(&mut self) -> bool {
        let yaml = config_yaml::write(&self.plan.configuration);
        self.operate(vec![Operation::set(self.paths.config(), yaml)])
    }

    /// The later action of an operator.
    pub(super) fn later(&mut self, after: Micros, transaction: Vec<Operation>) {
        self.undo.push(Some(transaction));
        self.at(self.now + after, Event::Undo(self.undo.len() - 1));
    }

    pub(super) fn take_back(&mut self, index: usize) {
        if let Some(transaction) = self.undo[index].take() {
            self.operate(transaction);
        }
    }

    /// Processes get no time for a while.
    fn stop_process(&mut self, m: usize, takes: Micros, sidecar: bool, application: bool) {
        let until = self.now + takes;
        if sidecar {
            self.machines[m].stopped_until = until;
            self.at(until + 1, Event::Resume(m));
        }
        if application {
            self.machines[m].application.stopped_until = until;
            self.at(until + 1, Event::Resume(m));
        }
    }

    /// A process goes on: everything that has come waits for it.
    pub(super) fn resume(&mut self, m: usize) {
        let now = self.now;
        if !self.machines[m].is_stopped(now) {
            let watches = self.machines[m].sidecar.is_some();
            if watches {
                self.wake(m, 0);
                self.wake_guests(m);
            }
        }
        if !self.machines[m].application.is_stopped(now) {
            self.machines[m].application.act_now(now);
            self.act(m);
            self.read_stream(m);
        }
    }

    /// A client that has heard nothing for long gives its connection up.
    pub(super) fn silence(&mut self, m: usize, epoch: u32) {
        let epoch_now = self.machines[m].sidecar.as_ref().map(|sidecar| sidecar.client.epoch);
        if epoch_now == Some(epoch) {
            self.break_connection(m, false);
        }
    }

    /// A sidecar that was cut off reaches the servers again. Messages on their way are lost with the connection, as
    /// when a partition ends by itself.
    fn end_partition(&mut self, m: usize) {
        let machine = &mut self.machines[m];
        let was_cut_off = std::mem::take(&mut machine.cut_off_until) > self.now;
        let Some(epoch) = machine.sidecar.as_ref().map(|sidecar| sidecar.client.epoch) else { return };
        if was_cut_off {
            self.at(self.now + 1, Event::Silence(m, epoch));
            let soon = self.now + 1 + self.network.below(100 * MILLISECOND);
            self.at(soon, Event::Reconnect(m, epoch));
        }
    }

    /// The faults stop: everything that was broken from outside is mended from outside.
    pub(super) fn calm_down(&mut self) {
        self.is_calm = true;
        self.tell(|| "THE CALM BEGINS".to_owned());
        let now = self.now;
        for index in 0..self.undo.len() {
            self.take_back(index);
        }
        let mut garbage = std::mem::take(&mut self.garbage);
        garbage.sort_by_key(|(path, _)| std::cmp::Reverse(path.as_str().len()));
        for (path, created) in garbage {
            if self.ensemble.get(&path).is_some_and(|node| node.stat.created == created) {
                let place = path.relative_to(self.paths.root()).map(Place::of);
                if let Some(Place::FailoverItem(item)) = place {
                    self.checks.unflagged.insert(item, now);
                }
                self.operate(vec![Operation::delete(path)]);
            }
        }
        // One that stands is not written again: a schedule is owed since its node was written last.
        let stands = |data: &[u8]| data == config_yaml::write(&self.plan.configuration).as_bytes();
        if !self.ensemble.get(&self.paths.config()).is_some_and(|node| stands(&node.data)) {
            self.write_configuration();
        }
        for m in 0..self.machines.len() {
            self.end_partition(m);
            let machine = &mut self.machines[m];
            machine.stopped_until = 0;
            machine.application.stopped_until = machine.application.stopped_until.min(now + 1);
            let path = self.paths.server(machine.ip);
            if self.ensemble.get(&path).is_some_and(|node| &*node.data != b"ENABLED") {
                self.operate(vec![Operation::set(path, "ENABLED")]);
            }
            self.at(now + 1, Event::Resume(m));
            self.unhang(m);
            self.start_again(m, 200 * MILLISECOND);
            let life = self.machines[m].application.life;
            self.at(now + 300 * MILLISECOND, Event::Attach(m, life));
        }
        self.ensemble.leaderless_until = self.ensemble.leaderless_until.min(now + 100 * MILLISECOND);
        for server in 0..self.ensemble.servers() {
            self.ensemble.stall(server, 0);
        }
    }
}
