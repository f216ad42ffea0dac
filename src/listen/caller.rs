//! Who calls, and what it may do. Each request has it in its extensions. Pure.
//!
//! Three limits count, and each can only take away: the address's rights (`listen`), the user's roles (`allow`), and the
//! token's rights (`token_file`). The sidecar's own limit of names (`jobs_allowed`) is the same for all callers.

use std::fmt;
use std::sync::Arc;

use tonic::codegen::http::Extensions;

use crate::config::{Names, Rights, Role, Roles};

/// A caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The number of its user. `None`: it is not known.
    uid: Option<u32>,
    /// The name of its token. `None`: there is none, or it has no name.
    token: Option<Arc<str>>,
    rights: Rights,
    /// The names that any caller may use.
    allowed: Names,
}

impl Caller {
    /// A caller of this user, on a connection with these rights.
    pub(super) fn new(uid: Option<u32>, rights: Rights) -> Self {
        Self { uid, token: None, rights, allowed: Names::ALL }
    }

    /// The same caller of a sidecar that allows these names to any caller.
    pub(super) fn within(self, allowed: &Names) -> Self {
        Self { allowed: allowed.clone(), ..self }
    }

    /// The caller of a request. Without one, a caller that may do nothing.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or(Self::new(None, Rights::NONE))
    }

    /// The same caller with a token of this name, and no more than its rights.
    pub(super) fn with_token(self, name: Option<Arc<str>>, rights: &Rights) -> Self {
        Self { token: name, rights: self.rights.and(rights), ..self }
    }

    /// Whether it has this role.
    pub(crate) fn has(&self, role: Role) -> bool {
        self.rights.roles.include(role)
    }

    /// Its roles.
    pub(crate) fn roles(&self) -> Roles {
        self.rights.roles
    }

    /// Whether it may use the job, the lock or the election of this name, or the lock with this path.
    pub(crate) fn may_use(&self, name: &str) -> bool {
        self.rights.names.include(name) && self.allowed.include(name)
    }

    /// Whether it may use every name that any caller may use.
    pub(crate) fn may_use_all(&self) -> bool {
        self.rights.names.are_all()
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.uid {
            Some(uid) => write!(f, "uid {uid}")?,
            None => f.write_str("an unknown user")?,
        }
        match &self.token {
            Some(name) => write!(f, " with token `{name}`"),
            None => Ok(()),
        }
    }
}
