//! The start of a job in a process, in order (protocol 2.1), its configuration, and the reconcile timer (2.5).

use std::rc::Rc;

use super::process::Process;
use super::yaml::Config;
use super::{cache, listeners, quartz, session};

const MINUTE_MS: i64 = 60_000;

impl Process {
    /// The configuration from the cache or directly; throws if there is none, or it cannot be read (H29).
    pub async fn load_config(&self, from_cache: bool) -> Rc<Config> {
        let data = if from_cache { self.get("config").await } else { self.get_direct("config").await };
        let Some(data) = data else { return self.throw().await };
        let known = self.parsed.borrow().clone().filter(|(known, _)| *known == data);
        if let Some((_, config)) = known {
            return config;
        }
        match Config::read(&data) {
            Ok(config) => {
                let config = Rc::new(config);
                *self.parsed.borrow_mut() = Some((data, Rc::clone(&config)));
                config
            }
            Err(error) => {
                self.unreadable.borrow_mut().push(format!("config: {error}"));
                self.throw().await
            }
        }
    }

    async fn set_up_config(&self) -> Rc<Config> {
        let root = self.get_direct("").await.unwrap_or_default();
        let class = self.options.class;
        if !root.trim_ascii().is_empty() && *root != *class.as_bytes() {
            // Job conflict.
            return self.throw().await;
        }
        let config = &self.options.configuration;
        if config.overwrite || !self.exists("config").await {
            self.persist("config", config.write().as_bytes()).await;
            self.persist("", class.as_bytes()).await;
            return Rc::new(config.clone());
        }
        self.load_config(false).await
    }

    async fn start(self: &Rc<Self>) {
        let namespace = self.read(&self.namespace).await;
        if namespace.is_ok_and(|node| node.is_none()) {
            let container = sidekeeper::tree::NodeKind::Container;
            let _ = self.create(&self.namespace, container, container, b"").await;
        }
        let config = self.set_up_config().await;
        self.is_rotation.set(super::rotation::is_one(&config));
        self.total.set(config.sharding_total_count);
        self.open_watch();
        self.spawn(cache::keep(Rc::clone(self)));
        // All listeners at once; those of the connection with them. Which nodes they are told as new is a race.
        self.pause(super::threads::Wait::Turn).await;
        self.is_listening.set(true);
        self.spawn(listeners::listen(Rc::clone(self)));
        self.spawn(session::listen(Rc::clone(self)));
        self.elect().await;
        self.persist_server(!config.disabled).await;
        self.persist_instance().await;
        self.spawn(reconcile(Rc::clone(self)));
        self.remove_offline_servers().await;
        if self.options.scheduler_after_ms > 0 {
            self.sleep(self.below(self.options.scheduler_after_ms + 1) as i64).await;
        }
        self.schedule(config.cron.as_deref());
        self.has_started.set(true);
        self.spawn(quartz::run_scheduler(Rc::clone(self)));
        self.spawn(quartz::run_worker(Rc::clone(self)));
    }

    async fn has_missing_owner(&self, total: u32) -> bool {
        let instances = self.children("instances").await;
        for item in 0..total {
            let owner = self.get(&format!("sharding/{item}/instance")).await.unwrap_or_default();
            if !instances.iter().any(|id| *id.as_bytes() == *owner) {
                return true;
            }
        }
        false
    }

    async fn reconcile_once(self: &Rc<Self>, minutes: &mut i32) {
        let config = self.load_config(true).await;
        *minutes += 1;
        if config.reconcile_interval_minutes <= 0 || *minutes < config.reconcile_interval_minutes {
            return;
        }
        *minutes = 0;
        if self.is_shut.get() || self.needs_sharding().await {
            return;
        }
        let is_fixed = config.static_sharding && !self.children("sharding").await.is_empty();
        if self.has_missing_owner(config.sharding_total_count).await && !is_fixed {
            self.set_resharding_flag().await;
        }
    }
}

/// The main thread.
pub async fn main(process: Rc<Process>) {
    let _ = process.catch(process.start()).await;
}

/// Each minute, until it throws (H26).
async fn reconcile(process: Rc<Process>) {
    let mut minutes = 0;
    loop {
        process.sleep(MINUTE_MS).await;
        if process.catch(process.reconcile_once(&mut minutes)).await.is_none() {
            return;
        }
    }
}
