//! Is a sidecar well? The facts of one moment, read as findings of the catalogue ([`crate::findings::sidecar`]).
//!
//! The checks come in the order in which one rests on another: without a session the checks of the session are skipped.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::extension::restored::Restored;
use crate::findings::sidecar::{Door, Trouble};
use crate::tree::{Quota, Server};

/// A clock that differs less is left alone: the difference contains the travel of a change.
const SKEW_MS: i64 = 5_000;
/// A heartbeat that is later delays leases.
const STALL: Duration = Duration::from_secs(1);
/// How long a certificate is to be valid: long enough for a person to renew it.
const EXPIRY: SignedDuration = SignedDuration::from_hours(30 * 24);
/// The part of its timeout that a session's lease has at least, in percent: it begins at four fifths.
const LEASE_PERCENT: u32 = 40;
/// Watches of whole subtrees need it.
const VERSION_MIN: (u32, u32) = (3, 6);
/// An answer without a disk takes less in a network that a sidecar can work with.
const SLOW: Duration = Duration::from_secs(1);
/// The part of a quota that may be used, in percent.
const QUOTA_PERCENT: u64 = 80;

/// The group of the checks of jobs. Each is named after its job.
pub const JOBS: &str = "jobs";

/// The facts about a sidecar.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The session; `None`: there is none.
    pub session: Option<Session>,
    /// The error of the last attempt to open a session.
    pub trouble: String,
    /// Whether the servers that answered it serve read-only.
    pub is_read_only: bool,
    /// The servers of the registry. `None`: not known; empty: it has none.
    pub servers: Option<Vec<Server>>,
    /// The smallest request that the servers do not accept, in bytes, if one has met it.
    pub request_limit: Option<usize>,
    /// Why the registry cannot write.
    pub obstacle: Option<String>,
    /// The quotas for the nodes of the sidecar; `None`: not known.
    pub quotas: Option<Vec<Quota>>,
    /// The setting `session_timeout`; `None`: the registry is embedded.
    pub timeout: Option<Duration>,
    /// By how many milliseconds this clock is ahead of the registry's, if a job shows it.
    pub ahead_ms: Option<i64>,
    /// The restore of the namespace after which tokens may be lower than before.
    pub restored: Option<Restored>,
    /// The longest delay of the heartbeat; `None`: a command asks, and no sidecar.
    pub stall: Option<Duration>,
    /// Whether it is stopping.
    pub is_draining: bool,
    /// Whether the password for ZooKeeper is sent unencrypted.
    pub has_digest_in_clear: bool,
    /// Whether every client of ZooKeeper may change the nodes.
    pub has_open_nodes: bool,
    /// The settings that let others in without authentication.
    pub doors: Vec<Door>,
    /// The certificates that the sidecar shows: the setting of the file, and when the first of its chain expires.
    pub certificates: Vec<(&'static str, Timestamp)>,
    /// The wall clock.
    pub now: Timestamp,
}

/// A session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// Its timeout; `None`: it has none.
    pub timeout: Option<Duration>,
    /// The rest of its lease; `None`: not known.
    pub lease: Option<Duration>,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Its group.
    pub category: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The state that it expects, in words.
    pub expects: &'static str,
    /// The result.
    pub result: Result<(), Failed>,
}

/// A check that has not succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failed {
    /// For this reason.
    Found(Trouble),
    /// It was not made, because an earlier one has failed, or because its facts are not known.
    Skipped,
}

