//! Everything that can be wrong with a sidecar, its session and its settings.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;

use crate::tree::Quota;

use super::{Severity, anchor};

/// An entry of the catalogue, with the values for its sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// There is no session with the registry.
    RegistryUnreachable {
        /// The error of the last attempt to open one.
        trouble: String,
    },
    /// There is no session, because the servers that answer serve read-only.
    RegistryReadOnly,
    /// The registry takes no more nodes or bytes, or soon will not.
    RegistryQuota(Quota),
    /// A server of the registry does not serve.
    RegistryServerAway {
        /// The addresses of those that do not, each with the reason. Not empty.
        servers: Vec<(String, String)>,
        /// How many there are in the settings.
        of: usize,
    },
    /// A server of the registry is too old.
    RegistryServerOld {
        /// Its address.
        address: String,
        /// The first two parts of its version.
        version: (u32, u32),
    },
    /// A server of the registry answers slowly.
    RegistrySlow {
        /// Its address.
        address: String,
        /// How long the quickest of some answers took.
        took: Duration,
    },
    /// The servers of the registry accept small requests only.
    RegistryRequestsSmall {
        /// The smallest size that they do not accept, in bytes.
        bytes: usize,
    },
    /// The registry cannot write.
    RegistryCannotWrite {
        /// Why, and the remedy.
        obstacle: String,
    },
    /// The registry has granted a shorter timeout than the setting.
    SessionShortened {
        /// The setting.
        asked: Duration,
        /// The timeout of the session.
        granted: Duration,
    },
    /// The registry confirms the session late.
    SessionLeaseLow {
        /// The rest of the lease.
        remaining: Duration,
        /// The timeout of the session.
        timeout: Duration,
    },
    /// The clock of this machine and that of the registry differ.
    ClockSkew {
        /// By so many milliseconds this clock is ahead; negative: behind.
        ahead_ms: i64,
    },
    /// The process gets too little processor time.
    RuntimeStalls {
        /// The longest delay of its heartbeat.
        delay: Duration,
    },
    /// The namespace was restored into a registry whose transactions may have lower numbers.
    TokensMayFall {
        /// The highest transaction that the backup knows of.
        highest: i64,
        /// The transaction of the restore.
        begins: i64,
    },
    /// The sidecar is stopping.
    SidecarDraining,
    /// The password for ZooKeeper is not encrypted.
    DigestInClear,
    /// Every client of ZooKeeper may change the nodes.
    NodesWorldWritable,
    /// Others may call the sidecar without authentication.
    ListenerOpen {
        /// The settings that let them in. Not empty.
        doors: Vec<Door>,
    },
    /// The command that asks is of another version than the sidecar.
    VersionDiffers {
        /// The version of the command.
        command: String,
        /// The version of the sidecar.
        sidecar: String,
    },
    /// A certificate that the sidecar shows expires soon, or has expired.
    CertExpires {
        /// The setting of its file.
        setting: &'static str,
        /// When it expires.
        end: Timestamp,
        /// Whether that is past.
        has_expired: bool,
    },
    /// The sidecar is no native sidecar of its pod.
    PodNotNative {
        /// The container of the sidecar.
        container: String,
    },
    /// The sidecar does not drain when its pod is to end.
    PodNoDrain {
        /// The container of the sidecar.
        container: String,
    },
    /// Kubernetes kills the pod before the sidecar has drained.
    PodGraceShort {
        /// The time that the pod has.
        grace: Duration,
        /// The setting `drain_timeout`.
        drain: Duration,
        /// The time that the sidecar may take.
        needed: Duration,
    },
    /// The state of the sidecar is in no volume.
    PodStateLost {
        /// The setting `state_dir`.
        folder: String,
    },
    /// Another container has the state of the sidecar.
    PodStateShared {
        /// The setting `state_dir`.
        folder: String,
        /// The other container.
        container: String,
    },
}

/// A setting that lets others in without authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Door {
    /// `allow` has `any-local-user`, and callers need no token.
    AnyLocalUser {
        /// The roles of these users.
        roles: String,
    },
    /// Other machines reach the address of `dump_listen`.
    Dump(SocketAddr),
    /// Other machines reach the address of `http_listen`.
    Http(SocketAddr),
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AnyLocalUser { roles } => {
                write!(f, "every user of this machine may call it (allow: any-local-user, {roles})")
            }
            Self::Dump(address) => {
                write!(f, "every machine that reaches {address} can read all jobs (dump_listen)")
            }
            Self::Http(address) => {
                write!(
                    f,
                    "every machine that reaches {address} can read the names and numbers of jobs (http_listen)"
                )
            }
        }
    }
}

