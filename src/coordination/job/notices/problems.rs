//! Problems of the application's configuration, and of the servers' limit.
//!
//! Decides only the message. The other rooms word the problems of their own decisions.

use std::sync::Arc;

use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::limits::TRANSACTION_BYTES_MAX;
use crate::coordination::job::membership::Membership;
use crate::coordination::job::picture::difference;
use crate::findings::problem::{Problem, ProblemCode};
use crate::job::JobConfiguration;

/// The application's configuration, compared with the one in force.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    /// The fields in which they differ. Empty: none, or the application gave no configuration.
    ignored: String,
    /// The configurations that were compared.
    compared: (Option<Arc<JobConfiguration>>, Option<Arc<JobConfiguration>>),
}

impl Comparison {
    /// Checks whether the application's own configuration is the one in force.
    pub(crate) fn compare(&mut self, cx: &Context) {
        let in_force = cx.settings.as_ref().map(|settings| Arc::clone(&settings.configuration));
        let compared = (cx.request.configuration.clone(), in_force);
        let same =
            |one: &Option<Arc<JobConfiguration>>, other: &Option<Arc<JobConfiguration>>| match (one, other) {
                (Some(one), Some(other)) => Arc::ptr_eq(one, other),
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
        if same(&self.compared.0, &compared.0) && same(&self.compared.1, &compared.1) {
            return;
        }
        self.ignored = match &compared {
            (Some(given), Some(in_force)) => difference::in_words(in_force, given),
            (Some(_) | None, _) => String::new(),
        };
        self.compared = compared;
    }

    /// The problem that the application's configuration is not the one in force.
    pub(crate) fn problem(&self, cx: &Context, membership: &Membership) -> Option<Problem> {
        // A configuration that this instance has still to write is not ignored.
        let is_ignored = !self.ignored.is_empty() && membership.configuration_to_write(cx).is_none();
        is_ignored.then(|| Problem {
            path: cx.identity.paths.config(),
            message: format!(
                "the application's configuration is ignored, because the registry has another one: {}. Set `overwrite` to \
                 replace that, or give the same, or none",
                self.ignored
            ),
            code: ProblemCode::JobConfigDiffers,
        })
    }
}

/// The problem that the servers accept small requests only.
pub(crate) fn request_limit(cx: &Context) -> Option<Problem> {
    (cx.transaction_bytes < TRANSACTION_BYTES_MAX).then(|| Problem {
        path: cx.identity.paths.root().clone(),
        message: format!(
            "the servers break the connection for requests of about {} bytes, so what the sidecar writes at once is \
             split: raise `jute.maxbuffer` of the servers",
            cx.transaction_bytes.saturating_mul(2)
        ),
        code: ProblemCode::RegistryRequestsSmall,
    })
}
