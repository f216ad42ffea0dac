//! The instances of the sidecar's former process. Starts a participant for each of them; the participant waits for its
//! application ([`crate::coordination::job::lifecycle`] decides for how long, and what becomes of the instance).

use crate::coordination::job::contract::reattach;
use crate::coordination::job::frame::context::Identity;
use crate::coordination::job::participant::Participant;
use crate::runner::state_file::contents::{FormerProcess, Member};

use super::registry::Attachments;
use super::request::Attach;

impl Attachments {
    /// Restores the instances of the former process. To be called before any application can attach.
    pub fn restore(&self, former: FormerProcess) {
        let FormerProcess { key, members, .. } = former;
        let now = self.shared().clock.now().wall;
        // While the session lives, the former process was alive within the last timeout.
        let proven = now.checked_sub(key.timeout).unwrap_or(now);
        let mut inner = self.lock();
        for member in members {
            let former = reattach::Former {
                session: key.id,
                timeout: key.timeout,
                since: member.since.max(proven).min(now),
            };
            let Member { job, instance, name, application_id, profile, .. } = member.clone();
            let chosen = name.is_some() || application_id.is_empty();
            if let Some(unique) = instance.unique().filter(|_| !chosen) {
                inner.uniques.insert(application_id.clone(), unique.to_owned());
            }
            let attach = Attach {
                job,
                configuration: None,
                class: None,
                profile,
                name,
                application_id,
                client: String::new(),
                open: Vec::new(),
            };
            let participant = |identity: Identity| {
                self.shared().state_file.keep(&identity.execution_prefix, member.clone());
                Participant::restored(identity, attach.request(), former)
            };
            // There is no stream yet: the outlet is dropped.
            drop(self.start(&mut inner, instance, &attach, true, participant));
        }
    }
}
