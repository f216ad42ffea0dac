//! The sidecar's address as clients of it are told: what is allowed, and how patient the connection is.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use tonic::Request;
use tonic::transport::Endpoint;

use crate::config::settings;

/// How long to try to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a silent connection is asked whether it is alive, and how long the answer may take: a sidecar that
/// hangs is to be noticed while somebody looks.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// A call with the sidecar's token, if the environment has one. There is no flag for it: others can read flags.
pub(super) fn authorized<T>(message: T) -> anyhow::Result<Request<T>> {
    let mut request = Request::new(message);
    if let Ok(token) = std::env::var(settings::TOKEN.env)
        && !token.is_empty()
    {
        let header = format!("Bearer {token}").parse();
        let header = header
            .with_context(|| format!("{}: it has characters that a header cannot", settings::TOKEN.env))?;
        request.metadata_mut().insert("authorization", header);
    }
    Ok(request)
}

pub(super) fn endpoint(text: &str) -> anyhow::Result<Endpoint> {
    let allowed = "allowed: `http://host:port` or `unix:///path`";
    if !text.starts_with("http://") && !text.starts_with("unix:") {
        return Err(anyhow!("--endpoint = `{}`: {allowed}", text.escape_debug()));
    }
    let endpoint = Endpoint::from_shared(text.to_owned())
        .with_context(|| format!("--endpoint = `{}`: {allowed}", text.escape_debug()))?;
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true))
}
