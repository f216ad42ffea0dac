//! Sidecars that are killed and come back with their sessions, and applications that go on meanwhile.

use std::sync::Arc;
use std::time::Duration;

use sidekeeper::coordination::job::contract::event::Execute;
use sidekeeper::coordination::job::contract::input::Input;
use sidekeeper::coordination::job::contract::reattach::{Former, OpenExecution, Return};
use sidekeeper::coordination::job::contract::request::Request;
use sidekeeper::coordination::job::frame::context::Identity;
use sidekeeper::coordination::job::participant::Participant;
use sidekeeper::coordination::job::picture::Picture;
use sidekeeper::extension::profile::Profile;

use super::{Ask, Happened, Node, World};

/// The timeout of the sessions, as heirs know it.
pub const TIMEOUT: Duration = Duration::from_secs(6);

/// Which process of the sidecar it is, and the state of its application meanwhile.
#[derive(Default)]
pub struct Life {
    number: usize,
    /// The sidecar does not run.
    pub down: bool,
    /// The application has no stream.
    pub alone: bool,
    /// The executions that have ended meanwhile.
    pub results: Vec<Execute>,
    /// Results that were reported and not acknowledged.
    pub unanswered: Vec<Execute>,
}

impl World {
    /// The sidecar is killed. Its requests may still take effect, in order; their answers are lost.
    pub fn kill_sidecar(&mut self, index: usize) {
        self.log.push(format!("{} the sidecar of {index} is killed", self.now));
        while !self.nodes[index].line.is_empty() && !self.random.once_in(3) {
            self.perform(index);
        }
        let node = &mut self.nodes[index];
        node.line.clear();
        node.results.clear();
        (node.watch, node.fleet) = (None, None);
        (node.life.down, node.life.alone) = (true, true);
        let unanswered = std::mem::take(&mut node.life.unanswered);
        node.life.results.extend(unanswered);
    }

    /// The sidecar sleeps, and looks at nothing, or wakes.
    pub fn sleep(&mut self, index: usize, sleeps: bool) {
        self.nodes[index].life.down = sleeps;
    }

    /// It is started again, and goes on with the session.
    pub fn start_sidecar(&mut self, index: usize) {
        self.log.push(format!("{} the sidecar of {index} is started", self.now));
        let configuration = Some(Arc::new(self.configuration.clone()));
        let node = &mut self.nodes[index];
        node.life.number += 1;
        node.life.down = false;
        let execution_prefix = format!("node{index}life{}", node.life.number);
        let identity = Identity { execution_prefix, ..node.identity.clone() };
        let proven = self.now - jiff::SignedDuration::try_from(TIMEOUT).unwrap();
        let former = Former { session: node.session.id(), timeout: TIMEOUT, since: node.joined.max(proven) };
        let request = Request { configuration: None, ..request(configuration) };
        node.picture = Picture::unknown(&identity.paths, &identity.own_paths);
        node.core = Participant::restored(identity, request, former);
        node.results.push_back(Input::SessionOpened(node.session.id()));
        node.line.push_back(Ask::Watch);
    }

    /// The application has a stream again and names its open executions, changed like this.
    pub fn reattach_naming(&mut self, index: usize, change: impl Fn(&mut OpenExecution)) {
        self.log.push(format!("{} the application of {index} is back", self.now));
        let configuration = Some(Arc::new(self.configuration.clone()));
        let node = &mut self.nodes[index];
        let open = node.executions.values().map(|open| &open.execute).chain(&node.life.results);
        let mut open: Vec<_> = open.map(claim).collect();
        open.iter_mut().for_each(change);
        let back = Return { request: request(configuration), open };
        node.results.push_back(Input::Reattached(Box::new(back)));
    }

    /// The application has waited for too long, and has stopped its executions.
    pub fn give_up_waiting(&mut self, index: usize) {
        let open = std::mem::take(&mut self.nodes[index].executions);
        let results = std::mem::take(&mut self.nodes[index].life.results);
        (self.nodes[index].leaving, self.nodes[index].detached_until) = (true, None);
        let items = open.values().map(|open| open.execute.item).chain(results.iter().map(|done| done.item));
        let items: Vec<_> = items.collect();
        self.happened.extend(items.iter().map(|item| Happened::Ended(*item, index)));
        self.interrupted.extend(items.into_iter().map(|item| (item, self.now)));
    }

    /// The application learns which of its executions go on.
    pub(super) fn attached(&mut self, index: usize, resumed: &[String]) {
        let node = &mut self.nodes[index];
        node.life.alone = false;
        // A stream of its own.
        node.generation = 0;
        node.life.results.retain(|done| resumed.contains(&done.execution_id));
        let stopped: Vec<_> = node.executions.keys().filter(|id| !resumed.contains(*id)).cloned().collect();
        for id in stopped {
            let stopped = node.executions.remove(&id).unwrap().execute;
            self.interrupted.push((stopped.item, self.now));
        }
    }

    /// Goes on with an execution that is told on a new stream, or reports it. Tells whether it is known.
    pub(super) fn goes_on(&mut self, index: usize, execute: &Execute) -> bool {
        let node = &mut self.nodes[index];
        if let Some(open) = node.executions.get(&execute.execution_id) {
            assert!(execute.resumed, "seed {}: {execute:?}", self.seed);
            let (mut before, after) = (claim(&open.execute), claim(execute));
            before.deadline = after.deadline;
            assert_eq!(before, after, "seed {}", self.seed);
            return true;
        }
        let results = &mut node.life.results;
        let Some(place) = results.iter().position(|done| done.execution_id == execute.execution_id) else {
            return false;
        };
        let done = results.remove(place);
        node.life.unanswered.push(done.clone());
        self.note_completed_takeover(&done);
        self.report(index, Some(done.item), done.execution_id);
        true
    }
}

impl Node {
    /// Whether the application has no stream, or has not been told anything on it.
    pub fn is_alone(&self) -> bool {
        self.life.alone
    }
}

fn request(configuration: Option<Arc<sidekeeper::job::JobConfiguration>>) -> Request {
    Request { configuration, class: None, profile: Profile::default(), resumable: true }
}

fn claim(execute: &Execute) -> OpenExecution {
    OpenExecution {
        execution_id: execute.execution_id.clone(),
        token: execute.token,
        source: Some(execute.source),
        scheduled: Some(execute.scheduled),
        attempt: execute.attempt,
        deadline: execute.deadline,
        cancelled: None,
    }
}
