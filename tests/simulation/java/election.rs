//! The leader, the available servers, the instances (protocol 3, and the questions of 4 and 7).

use std::rc::Rc;
use std::sync::Arc;

use super::process::Process;
use super::yaml;

const LEADER: &str = "leader/election/instance";

/// How often an empty server status is read again, and how long that waits each time.
const STATUS_READS: usize = 10;
pub const SHORT_WAIT_MS: i64 = 100;

impl Process {
    pub async fn elect(self: &Rc<Self>) {
        let latch = self.join_latch("leader/election/latch").await;
        if !self.exists(LEADER).await {
            self.persist_ephemeral(LEADER, self.id.as_bytes()).await;
        }
        self.leave_latch(latch).await;
    }

    pub async fn has_leader(&self) -> bool {
        self.exists(LEADER).await
    }

    /// As the cache says (H6).
    pub async fn is_leader(&self) -> bool {
        !self.is_shut.get() && self.get(LEADER).await.is_some_and(|leader| *leader == *self.id.as_bytes())
    }

    pub async fn is_leader_until_block(self: &Rc<Self>) -> bool {
        while !self.has_leader().await && self.has_available_servers().await {
            self.sleep(SHORT_WAIT_MS).await;
            if !self.is_shut.get() && self.is_available_server(&self.options.ip).await {
                self.elect().await;
            }
        }
        self.is_leader().await
    }

    pub async fn remove_leader(&self) {
        self.remove_if_existed(LEADER).await;
    }

    async fn has_available_servers(&self) -> bool {
        for ip in self.children("servers").await {
            if self.is_available_server(&ip).await {
                return true;
            }
        }
        false
    }

    /// An instance whose id begins like this counts (H17).
    pub async fn is_available_server(&self, ip: &str) -> bool {
        self.is_enabled_server(ip).await
            && self.children("instances").await.iter().any(|id| id.starts_with(ip))
    }

    pub async fn is_enabled_server(&self, ip: &str) -> bool {
        let path = format!("servers/{ip}");
        let mut status = self.get(&path).await.unwrap_or_default();
        for _ in 0..STATUS_READS {
            if !status.is_empty() {
                break;
            }
            self.sleep(SHORT_WAIT_MS).await;
            status = self.get(&path).await.unwrap_or_default();
        }
        *status == *b"ENABLED"
    }

    pub async fn persist_server(&self, enabled: bool) {
        let status: &[u8] = if enabled { b"ENABLED" } else { b"DISABLED" };
        self.persist(&format!("servers/{}", self.options.ip), status).await;
    }

    pub async fn persist_instance(&self) {
        let data = yaml::write_instance(&self.id, &self.options.ip);
        self.persist_ephemeral(&format!("instances/{}", self.id), data.as_bytes()).await;
    }

    /// The instances whose servers are enabled, in the order that strategies get them.
    pub async fn available_instances(&self) -> Vec<String> {
        let mut available = Vec::new();
        for id in self.children("instances").await {
            let data: Arc<[u8]> = self.get(&format!("instances/{id}")).await.unwrap_or_default();
            if data.is_empty() {
                continue;
            }
            match yaml::read_instance(&data, &self.id, &self.options.ip) {
                Ok((id, ip)) if self.is_enabled_server(&ip).await => available.push(id),
                Ok(_) => {}
                Err(error) => {
                    self.unreadable.borrow_mut().push(format!("{id}: {error}"));
                    return self.throw().await;
                }
            }
        }
        available
    }

    /// At start-up: the servers that have no instance are forgotten, whatever an operator said of them (H16).
    pub async fn remove_offline_servers(&self) {
        let servers = self.children("servers").await;
        let mut known = Vec::new();
        for ip in servers {
            let status = self.get(&format!("servers/{ip}")).await.unwrap_or_default();
            if !status.is_empty() {
                known.push(ip);
            }
        }
        let instances = self.children("instances").await;
        if instances.is_empty() {
            return;
        }
        let is_online = |ip: &String| {
            instances.iter().any(|id| id.split("@-@").next().is_some_and(|prefix| prefix == ip))
        };
        for ip in known.iter().filter(|ip| !is_online(ip)) {
            self.remove_if_existed(&format!("servers/{ip}")).await;
        }
    }
}
