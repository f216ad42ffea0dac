//! The types of the settings' values.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The callers that may reach the dump command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DumpAccess {
    /// This machine only.
    Local,
    /// Every caller that reaches the address.
    Anybody,
}

/// An address to serve on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// A loopback address. Port 0: any free one.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(UnixAddress),
}

/// A socket in the file system, and who may connect to it by the rights of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixAddress {
    /// Its absolute path.
    pub path: PathBuf,
    /// The rights of the file, as of chmod(1). Connecting needs the right to write.
    pub mode: u32,
    /// The group of the file, by its name or its number. `None`: as the system makes it.
    pub group: Option<String>,
}

impl UnixAddress {
    /// The rights of a socket that is only for its owner.
    pub const OWNER_ONLY: u32 = 0o600;
}

impl<P: Into<PathBuf>> From<P> for UnixAddress {
    fn from(path: P) -> Self {
        Self { path: path.into(), mode: Self::OWNER_ONLY, group: None }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(address) => write!(f, "unix:{}", address.path.display()),
        }
    }
}

/// Callers that a sidecar serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    /// The sidecar's own user, and root: they may always call.
    SameUser,
    /// Every user of this machine.
    AnyLocalUser,
    /// The user with this number.
    User(u32),
    /// Users whose primary group has this number. Only Unix sockets tell it.
    Group(u32),
}

/// A text that must never be shown: a user and a password, a token.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub(super) String);

/// The text in place of a secret.
pub(super) const MASK: &str = "***";

impl Secret {
    /// The text, for code that sends it or compares it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

/// The format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// One line of text for each event.
    Text,
    /// One JSON object for each event.
    Json,
}
