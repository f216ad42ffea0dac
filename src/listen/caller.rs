//! Who calls, and what it may do. Each request has it in its extensions. Pure.
//!
//! Three limits count, and each can only take away: the address's roles (`listen`), the user's (`allow`), and the
//! token's (`token_file`).

use std::fmt;
use std::sync::Arc;

use tonic::codegen::http::Extensions;

use crate::config::{Role, Roles};

/// A caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The number of its user. `None`: it is not known.
    uid: Option<u32>,
    /// The name of its token. `None`: there is none, or it has no name.
    token: Option<Arc<str>>,
    roles: Roles,
}

impl Caller {
    /// A caller of this user, on a connection with these roles.
    pub(super) fn new(uid: Option<u32>, roles: Roles) -> Self {
        Self { uid, token: None, roles }
    }

    /// The caller of a request. Without one, a caller that may do nothing.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or(Self::new(None, Roles::NONE))
    }

    /// The same caller with a token of this name, and no more than its roles.
    pub(super) fn with_token(self, name: Option<Arc<str>>, roles: Roles) -> Self {
        Self { uid: self.uid, token: name, roles: self.roles.and(roles) }
    }

    /// Whether it has this role.
    pub(crate) fn has(&self, role: Role) -> bool {
        self.roles.include(role)
    }

    /// Its roles.
    pub(crate) fn roles(&self) -> Roles {
        self.roles
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
