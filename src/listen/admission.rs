//! Which users may call the sidecar, and what may they do? Without configuration its own user and root, and everything. Pure.
//!
//! Decides by the peer that the kernel names ([`super::peer`]), or by the names in its certificate. Health checks are answered for
//! everybody.

use crate::config::{Allowed, AllowedCertificate, Rights, Roles, Who};
use crate::excerpt::Excerpt;
use crate::pem::CertificateName;

use super::caller::{Caller, CallerName};
use super::peer::{Known, Peer, Unknown};

/// The most names of a refused certificate that an error has.
const NAMES_SHOWN: usize = 3;
/// The user who may do everything on a machine.
const ROOT: u32 = 0;

/// The peer that has opened a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// A user of this machine.
    User(Known),
    /// The owner of a certificate for these names.
    Certificate(Vec<CertificateName>),
}

impl Origin {
    /// The number of the user, if it is known.
    pub(super) fn uid(&self) -> Option<u32> {
        match self {
            Self::User(peer) => peer.as_ref().ok().map(|peer| peer.uid),
            Self::Certificate(_) => None,
        }
    }
}

/// What becomes of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// Its calls are served, as far as the rights of this caller go.
    Admit(Caller),
    /// Its calls are refused for this reason, except for health checks.
    Refuse(String),
    /// It is closed for this reason, and its client may try again.
    Close(String),
}

/// The callers that a sidecar serves.
#[derive(Debug, Clone)]
pub struct Admission {
    allow: Vec<Allowed>,
    certificates: Vec<AllowedCertificate>,
    own_uid: u32,
    has_token: bool,
}

impl Admission {
    /// For a sidecar of this user. `has_token`: callers need its token, too.
    pub fn new(allow: &[Allowed], own_uid: u32, has_token: bool) -> Self {
        Self { allow: allow.to_vec(), certificates: Vec::new(), own_uid, has_token }
    }

    /// The same, and for owners of these certificates.
    #[must_use]
    pub fn with_certificates(self, certificates: &[AllowedCertificate]) -> Self {
        Self { certificates: certificates.to_vec(), ..self }
    }

    /// Whether a connection is of its own user or of root.
    pub(super) fn is_own(&self, origin: &Origin) -> bool {
        origin.uid().is_some_and(|uid| uid == self.own_uid || uid == ROOT)
    }

    /// Whether it serves others than its own user and root.
    pub(crate) fn serves_several(&self) -> bool {
        !self.certificates.is_empty() || self.allow.iter().any(|allowed| allowed.who != Who::SameUser)
    }

    /// Decides about a connection.
    pub(super) fn decide(&self, origin: &Origin) -> Decision {
        match origin {
            Origin::User(peer) => self.decide_user(peer),
            Origin::Certificate(names) => self.decide_certificate(names),
        }
    }

    fn decide_certificate(&self, names: &[CertificateName]) -> Decision {
        for allowed in &self.certificates {
            if let Some(name) = names.iter().find(|name| allowed.fits(name)) {
                let name = CallerName::Certificate(name.to_string().into());
                return Decision::Admit(Caller::new(name, allowed.rights.clone()));
            }
        }
        let shown: Vec<_> = names.iter().take(NAMES_SHOWN).map(ToString::to_string).collect();
        let (shown, more) =
            (Excerpt::of(&shown.join("`, `")), if names.len() > NAMES_SHOWN { " and others" } else { "" });
        Decision::Refuse(match names {
            [] => "the certificate has no DNS name and no URI (subject alternative names), by which callers are known".to_owned(),
            _ => format!(
                "the certificate of `{shown}`{more} may not call this sidecar: add a name of it to the sidecar's `tls_allow`"
            ),
        })
    }

