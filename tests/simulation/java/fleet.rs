//! Java processes among themselves: a registry, a clock, a scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures::FutureExt;
use jiff::{SignedDuration, Timestamp};
use sidekeeper::registry::embedded::Embedded;
use sidekeeper::registry::{Registry, Session};
use sidekeeper::tree::{NodeKind, Operation, Path, SessionId};

use super::yaml::Config;
use super::{Java, Options, Writes, data_of};
use crate::random::Random;

pub struct Fleet {
    pub registry: Embedded,
    registry_ms: Arc<AtomicI64>,
    pub random: Random,
    pub now: Timestamp,
    pub javas: Vec<Java>,
    pub writes: Writes,
    seed: u64,
    /// An operator's client, or a foreign participant.
    pub client: Arc<dyn Session>,
    /// Whose sessions they are.
    names: BTreeMap<SessionId, &'static str>,
}

/// The job of the traces.
pub fn job(total: u32, cron: &str, failover: bool) -> Config {
    let mut config = Config::new("job", total);
    config.cron = Some(cron.to_owned());
    config.failover = failover;
    config
}

pub fn options(number: u32, configuration: Config, seed: u64) -> Options {
    Options {
        ip: format!("10.0.0.{number}"),
        pid: 4711,
        configuration,
        class: "com.example.OrderJob",
        duration_ms: (100, 700),
        session_ms: 2_000,
        clock_ahead_ms: 0,
        cache_lag_ms: 0,
        scheduler_after_ms: 0,
        once_listener: false,
        seed: seed ^ u64::from(number) << 32,
    }
}

impl Fleet {
    pub fn new(seed: u64) -> Self {
        let registry_ms = Arc::new(AtomicI64::new(0));
        let clock = Arc::clone(&registry_ms);
        let registry = Embedded::in_memory_with_clock(Arc::new(move || clock.load(Ordering::Relaxed)));
        let client = registry.open().now_or_never().unwrap().unwrap();
        Self {
            client,
            registry,
            registry_ms,
            random: Random::new(seed),
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            javas: Vec::new(),
            writes: Writes::default(),
            seed,
            names: BTreeMap::new(),
        }
    }

    /// Another process of this address.
    pub fn start(&mut self, number: u32, config: Config) -> usize {
        self.start_with(options(number, config, self.seed))
    }

    pub fn start_with(&mut self, options: Options) -> usize {
        let java = Java::start(&self.registry, options, self.now, Some(self.writes.clone()));
        self.javas.push(java);
        self.name_sessions();
        self.javas.len() - 1
    }

    /// Everything that can happen now happens in random order, until an instant.
    pub fn run_until(&mut self, until: Timestamp) {
        while self.now < until {
            for _ in 0..self.javas.len() * 4 {
                let index = self.random.below(self.javas.len() as u64) as usize;
                self.javas[index].turn(&mut self.random);
                self.take_news();
            }
            self.now += SignedDuration::from_millis(1 + self.random.below(3) as i64);
            self.registry_ms.store(self.now.as_millisecond(), Ordering::Relaxed);
            for java in &mut self.javas {
                java.tick(self.now);
            }
            self.take_news();
            self.name_sessions();
        }
    }

    pub fn run_for(&mut self, millis: i64) {
        self.run_until(self.now + SignedDuration::from_millis(millis));
    }

    /// To so many milliseconds after the start of a minute.
    pub fn run_to(&mut self, millis: i64) {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        self.run_until(start + SignedDuration::from_millis(millis));
    }

    fn take_news(&self) {
        self.javas.iter().for_each(Java::take_news);
    }

    fn name_sessions(&mut self) {
        for (java, name) in self.javas.iter().zip(["A", "B", "C", "D", "E"]) {
            self.names.entry(java.session()).or_insert(name);
        }
    }

    /// A client from outside writes a node.
    pub fn put(&mut self, relative: &str, data: &str) {
        let path = self.path(relative);
        let created = self.client.ensure(&path, NodeKind::Persistent, data.as_bytes());
        if !created.now_or_never().unwrap().unwrap() {
            self.client.commit(vec![Operation::set(path, data)]).now_or_never().unwrap().unwrap();
        }
        self.take_news();
    }

    pub fn remove(&mut self, relative: &str) {
        let delete = Operation::delete(self.path(relative));
        self.client.commit(vec![delete]).now_or_never().unwrap().unwrap();
        self.take_news();
    }

    pub fn path(&self, relative: &str) -> Path {
        Path::parse("/ns/job").unwrap().child(relative)
    }

    pub fn get(&self, relative: &str) -> Option<String> {
        let data = data_of(&self.registry, &self.path(relative))?;
        Some(String::from_utf8_lossy(&data).into_owned())
    }

    /// The writes since the trace was last taken, one line each: the instance, and the write.
    pub fn trace(&mut self) -> Vec<String> {
        let writes = std::mem::take(&mut *self.writes.borrow_mut());
        let root = Path::parse("/ns/job").unwrap();
        let lines = writes.iter().map(|write| {
            let steps = write.steps.iter().map(|(step, path)| {
                let relative = match path.relative_to(&root) {
                    Some("") => "root".to_owned(),
                    Some(relative) => without_numbers(relative),
                    None => path.to_string(),
                };
                describe(step, &relative)
            });
            let steps: Vec<_> = steps.collect();
            let who = self.names.get(&write.session).copied().unwrap_or("?");
            match steps.as_slice() {
                [step] => format!("{who}: {step}"),
                steps => format!("{who}: multi[{}]", steps.join("; ")),
            }
        });
        lines.collect()
    }
}

fn without_numbers(path: &str) -> String {
    match path.split_once("/_c_") {
        Some((folder, _)) => format!("{folder}/_c_"),
        None => path.to_owned(),
    }
}

/// As the traces put it: `create P servers/10.0.0.1 = ENABLED`.
fn describe(step: &Operation, path: &str) -> String {
    let value = |data: &[u8]| match data {
        [] => String::new(),
        data if path == "config" || path.starts_with("instances/") => format!(" ({} bytes)", data.len()),
        data => format!(" = {}", String::from_utf8_lossy(data)),
    };
    match step {
        Operation::Create { data, kind, .. } => {
            let kind = match kind {
                NodeKind::Persistent => "P",
                NodeKind::Container => "C",
                NodeKind::Ephemeral => "E",
                NodeKind::EphemeralSequential => "ES",
            };
            format!("create {kind} {path}{}", value(data))
        }
        Operation::Set { data, .. } => format!("set {path}{}", value(data)),
        Operation::Delete { .. } => format!("delete {path}"),
        Operation::Check { .. } => format!("check {path}"),
    }
}
