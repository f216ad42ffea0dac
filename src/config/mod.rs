//! The configuration: every setting with its type, unit, default and reason. Shell: reads a file and the
//! environment.
//!
//! There are four sources; the first that has a setting wins: flags, environment, file, default. All settings
//! are checked, and all errors are reported at once. Nothing is bound, opened or created here.

mod access;
mod certificates;
mod names;
mod rights;
mod roles;
pub mod settings;
mod source;
mod types;
mod value;

use std::ffi::OsString;
use std::fmt;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

pub use self::certificates::AllowedCertificate;
pub use self::names::Names;
pub use self::rights::Rights;
pub use self::roles::{Role, Roles};
use self::settings::Setting;
pub use self::source::{FILE_VARIABLE, Flags, GivenSetting, Problem, Sources};
use self::source::{File, Given, Origin};
use self::types::{Access, MASK};
pub use self::types::{Allowed, Listen, ListenAddress, LogFormat, Secret, ServerFiles, UnixAddress, Who};
pub use self::value::DRAIN_TIMEOUT_MAX;
use crate::registry::zookeeper::{Acl, CredentialFiles, Service};
use crate::runtime_folder;
use crate::tree::Path;

/// The loopback address of a sidecar that nobody has configured.
const DEFAULT_ADDRESS: &str = "127.0.0.1:7070";

/// The checked settings of a sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The addresses to serve on, at least one. Default: `127.0.0.1:7070`, and a socket in the user's runtime folder. Other
    /// machines can reach those with TLS only.
    pub listen: Vec<Listen>,
    /// The files of TLS. Set if an address has TLS.
    pub tls: Option<ServerFiles>,
    /// The certificates whose callers are served. Default: none.
    pub tls_allow: Vec<AllowedCertificate>,
    /// The users that are served. Default: the sidecar's own, and root.
    pub allow: Vec<Allowed>,
    /// The jobs, locks and elections that callers may use. Default: all.
    pub jobs_allowed: Names,
    /// The token of callers. Default: none.
    pub token: Option<Secret>,
    /// The file of the callers' tokens; never set together with `token`. Default: none.
    pub token_file: Option<PathBuf>,
    /// The ZooKeeper connect string. Default: none, which means the embedded registry.
    pub zookeeper: Option<String>,
    /// The namespace without a leading `/`, valid node names joined by `/`. Default: `sidekeeper`.
    pub namespace: String,
    /// The user and password for ZooKeeper. Default: none.
    pub digest: Option<Secret>,
    /// Files with other credentials for ZooKeeper. Default: none.
    pub credential_files: CredentialFiles,
    /// The access list of the nodes that the sidecar creates. Default: the one that ElasticJob gives them.
    pub zookeeper_acl: Acl,
    /// The folder of the embedded registry's nodes; never set together with `zookeeper`. Default: in memory
    /// only.
    pub data_dir: Option<PathBuf>,
    /// The folder in which the ZooKeeper session is kept for the next process. Default: none.
    pub state_dir: Option<PathBuf>,
    /// The root of the locks with names. Default: `None`, a root beside the namespace.
    pub lock_root: Option<Path>,
    /// The folder of job configurations. Default: none.
    pub jobs_dir: Option<PathBuf>,
    /// The server's address in instance ids, by which ElasticJob distinguishes servers. Default: that of the
    /// first interface that is up and not loopback, else 127.0.0.1.
    pub instance_ip: Ipv4Addr,
    /// The session timeout that the sidecar requests from the registry. Default: 7 s: items of a crashed machine
    /// are executed elsewhere within ten seconds. `docs/reliability.md` says what the session survives.
    pub session_timeout: Duration,
    /// The safety margin at the end of the session's lease. `None`: the default, which depends on the
    /// timeout.
    pub lease_margin: Option<Duration>,
    /// How long to look for a server that serves, and to try it. Default: 5 s.
    pub connection_timeout: Duration,
    /// How long to wait for the registry's answer. Default: 10 s. The lease may end before.
    pub request_timeout: Duration,
    /// How long executions may go on when the sidecar is stopped. Default: 25 s, below the 30 s that
    /// Kubernetes grants by default.
    pub drain_timeout: Duration,
    /// How long an application may leave its stream unread. Default: 10 s.
    pub slow_application_timeout: Duration,
    /// How long an application may be silent before its connection is closed.
    pub silent_application_timeout: Duration,
    /// The log filter, in the syntax of `tracing_subscriber::EnvFilter`. Default: `info`.
    pub log_level: String,
    /// The log format. Default: [`LogFormat::Auto`].
    pub log_format: LogFormat,
    /// The collector of traces, `http://host:port`. Default: none.
    pub otlp_endpoint: Option<String>,
    /// The address of the dump command. Default: none. Loopback, unless `dump_access` allows others.
    pub dump_listen: Option<SocketAddr>,
    /// The address of probes and metrics. Default: none. Loopback, unless `http_access` allows others.
    pub http_listen: Option<SocketAddr>,
    /// Further names of this machine in requests for probes and metrics. Default: none.
    pub http_hosts: Vec<String>,
    /// How many jobs have metrics of their own. Default: 200.
    pub metrics_jobs: usize,
    /// The settings as their authors wrote them, for operators.
    pub given: Vec<GivenSetting>,
}

