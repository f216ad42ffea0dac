//! Who calls, and what it may do. Each request has it in its extensions. Pure.
//!
//! Three limits count, and each can only take away: the address's rights (`listen`), the user's roles (`allow`), and the
//! token's rights (`token_file`). The limit of all callers' names (`jobs_allowed`) is in those of each address.

use std::fmt;
use std::sync::Arc;

use tonic::codegen::http::Extensions;

use crate::config::{Rights, Role, Roles};

/// A caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The number of its user. `None`: it is not known.
    uid: Option<u32>,
    /// The name of its token. `None`: there is none, or it has no name.
    token: Option<Arc<str>>,
    rights: Rights,
}

impl Caller {
    /// A caller of this user, on a connection with these rights.
    pub(super) fn new(uid: Option<u32>, rights: Rights) -> Self {
        Self { uid, token: None, rights }
    }

    /// The caller of a request. Without one, a caller that may do nothing.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or(Self::new(None, Rights::NONE))
    }

    /// The same caller with a token of this name, and no more than its rights.
    pub(super) fn with_token(self, name: Option<Arc<str>>, rights: &Rights) -> Self {
        Self { uid: self.uid, token: name, rights: self.rights.and(rights) }
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
        self.rights.names.include(name)
    }

    /// Whether it may use all names.
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
