//! The access list of the nodes that the sidecar creates. Pure.

use std::sync::Arc;

use zookeeper_client as zk;

/// The access list of the nodes that the sidecar creates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Acl {
    /// As ElasticJob in Java: the creator alone if it has a digest or a SASL user, otherwise everybody.
    #[default]
    Auto,
    /// Everybody who reaches the ensemble.
    Open,
    /// Every identity of the connection that created the node.
    Creator,
    /// These.
    List(Vec<AclEntry>),
}

/// An entry of an access list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclEntry {
    scheme: String,
    id: String,
    permissions: String,
}

/// The letters of permissions, as ZooKeeper's shell writes them.
const PERMISSIONS: [(char, zk::Permission); 5] = [
    ('c', zk::Permission::CREATE),
    ('d', zk::Permission::DELETE),
    ('r', zk::Permission::READ),
    ('w', zk::Permission::WRITE),
    ('a', zk::Permission::ADMIN),
];

impl Acl {
    /// Reads one of the words, or an entry in the form of ZooKeeper's shell: `SCHEME:ID:PERMISSIONS`.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => return Ok(Self::Auto),
            "open" => return Ok(Self::Open),
            "creator" => return Ok(Self::Creator),
            _ => {}
        }
        let parts = text.split_once(':').and_then(|(scheme, rest)| {
            let (id, permissions) = rest.rsplit_once(':')?;
            Some(AclEntry {
                scheme: scheme.to_owned(),
                id: id.to_owned(),
                permissions: permissions.to_owned(),
            })
        });
        let are_letters = |letters: &str| {
            let known = |letter| PERMISSIONS.iter().any(|(known, _)| *known == letter);
            !letters.is_empty() && letters.chars().all(known)
        };
        parts
            .filter(|entry| !entry.scheme.is_empty() && are_letters(&entry.permissions))
            .map(|entry| Self::List(vec![entry]))
            .ok_or_else(|| {
                "allowed: `auto`, `open`, `creator`, or entries `SCHEME:ID:PERMISSIONS`, with letters of `cdrwa`".to_owned()
            })
    }

    /// One list of entries, or the one word that was given.
    pub fn join(given: Vec<Self>) -> Result<Self, String> {
        let mut entries = Vec::new();
        let mut word = None;
        for acl in given {
            match acl {
                Self::List(more) => entries.extend(more),
                acl @ (Self::Auto | Self::Open | Self::Creator) => {
                    if word.replace(acl).is_some() {
                        return Err("two words; allowed: one word, or entries".to_owned());
                    }
                }
            }
        }
        match (word, entries.is_empty()) {
            (Some(_), false) => Err("a word and entries; allowed: one word, or entries".to_owned()),
            (Some(word), true) => Ok(word),
            (None, _) => Ok(Self::List(entries)),
        }
    }

    /// The list for nodes. `has_user`: the servers know a user of the connection by a digest or by SASL.
    pub(super) fn list(&self, has_user: bool) -> Arc<[zk::Acl]> {
        let all = |id| [zk::Acl::new(zk::Permission::ALL, id)].into();
        match self {
            Self::Creator => all(zk::AuthId::authed()),
            Self::Auto if has_user => all(zk::AuthId::authed()),
            Self::Auto | Self::Open => all(zk::AuthId::anyone()),
            Self::List(entries) => entries.iter().map(AclEntry::to_client).collect(),
        }
    }
}

impl AclEntry {
    fn to_client(&self) -> zk::Acl {
        let granted = PERMISSIONS.into_iter().filter(|(letter, _)| self.permissions.contains(*letter));
        let permission = granted.fold(zk::Permission::NONE, |all, (_, one)| all | one);
        zk::Acl::new(permission, zk::AuthId::new(&self.scheme, &self.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_entries_are_read() {
        assert_eq!(Acl::parse("auto"), Ok(Acl::Auto));
        assert_eq!(Acl::parse("creator"), Ok(Acl::Creator));
        let x509 = Acl::parse("x509:CN=a:b,O=c:rwa").unwrap();
        let [entry] = &*x509.list(false) else { panic!("one entry") };
        assert_eq!((entry.scheme(), entry.id()), ("x509", "CN=a:b,O=c"));
        let granted = zk::Permission::READ | zk::Permission::WRITE | zk::Permission::ADMIN;
        assert_eq!(entry.permission(), granted);
        for bad in ["", "all", "world:anyone", "world:anyone:", "world:anyone:x", ":anyone:r"] {
            assert!(Acl::parse(bad).is_err(), "{bad:?}");
        }
        let open = || Acl::parse("open").unwrap();
        assert_eq!(Acl::join(vec![open()]), Ok(Acl::Open));
        assert!(Acl::join(vec![open(), open()]).is_err());
        assert!(Acl::join(vec![open(), x509.clone()]).is_err());
        assert_eq!(Acl::join(vec![x509.clone(), x509]).map(|acl| acl.list(false).len()), Ok(2));
    }

    #[test]
    fn nodes_are_the_creators_own_if_it_has_a_user() {
        let scheme_of = |acl: &Acl, has_user| acl.list(has_user).first().map(|acl| acl.scheme().to_owned());
        assert_eq!(scheme_of(&Acl::Auto, true).as_deref(), Some("auth"));
        assert_eq!(scheme_of(&Acl::Auto, false).as_deref(), Some("world"));
        assert_eq!(scheme_of(&Acl::Open, true).as_deref(), Some("world"));
        assert_eq!(scheme_of(&Acl::Creator, false).as_deref(), Some("auth"));
    }
}
