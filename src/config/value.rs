//! From the text of a setting to its value. Pure. An error names the mistake and the allowed values.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use tonic::transport::Uri;
use tracing_subscriber::EnvFilter;

use super::types::{Access, LogFormat, Secret};
use crate::tree::Path;

/// Bounds of a duration, both included, with their form for people.
pub(super) struct Range {
    from: Duration,
    to: Duration,
    words: &'static str,
}

/// A session is renewed several times within its timeout, so the timeout has a minimum. The items of a
/// crashed sidecar have no owner until the timeout is over, so it has a maximum.
pub(super) const SESSION: Range = range(Duration::from_secs(1), Duration::from_secs(600), "1s to 10m");
/// Time to notify the application, and to stop its work.
pub(super) const MARGIN: Range = range(Duration::from_millis(100), Duration::from_secs(300), "100ms to 5m");
/// One attempt must leave time for other servers within a session.
pub(super) const CONNECTION: Range =
    range(Duration::from_millis(100), Duration::from_secs(60), "100ms to 1m");
/// For requests and applications: long enough for a slow disk or a garbage collection, but always bounded.
pub(super) const ANSWER: Range = range(Duration::from_millis(100), Duration::from_secs(600), "100ms to 10m");
/// Pings more often than twice a second would cost more than they are worth.
pub(super) const SILENCE: Range = range(Duration::from_secs(1), Duration::from_secs(600), "1s to 10m");
/// Zero means that executions are cancelled at once.
pub(super) const DRAIN: Range = range(Duration::ZERO, DRAIN_TIMEOUT_MAX, "0s to 1h");
/// How long another log filter counts.
pub(super) const LOG_FILTER: Range =
    range(Duration::from_secs(1), Duration::from_secs(24 * 3600), "1s to 24h");
/// Zero means not to wait.
pub(super) const LOCK: Range = range(Duration::ZERO, Duration::from_secs(365 * 24 * 3600), "0s to 8760h");
/// The longest time that executions may get when the sidecar is stopped.
pub const DRAIN_TIMEOUT_MAX: Duration = Duration::from_secs(3600);

const fn range(from: Duration, to: Duration, words: &'static str) -> Range {
    Range { from, to, words }
}

/// How long something is disabled.
pub(super) const DISABLED: Range =
    range(Duration::from_secs(1), Duration::from_secs(8_760 * 3_600), "1s to 8760h");

/// Reads a duration within a range: whole numbers, each with a unit, `30s`, `500ms`, `1m30s`.
pub(super) fn duration(text: &str, range: &Range) -> Result<Duration, String> {
    let words = range.words;
    let duration = parse_duration(text)
        .map_err(|reason| format!("{reason}; allowed: {words}, written like `30s`, `500ms` or `1m30s`"))?;
    if duration < range.from || duration > range.to {
        return Err(format!("out of range; allowed: {words}"));
    }
    Ok(duration)
}

fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    let mut total = Duration::ZERO;
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err("it is empty");
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        if number.is_empty() {
            return Err("a number is missing");
        }
        let milliseconds_each: u64 = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "" => return Err("the unit is missing"),
            _ => return Err("the unit is none of `ms`, `s`, `m`, `h`"),
        };
        let milliseconds = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(milliseconds_each))
            .ok_or("it is too long")?;
        total = total.checked_add(Duration::from_millis(milliseconds)).ok_or("it is too long")?;
        rest = after.trim_start();
    }
    Ok(total)
}

/// The most jobs that have metrics of their own: as many series as a Prometheus takes from one target without harm.
const METRICS_JOBS_MAX: usize = 10_000;

/// Reads the address of a port without authentication. `None` if the text is empty. A port alone is a port of the loopback
/// interface.
pub(super) fn open_port(text: &str) -> Result<Option<SocketAddr>, String> {
    const ALLOWED: &str = "allowed: a port like `9888`, or an IP address and port like `127.0.0.1:9888`";
    if text.is_empty() {
        return Ok(None);
    }
    let port = text.strip_prefix(':').unwrap_or(text);
    if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) {
        let port = port.parse().map_err(|_| format!("the port is above 65535; {ALLOWED}"))?;
        return Ok(Some((Ipv4Addr::LOCALHOST, port).into()));
    }
    match text.strip_prefix("localhost:").map(str::parse) {
        Some(Ok(port)) => Ok(Some((Ipv4Addr::LOCALHOST, port).into())),
        Some(Err(_)) | None => {
            let address = text.parse();
            address
                .map(Some)
                .map_err(|_| format!("it is neither a port nor an IP address with one; {ALLOWED}"))
        }
    }
}

/// Reads the callers that may reach a port without authentication.
pub(super) fn open_access(text: &str) -> Result<Access, String> {
    match text {
        "local" => Ok(Access::Local),
        "anybody" => Ok(Access::Anybody),
        _ => Err("allowed: local, anybody".to_owned()),
    }
}

