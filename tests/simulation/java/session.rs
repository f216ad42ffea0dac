//! The effect of connections and sessions on a process (protocol 2.4), and its end (2.3).

use std::rc::Rc;

use super::process::{ConnectionState, Process};
use super::threads::Wait;

/// The thread of the connection's listener.
pub async fn listen(process: Rc<Process>) {
    loop {
        let state = process.wait_for(|process| process.states.borrow_mut().pop_front()).await;
        if process.is_shut.get() {
            continue;
        }
        match state {
            ConnectionState::Unavailable => process.pause_scheduler(),
            ConnectionState::Reconnected => drop(process.catch(process.reconnected()).await),
        }
        process.pause(Wait::Turn).await;
    }
}

impl Process {
    /// The same, whether the session survived (H2) and whether something executes (H3), or not.
    async fn reconnected(self: &Rc<Self>) {
        let enabled = self.is_enabled_server(&self.options.ip).await;
        self.persist_server(enabled).await;
        self.persist_instance().await;
        for item in self.my_items().await {
            self.remove_if_existed(&format!("sharding/{item}/running")).await;
        }
        self.resume_scheduler().await;
    }

    /// The hook of a process that ends: it waits for what it executes (H28).
    pub async fn exit(self: Rc<Self>) {
        self.stop_scheduler();
        self.wait_for(|process| (!process.quartz.borrow().is_busy()).then_some(())).await;
        if self.has_started.get() && !self.is_shut.get() {
            if self.is_leader().await {
                self.remove_leader().await;
            }
            self.is_shut.set(true);
            self.remove_if_existed(&format!("instances/{}", self.id)).await;
        }
        self.has_exited.set(true);
    }
}