/// All checks, in their order.
pub fn check(facts: &Facts) -> Vec<Check> {
    let fault = |is_so: bool, trouble: Trouble| if is_so { Err(Failed::Found(trouble)) } else { Ok(()) };
    let of_session =
        |check: &dyn Fn(Session) -> Result<(), Failed>| facts.session.map_or(Err(Failed::Skipped), check);
    let stalls = facts
        .stall
        .map_or(Err(Failed::Skipped), |delay| fault(delay > STALL, Trouble::RuntimeStalls { delay }));
    let unreachable = match facts.is_read_only {
        true => Trouble::RegistryReadOnly,
        false => Trouble::RegistryUnreachable { trouble: facts.trouble.clone() },
    };
    let obstacle = facts.obstacle.clone();
    let cannot_write = Trouble::RegistryCannotWrite { obstacle: obstacle.clone().unwrap_or_default() };
    let checks = [
        ("sidecar", "heartbeat", "the process gets its time", stalls),
        ("sidecar", "draining", "it is not stopping", fault(facts.is_draining, Trouble::SidecarDraining)),
        ("registry", "servers", "each server of the registry serves", of_servers(facts, away)),
        ("registry", "versions", "each server is of version 3.6 or newer", of_servers(facts, old)),
        ("registry", "latency", "each server answers within a second", of_servers(facts, slow)),
        ("registry", "session", "there is a session", fault(facts.session.is_none(), unreachable)),
        (
            "registry",
            "writable",
            "the registry can write",
            of_session(&|_| fault(obstacle.is_some(), cannot_write.clone())),
        ),
        ("registry", "requests", "the servers accept large requests", of_session(&|_| requests(facts))),
        ("registry", "quota", "no quota is reached", of_session(&|_| quota(facts))),
        (
            "registry",
            "timeout",
            "the session is as long as the setting",
            of_session(&|session| timeout(facts, session)),
        ),
        ("registry", "lease", "the registry confirms the session in time", of_session(&lease)),
        ("registry", "clock", "the clocks of this machine and of the registry agree", clock(facts)),
        ("registry", "tokens", "fencing tokens never fall", of_session(&|_| tokens(facts))),
        (
            "security",
            "encryption",
            "no password is sent in clear",
            fault(facts.has_digest_in_clear, Trouble::DigestInClear),
        ),
        (
            "security",
            "access",
            "the nodes have an owner",
            fault(facts.has_open_nodes, Trouble::NodesWorldWritable),
        ),
        (
            "security",
            "listeners",
            "others do not reach the sidecar without authentication",
            fault(!facts.doors.is_empty(), Trouble::ListenerOpen { doors: facts.doors.clone() }),
        ),
        ("security", "certificates", "no certificate expires within 30 days", certificates(facts)),
    ];
    let check = |(category, name, expects, result)| Check { category, name, expects, result };
    checks.into_iter().map(check).collect()
}

/// The check of a command that asks a sidecar; the sidecar itself does not know it. `None`: the sidecar has not told its version.
pub fn check_command(command: &str, sidecar: Option<&str>) -> Check {
    let result = match sidecar {
        None => Err(Failed::Skipped),
        Some(sidecar) if sidecar == command => Ok(()),
        Some(sidecar) => Err(Failed::Found(Trouble::VersionDiffers {
            command: command.to_owned(),
            sidecar: sidecar.to_owned(),
        })),
    };
    Check {
        category: "sidecar",
        name: "command",
        expects: "this command is of the sidecar's version",
        result,
    }
}

/// The groups of checks and the checks, by name. The checks of jobs have only their group, [`JOBS`].
pub fn names() -> BTreeSet<&'static str> {
    let checks = check(&Facts::default()).into_iter().chain([check_command("", None)]);
    checks.flat_map(|check| [check.category, check.name]).chain([JOBS]).collect()
}

/// Checks the servers, if there are any.
fn of_servers(facts: &Facts, fault: impl Fn(&[Server]) -> Option<Trouble>) -> Result<(), Failed> {
    let servers = facts.servers.as_deref().filter(|servers| !servers.is_empty()).ok_or(Failed::Skipped)?;
    fault(servers).map_or(Ok(()), |trouble| Err(Failed::Found(trouble)))
}