impl Trouble {
    /// The entry's code, and its severity.
    fn entry(&self) -> (&'static str, Severity) {
        use Severity::{Error, Warning};
        match self {
            Self::RegistryUnreachable { .. } => ("REGISTRY_UNREACHABLE", Error),
            Self::RegistryReadOnly => ("REGISTRY_READ_ONLY", Error),
            Self::RegistryQuota(quota) if quota.used < quota.limit => ("REGISTRY_QUOTA", Warning),
            Self::RegistryQuota(_) => ("REGISTRY_QUOTA", Error),
            Self::RegistryServerAway { .. } => ("REGISTRY_SERVER_AWAY", Warning),
            Self::RegistryServerOld { .. } => ("REGISTRY_SERVER_OLD", Error),
            Self::RegistrySlow { .. } => ("REGISTRY_SLOW", Warning),
            Self::RegistryRequestsSmall { .. } => ("REGISTRY_REQUESTS_SMALL", Warning),
            Self::RegistryCannotWrite { .. } => ("REGISTRY_CANNOT_WRITE", Error),
            Self::SessionShortened { .. } => ("SESSION_SHORTENED", Warning),
            Self::SessionLeaseLow { .. } => ("SESSION_LEASE_LOW", Warning),
            Self::ClockSkew { .. } => ("CLOCK_SKEW", Error),
            Self::RuntimeStalls { .. } => ("RUNTIME_STALLS", Warning),
            Self::TokensMayFall { .. } => ("TOKENS_MAY_FALL", Error),
            Self::SidecarDraining => ("SIDECAR_DRAINING", Warning),
            Self::DigestInClear => ("DIGEST_IN_CLEAR", Warning),
            Self::NodesWorldWritable => ("NODES_WORLD_WRITABLE", Warning),
            Self::ListenerOpen { .. } => ("LISTENER_OPEN", Warning),
            Self::VersionDiffers { .. } => ("VERSION_DIFFERS", Warning),
            Self::CertExpires { has_expired: false, .. } => ("CERT_EXPIRES", Warning),
            Self::CertExpires { has_expired: true, .. } => ("CERT_EXPIRES", Error),
            Self::PodNotNative { .. } => ("POD_NOT_NATIVE", Warning),
            Self::PodNoDrain { .. } => ("POD_NO_DRAIN", Warning),
            Self::PodGraceShort { .. } => ("POD_GRACE_SHORT", Error),
            Self::PodStateLost { .. } => ("POD_STATE_LOST", Warning),
            Self::PodStateShared { .. } => ("POD_STATE_SHARED", Error),
        }
    }

