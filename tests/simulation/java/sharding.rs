//! Sharding (protocol 4). The arithmetic of the strategies is `src/elasticjob/strategy.rs`, which the vectors of
//! Java's own classes prove (`tests/vectors_sharding.rs`); everything around it is written from the specification.

use std::rc::Rc;

use sidekeeper::elasticjob::strategy::allocate_as_java;
use sidekeeper::job::{InstanceId, JobName, ShardingStrategy};
use sidekeeper::tree::{NodeKind, Operation};

use super::election::SHORT_WAIT_MS;
use super::process::Process;

const NECESSARY: &str = "leader/sharding/necessary";
const PROCESSING: &str = "leader/sharding/processing";

impl Process {
    /// By the leader only.
    pub async fn set_resharding_flag(self: &Rc<Self>) {
        if self.is_leader_until_block().await {
            self.create_if_needed(NECESSARY).await;
        }
    }

    pub async fn needs_sharding(&self) -> bool {
        self.exists(NECESSARY).await
    }

    pub async fn shard_if_necessary(self: &Rc<Self>) {
        let available = self.available_instances().await;
        if !self.needs_sharding().await || available.is_empty() {
            return;
        }
        if !self.is_leader_until_block().await {
            self.block_until_sharded().await;
            return;
        }
        // Instances that come and go from here on are not seen (H5).
        self.wait_for_running_items().await;
        let total = self.load_config(false).await.sharding_total_count;
        self.persist_ephemeral(PROCESSING, b"").await;
        self.reset_sharding(total).await;
        self.assign(available, total).await;
    }

    async fn block_until_sharded(self: &Rc<Self>) {
        self.blocked_since.set(Some(self.now()));
        while !self.is_leader_until_block().await
            && (self.exists(NECESSARY).await || self.exists(PROCESSING).await)
        {
            self.sleep(SHORT_WAIT_MS).await;
        }
        self.blocked_since.set(None);
    }

    /// Without limit (H4).
    async fn wait_for_running_items(&self) {
        while self.load_config(false).await.monitor_execution && self.has_running_items().await {
            self.sleep(SHORT_WAIT_MS).await;
        }
    }

    async fn has_running_items(&self) -> bool {
        let total = self.load_config(true).await.sharding_total_count;
        for item in 0..total {
            if self.exists(&format!("sharding/{item}/running")).await {
                return true;
            }
        }
        false
    }

    async fn reset_sharding(&self, total: u32) {
        for item in 0..total {
            self.remove_if_existed(&format!("sharding/{item}/instance")).await;
            self.create_if_needed(&format!("sharding/{item}")).await;
        }
        let count = self.children("sharding").await.len() as u32;
        for item in total..count.max(total) {
            self.remove_if_existed(&format!("sharding/{item}")).await;
        }
    }

    async fn assign(&self, available: Vec<String>, total: u32) {
        let config = self.load_config(true).await;
        let kind = config.job_sharding_strategy_type.as_deref().and_then(ShardingStrategy::from_type);
        let kind = kind.unwrap_or(ShardingStrategy::AvgAllocation);
        let job = JobName::parse(&config.job_name).unwrap();
        let instances: Vec<_> = available.iter().map(|id| InstanceId::from_registry(id)).collect();
        let now = self.local_now().as_millisecond();
        let allocation = allocate_as_java(kind, &job, total, &instances, now)
            .unwrap_or_else(|error| panic!("{} throws: {error}", self.id));
        let mut steps = Vec::new();
        for (instance, items) in allocation {
            steps.extend(items.iter().map(|item| {
                let path = self.path(&format!("sharding/{item}/instance"));
                Operation::create(path, NodeKind::Persistent, instance.as_str())
            }));
        }
        steps.push(Operation::delete(self.path(NECESSARY)));
        steps.push(Operation::delete(self.path(PROCESSING)));
        self.transaction(steps).await;
    }

    /// As the cache says.
    pub async fn items_of(&self, id: &str) -> Vec<u32> {
        let ip = id.split("@-@").next().unwrap_or_default();
        if !self.is_available_server(ip).await {
            return Vec::new();
        }
        let total = self.load_config(true).await.sharding_total_count;
        let mut items = Vec::new();
        for item in 0..total {
            let owner = self.get(&format!("sharding/{item}/instance")).await;
            if owner.is_some_and(|owner| *owner == *id.as_bytes()) {
                items.push(item);
            }
        }
        items
    }

    pub async fn my_items(&self) -> Vec<u32> {
        if self.is_shut.get() { Vec::new() } else { self.items_of(&self.id).await }
    }
}