/// Reads a name of this machine, without a port.
pub(super) fn host(text: &str) -> Result<String, String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if text.is_empty() || !text.bytes().all(is_name) {
        return Err("allowed: a host's name, without a port".to_owned());
    }
    Ok(text.to_owned())
}

/// Reads how many jobs have metrics of their own.
pub(super) fn metrics_jobs(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number <= METRICS_JOBS_MAX);
    number.ok_or_else(|| format!("allowed: a number from 0 to {METRICS_JOBS_MAX}"))
}

/// Checks a ZooKeeper connect string.
pub(super) fn zookeeper(text: &str) -> Result<String, String> {
    const ALLOWED: &str = "allowed: `host:port,host:port`, then `/chroot` if there is one";
    let (servers, chroot) = match text.find('/') {
        _ if text.contains("://") => {
            let tls = if text.contains("tls") { "; this version cannot encrypt the connection" } else { "" };
            return Err(format!("it has a scheme{tls}; {ALLOWED}"));
        }
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    if !chroot.is_empty() {
        Path::parse(chroot).map_err(|error| format!("its chroot is wrong: {}; {ALLOWED}", error.reason))?;
    }
    for server in servers.split(',') {
        // An IPv6 address is in brackets, because its colons would be read as the port's.
        let (host, port) = match server.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, port)) if port.is_empty() || port.starts_with(':') => (host, port.strip_prefix(':')),
            Some(_) => return Err(format!("`{server}` is not a server; {ALLOWED}")),
            None => match server.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (server, None),
            },
        };
        if host.is_empty() || host.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(format!("`{server}` has no host; {ALLOWED}"));
        }
        if port.is_some_and(|port| !port.parse::<u16>().is_ok_and(|port| port > 0)) {
            return Err(format!("the port of `{server}` is not a number from 1 to 65535; {ALLOWED}"));
        }
    }
    Ok(text.to_owned())
}

/// Checks a namespace: one node name, or several joined by `/`.
pub(super) fn namespace(text: &str) -> Result<String, String> {
    const ALLOWED: &str =
        "allowed: node names joined by `/`, without a leading one, for example `elasticjob/prod`";
    let path = Path::parse(&format!("/{text}")).map_err(|error| format!("{}; {ALLOWED}", error.reason))?;
    if path.is_root() {
        return Err(format!("it is empty; {ALLOWED}"));
    }
    if path.is_within(&Path::root().child("zookeeper")) {
        return Err(format!("`/zookeeper` is ZooKeeper's own; {ALLOWED}"));
    }
    Ok(text.to_owned())
}

/// Reads `user:password`. The error does not repeat the text.
pub(super) fn digest(text: &str) -> Result<Secret, String> {
    match text.split_once(':') {
        Some((user, password)) if !user.is_empty() && !password.is_empty() => Ok(Secret(text.to_owned())),
        _ => Err("allowed: a user, a colon and a password".to_owned()),
    }
}

/// Reads the path of a directory. The first use shows whether the directory is usable.
pub(super) fn directory(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() || text.contains('\0') {
        return Err("allowed: the path of a directory".to_owned());
    }
    Ok(PathBuf::from(text))
}

/// Reads the path of a file. The first use shows whether the file is usable.
pub(super) fn file(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() || text.contains('\0') {
        return Err("allowed: the path of a file".to_owned());
    }
    Ok(PathBuf::from(text))
}

/// Reads the root of the locks with names.
pub(super) fn lock_root(text: &str) -> Result<Path, String> {
    let root = Path::parse(text).map_err(|error| format!("{error}; allowed: a path like `/locks`"))?;
    if root.is_root() { Err("allowed: a path like `/locks`, not `/`".to_owned()) } else { Ok(root) }
}

/// Reads the address that names a server.
pub(super) fn instance_ip(text: &str) -> Result<Ipv4Addr, String> {
    const ALLOWED: &str = "allowed: an IPv4 address of this machine, for example `10.0.0.7`";
    let address: Ipv4Addr = text.parse().map_err(|_| format!("it is not an IPv4 address; {ALLOWED}"))?;
    if address.is_unspecified() || address.is_multicast() || address.is_broadcast() {
        return Err(format!("it is not the address of one machine; {ALLOWED}"));
    }
    Ok(address)
}

/// Checks a log filter.
pub(super) fn log_level(text: &str) -> Result<String, String> {
    const ALLOWED: &str = "allowed: error, warn, info, debug, trace, off, or levels by target, for example `info,sidekeeper=debug`";
    // A word that is no level would be read as a target. Then only that target is logged.
    let is_level_or_targets = text.contains('=')
        || matches!(
            text.to_ascii_lowercase().as_str(),
            "error" | "warn" | "info" | "debug" | "trace" | "off"
        );
    if !is_level_or_targets {
        return Err(format!("it is not a level; {ALLOWED}"));
    }
    match EnvFilter::builder().parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}; {ALLOWED}")),
    }
}