/// A configuration and the sources of its values.
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    given: Vec<(&'static Setting, Given)>,
}

impl fmt::Debug for Loaded {
    /// Omits the given texts, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("config", &self.config).finish_non_exhaustive()
    }
}

/// All errors of a configuration; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The errors, in the order of the settings.
    pub problems: Vec<Problem>,
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [problem] = self.problems.as_slice() {
            return write!(f, "the configuration is wrong: {problem}");
        }
        write!(f, "the configuration has {} problems:", self.problems.len())?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

/// Reads a drain timeout in the setting's form. The error names the mistake and the allowed values.
pub fn drain_timeout(text: &str) -> Result<Duration, String> {
    value::duration(text, &value::DRAIN)
}

/// Reads for how long a log filter counts, in the settings' form. The error names the mistake and the allowed values.
pub fn log_filter_time(text: &str) -> Result<Duration, String> {
    value::duration(text, &value::LOG_FILTER)
}

/// Reads for how long something is disabled, in the settings' form. The error names the mistake and the allowed values.
pub fn disabled_time(text: &str) -> Result<Duration, String> {
    value::duration(text, &value::DISABLED)
}

/// Reads for how long a command checks again, in the settings' form. The error names the mistake and the allowed values.
pub fn wait_time(text: &str) -> Result<Duration, String> {
    value::duration(text, &value::ANSWER)
}

/// Reads a time limit of a lock in the settings' form. The error names the mistake and the allowed values.
pub fn lock_timeout(text: &str) -> Result<Duration, String> {
    value::duration(text, &value::LOCK)
}

/// Makes a configuration, or reports all errors.
pub fn load(sources: &Sources<'_>) -> Result<Loaded, ConfigError> {
    let mut problems = Vec::new();
    let file = sources.read_file(&mut problems);
    let mut reader = Reader { sources, file, problems, given: Vec::new() };
    match reader.read() {
        Ok(mut config) if reader.problems.is_empty() => {
            config.given = reader.given.iter().map(|(setting, given)| given.shown(setting)).collect();
            Ok(Loaded { config, given: reader.given })
        }
        Ok(_) | Err(Reported) => Err(ConfigError { problems: reader.problems }),
    }
}

impl Loaded {
    /// Whether no source sets the addresses to serve on.
    pub fn listens_by_default(&self) -> bool {
        self.given.iter().any(|(setting, given)| setting.key == "listen" && given.origin == Origin::Default)
    }

