//! TLS to ZooKeeper's servers: what is read from PEM files, checked, and given to the client library, and a handshake of our own for
//! the question whether a server serves ([`super::look`]).
//!
//! There are no roots but those of the file, and no way to leave out a check of a server's certificate or name.

use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::ClientConfig;
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use zookeeper_client as zk;

use crate::{crypto, pem};

/// The texts of PEM files.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pem {
    /// The certificates of authorities that sign servers' certificates.
    pub(super) ca: String,
    /// The revocation lists of these authorities.
    pub(super) crl: Option<String>,
    /// The certificate that we show, its chain, and its key.
    pub(super) identity: Option<(String, String)>,
}

/// Checked, and ready for connections.
#[derive(Clone)]
pub(super) struct Tls {
    /// The certificates that we show.
    chain: Vec<CertificateDer<'static>>,
    /// When the first of them expires.
    end: Option<Timestamp>,
    config: Arc<ClientConfig>,
    options: zk::TlsOptions,
}

impl Tls {
    /// Fails if a certificate, a list or a key cannot be used, or if the key is not the certificate's. The error has no text of a
    /// file.
    pub(super) fn new(texts: &Pem) -> Result<Self, String> {
        let roots = pem::authorities("zookeeper_ca", &texts.ca)?;
        let lists = match &texts.crl {
            Some(crl) => pem::revocation_lists("zookeeper_crl", crl)?,
            None => Vec::new(),
        };
        let provider = crypto::provider();
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .with_crls(lists)
            // A list that nobody renews says nothing about what was revoked since.
            .enforce_revocation_expiration()
            .build()
            .map_err(|error| format!("zookeeper_crl: {error}"))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS: {error}"))?
            .with_webpki_verifier(verifier);
        let mut chain = Vec::new();
        let config = match &texts.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                // Servers decide about one that has expired: some ask for none.
                chain = pem::certificates("zookeeper_cert", certificate)?;
                let key = pem::key("zookeeper_key", key)?;
                builder
                    .with_client_auth_cert(chain.clone(), key)
                    .map_err(|error| format!("zookeeper_cert and zookeeper_key: {error}"))?
            }
        };
        let options = options(texts).map_err(|error| format!("TLS: {error}"))?;
        Ok(Self { end: pem::end(&chain), chain, config: Arc::new(config), options })
    }

    /// When the first certificate that we show expires. `None`: we show none.
    pub(super) fn end(&self) -> Option<Timestamp> {
        self.end
    }

    /// When the first certificate that we show expires, if that is before this moment.
    pub(super) fn expires_before(&self, moment: UnixTime) -> Option<UnixTime> {
        pem::expires_before(&self.chain, moment)
    }

    /// The same for the client library.
    pub(super) fn options(&self) -> zk::TlsOptions {
        self.options.clone()
    }

    /// Shakes hands with a server of this name.
    pub(super) async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(Arc::clone(&self.config)).connect(name, stream).await
    }
}

/// Whether a certificate can be for this host. The client library panics for others.
pub(super) fn is_name(host: &str) -> bool {
    ServerName::try_from(host).is_ok()
}

/// Why a handshake failed for good: a certificate was refused, by us or by the server. `None`: another connection may succeed.
#[expect(clippy::wildcard_enum_match_arm, reason = "whatever else goes wrong may go well the next time")]
pub(super) fn refusal(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    match error {
        rustls::Error::InvalidCertificate(_) | rustls::Error::InvalidCertRevocationList(_) => {
            Some(format!("the server's certificate is refused: {error}"))
        }
        rustls::Error::AlertReceived(alert) => Some(format!("the server ends the handshake: {alert:?}")),
        rustls::Error::PeerIncompatible(_) => Some(format!("the server's TLS cannot be used: {error}")),
        _ => None,
    }
}

fn options(pem: &Pem) -> Result<zk::TlsOptions, zk::Error> {
    let ca = format!("{}\n{}", pem.ca, pem.crl.as_deref().unwrap_or_default());
    let options = zk::TlsOptions::new().with_pem_ca(&ca)?;
    match &pem.identity {
        None => Ok(options),
        Some((certificate, key)) => options.with_pem_identity(certificate, key),
    }
}
