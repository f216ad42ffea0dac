//! Which users may call the sidecar? Without configuration its own user and root. Pure.
//!
//! Decides by the peer that the kernel names ([`super::peer`]). Health checks are answered for everybody.

use crate::config::Allowed;

use super::peer::{Known, Peer, Unknown};

/// The user who may do everything on a machine.
const ROOT: u32 = 0;

/// What becomes of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// Its calls are served.
    Admit,
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
        if self.allow.contains(&Allowed::AnyLocalUser) {
            return Decision::Admit;
        }
        match peer {
            Ok(peer) if self.is_allowed(*peer) => Decision::Admit,
            // There the token tells callers apart.
            Err(Unknown::NoTable) if self.has_token => Decision::Admit,
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

    fn is_allowed(&self, peer: Peer) -> bool {
        let named = |allowed: &Allowed| match allowed {
            Allowed::SameUser | Allowed::AnyLocalUser => false,
            Allowed::User(uid) => peer.uid == *uid,
            Allowed::Group(gid) => peer.gid == Some(*gid),
        };
        peer.uid == self.own_uid || peer.uid == ROOT || self.allow.iter().any(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, gid: Option<u32>) -> Known {
        Ok(Peer { uid, gid })
    }

    #[test]
    fn its_own_user_and_root_may_call_and_others_only_if_the_setting_names_them() {
        let own = Admission::new(&[Allowed::SameUser], 1000, false);
        assert_eq!(own.decide(&peer(1000, None)), Decision::Admit);
        assert_eq!(own.decide(&peer(0, None)), Decision::Admit);
        let refused = own.decide(&peer(1001, Some(1000)));
        let Decision::Refuse(why) = refused else { panic!("{refused:?}") };
        assert!(why.contains("uid 1001") && why.contains("uid 1000") && why.contains("`uid:1001`"), "{why}");
        let named = Admission::new(&[Allowed::User(7), Allowed::Group(8)], 1000, false);
        for admitted in [peer(1000, None), peer(7, None), peer(9, Some(8))] {
            assert_eq!(named.decide(&admitted), Decision::Admit, "{admitted:?}");
        }
        for refused in [peer(8, Some(7)), peer(9, None)] {
            assert!(matches!(named.decide(&refused), Decision::Refuse(_)), "{refused:?}");
        }
        assert_eq!(
            Admission::new(&[Allowed::AnyLocalUser], 1000, false).decide(&peer(7, None)),
            Decision::Admit
        );
    }

    #[test]
    fn a_peer_that_is_not_known_may_not_call() {
        for has_token in [false, true] {
            let own = Admission::new(&[Allowed::SameUser], 0, has_token);
            let decide = |unknown: Unknown| own.decide(&Err(unknown));
            assert!(matches!(decide(Unknown::NotMapped), Decision::Refuse(_)));
            assert_eq!(decide(Unknown::NoTable) == Decision::Admit, has_token);
            assert!(matches!(decide(Unknown::NoConnection), Decision::Close(_)));
            assert!(matches!(decide(Unknown::Failed("why".to_owned())), Decision::Close(_)));
        }
        let any = Admission::new(&[Allowed::AnyLocalUser], 0, false);
        assert_eq!(any.decide(&Err(Unknown::NoConnection)), Decision::Admit);
    }
}
