//! The types of the settings' values.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::rights::Rights;
use super::roles::Roles;

/// The callers that may reach a port without authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// This machine only.
    Local,
    /// Every caller that reaches the address.
    Anybody,
}

/// An address to serve on, and the most that its callers may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// The address.
    pub address: ListenAddress,
    /// The most that callers on this address may do, also those of the sidecar's own user.
    pub rights: Rights,
    /// Whether the sidecar may serve without it, on its other addresses.
    pub optional: bool,
}

impl From<ListenAddress> for Listen {
    fn from(address: ListenAddress) -> Self {
        Self { address, rights: Rights::ALL, optional: false }
    }
}

/// An address to serve on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// A loopback address. Port 0: any free one.
    Tcp(SocketAddr),
    /// An address with TLS, which other machines may reach. Port 0: any free one.
    Tls(SocketAddr),
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
            Self::Tls(address) => write!(f, "https://{address}"),
            Self::Unix(address) => write!(f, "unix:{}", address.path.display()),
        }
    }
}

/// The files of TLS with callers, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// The sidecar's certificate with its chain.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities of callers' certificates.
    pub client_ca: PathBuf,
    /// The revocation lists of these authorities.
    pub client_crl: Option<PathBuf>,
}

/// Callers that a sidecar serves, and what they may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowed {
    /// The callers.
    pub who: Who,
    /// What they may do.
    pub roles: Roles,
}

impl Allowed {
    /// The sidecar's own user, and root.
    pub const SAME_USER: Self = Self { who: Who::SameUser, roles: Roles::ALL };
}

/// Users of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The sidecar's own user, and root: they may always do everything.
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
    /// The most bytes of a token, which is sent in a header.
    const TOKEN_BYTES_MAX: usize = 4096;

    /// A token of callers, if the text can be one. The error does not repeat the text.
    pub(crate) fn token(text: &str) -> Result<Self, String> {
        let fits = !text.is_empty() && text.len() <= Self::TOKEN_BYTES_MAX;
        if !fits || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("allowed: 1 to 4096 ASCII characters without spaces".to_owned());
        }
        Ok(Self(text.to_owned()))
    }

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
