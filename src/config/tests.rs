//! Precedence, errors, and the printed configuration.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::ffi::OsStringExt as _;

use expect_test::{Expect, expect};

use super::*;

struct Case<'a> {
    flags: &'a [(&'static str, &'a str)],
    environment: &'a [(&'a str, &'a str)],
    file: Option<&'a str>,
}

fn load_from(given: &Case<'_>) -> (Result<Loaded, ConfigError>, String) {
    let mut flags = Flags::new();
    for (key, text) in given.flags {
        flags.entry(*key).or_default().push((*text).to_owned());
    }
    let environment: BTreeMap<_, _> = given.environment.iter().copied().collect();
    let file = given.file.map(|text| {
        let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    });
    let path = file.as_ref().map(|file| file.path().to_owned());
    let environment = |name: &str| environment.get(name).map(OsString::from);
    let loaded =
        load(&Sources { flags, file: path.clone(), environment: &environment, default_listen: None });
    (loaded, path.map_or_else(String::new, |path| path.display().to_string()))
}

fn config(given: &Case<'_>) -> Config {
    Config { given: Vec::new(), ..load_from(given).0.unwrap().config }
}

fn check_refused(given: &Case<'_>, expected: &Expect) {
    let (loaded, path) = load_from(given);
    let error = loaded.unwrap_err().to_string();
    expected.assert_eq(&if path.is_empty() { error } else { error.replace(&path, "FILE") });
}

