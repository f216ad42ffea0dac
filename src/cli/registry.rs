//! ZooKeeper itself, for commands that need no sidecar: a session of the command's own. It registers nothing, and ends with the command.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use tonic::Status;

use super::endpoint::{exit_code, refusal};
use super::{FAILED, Failure, TRY_AGAIN, USAGE, printable};
use crate::config::settings::{self, Setting};
use crate::config::{ConfigError, Flags, GivenSetting, Sources, load};
use crate::credential_file::CertificateEnd;
use crate::registry::{self, Session};
use crate::runner::admin::Namespace;
use crate::runner::clock::Clock;
use crate::sidecar::open_registry;
use crate::tree::{Error, Path};

/// The settings of `serve` that the environment may give: the credentials for ZooKeeper, and the timeouts.
const FROM_ENVIRONMENT: [&Setting; 13] = [
    &settings::NAMESPACE,
    &settings::DIGEST,
    &settings::DIGEST_FILE,
    &settings::ZOOKEEPER_SASL_FILE,
    &settings::ZOOKEEPER_KERBEROS,
    &settings::ZOOKEEPER_CA,
    &settings::ZOOKEEPER_CRL,
    &settings::ZOOKEEPER_CERT,
    &settings::ZOOKEEPER_KEY,
    &settings::ZOOKEEPER_ACL,
    &settings::SESSION_TIMEOUT,
    &settings::CONNECTION_TIMEOUT,
    &settings::REQUEST_TIMEOUT,
];

/// Which registry.
#[derive(Args)]
pub(super) struct RegistryArgs {
    /// Ask ZooKeeper instead of a sidecar: `host:port,host:port`, with `/chroot` at the end if there is one. The variables of `serve` for
    /// credentials count, such as SIDEKEEPER_DIGEST_FILE.
    #[arg(long, value_name = "SERVERS", conflicts_with_all = ["endpoint", "ca", "cert", "key"])]
    zookeeper: Option<String>,
    /// With `--zookeeper`: the namespace of the job. [default: sidekeeper] [env: SIDEKEEPER_NAMESPACE]
    #[arg(long, value_name = "NAME", requires = "zookeeper")]
    namespace: Option<String>,
    /// With `--zookeeper`: a TOML file of settings, as of `serve`.
    #[arg(long, value_name = "FILE", requires = "zookeeper", value_hint = clap::ValueHint::FilePath)]
    config: Option<PathBuf>,
}

/// A session with a registry.
pub(super) struct Registry {
    pub(super) session: Arc<dyn Session>,
    /// The registry itself.
    pub(super) registry: Arc<dyn registry::Registry>,
    /// The timeout that the command has asked for.
    pub(super) session_timeout: Duration,
    /// The settings of the command.
    pub(super) settings: Vec<GivenSetting>,
    namespace: Path,
    clock: Clock,
}

impl Registry {
    /// The namespace, on this session.
    pub(super) fn namespace(&self) -> Namespace<'_> {
        Namespace { session: &self.session, root: &self.namespace, clock: &self.clock }
    }
}

impl RegistryArgs {
    /// As [`Self::open`], if the command is given with the flag that this needs.
    pub(super) async fn open_if(&self, given: bool, flag: &str) -> Result<Option<Registry>, Failure> {
        if self.zookeeper.is_some() && !given {
            let error = anyhow!("--zookeeper needs {flag}: without a sidecar there is no application");
            return Err(Failure { code: USAGE, error });
        }
        self.open().await
    }

    /// Opens a session. `None`: a sidecar is to be asked.
    pub(super) async fn open(&self) -> Result<Option<Registry>, Failure> {
        let Some(servers) = &self.zookeeper else { return Ok(None) };
        // Nothing is registered, so no address has to be found.
        let mut flags = Flags::from([
            (settings::ZOOKEEPER.key, vec![servers.clone()]),
            (settings::INSTANCE_IP.key, vec!["127.0.0.1".to_owned()]),
        ]);
        if let Some(namespace) = &self.namespace {
            flags.insert(settings::NAMESPACE.key, vec![namespace.clone()]);
        }
        let environment = |name: &str| {
            let is_ours = FROM_ENVIRONMENT.iter().any(|setting| setting.env == name);
            is_ours.then(|| std::env::var_os(name)).flatten()
        };
        let sources =
            Sources { flags, file: self.config.clone(), environment: &environment, default_listen: None };
        let loaded =
            load(&sources).map_err(|error: ConfigError| Failure { code: USAGE, error: error.into() })?;
        let config = loaded.config;
        let namespace = Path::parse(&format!("/{}", config.namespace)).context("namespace")?;
        let clock = Clock::start();
        let registry = open_registry(&config, &clock, &CertificateEnd::default()).await?;
        let session = registry.open().await.map_err(|error| {
            let may_help = matches!(error, Error::Unreachable(_) | Error::ReadOnly(_));
            let code = if may_help { TRY_AGAIN } else { FAILED };
            Failure { code, error: anyhow!("no session with ZooKeeper: {}", printable(&error.to_string())) }
        })?;
        let (session_timeout, settings) = (config.session_timeout, config.given);
        Ok(Some(Registry { session, registry, session_timeout, settings, namespace, clock }))
    }
}

/// Why a command failed, from the status that a sidecar would have answered.
pub(super) fn failed(status: &Status) -> Failure {
    Failure { code: exit_code(status), error: anyhow!(refusal(status)) }
}