    /// The configuration as a file that gives the same configuration, except for secrets; each value with its
    /// origin.
    pub fn to_toml(&self) -> String {
        let mut lines = String::new();
        for (setting, given) in &self.given {
            let origin = match (&given.origin, setting.default) {
                (Origin::Default, settings::Default::Detected(how)) => format!("default: {how}"),
                (Origin::Default, _) => "default".to_owned(),
                (Origin::File(path), _) => path.display().to_string(),
                (origin @ (Origin::Flag | Origin::Environment), _) => origin.name(setting),
            };
            let quoted = |text: &String| {
                toml::Value::String(if setting.secret { MASK.to_owned() } else { text.clone() })
            };
            // Writing to a string cannot fail.
            let _ = match given.texts.as_slice() {
                [] => writeln!(lines, "# {} is not set: {}", setting.key, setting.default.in_words()),
                texts if setting.list => {
                    let array = toml::Value::Array(texts.iter().map(quoted).collect());
                    writeln!(lines, "{} = {array} # {origin}", setting.key)
                }
                [text, ..] => writeln!(lines, "{} = {} # {origin}", setting.key, quoted(text)),
            };
        }
        lines
    }
}

/// A setting is wrong. The reader has recorded the error.
struct Reported;

struct Reader<'a> {
    sources: &'a Sources<'a>,
    file: File,
    problems: Vec<Problem>,
    given: Vec<(&'static Setting, Given)>,
}

