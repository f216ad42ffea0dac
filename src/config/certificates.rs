//! Which certificates let callers in: the names in them, and what their callers may do. Pure.
//!
//! A certificate is for several names: DNS names, and URIs, of which SPIFFE IDs count (the SPIFFE standard, X509-SVID). Its subject's
//! common name does not count, as RFC 6125 says.

use super::rights::Rights;
use super::roles::Roles;
use crate::pem::CertificateName;

/// With this a SPIFFE ID begins.
const SPIFFE: &str = "spiffe://";
/// The most bytes of a name: a SPIFFE ID has no more.
const NAME_BYTES_MAX: usize = 2048;

/// Callers with certificates whom a sidecar serves, and what they may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedCertificate {
    pattern: Pattern,
    /// What they may do.
    pub rights: Rights,
}

/// Names in certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    /// This DNS name, in small letters.
    Dns(String),
    /// All DNS names with one more label in front: `.jobs.internal`.
    DnsBelow(String),
    /// This SPIFFE ID.
    Spiffe(String),
    /// All SPIFFE IDs that begin with this: `spiffe://prod/billing/`.
    SpiffeBelow(String),
}

impl AllowedCertificate {
    /// Reads a pattern with its options. The error names the mistake and the allowed form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, options) =
            text.split_once('?').map_or((text, None), |(name, options)| (name, Some(options)));
        let pattern = Pattern::parse(name).ok_or_else(|| format!("`{name}` is no name; {ALLOWED}"))?;
        let mut rights = Rights::from(Roles::OF_OTHERS);
        for option in options.iter().flat_map(|options| options.split('&')) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            if !rights.set(name, value, ALLOWED)? {
                return Err(format!("`{option}` is no option of a name; {ALLOWED}"));
            }
        }
        Ok(Self { pattern, rights })
    }

    /// Whether a name in a certificate is meant.
    pub fn fits(&self, name: &CertificateName) -> bool {
        match (&self.pattern, name) {
            // A wildcard in a certificate is for servers. Of callers it says nothing.
            (_, CertificateName::Dns(name)) if name.contains('*') => false,
            (Pattern::Dns(wanted), CertificateName::Dns(name)) => name.eq_ignore_ascii_case(wanted),
            (Pattern::DnsBelow(end), CertificateName::Dns(name)) => {
                let name = name.to_ascii_lowercase();
                name.strip_suffix(end).is_some_and(|label| !label.is_empty() && !label.contains('.'))
            }
            (Pattern::Spiffe(wanted), CertificateName::Uri(name)) => name == wanted,
            (Pattern::SpiffeBelow(begin), CertificateName::Uri(name)) => {
                name.strip_prefix(begin).is_some_and(|rest| !rest.is_empty())
            }
            _ => false,
        }
    }
}

const ALLOWED: &str = "allowed: a DNS name like `billing.jobs.internal`, with `*` for its first label if it is for several; or a \
                       SPIFFE ID like `spiffe://prod/billing`, with `/*` at its end for all below; then `?role=ROLES` if they are \
                       not `attach+view`, and `?jobs=PATTERNS`, joined by `&`";

impl Pattern {
    fn parse(text: &str) -> Option<Self> {
        if text.len() > NAME_BYTES_MAX {
            return None;
        }
        if let Some(id) = text.strip_prefix(SPIFFE) {
            let (id, is_below) = id.strip_suffix("/*").map_or((id, false), |id| (id, true));
            let is_id = !id.starts_with('/')
                && id.split('/').all(|part| !part.is_empty() && part.chars().all(is_part));
            return match (is_id, is_below) {
                (false, _) => None,
                (true, false) => Some(Self::Spiffe(format!("{SPIFFE}{id}"))),
                (true, true) => Some(Self::SpiffeBelow(format!("{SPIFFE}{id}/"))),
            };
        }
        let is_label = |label: &str| !label.is_empty() && label.chars().all(is_part);
        let name = text.to_ascii_lowercase();
        if let Some(end) = name.strip_prefix('*') {
            let is_name = end.strip_prefix('.').is_some_and(|rest| rest.split('.').all(is_label));
            return is_name.then(|| Self::DnsBelow(end.to_owned()));
        }
        name.split('.').all(is_label).then_some(Self::Dns(name))
    }
}

/// The characters of a DNS label and of a segment of a SPIFFE ID.
fn is_part(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, name: &str) -> bool {
        let name = match name.contains("://") {
            true => CertificateName::Uri(name.to_owned()),
            false => CertificateName::Dns(name.to_owned()),
        };
        AllowedCertificate::parse(pattern).unwrap().fits(&name)
    }

    #[test]
    fn a_name_fits_as_a_whole_and_a_wildcard_stands_for_one_label_or_for_all_below() {
        for (pattern, name) in [
            ("billing.internal", "billing.internal"),
            ("Billing.internal", "billing.INTERNAL"),
            ("*.internal", "billing.internal"),
            ("spiffe://prod/billing", "spiffe://prod/billing"),
            ("spiffe://prod/*", "spiffe://prod/ns/billing"),
            ("spiffe://prod", "spiffe://prod"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("billing.internal", "billing.internal.example.org"),
            ("billing.internal", "xbilling.internal"),
            ("*.internal", "internal"),
            ("*.internal", ".internal"),
            ("*.internal", "a.billing.internal"),
            ("*.internal", "*.internal"),
            ("billing", "spiffe://billing"),
            ("spiffe://prod/billing", "spiffe://prod/billing/other"),
            ("spiffe://prod/billing", "spiffe://PROD/billing"),
            ("spiffe://prod/*", "spiffe://prod"),
            ("spiffe://prod/*", "spiffe://prod/"),
            ("spiffe://prod/*", "spiffe://production/x"),
        ] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn rights_follow_a_name() {
        let roles =
            |text: &str| AllowedCertificate::parse(text).map(|allowed| allowed.rights.roles.to_string());
        assert_eq!(roles("a.b").as_deref(), Ok("attach+view"));
        assert_eq!(roles("a.b?role=operate").as_deref(), Ok("attach+view+operate"));
        let of_team = AllowedCertificate::parse("spiffe://prod/*?role=attach&jobs=team-*").unwrap().rights;
        assert!(of_team.names.include("team-bill") && !of_team.names.include("bill"));
        for bad in [
            "",
            "*",
            "*internal",
            "a.*.b",
            "a..b",
            ".a",
            "a b",
            "a/b",
            "spiffe://",
            "spiffe:///billing",
            "spiffe://prod/",
            "spiffe://prod//x",
            "spiffe://prod/*/x",
            "spiffe://*",
            "https://prod/x",
            "a.b?",
            "a.b?role=admin",
            "a.b?jobs=",
            "a.b?mode=0600",
            &"a".repeat(NAME_BYTES_MAX + 1),
        ] {
            assert!(AllowedCertificate::parse(bad).is_err(), "{bad:?}");
        }
    }
}
