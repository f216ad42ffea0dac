//! Who calls, and what it may do. Each request has it in its extensions. Pure.
//!
//! Three limits count, and each can only take away: the address's rights (`listen`), the user's roles (`allow`), and the
//! token's rights (`token_file`). The sidecar's own limit of names (`jobs_allowed`) is the same for all callers.

use std::fmt;
use std::sync::Arc;

use tonic::codegen::http::Extensions;

use crate::config::{Names, Rights, Role, Roles};

/// The peer that opened the connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CallerName {
    /// It is not known.
    Unknown,
    /// The user with this number.
    User(u32),
    /// The owner of a certificate with this name, which `tls_allow` has.
    Certificate(Arc<str>),
}

/// A caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    name: CallerName,
    /// The name of its token. `None`: there is none, or it has no name.
    token: Option<Arc<str>>,
    rights: Rights,
    /// The names that any caller may use.
    allowed: Names,
}

impl Caller {
    /// A caller with these rights.
    pub(super) fn new(name: CallerName, rights: Rights) -> Self {
        Self { name, token: None, rights, allowed: Names::ALL }
    }

    /// The same caller with no more than these rights.
    pub(super) fn limited_to(self, rights: &Rights) -> Self {
        Self { rights: self.rights.and(rights), ..self }
    }

    /// The same caller of a sidecar that allows these names to any caller.
    pub(super) fn within(self, allowed: &Names) -> Self {
        Self { allowed: allowed.clone(), ..self }
    }

    /// The caller of a request. Without one, a caller that may do nothing.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or(Self::new(CallerName::Unknown, Rights::NONE))
    }

    /// The same caller with a token of this name, and no more than its rights.
    pub(super) fn with_token(self, name: Option<Arc<str>>, rights: &Rights) -> Self {
        Self { token: name, ..self.limited_to(rights) }
    }

    /// Its user or its certificate. Its connection and its token do not matter.
    pub(super) fn name(&self) -> &CallerName {
        &self.name
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
        match &self.name {
            CallerName::Unknown => f.write_str("an unknown user")?,
            CallerName::User(uid) => write!(f, "uid {uid}")?,
            CallerName::Certificate(name) => write!(f, "the certificate of `{name}`")?,
        }
        match &self.token {
            Some(name) => write!(f, " with token `{name}`"),
            None => Ok(()),
        }
    }
}
