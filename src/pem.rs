//! Content of PEM files of TLS: authorities, chains of certificates, keys; and the names in a certificate. Pure.
//!
//! Errors name the setting of the file, and have no text of it.

use std::fmt;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use webpki::EndEntityCert;

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
    let chain = chain.map_err(|error| format!("{setting}: {error}"))?;
    if chain.is_empty() {
        return Err(format!("{setting}: it has no certificate in PEM"));
    }
    Ok(chain)
}

/// The key of a file.
pub fn key(setting: &str, pem: &str) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes())
        .map_err(|error| format!("{setting}: {error}; allowed: PEM without a password"))
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
