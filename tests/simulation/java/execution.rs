//! One fire (protocol 6.1), and the nodes that it leaves.

use std::rc::Rc;

use jiff::{SignedDuration, Timestamp};

use super::Run;
use super::process::Process;

impl Process {
    /// One fire, from the schedule (with its instant) or asked for.
    pub async fn execute(self: &Rc<Self>, fire: Option<Timestamp>) {
        self.load_config(true).await;
        self.check_time().await;
        let items = self.choose_items().await;
        let config = self.load_config(false).await;
        let items = if config.monitor_execution { self.without_running(items).await } else { items };
        if config.monitor_execution && self.any_exists(&items, "running").await {
            // Only if an item began to run since the look above (H9).
            self.set_misfire(&items).await;
            return;
        }
        self.listener_before(&items).await;
        self.run(&items, fire, false).await;
        while config.misfire && !self.needs_sharding().await && self.any_exists(&items, "misfire").await {
            for item in &items {
                self.remove_if_existed(&format!("sharding/{item}/misfire")).await;
            }
            self.run(&items, fire, true).await;
        }
        if self.load_config(true).await.failover {
            self.take_failover_item().await;
        }
        self.listener_after(&items).await;
    }

    async fn check_time(&self) {
        if self.load_config(true).await.max_time_diff_seconds >= 0 {
            self.persist("systemTime/current", b"").await;
            self.exists("systemTime/current").await;
        }
    }

    async fn choose_items(self: &Rc<Self>) -> Vec<u32> {
        let failover = self.load_config(true).await.failover;
        if failover {
            let taken = self.local_failover_items().await;
            if !taken.is_empty() {
                return taken;
            }
        }
        let items = match self.rotated_items().await {
            Some(items) => items,
            None => {
                self.shard_if_necessary().await;
                self.my_items().await
            }
        };
        let mut chosen = Vec::new();
        for item in items {
            let taken_off = failover && self.exists(&format!("sharding/{item}/failover")).await;
            if !taken_off && !self.exists(&format!("sharding/{item}/disabled")).await {
                chosen.push(item);
            }
        }
        chosen
    }

    async fn without_running(&self, items: Vec<u32>) -> Vec<u32> {
        let mut free = Vec::new();
        for item in items {
            if !self.exists(&format!("sharding/{item}/running")).await {
                free.push(item);
            }
        }
        free
    }

    async fn any_exists(&self, items: &[u32], name: &str) -> bool {
        for item in items {
            if self.exists(&format!("sharding/{item}/{name}")).await {
                return true;
            }
        }
        false
    }

    pub async fn set_misfire(&self, items: &[u32]) {
        for item in items {
            self.create_if_needed(&format!("sharding/{item}/misfire")).await;
        }
    }

    async fn run(&self, items: &[u32], fire: Option<Timestamp>, misfire: bool) {
        if items.is_empty() {
            return;
        }
        let config = self.load_config(true).await;
        self.is_running.set(true);
        if config.monitor_execution {
            for item in items {
                let path = format!("sharding/{item}/running");
                if config.failover {
                    self.persist(&path, self.id.as_bytes()).await;
                } else {
                    self.persist_ephemeral(&path, self.id.as_bytes()).await;
                }
            }
        }
        self.run_items(items, fire, misfire).await;
        self.is_running.set(false);
        self.changed();
        let config = self.load_config(true).await;
        if config.monitor_execution {
            for item in items {
                self.remove_if_existed(&format!("sharding/{item}/running")).await;
            }
        }
        if config.failover {
            for item in items {
                self.remove_if_existed(&format!("sharding/{item}/failover")).await;
                self.remove_if_existed(&format!("sharding/{item}/failovering")).await;
            }
        }
        self.pass_turn().await;
    }

    /// All at once, and until the last one has ended.
    async fn run_items(&self, items: &[u32], fire: Option<Timestamp>, misfire: bool) {
        let began = self.now();
        let (least, most) = self.duration_ms.get();
        let mut last = began;
        let first = self.runs.borrow().len();
        for item in items {
            let takes = least + self.below(most - least + 1);
            let ends = began + SignedDuration::from_millis(takes as i64);
            last = last.max(ends);
            self.runs.borrow_mut().push(Run { item: *item, fire, misfire, began, ends, ended: None });
        }
        let mut open: Vec<_> = (first..first + items.len()).collect();
        while !open.is_empty() {
            let next = open.iter().map(|run| self.runs.borrow()[*run].ends).min().unwrap_or(last);
            self.pause(super::threads::Wait::Until(next)).await;
            let now = self.now();
            open.retain(|run| {
                let run = &mut self.runs.borrow_mut()[*run];
                run.ended = (run.ends <= now).then_some(now);
                run.ended.is_none()
            });
        }
    }
}
