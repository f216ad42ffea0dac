//! Curator's leader latch as the registry center uses it (protocol 0.2, 3.2): join, wait without limit (H1), leave.

use std::rc::Rc;

use sidekeeper::tree::{NodeKind, Operation, Path};

use super::client::Failure;
use super::process::Process;

/// A latch that this process holds, or waits at. To be left.
pub struct Latch {
    node: Path,
}

impl Process {
    /// Waits until the latch is held. `None`: never, because the process has lost its way there.
    pub async fn join_latch(&self, relative: &str) -> Latch {
        let folder = self.path(relative);
        loop {
            let connection = self.connections.get();
            if let Ok(node) = self.stand(&folder).await
                && self.wait_at_head(&folder, &node).await
            {
                return Latch { node };
            }
            // In the background, and again when there is another connection.
            self.wait_for(|process| {
                (process.connected.get() && process.connections.get() != connection).then_some(())
            })
            .await;
        }
    }

    /// Creates a node at the latch. If it is not known whether that succeeded, it is looked for.
    async fn stand(&self, folder: &Path) -> Result<Path, Failure> {
        let protection = uuid(self.below(u64::MAX), self.below(u64::MAX));
        let wanted = folder.child(&format!("_c_{protection}-latch-"));
        let session = self.session.borrow().id();
        match self.create(&wanted, NodeKind::EphemeralSequential, NodeKind::Container, b"").await {
            Err(Failure::Lost) => {
                let names = self.names(folder).await?.unwrap_or_default();
                let prefix = format!("_c_{protection}-");
                let found = names.iter().find(|name| name.starts_with(&prefix)).ok_or(Failure::NoNode)?;
                let found = folder.child(found);
                let is_ours = self.session.borrow().id() == session;
                if is_ours { Ok(found) } else { Err(Failure::NoNode) }
            }
            other => other,
        }
    }

    /// Waits for the contenders before this one, one after another. False: its own node is deleted, or the connection
    /// lost.
    async fn wait_at_head(&self, folder: &Path, node: &Path) -> bool {
        loop {
            let connection = self.connections.get();
            let Ok(names) = self.names(folder).await else { return false };
            let mut names = names.unwrap_or_default();
            let number = |name: &String| name.rsplit_once("latch-").map(|(_, number)| number.to_owned());
            names.sort_by_key(number);
            let Some(place) = names.iter().position(|name| name == node.name()) else { return false };
            let Some(before) = place.checked_sub(1).map(|place| folder.child(&names[place])) else {
                return true;
            };
            self.awaited.borrow_mut().insert(before.clone(), false);
            let is_there = self.read(&before).await;
            if matches!(is_there, Ok(Some(_))) {
                self.wait_for(|process| {
                    let is_gone = process.awaited.borrow().get(&before).copied().unwrap_or(true);
                    (is_gone || process.connections.get() != connection).then_some(())
                })
                .await;
            }
            self.awaited.borrow_mut().remove(&before);
            if is_there.is_err() {
                return false;
            }
            // A connection that is back makes Curator look again; one that is away, wait.
            self.wait_for(|process| process.connected.get().then_some(())).await;
        }
    }

    /// Deletes our node, and tries again in the background until it is known to be gone.
    pub async fn leave_latch(self: &Rc<Self>, latch: Latch) {
        let delete = || vec![Operation::delete(latch.node.clone())];
        if self.commit(delete()).await == Err(Failure::Lost) {
            let process = Rc::clone(self);
            self.spawn(async move {
                while process.commit(vec![Operation::delete(latch.node.clone())]).await == Err(Failure::Lost)
                {
                }
            });
        }
    }
}

/// A lower-case canonical one.
fn uuid(high: u64, low: u64) -> String {
    let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xffff);
    format!("{a:08x}-{b:04x}-{c:04x}-{:04x}-{:012x}", low >> 48, low & 0xffff_ffff_ffff)
}
