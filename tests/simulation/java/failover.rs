//! Failover (protocol 7).

use std::rc::Rc;

use super::process::Process;

impl Process {
    /// Listener 5: another instance is gone.
    pub async fn instance_crashed(self: &Rc<Self>, gone: &str) {
        let failovering = self.items_whose("failovering", gone).await;
        if !failovering.is_empty() {
            for item in failovering {
                // Another instance may have taken it again (H11).
                self.create_if_needed(&format!("leader/failover/items/{item}")).await;
                self.remove_if_existed(&format!("sharding/{item}/running")).await;
                self.take_failover_item().await;
            }
            return;
        }
        let ip = gone.split("@-@").next().unwrap_or_default();
        if !self.is_enabled_server(ip).await {
            return;
        }
        for item in self.crashed_items_of(gone).await {
            self.flag_crashed(item).await;
            self.take_failover_item().await;
        }
    }

    async fn flag_crashed(&self, item: u32) {
        if !self.exists(&format!("sharding/{item}/failover")).await {
            self.create_if_needed(&format!("leader/failover/items/{item}")).await;
            self.remove_if_existed(&format!("sharding/{item}/running")).await;
        }
    }

    /// The running items that are assigned to it.
    async fn crashed_items_of(&self, gone: &str) -> Vec<u32> {
        let total = self.load_config(true).await.sharding_total_count;
        let mut crashed = Vec::new();
        for item in 0..total {
            let owner = self.get(&format!("sharding/{item}/instance")).await;
            let is_owner = owner.is_some_and(|owner| *owner == *gone.as_bytes());
            if is_owner && self.exists(&format!("sharding/{item}/running")).await {
                crashed.push(item);
            }
        }
        crashed
    }

    /// The items whose node of this name holds an id, read directly, ascending.
    async fn items_whose(&self, name: &str, id: &str) -> Vec<u32> {
        let mut items = Vec::new();
        for item in self.children("sharding").await {
            let holder = self.get_direct(&format!("sharding/{item}/{name}")).await;
            if holder.is_some_and(|holder| *holder == *id.as_bytes()) {
                let item = item.parse();
                items.push(item.unwrap_or_else(|_| panic!("{} throws: an item is no number", self.id)));
            }
        }
        items.sort_unstable();
        items
    }

    pub async fn local_failover_items(&self) -> Vec<u32> {
        if self.is_shut.get() { Vec::new() } else { self.items_whose("failover", &self.id).await }
    }

    /// One item each turn, and a fire of the whole job for it (H12).
    pub async fn take_failover_item(self: &Rc<Self>) {
        if !self.can_take().await {
            return;
        }
        let latch = self.join_latch("leader/failover/latch").await;
        if !self.is_shut.get()
            && self.can_take().await
            && let Some(item) = self.children("leader/failover/items").await.first()
        {
            let me = self.id.as_bytes();
            self.persist_ephemeral(&format!("sharding/{item}/failover"), me).await;
            self.persist(&format!("sharding/{item}/failovering"), me).await;
            self.remove_if_existed(&format!("leader/failover/items/{item}")).await;
            self.fire_at_once();
        }
        self.leave_latch(latch).await;
    }

    async fn can_take(&self) -> bool {
        const ITEMS: &str = "leader/failover/items";
        self.exists(ITEMS).await && !self.children(ITEMS).await.is_empty() && !self.is_running.get()
    }

    /// Listener 7: this instance is there again, and alone (H4).
    pub async fn recover_alone(self: &Rc<Self>) {
        let available = self.available_instances().await;
        if available != [self.id.clone()] {
            return;
        }
        let total = self.load_config(true).await.sharding_total_count;
        let is_gone = |holder: &[u8]| !available.iter().any(|id| id.as_bytes() == holder);
        for item in 0..total {
            let failovering = format!("sharding/{item}/failovering");
            let running = format!("sharding/{item}/running");
            if self.get_direct(&failovering).await.is_some_and(|holder| is_gone(&holder)) {
                self.create_if_needed(&format!("leader/failover/items/{item}")).await;
                self.remove_if_existed(&failovering).await;
                self.remove_if_existed(&running).await;
            } else if self.get_direct(&running).await.is_some_and(|holder| is_gone(&holder)) {
                self.flag_crashed(item).await;
            }
        }
        self.take_failover_item().await;
    }

    /// Listener 6: failover is off.
    pub async fn remove_failover(&self) {
        for item in self.children("sharding").await {
            self.remove_if_existed(&format!("sharding/{item}/failover")).await;
        }
    }
}
