//! The table of settings: the name of each in the three sources, its default, and its meaning.
//!
//! The flags of the program, `--print-config`, the reader of the configuration and the page
//! `docs/configuration.md` are all made from this table, or checked against it.

/// One setting, as text. Its type is that of the field of [`super::Config`] with the same name.
#[derive(Debug)]
pub struct Setting {
    /// Its key in the TOML file.
    pub key: &'static str,
    /// Its flag, without the leading `--`.
    pub flag: &'static str,
    /// Its environment variable.
    pub env: &'static str,
    /// The placeholder of its value in help texts.
    pub value_name: &'static str,
    /// The value if no source sets it.
    pub default: Default,
    /// Its meaning, in one or two sentences.
    pub help: &'static str,
    /// Whether its value must never be shown.
    pub secret: bool,
    /// Whether it may have several values: a flag given several times, text split at `,`, or an array in the file.
    pub list: bool,
}

/// The value of a setting that no source sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Default {
    /// This value, written as in a source.
    Value(&'static str),
    /// A value that is detected at the start; the text says how.
    Detected(&'static str),
    /// No value; the text says what that means.
    Absent(&'static str),
}

impl Default {
    /// The default in the words of help texts and documentation.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Value(text) | Self::Detected(text) | Self::Absent(text) => text,
        }
    }
}

macro_rules! settings {
    ($($name:ident = $key:literal, $flag:literal, $env:literal, $value_name:literal, $default:expr,
        $($option:ident)* => $help:literal;)*) => {
        $(
            #[doc = $help]
            pub static $name: Setting = Setting {
                key: $key,
                flag: $flag,
                env: $env,
                value_name: $value_name,
                default: $default,
                help: $help,
                secret: settings!(@has secret $($option)*),
                list: settings!(@has list $($option)*),
            };
        )*
        /// All settings, in the order of the help text.
        pub static ALL: &[&Setting] = &[$(&$name),*];
    };
    (@has secret secret) => { true };
    (@has list list) => { true };
    (@has $what:ident $($other:ident)*) => { false };
}