impl Reader<'_> {
    fn read(&mut self) -> Result<Config, Reported> {
        // All settings are read before the result, so that all errors are found.
        let mut listen = self.list(&settings::LISTEN, access::listen);
        let is_detected = |(setting, given): &(&Setting, Given)| {
            setting.key == settings::LISTEN.key && given.origin == Origin::Default
        };
        if self.sources.default_listen.is_none()
            && self.given.iter().any(is_detected)
            && let Ok(listen) = &mut listen
        {
            listen.iter_mut().for_each(|listen| listen.optional = true);
        }
        let tls = self.server_files();
        let tls_allow = self.list(&settings::TLS_ALLOW, AllowedCertificate::parse);
        let allow = self.list(&settings::ALLOW, access::allow);
        let jobs_allowed =
            self.list(&settings::JOBS_ALLOWED, Names::parse).map(|several| Names::any_of(&several));
        let token = self.optional(&settings::TOKEN, Secret::token);
        let token_file = self.optional(&settings::TOKEN_FILE, value::file);
        let zookeeper = self.optional(&settings::ZOOKEEPER, value::zookeeper);
        let namespace = self.required(&settings::NAMESPACE, value::namespace);
        let digest = self.optional(&settings::DIGEST, value::digest);
        let credential_files = self.credential_files();
        let zookeeper_acl = self.zookeeper_acl();
        let data_dir = self.optional(&settings::DATA_DIR, value::directory);
        let state_dir = self.optional(&settings::STATE_DIR, value::directory);
        let lock_root = self.optional(&settings::LOCK_ROOT, value::lock_root);
        let jobs_dir = self.optional(&settings::JOBS_DIR, value::directory);
        let instance_ip = self.required(&settings::INSTANCE_IP, value::instance_ip);
        let session_timeout = self.duration(&settings::SESSION_TIMEOUT, &value::SESSION);
        let lease_margin =
            self.optional(&settings::LEASE_MARGIN, |text| value::duration(text, &value::MARGIN));
        let connection_timeout = self.duration(&settings::CONNECTION_TIMEOUT, &value::CONNECTION);
        let request_timeout = self.duration(&settings::REQUEST_TIMEOUT, &value::ANSWER);
        let drain_timeout = self.duration(&settings::DRAIN_TIMEOUT, &value::DRAIN);
        let slow_application_timeout = self.duration(&settings::SLOW_APPLICATION_TIMEOUT, &value::ANSWER);
        let silent_application_timeout =
            self.duration(&settings::SILENT_APPLICATION_TIMEOUT, &value::SILENCE);
        let log_level = self.required(&settings::LOG_LEVEL, value::log_level);
        let log_format = self.required(&settings::LOG_FORMAT, value::log_format);
        let otlp_endpoint = self.optional(&settings::OTLP_ENDPOINT, value::otlp_endpoint);
        let dump_listen = self.optional(&settings::DUMP_LISTEN, value::open_port).map(Option::flatten);
        let dump_access = self.required(&settings::DUMP_ACCESS, value::open_access);
        let http_listen = self.optional(&settings::HTTP_LISTEN, value::open_port).map(Option::flatten);
        let http_access = self.required(&settings::HTTP_ACCESS, value::open_access);
        let http_hosts = self.list(&settings::HTTP_HOSTS, value::host);
        let metrics_jobs = self.required(&settings::METRICS_JOBS, value::metrics_jobs);
        if let Ok(listen) = &listen {
            self.check_tls(listen);
        }
        self.check_one_registry();
        self.check_one_of(&settings::TOKEN, &settings::TOKEN_FILE);
        self.check_one_of(&settings::DIGEST, &settings::DIGEST_FILE);
        if let (Ok(namespace), Ok(Some(root))) = (&namespace, &lock_root) {
            self.check_lock_root(namespace, root);
        }
        if let (Ok(Some(address)), Ok(access)) = (&dump_listen, &dump_access) {
            let settings = (&settings::DUMP_LISTEN, &settings::DUMP_ACCESS);
            self.check_open_port("the dump command", settings, *address, *access);
        }
        if let (Ok(Some(address)), Ok(access)) = (&http_listen, &http_access) {
            let settings = (&settings::HTTP_LISTEN, &settings::HTTP_ACCESS);
            self.check_open_port("the port for probes", settings, *address, *access);
        }
        Ok(Config {
            listen: listen?,
            tls: tls?,
            tls_allow: tls_allow?,
            allow: allow?,
            jobs_allowed: jobs_allowed?,
            token: token?,
            token_file: token_file?,
            zookeeper: zookeeper?,
            namespace: namespace?,
            digest: digest?,
            credential_files: credential_files?,
            zookeeper_acl: zookeeper_acl?,
            data_dir: data_dir?,
            state_dir: state_dir?,
            lock_root: lock_root?,
            jobs_dir: jobs_dir?,
            instance_ip: instance_ip?,
            session_timeout: session_timeout?,
            lease_margin: lease_margin?,
            connection_timeout: connection_timeout?,
            request_timeout: request_timeout?,
            drain_timeout: drain_timeout?,
            slow_application_timeout: slow_application_timeout?,
            silent_application_timeout: silent_application_timeout?,
            log_level: log_level?,
            log_format: log_format?,
            otlp_endpoint: otlp_endpoint?,
            dump_listen: dump_listen?,
            http_listen: http_listen?,
            http_hosts: http_hosts?,
            metrics_jobs: metrics_jobs?,
            given: Vec::new(),
        })
    }

    /// Reads each text of a setting.
    fn list<T>(
        &mut self,
        setting: &'static Setting,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Vec<T>, Reported> {
        let mut given = self.sources.find(setting, &self.file, &mut self.problems);
        let is_open = given.origin == Origin::Default && given.texts.is_empty();
        if is_open && matches!(setting.default, settings::Default::Detected(_)) {
            given.texts = match setting.key {
                key if key == settings::LISTEN.key => detect_listen(self.sources.environment),
                _ => vec![detect_instance_ip().to_string()],
            };
        }
        let mut values = Vec::new();
        for text in &given.texts {
            match parse(text) {
                Ok(value) => values.push(value),
                Err(reason) => self.problems.push(Problem {
                    what: given.origin.name(setting),
                    given: Some(if setting.secret { MASK.to_owned() } else { text.clone() }),
                    reason,
                }),
            }
        }
        if given.texts.is_empty() && setting.list && given.origin != Origin::Default {
            let reason = "it is empty; allowed: at least one value".to_owned();
            self.problems.push(Problem { what: given.origin.name(setting), given: None, reason });
        }
        let complete = values.len() == given.texts.len();
        self.given.push((setting, given));
        if complete { Ok(values) } else { Err(Reported) }
    }

    fn optional<T>(
        &mut self,
        setting: &'static Setting,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Reported> {
        self.list(setting, parse).map(|values| values.into_iter().next())
    }

    fn required<T>(
        &mut self,
        setting: &'static Setting,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, Reported> {
        self.optional(setting, parse)?.ok_or(Reported)
    }

    fn duration(&mut self, setting: &'static Setting, range: &value::Range) -> Result<Duration, Reported> {
        self.required(setting, |text| value::duration(text, range))
    }

    /// The user's name for a setting in its source.
    fn origin_of(&self, setting: &Setting) -> Option<String> {
        let (_, given) = self.given.iter().find(|(known, _)| known.key == setting.key)?;
        (!given.texts.is_empty()).then(|| given.origin.name(setting))
    }

    /// A port without authentication answers every caller, so other machines may reach it only after two decisions.
    fn check_open_port(
        &mut self,
        what: &str,
        (listen, open): (&'static Setting, &'static Setting),
        address: SocketAddr,
        access: Access,
    ) {
        if address.ip().is_loopback() || access == Access::Anybody {
            return;
        }
        let reason = format!(
            "other machines can reach this address, and {what} has neither TLS nor authentication; \
             allowed: a loopback address like `127.0.0.1:{}`, or set {} to `anybody` as well",
            address.port(),
            open.key
        );
        let what = self.origin_of(listen).unwrap_or_default();
        self.problems.push(Problem { what, given: Some(address.to_string()), reason });
    }

    /// Java instances take every node in the namespace for a job.
    fn check_lock_root(&mut self, namespace: &str, root: &Path) {
        let is_inside =
            Path::parse(&format!("/{namespace}")).is_ok_and(|namespace| root.is_within(&namespace));
        if is_inside {
            let reason = format!(
                "it is in the namespace `{namespace}`, whose nodes are jobs; allowed: a path beside it"
            );
            let what = self.origin_of(&settings::LOCK_ROOT).unwrap_or_default();
            self.problems.push(Problem { what, given: Some(root.to_string()), reason });
        }
    }

    /// Nobody would know which of two is in force.
    fn check_one_of(&mut self, one: &'static Setting, file: &'static Setting) {
        if let (Some(one), Some(what)) = (self.origin_of(one), self.origin_of(file)) {
            let reason = format!("{one} is set, too; allowed: one of the two");
            self.problems.push(Problem { what, given: None, reason });
        }
    }

    fn server_files(&mut self) -> Result<Option<ServerFiles>, Reported> {
        let cert = self.optional(&settings::TLS_CERT, value::file);
        let key = self.optional(&settings::TLS_KEY, value::file);
        let client_ca = self.optional(&settings::TLS_CLIENT_CA, value::file);
        let client_crl = self.optional(&settings::TLS_CLIENT_CRL, value::file);
        Ok(match (cert?, key?, client_ca?) {
            (Some(cert), Some(key), Some(client_ca)) => {
                Some(ServerFiles { cert, key, client_ca, client_crl: client_crl? })
            }
            _ => None,
        })
    }

    /// An address with TLS needs these settings, all but one. Without such an address they would have no effect.
    fn check_tls(&mut self, listen: &[Listen]) {
        let has_tls = listen.iter().any(|listen| matches!(listen.address, ListenAddress::Tls(_)));
        for (setting, is_needed) in [
            (&settings::TLS_CERT, true),
            (&settings::TLS_KEY, true),
            (&settings::TLS_CLIENT_CA, true),
            (&settings::TLS_CLIENT_CRL, false),
            (&settings::TLS_ALLOW, true),
        ] {
            let (what, reason) = match (has_tls, self.origin_of(setting)) {
                (true, None) if is_needed => (
                    self.origin_of(&settings::LISTEN).unwrap_or_default(),
                    format!("an address with `https://` needs `{}` beside it", setting.key),
                ),
                (false, Some(what)) => (
                    what,
                    "it is for addresses with TLS, and `listen` has none; allowed: one like `https://10.0.0.7:7443`"
                        .to_owned(),
                ),
                (true, None | Some(_)) | (false, None) => continue,
            };
            self.problems.push(Problem { what, given: None, reason });
        }
    }

    fn credential_files(&mut self) -> Result<CredentialFiles, Reported> {
        let digest = self.optional(&settings::DIGEST_FILE, value::file);
        let sasl = self.optional(&settings::ZOOKEEPER_SASL_FILE, value::file);
        let kerberos = self.optional(&settings::ZOOKEEPER_KERBEROS, Service::parse);
        self.check_one_of(&settings::ZOOKEEPER_SASL_FILE, &settings::ZOOKEEPER_KERBEROS);
        let ca = self.optional(&settings::ZOOKEEPER_CA, value::file);
        let crl = self.optional(&settings::ZOOKEEPER_CRL, value::file);
        let cert = self.optional(&settings::ZOOKEEPER_CERT, value::file);
        let key = self.optional(&settings::ZOOKEEPER_KEY, value::file);
        // Without the authorities nothing would be encrypted, and the rest would have no effect.
        for (setting, needed) in [
            (&settings::ZOOKEEPER_CRL, &settings::ZOOKEEPER_CA),
            (&settings::ZOOKEEPER_CERT, &settings::ZOOKEEPER_CA),
            (&settings::ZOOKEEPER_CERT, &settings::ZOOKEEPER_KEY),
            (&settings::ZOOKEEPER_KEY, &settings::ZOOKEEPER_CERT),
        ] {
            if let (Some(what), None) = (self.origin_of(setting), self.origin_of(needed)) {
                let reason = format!("it needs `{}` beside it", needed.key);
                self.problems.push(Problem { what, given: None, reason });
            }
        }
        Ok(CredentialFiles {
            digest: digest?,
            sasl: sasl?,
            kerberos: kerberos?,
            ca: ca?,
            crl: crl?,
            cert: cert?,
            key: key?,
        })
    }

    fn zookeeper_acl(&mut self) -> Result<Acl, Reported> {
        let given = self.list(&settings::ZOOKEEPER_ACL, Acl::parse)?;
        Acl::join(given).map_err(|reason| {
            let what = self.origin_of(&settings::ZOOKEEPER_ACL).unwrap_or_default();
            self.problems.push(Problem { what, given: None, reason });
            Reported
        })
    }

    /// A data directory without effect would look like lost data.
    fn check_one_registry(&mut self) {
        let (zookeeper, data_dir) =
            (self.origin_of(&settings::ZOOKEEPER), self.origin_of(&settings::DATA_DIR));
        if let (Some(zookeeper), Some(what)) = (zookeeper, data_dir) {
            let reason = format!(
                "only the embedded registry has a data directory, and {zookeeper} is set; allowed: one of the two"
            );
            self.problems.push(Problem { what, given: None, reason });
        }
    }
}

/// The addresses of a sidecar that nobody has configured.
fn detect_listen(environment: &dyn Fn(&str) -> Option<OsString>) -> Vec<String> {
    let socket = runtime_folder::own_socket(environment);
    // A path that an address cannot have is left out.
    let socket = socket.and_then(|path| Some(format!("unix:{}", path.to_str()?)));
    let socket = socket.filter(|text| !text.contains('?') && access::listen(text).is_ok());
    socket.into_iter().chain([DEFAULT_ADDRESS.to_owned()]).collect()
}

/// The IPv4 address of the first interface that is up and not loopback, else 127.0.0.1.
fn detect_instance_ip() -> Ipv4Addr {
    let addresses = getifaddrs().into_iter().flatten();
    addresses
        .filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP))
        .filter(|interface| !interface.flags.contains(InterfaceFlags::IFF_LOOPBACK))
        .find_map(|interface| Some(interface.address?.as_sockaddr_in()?.ip()))
        .unwrap_or(Ipv4Addr::LOCALHOST)
}

#[cfg(test)]
mod tests;
