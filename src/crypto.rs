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
