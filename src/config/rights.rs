//! What callers may do, and with what. Pure.

use super::names::Names;
use super::roles::Roles;

/// The rights of a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// What it may do.
    pub roles: Roles,
    /// The jobs, locks and elections with which it may do that.
    pub names: Names,
}

impl Rights {
    /// May do everything with everything.
    pub const ALL: Self = Self { roles: Roles::ALL, names: Names::ALL };
    /// May do nothing.
    pub const NONE: Self = Self { roles: Roles::NONE, names: Names::ALL };

    /// Takes the value of `role` or `jobs`. `false`: the name is of something else. The error names the mistake; `allowed` ends it.
    pub(super) fn set(&mut self, name: &str, value: &str, allowed: &str) -> Result<bool, String> {
        match name {
            "role" => {
                self.roles = Roles::parse(value).ok_or_else(|| format!("`{value}` is no role; {allowed}"))?;
            }
            "jobs" => self.names = Names::parse(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The rights that both have.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        Self { roles: self.roles.and(other.roles), names: self.names.and(&other.names) }
    }
}

impl From<Roles> for Rights {
    fn from(roles: Roles) -> Self {
        Self { roles, names: Names::ALL }
    }
}