    /// The code: for programs.
    pub fn code(&self) -> &'static str {
        self.entry().0
    }

    /// How bad it is.
    pub fn severity(&self) -> Severity {
        self.entry().1
    }

    /// Where the documentation explains it.
    pub fn anchor(&self) -> String {
        anchor(self.code())
    }

    /// The fault, in one sentence.
    pub fn message(&self) -> String {
        match self {
            Self::RegistryUnreachable { trouble } if trouble.is_empty() => {
                "there is no session with the registry".to_owned()
            }
            Self::RegistryUnreachable { trouble } => {
                format!("there is no session with the registry: {trouble}")
            }
            Self::RegistryReadOnly => {
                "there is no session with the registry: the servers that answer serve read-only".to_owned()
            }
            Self::RegistryQuota(Quota { path, is_of_bytes, used, limit }) => {
                let what = if *is_of_bytes { "bytes" } else { "nodes" };
                let state = if used < limit { "is nearly reached" } else { "is reached" };
                format!("the quota of {path} {state}: {used} of {limit} {what}")
            }
            Self::RegistryServerAway { servers, of } => {
                let named: Vec<_> =
                    servers.iter().map(|(address, reason)| format!("{address}: {reason}")).collect();
                format!(
                    "{} of {of} servers of the registry do not serve: {}",
                    servers.len(),
                    named.join("; ")
                )
            }
            Self::RegistryServerOld { address, version: (major, minor) } => {
                format!("the server {address} is of version {major}.{minor}, and 3.6 or newer is needed")
            }
            Self::RegistrySlow { address, took } => {
                format!("the server {address} takes {took:.1?} for an answer that costs it nothing")
            }
            Self::RegistryRequestsSmall { bytes } => {
                format!("the servers of the registry break the connection for requests of {bytes} bytes")
            }
            Self::RegistryCannotWrite { obstacle } => format!("the registry cannot write: {obstacle}"),
            Self::SessionShortened { asked, granted } => {
                format!("the registry has granted a session of {granted:?}, and the setting is {asked:?}")
            }
            Self::SessionLeaseLow { remaining, timeout } => format!(
                "the registry confirms the session late: {remaining:.1?} are left of a session of {timeout:?}"
            ),
            Self::ClockSkew { ahead_ms } => {
                let word = if *ahead_ms < 0 { "behind" } else { "ahead of" };
                let seconds = Duration::from_millis(ahead_ms.unsigned_abs()).as_secs();
                format!(
                    "the clock of this machine is {seconds} s {word} that of the registry: its fires come at other instants"
                )
            }
            Self::RuntimeStalls { delay } => {
                format!("the heartbeat of the sidecar was {delay:.1?} late in the last minute")
            }
            Self::TokensMayFall { highest, begins } => format!(
                "the namespace was restored: tokens up to {highest} and more were given out before, and now they count from {begins}"
            ),
            Self::SidecarDraining => "the sidecar is stopping, and starts nothing more".to_owned(),
            Self::DigestInClear => {
                "the password for ZooKeeper is sent over an unencrypted connection".to_owned()
            }
            Self::NodesWorldWritable => {
                "every client of ZooKeeper may change the nodes of the sidecar".to_owned()
            }
            Self::ListenerOpen { doors } => {
                let doors: Vec<_> = doors.iter().map(ToString::to_string).collect();
                format!("the sidecar answers without authentication: {}", doors.join("; "))
            }
            Self::VersionDiffers { command, sidecar } => {
                format!("the sidecar is of version {sidecar}, and this command is of version {command}")
            }
            Self::CertExpires { setting, end, has_expired } => {
                let word = if *has_expired { "has expired" } else { "expires" };
                format!("the certificate of {setting} {word} at {end}: from then on others refuse it")
            }
            Self::PodNotNative { container } => format!(
                "the container {container} is no native sidecar: the application may start before it, and ends at the same time"
            ),
            Self::PodNoDrain { container } => format!(
                "nothing drains the container {container} when the pod is to end: its instances stay until the application has ended"
            ),
            Self::PodGraceShort { grace, drain, needed } => format!(
                "the pod has {grace:?} to end, and the sidecar takes up to {needed:?}: drain_timeout is {drain:?}"
            ),
            Self::PodStateLost { folder } => format!(
                "state_dir {folder} is in no volume: a restart of the container loses it, and its instances begin anew"
            ),
            Self::PodStateShared { folder, container } => format!(
                "the container {container} mounts the volume of state_dir {folder}: it could take over the session"
            ),
        }
    }

    /// The act that ends the fault.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::RegistryUnreachable { .. } => {
                "look at ZooKeeper's servers and at the network to them; the sidecar connects by itself"
            }
            Self::RegistryReadOnly => {
                "start the other servers of the ensemble: more than half of them must run; the sidecar connects by itself"
            }
            Self::RegistryQuota(_) => {
                "raise or delete the quota (setquota, delquota of zkCli.sh); the sidecar goes on by itself"
            }
            Self::RegistryServerAway { .. } => {
                "start these servers, mend the network or the name, or take them out of the setting zookeeper"
            }
            Self::RegistryServerOld { .. } => "upgrade the server",
            Self::RegistrySlow { .. } => "look for the load on the server, on the network or on this machine",
            Self::RegistryRequestsSmall { .. } => {
                "raise jute.maxbuffer of ZooKeeper's servers, and restart the sidecar"
            }
            Self::RegistryCannotWrite { .. } => "free the registry's disk; the sidecar goes on by itself",
            Self::SessionShortened { .. } => {
                "raise maxSessionTimeout of ZooKeeper's servers, or set session_timeout to the granted time"
            }
            Self::SessionLeaseLow { .. } => {
                "look for the load on ZooKeeper, on the network or on this machine"
            }
            Self::ClockSkew { .. } => {
                "set the clocks of this machine and of ZooKeeper's servers, and keep them so (NTP)"
            }
            Self::RuntimeStalls { .. } => "give the sidecar more processor time",
            Self::TokensMayFall { .. } => {
                "make each store that compares tokens forget the last ones, then delete the node `@-@restored`"
            }
            Self::SidecarDraining => "start the sidecar anew, unless it is to stop",
            Self::DigestInClear => "set zookeeper_ca, and the secure ports of the servers in zookeeper",
            Self::NodesWorldWritable => "set zookeeper_acl",
            Self::ListenerOpen { .. } => {
                "change the setting; if it is intended, leave the check out: `--skip listeners`"
            }
            Self::VersionDiffers { .. } => "ask with the program of the sidecar's version",
            Self::CertExpires { .. } => "renew the certificate in its file; the sidecar needs no restart",
            Self::PodNotNative { .. } => "make it an init container with `restartPolicy: Always`",
            Self::PodNoDrain { .. } => {
                "give the container the hook `lifecycle.preStop.exec.command: [sidekeeper, drain]`"
            }
            Self::PodGraceShort { .. } => "raise terminationGracePeriodSeconds, or lower drain_timeout",
            Self::PodStateLost { .. } => "mount an emptyDir there",
            Self::PodStateShared { .. } => "give state_dir a volume that only the sidecar mounts",
        }
    }
}
