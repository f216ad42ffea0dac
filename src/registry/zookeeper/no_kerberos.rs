//! The interface of `kerberos.rs`, for builds without the feature `kerberos`: there is no service, so nothing can be done with it.

use std::convert::Infallible;
use std::time::Duration;

use zookeeper_client as zk;

/// The service of ZooKeeper's servers. This build has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service(Infallible);

impl Service {
    /// Refuses every text.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn parse(_: &str) -> Result<Self, String> {
        Err("this sidecar was built without Kerberos; take one that was built with `--features kerberos`"
            .to_owned())
    }

    #[expect(clippy::unused_async, reason = "as in builds with Kerberos")]
    pub(super) async fn gain_ticket(&self, _: &str, _: Duration) -> Result<(), String> {
        match self.0 {}
    }

    pub(super) fn sasl(&self, _: &str) -> zk::SaslOptions {
        match self.0 {}
    }
}
