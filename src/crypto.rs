//! The one provider of cryptography of this process.
//!
//! A library that makes a TLS handshake without naming a provider gets the process's default. If no default is installed and a second
//! provider is compiled in, the handshake panics. So the provider is installed before the first handshake. `deny.toml` keeps the second one out.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// Installs the provider, if that has not happened yet.
pub fn install() {
    // Fails if it is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// The provider, installed.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    install();
    CryptoProvider::get_default()
        .map_or_else(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()), Arc::clone)
}

#[cfg(test)]
mod tests {
    use rustls::{ClientConfig, RootCertStore};

    use super::*;

    /// A library that names no provider panics if two are compiled in and none is installed.
    #[test]
    fn se_6_a_configuration_that_names_no_provider_gets_ours() {
        install();
        // With one provider alone, the library would take it by itself at the next line.
        assert!(CryptoProvider::get_default().is_some(), "it is installed");
        let config =
            ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let suites = |provider: &CryptoProvider| {
            provider.cipher_suites.iter().map(|suite| suite.suite()).collect::<Vec<_>>()
        };
        assert_eq!(suites(config.crypto_provider()), suites(&rustls::crypto::aws_lc_rs::default_provider()));
        assert!(Arc::ptr_eq(config.crypto_provider(), &provider()), "one for the whole process");
    }
}
