//! The listeners of the job's events, in their order, on one thread (protocol 2.1 step 5).

use std::rc::Rc;

use super::cache::{Event, Kind};
use super::process::Process;
use super::threads::Wait;

/// The thread that all listeners share: one that blocks delays all later events.
pub async fn listen(process: Rc<Process>) {
    loop {
        let event = process.wait_for(|process| process.events.borrow_mut().pop_front()).await;
        // Each is an exception's end.
        let _ = process.catch(process.on_election(&event)).await;
        let _ = process.catch(process.on_abdication(&event)).await;
        let _ = process.catch(process.on_total(&event)).await;
        let _ = process.catch(process.on_servers(&event)).await;
        let _ = process.catch(process.on_crash(&event)).await;
        let _ = process.catch(process.on_settings(&event)).await;
        let _ = process.catch(process.on_self(&event)).await;
        let _ = process.catch(process.on_trigger(&event)).await;
        process.on_gates(&event);
        process.pause(Wait::Turn).await;
    }
}

impl Process {
    fn my_server(&self) -> String {
        format!("servers/{}", self.options.ip)
    }

    fn my_instance(&self) -> String {
        format!("instances/{}", self.id)
    }

    /// 1. A request for every event, whatever it is (H21).
    async fn on_election(self: &Rc<Self>, event: &Event) {
        if self.is_shut.get() {
            return;
        }
        let is_mine = event.path == self.my_server() && *event.data != *b"DISABLED";
        let is_active = !self.has_leader().await && is_mine;
        let is_vacant = event.path == "leader/election/instance" && event.kind == Kind::Deleted;
        if is_active || (is_vacant && self.is_available_server(&self.options.ip).await) {
            self.elect().await;
        }
    }

    /// 2. The leader's server was disabled.
    async fn on_abdication(&self, event: &Event) {
        let is_disabled = event.path == self.my_server() && *event.data == *b"DISABLED";
        if is_disabled && self.is_leader().await {
            self.remove_leader().await;
        }
    }

    /// 3. The total has changed.
    async fn on_total(self: &Rc<Self>, event: &Event) {
        if event.path != "config" || self.total.get() == 0 {
            return;
        }
        let total = self.load_config(true).await.sharding_total_count;
        if total != self.total.get() {
            self.set_resharding_flag().await;
            self.total.set(total);
        }
    }

    /// 4. Somebody came or went.
    async fn on_servers(self: &Rc<Self>, event: &Event) {
        // Any sibling that begins like this counts (H17).
        let is_instance = event.path.starts_with("instances") && event.kind != Kind::Updated;
        let ip = event.path.strip_prefix("servers/");
        let is_server = ip.is_some_and(|ip| ip.parse::<std::net::Ipv4Addr>().is_ok());
        if self.is_shut.get() || !(is_instance || is_server) {
            return;
        }
        let is_static = self.load_config(true).await.static_sharding;
        if !is_static || self.children("sharding").await.is_empty() {
            self.set_resharding_flag().await;
        }
    }

    /// 5. Another instance is gone. The configuration is loaded first, for every event (H23).
    async fn on_crash(self: &Rc<Self>, event: &Event) {
        if self.is_shut.get() || !self.load_config(true).await.failover || event.kind != Kind::Deleted {
            return;
        }
        if let Some(gone) = event.path.strip_prefix("instances/").filter(|gone| *gone != self.id) {
            self.instance_crashed(gone).await;
        }
    }

    /// 6, 8 and 11. The configuration has changed.
    async fn on_settings(self: &Rc<Self>, event: &Event) {
        if event.path != "config" || event.kind != Kind::Updated {
            return;
        }
        let config = self.load_config(true).await;
        if !config.failover {
            self.remove_failover().await;
        }
        if !config.monitor_execution {
            for item in 0..config.sharding_total_count {
                self.remove_if_existed(&format!("sharding/{item}/running")).await;
            }
        }
        let text = self.quartz.borrow().text();
        if !self.is_shut.get() && config.cron.is_some() && config.cron != text {
            self.schedule(config.cron.as_deref());
        }
    }

    /// 7 and 9. My own instance node was created, or deleted: then an operator wants the job to stop here.
    async fn on_self(self: &Rc<Self>, event: &Event) {
        if event.path != self.my_instance() {
            return;
        }
        if event.kind == Kind::Added && !self.is_shut.get() && self.load_config(true).await.failover {
            self.recover_alone().await;
        }
        if event.kind != Kind::Deleted || self.is_shut.get() || self.quartz.borrow().is_paused() {
            return;
        }
        // A lost connection says no, too.
        if !self.exists(&self.my_instance()).await {
            self.was_stopped.set(true);
            if self.is_leader().await {
                self.remove_leader().await;
            }
            self.is_shut.set(true);
            self.stop_scheduler();
        }
    }

    /// 10. My trigger: dropped, if the job runs here (H18).
    async fn on_trigger(&self, event: &Event) {
        if event.kind != Kind::Added || event.path != format!("trigger/{}", self.id) {
            return;
        }
        self.remove(&event.path).await;
        if !self.is_shut.get() && !self.is_running.get() {
            self.fire_at_once();
        }
    }
}