settings! {
    LISTEN = "listen", "listen", "SIDEKEEPER_LISTEN", "ADDRESS", Default::Detected("`127.0.0.1:7070`, and the socket `sidekeeper/api.sock` in `$XDG_RUNTIME_DIR`, else `/run/sidekeeper/api.sock`, if that directory is of the sidecar's user; one of them suffices"), list =>
        "Where to serve: a loopback IP address and port, `https://IP:PORT` for other machines, or `unix:/path` of a socket, with `?mode=0660&group=NAME` for others than its owner. `?role=ROLES` limits what callers of the address may do: `attach`, `view`, `operate`, joined by `+`; `?jobs=PATTERNS` limits with which names. Several are allowed; port 0 takes a free one.";
    TLS_CERT = "tls_cert", "tls-cert", "SIDEKEEPER_TLS_CERT", "FILE", Default::Absent("no address has TLS"), =>
        "The sidecar's certificate for `https://` addresses, with its chain (PEM). A change of this and of the next three counts within a second, for new connections.";
    TLS_KEY = "tls_key", "tls-key", "SIDEKEEPER_TLS_KEY", "FILE", Default::Absent("no address has TLS"), =>
        "The key of `tls_cert` (PEM, without a password), which other users must not be able to read.";
    TLS_CLIENT_CA = "tls_client_ca", "tls-client-ca", "SIDEKEEPER_TLS_CLIENT_CA", "FILE", Default::Absent("no address has TLS"), =>
        "The certificates (PEM) of the authorities of callers' certificates, which each caller of an `https://` address needs.";
    TLS_CLIENT_CRL = "tls_client_crl", "tls-client-crl", "SIDEKEEPER_TLS_CLIENT_CRL", "FILE", Default::Absent("no certificate is revoked"), =>
        "The revocation lists (PEM) of these authorities. An expired list refuses all certificates.";
    TLS_ALLOW = "tls_allow", "tls-allow", "SIDEKEEPER_TLS_ALLOW", "NAME", Default::Absent("no address has TLS"), list =>
        "The names in certificates whose callers are served: DNS names like `billing.jobs.internal` or `*.jobs.internal`, SPIFFE IDs like `spiffe://prod/billing` or `spiffe://prod/*`. These callers may attach and view; `?role=ROLES` and `&jobs=PATTERNS` say otherwise. Several are allowed; the first that fits counts.";
    ALLOW = "allow", "allow", "SIDEKEEPER_ALLOW", "WHO", Default::Value("same-user"), list =>
        "The users of this machine that are served: `same-user`, which is the sidecar's own and root, and in addition `uid:N`, `gid:N` (the primary group, on Unix sockets only), or `any-local-user`. These may attach and view; `uid:N:ROLES` gives them other roles. Several are allowed.";
    JOBS_ALLOWED = "jobs_allowed", "jobs-allowed", "SIDEKEEPER_JOBS_ALLOWED", "PATTERN", Default::Value("*"), list =>
        "The names of the jobs, locks and elections that callers may use; `*` in a name stands for any characters, and a pattern that begins with `/` is for paths of locks. Several are allowed.";
    TOKEN = "token", "token", "SIDEKEEPER_TOKEN", "TOKEN", Default::Absent("callers need none"), secret =>
        "The token that callers must send, as `authorization: Bearer TOKEN`; only health checks need none. Prefer the file or the variable: others can read flags.";
    TOKEN_FILE = "token_file", "token-file", "SIDEKEEPER_TOKEN_FILE", "FILE", Default::Absent("callers need none"), =>
        "A file with the token that callers must send, or with several as lines `NAME:ROLES:sha256=HASH`, with `:jobs=PATTERNS` at the end if not all names are for it. Other users must not have rights on it. A change counts within a second. Not together with `token`.";
    ZOOKEEPER = "zookeeper", "zookeeper", "SIDEKEEPER_ZOOKEEPER", "SERVERS", Default::Absent("an embedded registry, for this sidecar alone"), =>
        "The ZooKeeper ensemble, `host:port,host:port`, with `/chroot` at the end if there is one.";
    NAMESPACE = "namespace", "namespace", "SIDEKEEPER_NAMESPACE", "NAME", Default::Value("sidekeeper"), =>
        "The node under which all jobs are, without a leading `/`: the same for all members of a fleet.";
    DIGEST = "digest", "digest", "SIDEKEEPER_DIGEST", "USER:PASSWORD", Default::Absent("no authentication"), secret =>
        "The user and password with which the sidecar authenticates to ZooKeeper. Prefer the file or the variable: others can read flags.";
    DIGEST_FILE = "digest_file", "digest-file", "SIDEKEEPER_DIGEST_FILE", "FILE", Default::Absent("no authentication"), =>
        "A file with the `USER:PASSWORD` of `digest`, which other users must not be able to read. A change counts within two seconds. Not together with `digest`.";
    ZOOKEEPER_SASL_FILE = "zookeeper_sasl_file", "zookeeper-sasl-file", "SIDEKEEPER_ZOOKEEPER_SASL_FILE", "FILE", Default::Absent("no SASL"), =>
        "A file with the `USER:PASSWORD` for SASL DIGEST-MD5 with ZooKeeper, which other users must not be able to read. A change counts within two seconds.";
    ZOOKEEPER_KERBEROS = "zookeeper_kerberos", "zookeeper-kerberos", "SIDEKEEPER_ZOOKEEPER_KERBEROS", "SERVICE", Default::Absent("no Kerberos"), =>
        "The service of ZooKeeper's servers in Kerberos: `zookeeper`, with each server's host as in `zookeeper`, or `zookeeper/HOST` if the servers share one. The user's ticket is in the cache of the process (`KRB5CCNAME`). Only in builds with the feature `kerberos`; not together with `zookeeper_sasl_file`.";
    ZOOKEEPER_CA = "zookeeper_ca", "zookeeper-ca", "SIDEKEEPER_ZOOKEEPER_CA", "FILE", Default::Absent("connections are not encrypted"), =>
        "The certificates (PEM) of the authorities of ZooKeeper's servers: connections use TLS, and `zookeeper` has the servers' secure ports. A change of this and of the next three counts within two seconds.";
    ZOOKEEPER_CRL = "zookeeper_crl", "zookeeper-crl", "SIDEKEEPER_ZOOKEEPER_CRL", "FILE", Default::Absent("no certificate is revoked"), =>
        "The revocation lists (PEM) of these authorities. An expired list refuses all certificates.";
    ZOOKEEPER_CERT = "zookeeper_cert", "zookeeper-cert", "SIDEKEEPER_ZOOKEEPER_CERT", "FILE", Default::Absent("no client certificate"), =>
        "The client certificate for ZooKeeper, with its chain (PEM). Together with `zookeeper_key`.";
    ZOOKEEPER_KEY = "zookeeper_key", "zookeeper-key", "SIDEKEEPER_ZOOKEEPER_KEY", "FILE", Default::Absent("no client certificate"), =>
        "The key of `zookeeper_cert` (PEM, without a password), which other users must not be able to read.";
    ZOOKEEPER_ACL = "zookeeper_acl", "zookeeper-acl", "SIDEKEEPER_ZOOKEEPER_ACL", "ACL", Default::Value("auto"), list =>
        "The access list of the nodes that the sidecar creates: `auto`, which is the creator alone with a digest or SASL and else everybody, as ElasticJob does; `open`, `creator`, or entries `SCHEME:ID:PERMISSIONS` with letters of `cdrwa`.";
    DATA_DIR = "data_dir", "data-dir", "SIDEKEEPER_DATA_DIR", "DIRECTORY", Default::Absent("nothing outlives the process"), =>
        "Where the embedded registry keeps its nodes; made for the sidecar's user alone. Not together with `zookeeper`.";
    STATE_DIR = "state_dir", "state-dir", "SIDEKEEPER_STATE_DIR", "DIRECTORY", Default::Absent("a restart begins anew"), =>
        "Where to keep the ZooKeeper session, for jobs with `sidekeeper.grace`: a killed sidecar that is restarted before the session times out resumes it. Each sidecar needs a directory of its own.";
    LOCK_ROOT = "lock_root", "lock-root", "SIDEKEEPER_LOCK_ROOT", "PATH", Default::Absent("`/NAMESPACE-sidekeeper/@-@locks/queues`"), =>
        "The node below which locks with names are. Sidecars that share locks over several namespaces have the same one.";
    JOBS_DIR = "jobs_dir", "jobs-dir", "SIDEKEEPER_JOBS_DIR", "DIRECTORY", Default::Absent("no job files"), =>
        "A directory of job configurations, which applications can attach to by name.";
    INSTANCE_IP = "instance_ip", "instance-ip", "SIDEKEEPER_INSTANCE_IP", "IPV4", Default::Detected("the first interface that is up and not loopback"), =>
        "The IPv4 address that names this server in the registry. Sidecars that share one are enabled and disabled together.";
    SESSION_TIMEOUT = "session_timeout", "session-timeout", "SIDEKEEPER_SESSION_TIMEOUT", "DURATION", Default::Value("7s"), =>
        "How long the registry keeps the session of a sidecar that is silent, 1s to 10m. After that, other instances get the sidecar's items.";
    LEASE_MARGIN = "lease_margin", "lease-margin", "SIDEKEEPER_LEASE_MARGIN", "DURATION", Default::Absent("a fifth of the session's timeout, 500ms at least"), =>
        "How long before the registry could end a silent session the sidecar cancels the executions, 100ms to 5m; never more than half of the session's timeout.";
    CONNECTION_TIMEOUT = "connection_timeout", "connection-timeout", "SIDEKEEPER_CONNECTION_TIMEOUT", "DURATION", Default::Value("5s"), =>
        "How long to look for a ZooKeeper server that serves, and to wait for a silent one, before the next attempt, 100ms to 1m.";
    REQUEST_TIMEOUT = "request_timeout", "request-timeout", "SIDEKEEPER_REQUEST_TIMEOUT", "DURATION", Default::Value("10s"), =>
        "How long to wait for the registry's answer to a request, 100ms to 10m.";
    DRAIN_TIMEOUT = "drain_timeout", "drain-timeout", "SIDEKEEPER_DRAIN_TIMEOUT", "DURATION", Default::Value("25s"), =>
        "How long executions may go on when the sidecar is stopped, 0s to 1h. Keep it below the time limit of the program that stops the sidecar.";
    SLOW_APPLICATION_TIMEOUT = "slow_application_timeout", "slow-application-timeout", "SIDEKEEPER_SLOW_APPLICATION_TIMEOUT", "DURATION", Default::Value("10s"), =>
        "How long an application may leave its stream unread before it is detached, 100ms to 10m.";
    SILENT_APPLICATION_TIMEOUT = "silent_application_timeout", "silent-application-timeout", "SIDEKEEPER_SILENT_APPLICATION_TIMEOUT", "DURATION", Default::Value("10s"), =>
        "How long an application may be silent before its connection is closed, 1s to 10m. A stopped or disconnected application does not answer the pings, of which the sidecar sends two in this time.";
    LOG_LEVEL = "log_level", "log-level", "SIDEKEEPER_LOG_LEVEL", "FILTER", Default::Value("info"), =>
        "The log filter: a level (error, warn, info, debug, trace, off), or levels by target, `info,sidekeeper=debug`.";
    LOG_FORMAT = "log_format", "log-format", "SIDEKEEPER_LOG_FORMAT", "FORMAT", Default::Value("auto"), =>
        "How to log to standard error: `text`, `json`, or `auto`, which is text on a terminal and JSON elsewhere.";
    OTLP_ENDPOINT = "otlp_endpoint", "otlp-endpoint", "SIDEKEEPER_OTLP_ENDPOINT", "URL", Default::Absent("no traces are exported"), =>
        "Where to send traces: an OpenTelemetry collector's gRPC address, `http://host:4317`.";
    DUMP_LISTEN = "dump_listen", "dump-listen", "SIDEKEEPER_DUMP_LISTEN", "ADDRESS", Default::Absent("no dump command"), =>
        "Where to answer ElasticJob's dump command: a port (`9888` or `:9888`) of this machine's loopback interface, or an IP address and port; port 0 takes a free one.";
    DUMP_ACCESS = "dump_access", "dump-access", "SIDEKEEPER_DUMP_ACCESS", "WHO", Default::Value("local"), =>
        "The callers that may reach the dump command: `local`, this machine only, or `anybody`, which allows other addresses in `dump_listen`. The command has no authentication.";
    HTTP_LISTEN = "http_listen", "http-listen", "SIDEKEEPER_HTTP_LISTEN", "ADDRESS", Default::Absent("no probes and no metrics over HTTP"), =>
        "Where to answer probes and Prometheus (`/livez`, `/readyz`, `/startupz`, `/metrics`): a port (`9464` or `:9464`) of this machine's loopback interface, or an IP address and port; port 0 takes a free one.";
    HTTP_ACCESS = "http_access", "http-access", "SIDEKEEPER_HTTP_ACCESS", "WHO", Default::Value("local"), =>
        "The callers that may reach `http_listen`: `local`, this machine only, or `anybody`, which allows other addresses. The port has no authentication, and changes nothing.";
    HTTP_HOSTS = "http_hosts", "http-hosts", "SIDEKEEPER_HTTP_HOSTS", "HOST", Default::Absent("addresses and `localhost` only"), list =>
        "Further names of this machine in the `Host` of requests to `http_listen`.";
    METRICS_JOBS = "metrics_jobs", "metrics-jobs", "SIDEKEEPER_METRICS_JOBS", "NUMBER", Default::Value("200"), =>
        "How many jobs have metrics of their own, 0 to 10000; further ones share the name `_other`.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_names_of_a_setting_are_one_name() {
        for setting in ALL {
            assert_eq!(setting.flag, setting.key.replace('_', "-"));
            assert_eq!(setting.env, format!("SIDEKEEPER_{}", setting.key.to_uppercase()));
        }
    }
}
