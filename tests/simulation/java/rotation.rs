//! The rotation of a single item (protocol 5.5).

use std::rc::Rc;

use super::process::Process;
use super::yaml::Config;

const NEXT: &str = "next-job-instance-ip";

/// Decided once in a process.
pub fn is_one(config: &Config) -> bool {
    let kind = config.job_sharding_strategy_type.as_deref();
    config.sharding_total_count == 1 && kind == Some("SINGLE_SHARDING_BALANCE")
}

impl Process {
    /// Whose turn it is. `None`: the assignment says so.
    pub async fn rotated_items(self: &Rc<Self>) -> Option<Vec<u32>> {
        if !self.is_rotation.get() || self.needs_sharding().await {
            return None;
        }
        let next = self.get_direct(NEXT).await.filter(|ip| !ip.is_empty())?;
        Some(if *next == *self.options.ip.as_bytes() { vec![0] } else { Vec::new() })
    }

    /// After an execution.
    pub async fn pass_turn(&self) {
        if !self.is_rotation.get() {
            return;
        }
        let available = self.available_instances().await;
        let ips: Vec<_> = available.iter().map(|id| id.split("@-@").next().unwrap_or_default()).collect();
        if let Some(place) = ips.iter().position(|ip| *ip == self.options.ip) {
            let next = ips[(place + 1) % ips.len()];
            self.persist_ephemeral(NEXT, next.as_bytes()).await;
        }
    }
}
