//! The listeners that act once for the whole job (protocol 6.7), if the process has them.

use std::rc::Rc;

use super::cache::{Event, Kind};
use super::election::SHORT_WAIT_MS;
use super::process::Process;

impl Process {
    pub async fn listener_before(self: &Rc<Self>, items: &[u32]) {
        if self.options.once_listener && !items.is_empty() {
            self.pass_gate("started", items, |count, total| count == total).await;
        }
    }

    pub async fn listener_after(self: &Rc<Self>, items: &[u32]) {
        if self.options.once_listener && !items.is_empty() {
            self.pass_gate("completed", items, |count, total| count >= total).await;
        }
    }

    async fn pass_gate(self: &Rc<Self>, barrier: &str, items: &[u32], is_full: fn(u32, u32) -> bool) {
        let folder = format!("guarantee/{barrier}");
        for item in items {
            self.create_if_needed(&format!("{folder}/{item}")).await;
        }
        for item in items {
            while !self.exists(&format!("{folder}/{item}")).await {
                self.sleep(SHORT_WAIT_MS).await;
            }
        }
        if self.is_complete(&folder, is_full).await {
            let latch = self.join_latch(&format!("{folder}-latch")).await;
            if self.is_complete(&folder, is_full).await {
                self.called.borrow_mut().push((barrier.to_owned(), self.now()));
            }
            // Always, also when it is the next round's (H25).
            self.remove_if_existed(&folder).await;
            self.leave_latch(latch).await;
            return;
        }
        // A removal between the look and the wait is missed (H25).
        let seen = self.removed_gates.get();
        self.wait_for(|process| (process.removed_gates.get() != seen).then_some(())).await;
    }

    async fn is_complete(&self, folder: &str, is_full: fn(u32, u32) -> bool) -> bool {
        let total = self.load_config(false).await.sharding_total_count;
        is_full(self.children(folder).await.len() as u32, total)
    }

    /// 12. A barrier's node is deleted: the waiting threads go on.
    pub fn on_gates(&self, event: &Event) {
        let is_gate = matches!(&*event.path, "guarantee/started" | "guarantee/completed");
        if is_gate && event.kind == Kind::Deleted {
            self.removed_gates.set(self.removed_gates.get() + 1);
            self.changed();
        }
    }
}