/// Reads a log format.
pub(super) fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "auto" => Ok(LogFormat::Auto),
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("allowed: auto, text, json".to_owned()),
    }
}

/// Checks the address of a collector.
pub(super) fn otlp_endpoint(text: &str) -> Result<String, String> {
    const ALLOWED: &str = "allowed: `http://host:port`";
    let uri: Uri = text.parse().map_err(|_| format!("it is not a URL; {ALLOWED}"))?;
    match uri.scheme_str() {
        Some("http") if uri.host().is_some_and(|host| !host.is_empty()) => Ok(text.to_owned()),
        Some("https") => Err(format!("this version cannot encrypt the connection; {ALLOWED}")),
        Some(_) | None => Err(format!("it does not begin with `http://`; {ALLOWED}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        let read = |text| duration(text, &DRAIN).map(|duration| duration.as_millis());
        assert_eq!(read("30s"), Ok(30_000));
        assert_eq!(read("500ms"), Ok(500));
        assert_eq!(read("2m"), Ok(120_000));
        assert_eq!(read("1m30s"), Ok(90_000));
        assert_eq!(read(" 1m 30s "), Ok(90_000));
        assert_eq!(read("1h"), Ok(3_600_000));
        assert_eq!(read("0s"), Ok(0));
        for (bad, reason) in [
            ("", "it is empty"),
            ("30", "the unit is missing"),
            ("s", "a number is missing"),
            ("-1s", "a number is missing"),
            ("1.5s", "the unit is missing"),
            ("30 s", "the unit is missing"),
            ("1d", "the unit is none of"),
            ("99999999999999999999s", "it is too long"),
            ("99999999999999999h", "it is too long"),
            ("2h", "out of range; allowed: 0s to 1h"),
        ] {
            let error = read(bad).unwrap_err();
            assert!(error.starts_with(reason), "{bad:?}: {error}");
        }
        assert!(duration("999ms", &SESSION).is_err());
        assert!(duration("10m", &SESSION).is_ok());
    }

    #[test]
    fn a_port_without_an_address_is_one_of_this_machine() {
        for local in ["9888", ":9888", "127.0.0.1:9888", "localhost:9888"] {
            assert_eq!(open_port(local), Ok(Some("127.0.0.1:9888".parse().unwrap())), "{local:?}");
        }
        assert_eq!(open_port("[::1]:0"), Ok(Some("[::1]:0".parse().unwrap())));
        assert_eq!(open_port("0.0.0.0:1"), Ok(Some("0.0.0.0:1".parse().unwrap())));
        assert_eq!(open_port(""), Ok(None));
        for bad in
            [":", "65536", ":65536", "-1", "host:9888", "127.0.0.1", "localhost:", "::1", "unix:/run/s", " 1"]
        {
            assert!(open_port(bad).is_err(), "{bad:?}");
        }
        assert!(open_access("local").is_ok() && open_access("anybody").is_ok());
        assert!(open_access("").is_err() && open_access("Anybody").is_err());
    }

    #[test]
    fn connect_strings_are_checked_before_the_client_sees_them() {
        for good in
            ["zk", "zk:2181", "10.0.0.1:2181,10.0.0.2:2181,zk3", "zk:2181/a/b", "zk/", "[::1]:2181,[::2]"]
        {
            assert_eq!(zookeeper(good).as_deref(), Ok(good));
        }
        // The client tries for ever to connect to the first of these.
        for bad in [
            "tcp+tls://zk:2181",
            "tcp://zk:2181",
            "",
            ",",
            "zk:",
            "zk:0",
            "zk:99999",
            "zk:2181,",
            "zk:2181, zk2",
            ":1",
            "zk/a//b",
            "::1",
            "[::1]x",
        ] {
            assert!(zookeeper(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn other_values_are_checked() {
        assert!(namespace("a").is_ok() && namespace("a/b").is_ok() && namespace("zookeeper2").is_ok());
        for bad in ["", "/a", "a/", "a//b", "..", "a\u{1}", "zookeeper", "zookeeper/quota"] {
            assert!(namespace(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "a.b", "::1", "0.0.0.0", "255.255.255.255", "224.0.0.1"] {
            assert!(instance_ip(bad).is_err(), "{bad:?}");
        }
        assert!(digest("user:pass:word").is_ok());
        for bad in ["", "user", "user:", ":password"] {
            assert!(digest(bad).is_err(), "{bad:?}");
        }
        for good in ["info", "WARN", "off", "info,sidekeeper=debug", "sidekeeper::runner=trace"] {
            assert!(log_level(good).is_ok(), "{good:?}");
        }
        for bad in ["", "loud", "info,sidekeeper=loud", "debug,"] {
            assert!(log_level(bad).is_err(), "{bad:?}");
        }
        assert!(otlp_endpoint("http://localhost:4317").is_ok());
        for bad in ["", "localhost:4317", "https://collector:4317", "http://", "ftp://x"] {
            assert!(otlp_endpoint(bad).is_err(), "{bad:?}");
        }
    }
}