fn away(servers: &[Server]) -> Option<Trouble> {
    let failed =
        servers.iter().filter_map(|server| Some((server.address.clone(), server.answer.clone().err()?)));
    let failed: Vec<_> = failed.collect();
    (!failed.is_empty()).then_some(Trouble::RegistryServerAway { servers: failed, of: servers.len() })
}

/// The oldest one that is too old.
fn old(servers: &[Server]) -> Option<Trouble> {
    let versions = servers.iter().filter_map(|server| Some((server.answer.as_ref().ok()?.version?, server)));
    let (version, server) = versions.min_by_key(|(version, _)| *version)?;
    (version < VERSION_MIN).then(|| Trouble::RegistryServerOld { address: server.address.clone(), version })
}

/// The slowest one that is too slow.
fn slow(servers: &[Server]) -> Option<Trouble> {
    let times = servers.iter().filter_map(|server| Some((server.answer.as_ref().ok()?.took?, server)));
    let (took, server) = times.max_by_key(|(took, _)| *took)?;
    (took > SLOW).then(|| Trouble::RegistrySlow { address: server.address.clone(), took })
}

fn requests(facts: &Facts) -> Result<(), Failed> {
    let small = facts.request_limit.map(|bytes| Trouble::RegistryRequestsSmall { bytes });
    small.map_or(Ok(()), |trouble| Err(Failed::Found(trouble)))
}

fn quota(facts: &Facts) -> Result<(), Failed> {
    let quotas = facts.quotas.as_ref().ok_or(Failed::Skipped)?;
    let fullest = quotas.iter().max_by_key(|quota| quota.percent());
    match fullest.filter(|quota| quota.percent() >= QUOTA_PERCENT) {
        Some(quota) => Err(Failed::Found(Trouble::RegistryQuota(quota.clone()))),
        None => Ok(()),
    }
}

fn timeout(facts: &Facts, session: Session) -> Result<(), Failed> {
    let (Some(asked), Some(granted)) = (facts.timeout, session.timeout) else { return Err(Failed::Skipped) };
    if granted < asked { Err(Failed::Found(Trouble::SessionShortened { asked, granted })) } else { Ok(()) }
}

fn lease(session: Session) -> Result<(), Failed> {
    let (Some(timeout), Some(remaining)) = (session.timeout, session.lease) else {
        return Err(Failed::Skipped);
    };
    if remaining.saturating_mul(100) < timeout.saturating_mul(LEASE_PERCENT) {
        return Err(Failed::Found(Trouble::SessionLeaseLow { remaining, timeout }));
    }
    Ok(())
}

fn tokens(facts: &Facts) -> Result<(), Failed> {
    let Some(Restored { highest, begins }) = facts.restored else { return Ok(()) };
    Err(Failed::Found(Trouble::TokensMayFall { highest: highest.0, begins: begins.0 }))
}

fn clock(facts: &Facts) -> Result<(), Failed> {
    let Some(ahead_ms) = facts.ahead_ms else { return Err(Failed::Skipped) };
    if ahead_ms.saturating_abs() > SKEW_MS {
        Err(Failed::Found(Trouble::ClockSkew { ahead_ms }))
    } else {
        Ok(())
    }
}