    fn decide_user(&self, peer: &Known) -> Decision {
        let user = peer.as_ref().ok().map_or(CallerName::Unknown, |peer| CallerName::User(peer.uid));
        let roles = self.roles_of(peer.as_ref().ok().copied());
        if roles != Roles::NONE {
            return Decision::Admit(Caller::new(user, roles.into()));
        }
        match peer {
            // There the token tells callers apart.
            Err(Unknown::NoTable) if self.has_token => Decision::Admit(Caller::new(user, Rights::ALL)),
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
        if self.is_own(&Origin::User(peer.ok_or(Unknown::NoConnection))) {
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

    fn peer(uid: u32, gid: Option<u32>) -> Origin {
        Origin::User(Ok(Peer { uid, gid }))
    }

    fn unknown(why: Unknown) -> Origin {
        Origin::User(Err(why))
    }

    /// The roles of an admitted caller.
    fn admitted(decision: Decision) -> String {
        match decision {
            Decision::Admit(caller) => caller.roles().to_string(),
            Decision::Refuse(why) | Decision::Close(why) => why,
        }
    }

    fn allowed(who: Who, roles: &str) -> Allowed {
        Allowed { who, roles: Roles::parse(roles).unwrap() }
    }

    #[test]
    fn its_own_user_and_root_may_do_everything_and_others_what_the_setting_says() {
        let own = Admission::new(&[Allowed::SAME_USER], 1000, false);
        assert_eq!(admitted(own.decide(&peer(1000, None))), Roles::ALL.to_string());
        assert_eq!(admitted(own.decide(&peer(0, None))), Roles::ALL.to_string());
        let refused = own.decide(&peer(1001, Some(1000)));
        let Decision::Refuse(why) = refused else { panic!("{refused:?}") };
        assert!(why.contains("uid 1001") && why.contains("uid 1000") && why.contains("`uid:1001`"), "{why}");
        let named = [allowed(Who::User(7), "attach"), allowed(Who::Group(8), "view")];
        let named = Admission::new(&named, 1000, false);
        for (caller, roles) in [
            (peer(1000, Some(8)), "attach+view+operate"),
            (peer(7, None), "attach"),
            (peer(9, Some(8)), "view"),
            (peer(7, Some(8)), "attach+view"),
        ] {
            assert_eq!(admitted(named.decide(&caller)), roles, "{caller:?}");
        }
        for refused in [peer(8, Some(7)), peer(9, None)] {
            assert!(matches!(named.decide(&refused), Decision::Refuse(_)), "{refused:?}");
        }
        let any = Admission::new(&[allowed(Who::AnyLocalUser, "view")], 1000, false);
        assert_eq!(admitted(any.decide(&peer(7, None))), "view");
        assert_eq!(admitted(any.decide(&peer(1000, None))), Roles::ALL.to_string());
    }

    #[test]
    fn a_peer_that_is_not_known_may_not_call() {
        for has_token in [false, true] {
            let own = Admission::new(&[Allowed::SAME_USER], 0, has_token);
            let decide = |why: Unknown| own.decide(&unknown(why));
            assert!(matches!(decide(Unknown::NotMapped), Decision::Refuse(_)));
            assert_eq!(matches!(decide(Unknown::NoTable), Decision::Admit(_)), has_token);
            assert!(matches!(decide(Unknown::NoConnection), Decision::Close(_)));
            assert!(matches!(decide(Unknown::Failed("why".to_owned())), Decision::Close(_)));
        }
        let any = Admission::new(&[allowed(Who::AnyLocalUser, "attach+view")], 0, false);
        assert_eq!(admitted(any.decide(&unknown(Unknown::NoConnection))), Roles::OF_OTHERS.to_string());
    }

    #[test]
    fn a_certificate_is_served_by_the_first_entry_that_one_of_its_names_fits() {
        let certificates = ["spiffe://prod/billing?role=operate", "*.internal?jobs=team-*"]
            .map(|text| AllowedCertificate::parse(text).unwrap());
        let users = [allowed(Who::AnyLocalUser, "operate")];
        let admission = Admission::new(&users, 0, true).with_certificates(&certificates);
        let decide = |names: &[CertificateName]| admission.decide(&Origin::Certificate(names.to_vec()));
        let dns = |name: &str| CertificateName::Dns(name.to_owned());
        let uri = |name: &str| CertificateName::Uri(name.to_owned());
        assert_eq!(
            admitted(decide(&[dns("a.internal"), uri("spiffe://prod/billing")])),
            Roles::ALL.to_string()
        );
        let Decision::Admit(caller) = decide(&[uri("spiffe://prod/other"), dns("a.internal")]) else {
            panic!()
        };
        assert_eq!(caller.to_string(), "the certificate of `a.internal`");
        assert!(caller.may_use("team-x") && !caller.may_use("x"));
        let several = [dns("a"), dns("b"), dns("c"), dns("d")];
        for (names, told) in [
            (&[][..], "no DNS name and no URI"),
            (&several[..1], "`a` may not call"),
            (&several, "`a`, `b`, `c` and others may not call"),
        ] {
            let Decision::Refuse(why) = decide(names) else { panic!("{names:?}") };
            assert!(why.contains(told), "{why}");
        }
    }
}
