//! The sidecar of a command: the forms of its address, and the time limits of the connection. A command
//! without an address finds the sidecar of its user in one of the usual places, also that of `sidekeeper run`.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use nix::unistd::geteuid;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt as _;

use super::printable;
use super::run::{ENDPOINT_VARIABLE, PRIVATE_PREFIX, SOCKET_NAME};
use super::trusted;
use super::{FAILED, Failure, TRY_AGAIN, USAGE};
use crate::config::settings;
use crate::credential_file::{public, secret};
use crate::runtime_folder;

/// The address of a sidecar without configuration.
const DEFAULT: &str = "http://127.0.0.1:7070";
const DEFAULT_AUTHORITY: &str = "127.0.0.1:7070";
/// How long to try to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a silent connection is pinged, and how long the answer may take. A person who watches should see
/// soon that a sidecar hangs.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
const HTTP: &str = "http://";
const HTTPS: &str = "https://";
/// The forms of an address.
const ALLOWED: &str =
    "allowed: `HOST:PORT`, `http://HOST:PORT`, `https://HOST:PORT`, `unix:PATH` and `unix:///PATH`";

/// Which sidecar. The variables are not clap's: it would refuse `--zookeeper` wherever one of them is set.
#[derive(Args)]
pub(super) struct SidecarArgs {
    /// The sidecar's address: `HOST:PORT`, `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`. [default:
    /// a sidecar of this user or root: at `$XDG_RUNTIME_DIR/sidekeeper/api.sock`, at `/run/sidekeeper/api.sock`, at
    /// 127.0.0.1:7070, or that of `sidekeeper run`] [env: SIDEKEEPER_ENDPOINT]
    #[arg(long)]
    endpoint: Option<String>,
    /// For `https://`: the file with the certificates (PEM) of the authorities of sidecars' certificates.
    /// [env: SIDEKEEPER_CA]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// For `https://`: the file with the certificate to show, and its chain (PEM).
    /// [env: SIDEKEEPER_CERT]
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,
    /// For `https://`: the file with the key of this certificate (PEM), which other users must not be able to read.
    /// [env: SIDEKEEPER_KEY]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

impl SidecarArgs {
    /// The checked address.
    pub(super) fn sidecar(&self) -> Result<Sidecar, Failure> {
        let text = given(self.endpoint.as_ref().map(OsString::from), ENDPOINT_VARIABLE);
        let text = text.map(|text| text.to_string_lossy().into_owned());
        let address = text.as_deref().map(parse).transpose().map_err(Failure::with(USAGE))?;
        let file = |flag: &Option<PathBuf>, variable| {
            given(flag.clone().map(PathBuf::into_os_string), variable).map(PathBuf::from)
        };
        let (ca, cert) = (file(&self.ca, "SIDEKEEPER_CA"), file(&self.cert, "SIDEKEEPER_CERT"));
        let tls = match (address.as_deref(), ca, cert, file(&self.key, "SIDEKEEPER_KEY")) {
            (Some(address), Some(ca), Some(cert), Some(key)) if address.starts_with(HTTPS) => {
                Some(ClientFiles { ca, cert, key })
            }
            (Some(address), ..) if address.starts_with(HTTPS) => {
                let needed =
                    anyhow!("--endpoint = `{address}`: `https://` needs --ca, --cert and --key beside it");
                return Err(Failure { code: USAGE, error: needed });
            }
            _ => None,
        };
        Ok(Sidecar { address, tls })
    }
}

/// The value of a flag, or else of a variable. Empty text is none.
fn given(flag: Option<OsString>, variable: &str) -> Option<OsString> {
    flag.or_else(|| std::env::var_os(variable)).filter(|text| !text.is_empty())
}

/// A sidecar's address. `None`: it is to be found.
pub(super) struct Sidecar {
    address: Option<String>,
    /// For an address with TLS.
    tls: Option<ClientFiles>,
}

/// The files of TLS with a sidecar, in PEM.
struct ClientFiles {
    ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
}

impl Sidecar {
    /// Connects to the sidecar.
    pub(super) async fn connect(&self) -> anyhow::Result<Channel> {
        let Some(address) = &self.address else { return find().await };
        let mut endpoint = endpoint(address)?;
        if let Some(files) = &self.tls {
            endpoint = endpoint.tls_config(files.read().await?)?;
        }
        endpoint.connect().await.with_context(|| not_there(address))
    }
}

impl ClientFiles {
    async fn read(&self) -> anyhow::Result<ClientTlsConfig> {
        let ca = public("--ca", &self.ca).await.map_err(anyhow::Error::msg)?;
        let cert = public("--cert", &self.cert).await.map_err(anyhow::Error::msg)?;
        let key = secret("--key", &self.key).await.map_err(anyhow::Error::msg)?;
        Ok(ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(ca))
            .identity(Identity::from_pem(cert, key)))
    }
}