/// The one that expires first.
fn certificates(facts: &Facts) -> Result<(), Failed> {
    let (setting, end) =
        facts.certificates.iter().copied().min_by_key(|(_, end)| *end).ok_or(Failed::Skipped)?;
    if end.duration_since(facts.now) > EXPIRY {
        return Ok(());
    }
    Err(Failed::Found(Trouble::CertExpires { setting, end, has_expired: end <= facts.now }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::Severity;
    use crate::tree::{ServerAnswer, Zxid};

    fn well() -> Facts {
        Facts {
            certificates: vec![("tls_cert", Timestamp::UNIX_EPOCH + EXPIRY + SignedDuration::from_secs(1))],
            session: Some(Session {
                timeout: Some(Duration::from_secs(7)),
                lease: Some(Duration::from_secs(5)),
            }),
            timeout: Some(Duration::from_secs(7)),
            servers: Some(vec![server(1, (3, 6), 900), server(2, (3, 9), 2)]),
            quotas: Some(vec![nodes(79)]),
            ahead_ms: Some(40),
            stall: Some(Duration::from_millis(3)),
            ..Facts::default()
        }
    }

    /// A server that serves.
    fn server(number: u8, version: (u32, u32), millis: u64) -> Server {
        let took = Some(Duration::from_millis(millis));
        Server {
            address: format!("zk{number}:2181"),
            answer: Ok(ServerAnswer { version: Some(version), took }),
        }
    }

    /// A quota of 100 nodes.
    fn nodes(used: u64) -> Quota {
        Quota { path: "/jobs".to_owned(), is_of_bytes: false, used, limit: 100 }
    }

    fn codes(facts: &Facts) -> Vec<&'static str> {
        let found = |check: Check| match check.result {
            Err(Failed::Found(trouble)) => Some(trouble.code()),
            Ok(()) | Err(Failed::Skipped) => None,
        };
        check(facts).into_iter().filter_map(found).collect()
    }

    fn session(timeout: u64, lease: u64) -> Option<Session> {
        let seconds = |count| Some(Duration::from_secs(count));
        Some(Session { timeout: seconds(timeout), lease: seconds(lease) })
    }

    #[test]
    fn op_4_each_fault_of_a_sidecar_is_named_alone_and_in_pairs_and_a_sidecar_that_is_well_has_none() {
        type Inflict = fn(&mut Facts);
        let faults: [(&str, Inflict); 15] = [
            ("RUNTIME_STALLS", |facts| facts.stall = Some(Duration::from_secs(2))),
            ("SIDECAR_DRAINING", |facts| facts.is_draining = true),
            ("REGISTRY_SERVER_AWAY", |facts| {
                let answer = Err("it does not answer".to_owned());
                facts.servers.as_mut().unwrap().push(Server { address: "zk3:2181".to_owned(), answer });
            }),
            ("REGISTRY_SERVER_OLD", |facts| {
                facts.servers.as_mut().unwrap().push(server(4, (3, 5), 2));
            }),
            ("REGISTRY_SLOW", |facts| facts.servers.as_mut().unwrap().push(server(5, (3, 9), 1_001))),
            ("REGISTRY_CANNOT_WRITE", |facts| facts.obstacle = Some("the disk is full".to_owned())),
            ("REGISTRY_REQUESTS_SMALL", |facts| facts.request_limit = Some(65_536)),
            ("REGISTRY_QUOTA", |facts| facts.quotas = Some(vec![nodes(3), nodes(100), nodes(80)])),
            ("SESSION_SHORTENED", |facts| facts.timeout = Some(Duration::from_secs(60))),
            ("CLOCK_SKEW", |facts| facts.ahead_ms = Some(-61_000)),
            ("TOKENS_MAY_FALL", |facts| {
                facts.restored = Some(Restored { highest: Zxid(9), begins: Zxid(5) });
            }),
            ("DIGEST_IN_CLEAR", |facts| facts.has_digest_in_clear = true),
            ("NODES_WORLD_WRITABLE", |facts| facts.has_open_nodes = true),
            ("LISTENER_OPEN", |facts| {
                facts.doors = vec![Door::AnyLocalUser { roles: "view".to_owned() }];
            }),
            ("CERT_EXPIRES", |facts| {
                facts.certificates.push(("zookeeper_cert", Timestamp::UNIX_EPOCH + EXPIRY));
            }),
        ];
        assert_eq!(codes(&well()), Vec::<&str>::new());
        for (number, (first, inflict)) in faults.iter().enumerate() {
            for (second, inflict_too) in &faults[number..] {
                let mut facts = well();
                inflict(&mut facts);
                inflict_too(&mut facts);
                let mut expected = vec![*first, *second];
                expected.dedup();
                assert_eq!(codes(&facts), expected);
            }
        }
        assert_eq!(codes(&Facts { session: session(7, 2), ..well() }), ["SESSION_LEASE_LOW"]);
        let severity = |now: i64| {
            let now = Timestamp::from_second(now).unwrap();
            let facts = Facts {
                certificates: vec![("tls_cert", Timestamp::from_second(100).unwrap())],
                now,
                ..well()
            };
            certificates(&facts).map_err(|failed| match failed {
                Failed::Found(trouble) => trouble.severity(),
                Failed::Skipped => panic!("a certificate is known"),
            })
        };
        assert_eq!((severity(99), severity(100)), (Err(Severity::Warning), Err(Severity::Error)));
        assert_eq!(certificates(&Facts { certificates: Vec::new(), ..well() }), Err(Failed::Skipped));
        for (used, severity) in [(80, Severity::Warning), (99, Severity::Warning), (100, Severity::Error)] {
            let found = quota(&Facts { quotas: Some(vec![nodes(used)]), ..well() });
            assert_eq!(found, Err(Failed::Found(Trouble::RegistryQuota(nodes(used)))));
            assert_eq!(Trouble::RegistryQuota(nodes(used)).severity(), severity);
        }
    }

    #[test]
    fn a_command_of_another_version_than_the_sidecar_is_named() {
        assert_eq!(check_command("0.2.0", Some("0.2.0")).result, Ok(()));
        assert_eq!(check_command("0.2.0", None).result, Err(Failed::Skipped));
        let Err(Failed::Found(trouble)) = check_command("0.2.0", Some("0.1.0")).result else {
            panic!("nothing is found")
        };
        assert_eq!((trouble.code(), trouble.severity()), ("VERSION_DIFFERS", Severity::Warning));
        assert_eq!(
            trouble.message(),
            "the sidecar is of version 0.1.0, and this command is of version 0.2.0"
        );
    }

    #[test]
    fn a_name_means_one_check_or_one_group() {
        let checks = check(&Facts::default()).into_iter().chain([check_command("", None)]);
        let checks: Vec<_> = checks.collect();
        let groups: BTreeSet<_> = checks.iter().map(|check| check.category).chain([JOBS]).collect();
        assert_eq!(names().len(), checks.len() + groups.len());
    }

    #[test]
    fn without_a_session_its_checks_are_skipped() {
        let facts = Facts { session: None, trouble: "no server answers".to_owned(), ..well() };
        assert_eq!(codes(&facts), ["REGISTRY_UNREACHABLE"]);
        assert_eq!(codes(&Facts { is_read_only: true, ..facts.clone() }), ["REGISTRY_READ_ONLY"]);
        let skipped = check(&facts).into_iter().filter(|check| check.result == Err(Failed::Skipped));
        assert_eq!(
            skipped.map(|check| check.name).collect::<Vec<_>>(),
            ["writable", "requests", "quota", "timeout", "lease", "tokens"]
        );
    }

    #[test]
    fn all_servers_that_do_not_serve_are_named_and_a_registry_without_servers_is_not_checked() {
        let failed = |number: u8, reason: &str| Server {
            address: format!("zk{number}:2181"),
            answer: Err(reason.to_owned()),
        };
        let servers = [failed(1, "no such name"), server(2, (3, 9), 1), failed(3, "it is frozen")];
        let found = away(&servers).unwrap();
        assert_eq!(
            found.message(),
            "2 of 3 servers of the registry do not serve: zk1:2181: no such name; zk3:2181: it is frozen"
        );
        let unknown = ServerAnswer { version: None, took: None };
        let silent = [Server { address: "zk1:2181".to_owned(), answer: Ok(unknown) }];
        assert_eq!((away(&silent), old(&silent), slow(&silent)), (None, None, None));
        for servers in [None, Some(Vec::new())] {
            assert_eq!(of_servers(&Facts { servers, ..well() }, away), Err(Failed::Skipped));
        }
    }
}
