//! Which users may call the sidecar, and what may they do? Without configuration its own user and root, and everything. Pure.
//!
//! Decides by the peer that the kernel names ([`super::peer`]). Health checks are answered for everybody.

use crate::config::{Allowed, Roles, Who};

use super::peer::{Known, Peer, Unknown};

/// The user who may do everything on a machine.
const ROOT: u32 = 0;

/// What becomes of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// Its calls are served, as far as these roles go.
    Admit(Roles),
    /// Its calls are refused for this reason, except for health checks.
    Refuse(String),
    /// It is closed for this reason, and its client may try again.
    Close(String),
}

/// The callers that a sidecar serves.
#[derive(Debug, Clone)]
pub struct Admission {
    allow: Vec<Allowed>,
    own_uid: u32,
    has_token: bool,
}

impl Admission {
    /// For a sidecar of this user. `has_token`: callers need its token, too.
    pub fn new(allow: &[Allowed], own_uid: u32, has_token: bool) -> Self {
        Self { allow: allow.to_vec(), own_uid, has_token }
    }

    /// Decides about a connection of this peer.
    pub(super) fn decide(&self, peer: &Known) -> Decision {
        let roles = self.roles_of(peer.as_ref().ok().copied());
        if roles != Roles::NONE {
            return Decision::Admit(roles);
        }
        match peer {
            // There the token tells callers apart.
            Err(Unknown::NoTable) if self.has_token => Decision::Admit(Roles::ALL),
            Ok(Peer { uid, .. }) => Decision::Refuse(format!(
                "uid {uid} may not call this sidecar, which runs as uid {}: run both as one user, or set the sidecar's \
                 `allow` to `uid:{uid}` or `any-local-user`",
                self.own_uid
            )),
            Err(unknown @ (Unknown::NoTable | Unknown::NotMapped)) => Decision::Refuse(format!(
                "it is not known which user calls this sidecar ({unknown}): connect to a Unix socket of it, or set its \
                 `allow` to `any-local-user`"
            )),
            // Another attempt may succeed.
            Err(unknown @ (Unknown::NoConnection | Unknown::Failed(_))) => {
                Decision::Close(format!("it is not known which user it is of ({unknown})"))
            }
        }
    }

    /// What a peer may do by everything that names it.
    fn roles_of(&self, peer: Option<Peer>) -> Roles {
        if peer.is_some_and(|peer| peer.uid == self.own_uid || peer.uid == ROOT) {
            return Roles::ALL;
        }
        let is_named = |allowed: &&Allowed| match allowed.who {
            Who::SameUser => false,
            Who::AnyLocalUser => true,
            Who::User(uid) => peer.is_some_and(|peer| peer.uid == uid),
            Who::Group(gid) => peer.is_some_and(|peer| peer.gid == Some(gid)),
        };
        self.allow.iter().filter(is_named).fold(Roles::NONE, |roles, allowed| roles.or(allowed.roles))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, gid: Option<u32>) -> Known {
        Ok(Peer { uid, gid })
    }

    fn allowed(who: Who, roles: &str) -> Allowed {
        Allowed { who, roles: Roles::parse(roles).unwrap() }
    }

    #[test]
    fn its_own_user_and_root_may_do_everything_and_others_what_the_setting_says() {
        let own = Admission::new(&[Allowed::SAME_USER], 1000, false);
        assert_eq!(own.decide(&peer(1000, None)), Decision::Admit(Roles::ALL));
        assert_eq!(own.decide(&peer(0, None)), Decision::Admit(Roles::ALL));
        let refused = own.decide(&peer(1001, Some(1000)));
        let Decision::Refuse(why) = refused else { panic!("{refused:?}") };
        assert!(why.contains("uid 1001") && why.contains("uid 1000") && why.contains("`uid:1001`"), "{why}");
        let named = [allowed(Who::User(7), "attach"), allowed(Who::Group(8), "view")];
        let named = Admission::new(&named, 1000, false);
        for (admitted, roles) in [
            (peer(1000, Some(8)), "operate"),
            (peer(7, None), "attach"),
            (peer(9, Some(8)), "view"),
            (peer(7, Some(8)), "attach+view"),
        ] {
            assert_eq!(
                named.decide(&admitted),
                Decision::Admit(Roles::parse(roles).unwrap()),
                "{admitted:?}"
            );
        }
        for refused in [peer(8, Some(7)), peer(9, None)] {
            assert!(matches!(named.decide(&refused), Decision::Refuse(_)), "{refused:?}");
        }
        let any = Admission::new(&[allowed(Who::AnyLocalUser, "view")], 1000, false);
        assert_eq!(any.decide(&peer(7, None)), Decision::Admit(Roles::parse("view").unwrap()));
        assert_eq!(any.decide(&peer(1000, None)), Decision::Admit(Roles::ALL));
    }

    #[test]
    fn a_peer_that_is_not_known_may_not_call() {
        for has_token in [false, true] {
            let own = Admission::new(&[Allowed::SAME_USER], 0, has_token);
            let decide = |unknown: Unknown| own.decide(&Err(unknown));
            assert!(matches!(decide(Unknown::NotMapped), Decision::Refuse(_)));
            assert_eq!(decide(Unknown::NoTable) == Decision::Admit(Roles::ALL), has_token);
            assert!(matches!(decide(Unknown::NoConnection), Decision::Close(_)));
            assert!(matches!(decide(Unknown::Failed("why".to_owned())), Decision::Close(_)));
        }
        let any = Admission::new(&[allowed(Who::AnyLocalUser, "attach+view")], 0, false);
        assert_eq!(any.decide(&Err(Unknown::NoConnection)), Decision::Admit(Roles::OF_OTHERS));
    }
}