/// Connects to the sidecar of this user or root that serves in a usual place.
async fn find() -> anyhow::Result<Channel> {
    let mut refused = Vec::new();
    for socket in runtime_folder::sockets(&|name| std::env::var_os(name)) {
        if socket.exists() {
            let address = format!("unix://{}", socket.display());
            match trusted::unix(endpoint(&address)?, &socket).await {
                Ok(channel) => return Ok(channel),
                Err(error) => refused.push(anyhow!(error).context(not_there(&address))),
            }
        }
    }
    match trusted::tcp(endpoint(DEFAULT)?, DEFAULT_AUTHORITY, token().is_some()).await {
        Ok(channel) => return Ok(channel),
        Err(error) => refused.push(anyhow!(error).context(not_there(DEFAULT))),
    }
    let mut found = Vec::new();
    for socket in private_sockets() {
        let address = format!("unix://{}", socket.display());
        if let Ok(channel) = endpoint(&address)?.connect().await {
            found.push((address, channel));
        }
    }
    if found.len() > 1 {
        let addresses: Vec<_> = found.iter().map(|(address, _)| address.as_str()).collect();
        return Err(anyhow!(
            "no sidecar answers at {DEFAULT}, and several `sidekeeper run` do: give one as --endpoint: {}",
            addresses.join(", ")
        ));
    }
    match (found.pop(), refused.into_iter().next()) {
        (Some((_, channel)), _) => Ok(channel),
        (None, Some(first)) => Err(first),
        (None, None) => Err(anyhow!(not_there(DEFAULT))),
    }
}

fn not_there(address: &str) -> String {
    format!("no sidecar answers at {address}; is `sidekeeper serve` running there?")
}

/// The sockets of the sidecars of this user's `sidekeeper run` commands.
fn private_sockets() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return Vec::new() };
    let entries = entries.filter_map(Result::ok);
    let named = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(PRIVATE_PREFIX)));
    // A folder that another user has put there may be a trap.
    let is_ours = |folder: &PathBuf| {
        fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw())
    };
    let ours = named.map(|entry| entry.path()).filter(is_ours);
    let mut sockets: Vec<_> =
        ours.map(|folder| folder.join(SOCKET_NAME)).filter(|path| path.exists()).collect();
    sockets.sort();
    sockets
}

/// Why a command failed. The exit code says whether another attempt may help.
pub(super) fn refused(status: &Status) -> Failure {
    Failure { code: exit_code(status), error: anyhow!(in_words(status)) }
}

/// The exit code of a command that failed with this status.
pub(super) fn exit_code(status: &Status) -> u8 {
    let may_help = matches!(status.code(), Code::Unavailable | Code::Aborted);
    if may_help { TRY_AGAIN } else { FAILED }
}

/// The sidecar's answer in words.
pub(super) fn in_words(status: &Status) -> String {
    format!("the sidecar answered {:?}: {}", status.code(), refusal(status))
}

/// Why a call was refused: the text for people, and then the word for programs.
pub(super) fn refusal(status: &Status) -> String {
    let text = printable(status.message());
    match reason(status) {
        Some(reason) => format!("{text} ({})", printable(&reason)),
        None => text,
    }
}

/// The word for programs, if the sidecar has sent it.
fn reason(status: &Status) -> Option<String> {
    let info = status.get_details_error_info()?;
    (!info.reason.is_empty()).then_some(info.reason)
}

/// A call with the sidecar's token, if the environment has one. There is no flag for it, because others can
/// read flags.
pub(super) fn authorized<T>(message: T) -> anyhow::Result<Request<T>> {
    let mut request = Request::new(message);
    if let Some(token) = token() {
        let header = format!("Bearer {token}").parse();
        let header = header
            .with_context(|| format!("{}: it has characters that a header cannot", settings::TOKEN.env))?;
        request.metadata_mut().insert("authorization", header);
    }
    Ok(request)
}

/// The sidecar's token in the environment.
fn token() -> Option<String> {
    std::env::var(settings::TOKEN.env).ok().filter(|token| !token.is_empty())
}

/// An address in the one form that connections use.
fn parse(text: &str) -> anyhow::Result<String> {
    let wrong = || anyhow!("--endpoint = `{}`: {ALLOWED}", text.escape_debug());
    if let Some(path) = text.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        return if path.starts_with('/') { Ok(format!("unix://{path}")) } else { Err(wrong()) };
    }
    let (scheme, authority) = match text.strip_prefix(HTTPS) {
        Some(authority) => (HTTPS, authority),
        None => (HTTP, text.strip_prefix(HTTP).unwrap_or(text)),
    };
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let (host, port) = authority.rsplit_once(':').ok_or_else(wrong)?;
    let is_host = !host.is_empty() && !host.contains(['/', '@', '?', '#']);
    if !is_host || port.parse::<u16>().is_err() {
        return Err(wrong());
    }
    Ok(format!("{scheme}{authority}"))
}

fn endpoint(address: &str) -> anyhow::Result<Endpoint> {
    let endpoint = Endpoint::from_shared(address.to_owned())
        .with_context(|| format!("--endpoint = `{}`: {ALLOWED}", address.escape_debug()))?;
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_an_address_are_one() {
        for (given, address) in [
            ("127.0.0.1:7070", "http://127.0.0.1:7070"),
            ("http://127.0.0.1:7070/", "http://127.0.0.1:7070"),
            ("localhost:7070", "http://localhost:7070"),
            ("[::1]:7070", "http://[::1]:7070"),
            ("https://sidecar.internal:7443", "https://sidecar.internal:7443"),
            ("unix:/run/s.sock", "unix:///run/s.sock"),
            ("unix:///run/s.sock", "unix:///run/s.sock"),
        ] {
            assert_eq!(parse(given).unwrap(), address);
            assert!(endpoint(address).is_ok());
        }
        for bad in [
            "",
            "7070",
            "https://127.0.0.1",
            "ftp://127.0.0.1:1",
            "http://",
            "http://a:b",
            "unix:s.sock",
            "a/b:1",
            "h:99999",
        ] {
            assert!(parse(bad).unwrap_err().to_string().contains("allowed: `HOST:PORT`"), "{bad:?}");
        }
    }
}
