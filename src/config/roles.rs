//! What callers may do: the roles, and their form in settings. Pure.

use std::fmt;

/// What a method needs of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// To be an instance of jobs, to hold locks, to stand for election.
    Attach,
    /// To see jobs and locks, without the parameters of jobs.
    View,
    /// To act on jobs, locks and the sidecar as an operator, and to see everything.
    Operate,
}

/// The roles of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roles {
    attach: bool,
    view: bool,
    operate: bool,
}

impl Roles {
    /// May do everything.
    pub const ALL: Self = Self { attach: true, view: true, operate: true };
    /// What users get whom `allow` names without a role.
    pub const OF_OTHERS: Self = Self { attach: true, view: true, operate: false };
    /// May do nothing.
    pub const NONE: Self = Self { attach: false, view: false, operate: false };

    /// Whether this role is among them.
    pub fn include(self, role: Role) -> bool {
        match role {
            Role::Attach => self.attach,
            Role::View => self.view,
            Role::Operate => self.operate,
        }
    }

    /// The roles of both together.
    pub fn or(self, other: Self) -> Self {
        Self {
            attach: self.attach || other.attach,
            view: self.view || other.view,
            operate: self.operate || other.operate,
        }
    }

    /// The roles that both have.
    pub fn and(self, other: Self) -> Self {
        Self {
            attach: self.attach && other.attach,
            view: self.view && other.view,
            operate: self.operate && other.operate,
        }
    }

    /// Reads roles, joined by `+`. The role `operate` includes the others. `None`: it has other words.
    pub fn parse(text: &str) -> Option<Self> {
        text.split('+').try_fold(Self::NONE, |roles, word| {
            let role = match word {
                "attach" => Self { attach: true, ..Self::NONE },
                "view" => Self { view: true, ..Self::NONE },
                "operate" => Self::ALL,
                _ => return None,
            };
            Some(roles.or(role))
        })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Attach => "attach",
            Self::View => "view",
            Self::Operate => "operate",
        })
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = [Role::Attach, Role::View, Role::Operate]
            .into_iter()
            .filter(|role| self.include(*role))
            .map(|role| role.to_string())
            .collect();
        match words.is_empty() {
            true => f.write_str("none"),
            false => f.write_str(&words.join("+")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_words_joined_by_plus_and_operate_includes_the_others() {
        assert_eq!(Roles::parse("operate"), Some(Roles::ALL));
        assert_eq!(Roles::parse("view+attach"), Some(Roles::OF_OTHERS));
        let attach = Roles::parse("attach").unwrap();
        assert!(
            attach.include(Role::Attach) && !attach.include(Role::View) && !attach.include(Role::Operate)
        );
        for wrong in ["", "+", "attach+", "Attach", "admin", "attach view", "attach,view"] {
            assert_eq!(Roles::parse(wrong), None, "{wrong:?}");
        }
        for roles in [Roles::OF_OTHERS, Roles::ALL, attach] {
            assert_eq!(Roles::parse(&roles.to_string()), Some(roles));
        }
        assert_eq!(Roles::NONE.to_string(), "none");
    }

    #[test]
    fn each_of_two_limits_can_only_take_away() {
        let (attach, view) = (Roles::parse("attach").unwrap(), Roles::parse("view").unwrap());
        assert_eq!(attach.and(view), Roles::NONE);
        assert_eq!(attach.or(view), Roles::OF_OTHERS);
        assert_eq!(Roles::ALL.and(view), view);
        assert_eq!(Roles::NONE.or(view), view);
    }
}
