//! Content of PEM files of TLS: authorities, chains of certificates, revocation lists, keys; and the names in a certificate. Pure.
//!
//! Errors name the setting of the file, and have no text of it.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

/// The authorities of a file, at least one.
pub fn authorities(setting: &str, pem: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(setting, pem)? {
        roots.add(certificate).map_err(|error| format!("{setting}: {error}"))?;
    }
    Ok(roots)
}

/// The certificates of a file, at least one.
pub fn certificates(setting: &str, pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let chain = chain.map_err(|error| format!("{setting}: {}", fault(&error)))?;
    if chain.is_empty() {
        return Err(format!("{setting}: it has no certificate in PEM"));
    }
    Ok(chain)
}

/// The revocation lists of a file, at least one.
pub fn revocation_lists(
    setting: &str,
    pem: &str,
) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(pem.as_bytes()).collect();
    let lists = lists.map_err(|error| format!("{setting}: {}", fault(&error)))?;
    if lists.is_empty() {
        return Err(format!("{setting}: it has no revocation list in PEM"));
    }
    Ok(lists)
}

/// The certificates of a file, to show to others. Fails if one of them has expired at this moment.
pub fn chain(setting: &str, pem: &str, now: UnixTime) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain = certificates(setting, pem)?;
    match expires_before(&chain, now) {
        Some(end) => Err(format!("{setting}: it has expired at {}; renew it", moment(end))),
        None => Ok(chain),
    }
}

/// When the first certificate of a chain expires, if that is before this moment.
pub fn expires_before(chain: &[CertificateDer<'_>], before: UnixTime) -> Option<UnixTime> {
    let expired = |certificate| {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        // Without authorities: the time is what it looks at first, and nothing else is asked.
        let usage = KeyUsage::server_auth();
        match certificate.verify_for_usage(&[], &[], &[], before, usage, None, None) {
            Err(webpki::Error::CertExpired { not_after, .. }) => Some(not_after),
            Err(_) | Ok(_) => None,
        }
    };
    chain.iter().filter_map(expired).min()
}

/// When the first certificate of a chain expires.
pub fn end(chain: &[CertificateDer<'_>]) -> Option<Timestamp> {
    // Later than the last moment that a certificate can have (RFC 5280, 4.1.2.5: the year 9999).
    let end =
        expires_before(chain, UnixTime::since_unix_epoch(Duration::from_secs(u64::from(u32::MAX) * 100)))?;
    Timestamp::from_second(i64::try_from(end.as_secs()).ok()?).ok()
}

/// A time of a certificate, for people.
pub fn moment(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).ok();
    let known = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    known.map_or_else(|| "an unknown time".to_owned(), |time| time.to_string())
}

/// The key of a file.
pub fn key(setting: &str, pem: &str) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes())
        .map_err(|error| format!("{setting}: {}; allowed: PEM without a password", fault(&error)))
}

/// What is wrong with a file. The library's own text may have a line of the file in it, and so a key.
fn fault(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no line that ends it (-----END …-----)",
        pem::Error::IllegalSectionStart { .. } => {
            "a line that begins a section (-----BEGIN …-----) has more text in it"
        }
        pem::Error::Base64Decode(_) => "a section is not in base64",
        pem::Error::NoItemsFound => "it has no such section",
        pem::Error::SectionTooLarge => "a section is too large",
        pem::Error::Io(_) | _ => "it cannot be read as PEM",
    }
}

/// A subject alternative name of a certificate (RFC 5280, 4.2.1.6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateName {
    /// A DNS name.
    Dns(String),
    /// A URI.
    Uri(String),
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) | Self::Uri(name) => f.write_str(name),
        }
    }
}

/// The names of a certificate, URIs first. None, if it cannot be read.
pub fn names(certificate: &CertificateDer<'_>) -> Vec<CertificateName> {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    let dns = certificate.valid_dns_names().map(|name| CertificateName::Dns(name.to_owned()));
    let uris = certificate.valid_uri_names().map(|name| CertificateName::Uri(name.to_owned()));
    uris.chain(dns).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    const YEAR_2030: Duration = Duration::from_secs(1_893_456_000);

    /// A certificate that is valid until the beginning of this year, and its key, in PEM.
    pub(crate) fn certificate_until(year: i32) -> (String, String) {
        let mut params = CertificateParams::new(vec!["sidecar.test".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(year, 1, 1));
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    #[test]
    fn se_7_a_chain_of_which_a_certificate_has_expired_is_refused() {
        let [before, after] = [YEAR_2030 - Duration::from_secs(1), YEAR_2030 + Duration::from_secs(1)]
            .map(UnixTime::since_unix_epoch);
        let two = certificate_until(2030).0 + &certificate_until(2040).0;
        assert_eq!(chain("tls_cert", &two, before).unwrap().len(), 2);
        let refused = chain("tls_cert", &two, after).unwrap_err();
        assert_eq!(refused, "tls_cert: it has expired at 2030-01-01T00:00:00Z; renew it");
    }

    #[test]
    fn an_error_has_no_text_of_the_key() {
        let (_, pem) = certificate_until(2040);
        let body = pem.lines().nth(1).unwrap();
        let without_end: String = pem.lines().take(2).collect::<Vec<_>>().join("\n");
        for damaged in
            [pem.replace('\n', ""), pem.replace('\n', " "), without_end, pem.replace(body, "?secret?")]
        {
            let refused = key("tls_key", &damaged).unwrap_err();
            assert!(refused.starts_with("tls_key: a "), "{refused}");
            let bytes = format!("{:?}", body.as_bytes());
            for secret in [body, "secret", bytes.trim_matches(['[', ']'])] {
                assert!(!refused.contains(secret), "{refused}");
            }
        }
    }

    #[test]
    fn the_end_of_a_certificate_is_known_before_it_comes() {
        let chain = certificates("tls_cert", &certificate_until(2030).0).unwrap();
        let end = UnixTime::since_unix_epoch(YEAR_2030);
        let day = Duration::from_secs(86_400);
        assert_eq!(expires_before(&chain, UnixTime::since_unix_epoch(YEAR_2030 + day)), Some(end));
        assert_eq!(expires_before(&chain, UnixTime::since_unix_epoch(YEAR_2030 - day)), None);
        assert_eq!(expires_before(&[CertificateDer::from(vec![1, 2, 3])], end), None);
    }
}