#[test]
fn without_any_source_the_defaults_hold() {
    let config = config(&Case { flags: &[("instance_ip", "10.0.0.7")], environment: &[], file: None });
    expect![[r#"
        Config {
            listen: [
                Listen {
                    address: Tcp(
                        127.0.0.1:7070,
                    ),
                    rights: Rights {
                        roles: Roles {
                            attach: true,
                            view: true,
                            operate: true,
                        },
                        names: Names {
                            limits: [],
                        },
                    },
                    optional: true,
                },
            ],
            tls: None,
            tls_allow: [],
            allow: [
                Allowed {
                    who: SameUser,
                    roles: Roles {
                        attach: true,
                        view: true,
                        operate: true,
                    },
                },
            ],
            jobs_allowed: Names {
                limits: [],
            },
            token: None,
            token_file: None,
            zookeeper: None,
            namespace: "sidekeeper",
            digest: None,
            credential_files: CredentialFiles {
                digest: None,
                sasl: None,
                kerberos: None,
                ca: None,
                crl: None,
                cert: None,
                key: None,
            },
            zookeeper_acl: Auto,
            data_dir: None,
            state_dir: None,
            lock_root: None,
            jobs_dir: None,
            instance_ip: 10.0.0.7,
            session_timeout: 7s,
            lease_margin: None,
            connection_timeout: 5s,
            request_timeout: 10s,
            drain_timeout: 25s,
            slow_application_timeout: 10s,
            silent_application_timeout: 10s,
            log_level: "info",
            log_format: Auto,
            otlp_endpoint: None,
            dump_listen: None,
            http_listen: None,
            http_hosts: [],
            metrics_jobs: 200,
            given: [],
        }
    "#]]
    .assert_debug_eq(&config);
}

#[test]
fn flags_precede_the_environment_which_precedes_the_file_which_precedes_the_defaults() {
    let file = Some("namespace = 'file'\nrequest_timeout = '3s'\nsession_timeout = '3s'\n");
    let environment: &[(&str, &str)] =
        &[("SIDEKEEPER_NAMESPACE", "environment"), ("SIDEKEEPER_SESSION_TIMEOUT", "2s")];
    let flags: &[(&str, &str)] = &[("namespace", "flag")];
    let config = config(&Case { flags, environment, file });
    assert_eq!(config.namespace, "flag");
    assert_eq!(config.session_timeout, Duration::from_secs(2));
    assert_eq!(config.request_timeout, Duration::from_secs(3));
    assert_eq!(config.connection_timeout, Duration::from_secs(5));
}

#[test]
fn an_empty_variable_counts_as_not_set() {
    let environment: &[(&str, &str)] = &[("SIDEKEEPER_ZOOKEEPER", ""), ("SIDEKEEPER_CONFIG", "")];
    assert_eq!(config(&Case { flags: &[], environment, file: None }).zookeeper, None);
}

fn socket() -> Listen {
    ListenAddress::Unix("/run/s.sock".into()).into()
}

#[test]
fn several_addresses_can_be_given_in_each_source() {
    let two = vec![ListenAddress::Tcp("127.0.0.1:1".parse().unwrap()).into(), socket()];
    let flags: &[(&str, &str)] = &[("listen", "127.0.0.1:1"), ("listen", "unix:/run/s.sock")];
    assert_eq!(config(&Case { flags, environment: &[], file: None }).listen, two);
    let environment: &[(&str, &str)] = &[("SIDEKEEPER_LISTEN", "127.0.0.1:1, unix:/run/s.sock")];
    assert_eq!(config(&Case { flags: &[], environment, file: None }).listen, two);
    let file = Some("listen = ['127.0.0.1:1', 'unix:/run/s.sock']");
    assert_eq!(config(&Case { flags: &[], environment: &[], file }).listen, two);
}

#[test]
fn all_errors_are_reported_at_once() {
    let given = Case {
        flags: &[
            ("listen", "0.0.0.0:7070"),
            ("listen", "unix:s"),
            ("digest", "hunter2"),
            ("token", "hunter 2"),
        ],
        environment: &[("SIDEKEEPER_SESSION_TIMEOUT", "900ms"), ("SIDEKEEPER_ZOOKEEPER", "zk:2181")],
        file: Some("data_dir = '/d'\ndrain_timeout = 25\nlog_format = 'xml'\nnamspace = 'x'\nlisten = [1]\n"),
    };
    check_refused(
        &given,
        &expect![[r#"
            the configuration has 10 problems:
              drain_timeout in FILE = `25`: allowed: a string, in quotes
              listen in FILE = `[1]`: allowed: a string, or an array of strings
              namspace in FILE: there is no such setting; allowed: listen, tls_cert, tls_key, tls_client_ca, tls_client_crl, tls_allow, allow, jobs_allowed, token, token_file, zookeeper, namespace, digest, digest_file, zookeeper_sasl_file, zookeeper_kerberos, zookeeper_ca, zookeeper_crl, zookeeper_cert, zookeeper_key, zookeeper_acl, data_dir, state_dir, lock_root, jobs_dir, instance_ip, session_timeout, lease_margin, connection_timeout, request_timeout, drain_timeout, slow_application_timeout, silent_application_timeout, log_level, log_format, otlp_endpoint, dump_listen, dump_access, http_listen, http_access, http_hosts, metrics_jobs
              --listen = `0.0.0.0:7070`: an address that other machines can reach needs TLS; allowed: a loopback IP address and port like `127.0.0.1:7070`, `localhost:7070`, `unix:/path`, or any address of this machine with TLS like `https://10.0.0.7:7443`
              --listen = `unix:s`: the socket's path is not absolute; allowed: a loopback IP address and port like `127.0.0.1:7070`, `localhost:7070`, `unix:/path`, or any address of this machine with TLS like `https://10.0.0.7:7443`
              --token = `***`: allowed: 1 to 4096 ASCII characters without spaces
              --digest = `***`: allowed: a user, a colon and a password
              SIDEKEEPER_SESSION_TIMEOUT = `900ms`: out of range; allowed: 1s to 10m
              log_format in FILE = `xml`: allowed: auto, text, json
              data_dir in FILE: only the embedded registry has a data directory, and SIDEKEEPER_ZOOKEEPER is set; allowed: one of the two"#]],
    );
}

#[test]
fn other_machines_reach_the_dump_command_only_after_two_settings() {
    let remote: (&str, &str) = ("SIDEKEEPER_DUMP_LISTEN", "0.0.0.0:9888");
    check_refused(
        &Case { flags: &[], environment: &[remote], file: None },
        &expect![
            "the configuration is wrong: SIDEKEEPER_DUMP_LISTEN = `0.0.0.0:9888`: other machines can reach this address, and the dump command has neither TLS nor authentication; allowed: a loopback address like `127.0.0.1:9888`, or set dump_access to `anybody` as well"
        ],
    );
    let flags: &[(&str, &str)] = &[("dump_access", "anybody")];
    let both = config(&Case { flags, environment: &[remote], file: None });
    assert_eq!(both.dump_listen, Some("0.0.0.0:9888".parse().unwrap()));
    assert_eq!(config(&Case { flags, environment: &[], file: Some("dump_listen = ''") }).dump_listen, None);
}

#[test]
fn one_problem_is_one_line() {
    let flags: &[(&str, &str)] = &[("instance_ip", "localhost")];
    check_refused(
        &Case { flags, environment: &[], file: None },
        &expect![
            "the configuration is wrong: --instance-ip = `localhost`: it is not an IPv4 address; allowed: an IPv4 address of this machine, for example `10.0.0.7`"
        ],
    );
}

#[test]
fn a_file_that_is_not_toml_is_refused_without_quoting_it() {
    let file = Some("namespace = 'x'\ndigest = 'user:hunter2\n");
    check_refused(
        &Case { flags: &[], environment: &[], file },
        &expect!["the configuration is wrong: FILE: line 2: not TOML: invalid literal string, expected `'`"],
    );
}

#[test]
fn a_missing_file_is_refused() {
    let environment: &[(&str, &str)] = &[("SIDEKEEPER_CONFIG", "/nonexistent/sidekeeper.toml")];
    check_refused(
        &Case { flags: &[], environment, file: None },
        &expect![
            "the configuration is wrong: SIDEKEEPER_CONFIG = `/nonexistent/sidekeeper.toml`: the file cannot be read: No such file or directory (os error 2)"
        ],
    );
}

#[test]
fn an_empty_list_is_refused() {
    check_refused(
        &Case { flags: &[], environment: &[], file: Some("listen = []") },
        &expect!["the configuration is wrong: listen in FILE: it is empty; allowed: at least one value"],
    );
}

#[test]
fn a_variable_that_is_not_text_is_refused() {
    let environment = |name: &str| (name == "SIDEKEEPER_NAMESPACE").then(|| OsString::from_vec(vec![0xff]));
    let sources =
        Sources { flags: Flags::new(), file: None, environment: &environment, default_listen: None };
    assert_eq!(
        load(&sources).unwrap_err().to_string(),
        "the configuration is wrong: SIDEKEEPER_NAMESPACE: it is not UTF-8 text"
    );
}

#[test]
fn the_effective_configuration_is_shown_with_origins_and_without_secrets() {
    let (loaded, path) = load_from(&Case {
        flags: &[("instance_ip", "10.0.0.7"), ("listen", "127.0.0.1:1"), ("listen", "[::1]:1")],
        environment: &[("SIDEKEEPER_DIGEST", "user:hunter2"), ("SIDEKEEPER_JOBS_DIR", "/jobs \"x\"")],
        file: Some("zookeeper = 'zk:2181'\n"),
    });
    let loaded = loaded.unwrap();
    let shown = loaded.to_toml();
    expect![[r#"
        listen = ["127.0.0.1:1", "[::1]:1"] # --listen
        # tls_cert is not set: no address has TLS
        # tls_key is not set: no address has TLS
        # tls_client_ca is not set: no address has TLS
        # tls_client_crl is not set: no certificate is revoked
        # tls_allow is not set: no address has TLS
        allow = ["same-user"] # default
        jobs_allowed = ["*"] # default
        # token is not set: callers need none
        # token_file is not set: callers need none
        zookeeper = "zk:2181" # FILE
        namespace = "sidekeeper" # default
        digest = "***" # SIDEKEEPER_DIGEST
        # digest_file is not set: no authentication
        # zookeeper_sasl_file is not set: no SASL
        # zookeeper_kerberos is not set: no Kerberos
        # zookeeper_ca is not set: connections are not encrypted
        # zookeeper_crl is not set: no certificate is revoked
        # zookeeper_cert is not set: no client certificate
        # zookeeper_key is not set: no client certificate
        zookeeper_acl = ["auto"] # default
        # data_dir is not set: nothing outlives the process
        # state_dir is not set: a restart begins anew
        # lock_root is not set: `/NAMESPACE-sidekeeper/@-@locks/queues`
        jobs_dir = '/jobs "x"' # SIDEKEEPER_JOBS_DIR
        instance_ip = "10.0.0.7" # --instance-ip
        session_timeout = "7s" # default
        # lease_margin is not set: a fifth of the session's timeout, 500ms at least
        connection_timeout = "5s" # default
        request_timeout = "10s" # default
        drain_timeout = "25s" # default
        slow_application_timeout = "10s" # default
        silent_application_timeout = "10s" # default
        log_level = "info" # default
        log_format = "auto" # default
        # otlp_endpoint is not set: no traces are exported
        # dump_listen is not set: no dump command
        dump_access = "local" # default
        # http_listen is not set: no probes and no metrics over HTTP
        http_access = "local" # default
        # http_hosts is not set: addresses and `localhost` only
        metrics_jobs = "200" # default
    "#]]
    .assert_eq(&shown.replace(&path, "FILE"));
    assert!(!format!("{loaded:?}").contains("hunter2"), "{loaded:?}");
    let given = |key| loaded.config.given.iter().find(|setting| setting.key == key).unwrap();
    assert_eq!(
        (given("digest").texts.as_slice(), given("digest").origin),
        (&["***".to_owned()][..], "environment")
    );
    assert_eq!((given("zookeeper").texts[0].as_str(), given("zookeeper").origin), ("zk:2181", "file"));

    // The printed text is a configuration file. It gives the same configuration once the secret is filled in.
    let again = shown.replace("***", "user:hunter2");
    let again = config(&Case { flags: &[], environment: &[], file: Some(&again) });
    assert_eq!(again, Config { given: Vec::new(), ..loaded.config });
}

#[test]
fn the_default_address_can_be_replaced_but_does_not_override() {
    let none = |_: &str| None;
    let mut sources = Sources {
        flags: Flags::new(),
        file: None,
        environment: &none,
        default_listen: Some("unix:/run/s.sock".to_owned()),
    };
    let loaded = load(&sources).unwrap();
    assert_eq!(loaded.config.listen, [socket()]);
    assert!(loaded.listens_by_default());
    sources.flags.insert("listen", vec!["127.0.0.1:0".to_owned()]);
    let loaded = load(&sources).unwrap();
    assert_eq!(loaded.config.listen, [ListenAddress::Tcp("127.0.0.1:0".parse().unwrap()).into()]);
    assert!(!loaded.listens_by_default());
}

/// The problems of these flags, as lines.
fn refused(flags: &[(&'static str, &str)]) -> Vec<String> {
    let problems = load_from(&Case { flags, environment: &[], file: None }).0.unwrap_err().problems;
    problems.into_iter().map(|problem| format!("{}: {}", problem.what, problem.reason)).collect()
}

#[test]
fn an_address_with_tls_needs_its_settings_and_they_need_such_an_address() {
    let needed = |key: &str| format!("--listen: an address with `https://` needs `{key}` beside it");
    let address = ("listen", "https://10.0.0.7:7443");
    assert_eq!(refused(&[address, ("tls_cert", "c")]), ["tls_key", "tls_client_ca", "tls_allow"].map(needed));
    for setting in ["tls_allow", "tls_client_crl"] {
        let of_no_use = refused(&[(setting, "a.b")]);
        let flag = format!("--{}: it is for addresses with TLS", setting.replace('_', "-"));
        assert!(of_no_use[0].starts_with(&flag), "{of_no_use:?}");
    }
    let all = [address, ("tls_cert", "c"), ("tls_key", "k"), ("tls_client_ca", "a"), ("tls_allow", "x.y")];
    let config = load_from(&Case { flags: &all, environment: &[], file: None }).0.unwrap().config;
    assert_eq!(config.listen, [ListenAddress::Tls("10.0.0.7:7443".parse().unwrap()).into()]);
    let files = ServerFiles { cert: "c".into(), key: "k".into(), client_ca: "a".into(), client_crl: None };
    assert_eq!((config.tls, config.tls_allow.len()), (Some(files), 1));
}

#[test]
fn credentials_for_zookeeper_are_complete_or_refused() {
    assert_eq!(refused(&[("zookeeper_crl", "l")]), ["--zookeeper-crl: it needs `zookeeper_ca` beside it"]);
    assert_eq!(
        refused(&[("zookeeper_ca", "a"), ("zookeeper_cert", "c")]),
        ["--zookeeper-cert: it needs `zookeeper_key` beside it"]
    );
    assert_eq!(
        refused(&[("zookeeper_ca", "a"), ("zookeeper_key", "k")]),
        ["--zookeeper-key: it needs `zookeeper_cert` beside it"]
    );
    assert_eq!(
        refused(&[("digest", "me:secret"), ("digest_file", "d")]),
        ["--digest-file: --digest is set, too; allowed: one of the two"]
    );
    assert_eq!(refused(&[("zookeeper_acl", "nobody")]).len(), 1);
    let file = Some("zookeeper_acl = ['world:anyone:r', 'x509:CN=a,O=b:cdrwa']\n");
    let Acl::List(entries) = config(&Case { flags: &[], environment: &[], file }).zookeeper_acl else {
        panic!("entries")
    };
    assert_eq!(entries.len(), 2);
}
