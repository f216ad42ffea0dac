//! A participant takes a step: its inputs are put in the order of the runner (`runner/job/task.rs`).

use sidekeeper::coordination::job::contract::input::Input;
use sidekeeper::tree::{NodeChange, WatchEvent};

use super::client::{Ask, Link};
use super::machine::FAR;
use super::world::{Event, World};
use super::{MILLISECOND, Micros};

impl World {
    /// A participant has something to look at, in a moment.
    pub(super) fn wake(&mut self, m: usize, after: Micros) {
        let jitter = self.network.below(200);
        let at = self.now + after + jitter;
        let Some(seat) = self.machines[m].seat() else { return };
        if seat.step_at.is_none_or(|planned| planned > at) {
            seat.step_at = Some(at);
            self.at(at, Event::Step(m));
        }
    }

    pub(super) fn alarm(&mut self, m: usize) {
        let now = self.now;
        let Some(seat) = self.machines[m].seat() else { return };
        if seat.alarm_at == Some(now) {
            // While it is stopped, the alarm waits.
            seat.alarm_at = None;
            seat.step_at = Some(now);
            self.step(m);
        }
    }

    pub(super) fn step(&mut self, m: usize) {
        let now = self.now;
        let machine = &mut self.machines[m];
        if machine.is_stopped(now) {
            // It looks as soon as it goes on.
            if let Some(seat) = machine.seat() {
                seat.step_at = None;
            }
            return;
        }
        let time = machine.now(now);
        let Some(sidecar) = &mut machine.sidecar else { return };
        let Some(seat) = &mut sidecar.participant else { return };
        if seat.step_at.is_none_or(|at| at > now) {
            // Somebody has looked already.
            return;
        }
        seat.step_at = None;
        let client = &mut sidecar.client;
        let mut inputs = Vec::new();
        let mut opened = None;
        if seat.session != client.session {
            if seat.session.take().is_some() {
                inputs.push(Input::SessionLost);
            }
            // Answers of the former session do not come any more.
            seat.results.clear();
            seat.picture.forget();
            seat.session = client.session;
            if let Some(session) = client.session {
                inputs.push(Input::SessionOpened(self.sessions[session].handle.id()));
                opened = Some(inputs.len());
                if client.link == Link::Down {
                    inputs.push(Input::SessionSuspended);
                }
            }
        } else if client.changed && client.session.is_some() {
            inputs.push(match client.link {
                Link::Up(_) => {
                    seat.picture.forget_nodes();
                    Input::SessionResumed
                }
                Link::Down => Input::SessionSuspended,
            });
        }
        client.changed = false;
        if client.session.is_some() && (opened.is_some() || seat.leased != Some(client.until)) {
            seat.leased = Some(client.until);
            inputs.insert(opened.unwrap_or(0), Input::Leased { until: client.until });
        }
        let tells = self.options.trace;
        let (nodes, fleet) = (std::mem::take(&mut seat.nodes), std::mem::take(&mut seat.fleet));
        let mut what: Vec<_> = inputs.iter().filter(|_| tells).map(brief).collect();
        what.extend(nodes.iter().chain(&fleet).filter(|_| tells).map(brief_news));
        let told = inputs.len();
        for event in nodes {
            inputs.extend(matches!(event, WatchEvent::Snapshot(_)).then_some(Input::WasRead));
            seat.picture.apply_nodes(event, time);
        }
        for event in fleet {
            seat.picture.apply_fleet(event);
        }
        let read = inputs.len() - told;
        inputs.append(&mut seat.results);
        while seat.calls.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, call)) = seat.calls.pop_front() else { break };
            if matches!(call, Input::Detached) {
                seat.stream = None;
            }
            inputs.push(call);
        }
        self.steps += 1;
        what.extend(inputs.iter().skip(told + read).filter(|_| tells).map(brief));
        let Some(seat) = self.machines[m].seat() else { return };
        let effects = seat.core.step(time, &seat.picture, inputs);
        if !what.is_empty() {
            self.note(m, || format!("step: {}", what.join(", ")));
        }
        for effect in effects {
            self.perform(m, effect);
        }
        self.set_alarm(m);
        self.remove_ended(m);
    }

    /// When the participant wakes by itself.
    fn set_alarm(&mut self, m: usize) {
        let now = self.now;
        let machine = &mut self.machines[m];
        let Some(seat) = machine.seat() else { return };
        let wakeup = seat.core.next_wakeup();
        let next_call = seat.calls.front().map(|(at, _)| *at);
        let was = seat.alarm_at;
        let mono = wakeup.mono.map(|mono| machine.when_mono(mono));
        let wall = wakeup.wall.map(|wall| machine.when_wall(wall));
        let Some(at) = [mono, wall].into_iter().flatten().min() else { return };
        let at = at.max(now + 1);
        // Timers are a little late.
        let at = at + self.network.below(MILLISECOND);
        if let Some(seat) = self.machines[m].seat() {
            // One that comes earlier looks again by itself.
            if at < now + FAR && was.is_none_or(|was| was > at || was <= now) {
                seat.alarm_at = Some(at);
                self.at(at, Event::Alarm(m));
            }
        }
        if let Some(next) = next_call {
            self.wake_at(m, next);
        }
    }

    pub(super) fn wake_at(&mut self, m: usize, at: Micros) {
        let at = at.max(self.now);
        self.wake(m, at - self.now);
    }

    /// The messages of the application, in order.
    pub(super) fn call(&mut self, m: usize, input: Input) {
        let at = self.now + 20 + self.network.below(800);
        self.call_at(m, at, input);
    }

    pub(super) fn call_at(&mut self, m: usize, at: Micros, input: Input) {
        let Some(seat) = self.machines[m].seat() else { return };
        let at = seat.calls.back().map_or(at, |(last, _)| at.max(*last));
        seat.calls.push_back((at, input));
        self.wake_at(m, at);
    }

    /// The sidecar sends something of its own accord.
    pub(super) fn ask(&mut self, m: usize, ask: Ask) {
        self.send(m, ask);
    }
}

/// News of a watch in few words, for the timeline.
fn brief_news(event: &WatchEvent) -> String {
    match event {
        WatchEvent::Snapshot(nodes) => format!("snapshot of {} nodes", nodes.len()),
        WatchEvent::Changes(changes) => {
            let change = |change: &NodeChange| match change {
                NodeChange::Put { path, .. } => format!("+{}", short(path)),
                NodeChange::Removed { path } => format!("-{}", short(path)),
            };
            changes.iter().map(change).collect::<Vec<_>>().join(" ")
        }
    }
}

/// An input in few words, for the timeline.
fn brief(input: &Input) -> String {
    match input {
        Input::Committed(id, Ok(_)) => format!("commit {} done", id.0),
        Input::Committed(id, Err(error)) => format!("commit {} failed: {error}", id.0),
        Input::Leased { until } => format!("lease until {:.3}", until.as_secs_f64()),
        Input::Report(_, results) => {
            let results =
                results.iter().map(|result| format!("{} {:?}", result.execution_id, result.outcome));
            format!("reported {}", results.collect::<Vec<_>>().join(" "))
        }
        other => format!("{other:?}"),
    }
}

pub(super) fn short(path: &sidekeeper::tree::Path) -> &str {
    let text = path.as_str();
    text.strip_prefix("/ns/job/").or_else(|| text.strip_prefix("/ns-sidekeeper/job/")).unwrap_or(text)
}
