//! Kerberos (SASL GSSAPI): the service that ZooKeeper's servers are, and a ticket for it. Only builds with the feature `kerberos` have
//! this, because it links the machine's Kerberos library.
//!
//! The user's ticket is in the cache of the process (`KRB5CCNAME`), where `kinit` or `k5start` put it. The ticket for the service is
//! gained here, before the client library needs it: the library would ask for it on a thread of the runtime, and without a ticket it
//! would connect again and again without a pause. The answer stays in the cache, where the library finds it.
//!
//! The library also wants to forward the user's ticket, for which it asks the KDC at each connection. So the same is tried here first: a
//! KDC that does not answer must not hold up a thread of the runtime, which has two.

use std::time::Duration;

use libgssapi::context::{ClientCtx, CtxFlags, SecurityContext};
use libgssapi::credential::{Cred, CredUsage};
use libgssapi::error::Error;
use libgssapi::name::Name;
use libgssapi::oid::{GSS_MECH_KRB5, GSS_NT_HOSTBASED_SERVICE, OidSet};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use zookeeper_client as zk;

/// The service of ZooKeeper's servers: `NAME`, whose host is the server's in the list, or `NAME/HOST` for all servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    name: String,
    host: Option<String>,
}

impl Service {
    /// Reads `NAME` or `NAME/HOST`.
    ///
    /// # Errors
    ///
    /// The text is no such name.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, host) = match text.split_once('/') {
            None => (text, None),
            Some((name, host)) => (name, Some(host)),
        };
        let is_part = |part: &str| {
            let is_good = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
            !part.is_empty() && part.chars().all(is_good)
        };
        if !is_part(name) || host.is_some_and(|host| !is_part(host)) {
            return Err(
                "allowed: the servers' service like `zookeeper`, or `zookeeper/HOST` if they share one"
                    .to_owned(),
            );
        }
        Ok(Self { name: name.to_owned(), host: host.map(str::to_owned) })
    }

    fn host<'a>(&'a self, server: &'a str) -> &'a str {
        self.host.as_deref().unwrap_or(server)
    }

    /// Puts a ticket for the service of a server into the cache. Fails if there is none within the limit.
    pub(super) async fn gain_ticket(&self, server: &str, limit: Duration) -> Result<(), String> {
        let service = format!("{}@{}", self.name, self.host(server));
        let target = service.clone();
        let failed = |reason: String| format!("Kerberos gives no ticket for `{service}`: {reason}");
        // The library cannot be interrupted. Its own limits end a call that outlives this one.
        match timeout(limit, spawn_blocking(move || gained(&target))).await {
            Ok(Ok(Ok(Forwarded::No))) => Ok(()),
            Ok(Ok(Ok(Forwarded::Yes))) => Err(failed(
                "the user's ticket is forwardable, so the servers would get it; take one that is not, with `kinit -F`".to_owned(),
            )),
            Ok(Ok(Err(error))) => Err(failed(error.to_string().split_whitespace().collect::<Vec<_>>().join(" "))),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed(format!("no answer within {limit:?}; look whether this machine reaches the realm's KDC"))),
        }
    }

    /// The options of the client library for a server.
    pub(super) fn sasl(&self, server: &str) -> zk::SaslOptions {
        zk::SaslOptions::gssapi()
            .with_username(self.name.clone())
            .with_hostname(self.host(server).to_owned())
            .into()
    }
}

/// Whether the server would get the user's own ticket: the client library forwards it whenever Kerberos lets it.
enum Forwarded {
    Yes,
    No,
}

fn gained(service: &str) -> Result<Forwarded, Error> {
    let name = Name::new(service.as_bytes(), Some(&GSS_NT_HOSTBASED_SERVICE))?;
    let mut mechanisms = OidSet::new()?;
    mechanisms.add(&GSS_MECH_KRB5)?;
    let user = Cred::acquire(None, None, CredUsage::Initiate, Some(&mechanisms))?;
    let mut context = ClientCtx::new(Some(user), name, CtxFlags::GSS_C_DELEG_FLAG, Some(&GSS_MECH_KRB5));
    context.step(None, None)?;
    let forwards = context.flags()?.contains(CtxFlags::GSS_C_DELEG_FLAG);
    Ok(if forwards { Forwarded::Yes } else { Forwarded::No })
}
