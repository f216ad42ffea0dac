//! TLS with callers: an address that other machines may reach, and the names in callers' certificates. Shell.
//!
//! A caller needs a certificate of an authority that the sidecar knows. Handshakes go on side by side, with a bound in number and in
//! time, so that a slow caller holds up nobody. A session cannot be resumed: each connection shows its certificate anew.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{AbortHandle, Abortable, BoxFuture};
use futures::stream::{FuturesUnordered, StreamExt as _};
use jiff::Timestamp;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::{debug, warn};

use super::reread;
use crate::config::ServerFiles;
use crate::credential_file::{CertificateEnd, Reminder, public, secret};
use crate::pem::CertificateName;
use crate::runner::clock::Clock;
use crate::{crypto, pem};

/// The most handshakes at once. Beyond it the oldest one of the address with the most is given up.
const HANDSHAKES_MAX: usize = 64;
/// The time of a handshake: two messages in each direction, and room for a machine that is short of processors.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// The protocol that callers speak, as TLS names it (RFC 9113, 3.2).
const HTTP_2: &[u8] = b"h2";

/// Why the files of TLS could not be used. Has no text of a file.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TlsFilesError(String);

/// The certificates in force.
#[derive(Debug, Clone)]
pub struct Tls {
    texts: Texts,
    chain: Vec<CertificateDer<'static>>,
    /// When the first certificate of the chain expires.
    end: Option<Timestamp>,
    config: Arc<ServerConfig>,
}

impl PartialEq for Tls {
    fn eq(&self, other: &Self) -> bool {
        self.texts == other.texts
    }
}

/// The texts of the files.
#[derive(Clone, PartialEq, Eq)]
struct Texts {
    cert: String,
    key: String,
    client_ca: String,
    client_crl: Option<String>,
}

impl std::fmt::Debug for Texts {
    /// Omits the texts, of which one is secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Texts").finish_non_exhaustive()
    }
}

impl Tls {
    /// Fails if a certificate, a list or a key cannot be used, if the key is not the certificate's, or if that has expired.
    fn new(texts: Texts) -> Result<Self, String> {
        let provider = crypto::provider();
        let authorities = pem::authorities("tls_client_ca", &texts.client_ca)?;
        let lists = match &texts.client_crl {
            Some(crl) => pem::revocation_lists("tls_client_crl", crl)?,
            None => Vec::new(),
        };
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), Arc::clone(&provider))
                .with_crls(lists)
                // A list that nobody renews says nothing about what was revoked since.
                .enforce_revocation_expiration()
                .build()
                .map_err(|error| format!("tls_client_ca and tls_client_crl: {error}"))?;
        let chain = pem::chain("tls_cert", &texts.cert, UnixTime::now())?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS: {error}"))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), pem::key("tls_key", &texts.key)?)
            .map_err(|error| format!("tls_cert and tls_key: {error}"))?;
        config.alpn_protocols = vec![HTTP_2.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self { texts, end: pem::end(&chain), chain, config: Arc::new(config) })
    }
}

/// The files, and the channel that tells listeners their content.
pub struct TlsFiles {
    files: ServerFiles,
    current: watch::Sender<Tls>,
    end: CertificateEnd,
}

impl TlsFiles {
    /// Reads the files. Fails if other users can read the key, or if something is wrong. `end` becomes the end of the certificate,
    /// now and whenever the files are read again.
    pub async fn open(
        files: ServerFiles,
        end: CertificateEnd,
    ) -> Result<(Self, watch::Receiver<Tls>), TlsFilesError> {
        let tls = read(&files, None).await.map_err(TlsFilesError)?;
        end.set(tls.end);
        let (current, receiver) = watch::channel(tls);
        Ok((Self { files, current, end }, receiver))
    }

    /// Reads the files again and again. Never ends.
    pub async fn keep(self, clock: Clock) {
        let Self { files, current, end: told } = self;
        let known = current.subscribe();
        let reminder = &Reminder::default();
        let (files, told) = (&files, &told);
        let read = || {
            let known = known.borrow().clone();
            async move {
                let tls = read(files, Some(known)).await?;
                told.set(tls.end);
                if let Some(end) = reminder.due(UnixTime::now(), |soon| pem::expires_before(&tls.chain, soon))
                {
                    let (path, expires) = (files.cert.display(), pem::moment(end));
                    warn!(event = "CERT_EXPIRES", %path, expires, "renew the certificate of TLS: from then on no caller accepts it; the sidecar needs no restart");
                }
                Ok(tls)
            }
        };
        reread::keep(current, read, ("the certificates of TLS", files.cert.display()), clock).await;
    }
}

/// The certificates in the files: `known` if the files have not changed.
async fn read(files: &ServerFiles, known: Option<Tls>) -> Result<Tls, String> {
    let texts = Texts {
        cert: public("tls_cert", &files.cert).await?,
        key: secret("tls_key", &files.key).await?,
        client_ca: public("tls_client_ca", &files.client_ca).await?,
        client_crl: match &files.client_crl {
            Some(crl) => Some(public("tls_client_crl", crl).await?),
            None => None,
        },
    };
    match known {
        Some(known) if known.texts == texts => Ok(known),
        _ => Tls::new(texts),
    }
}

/// A connection after its handshake, and the names in its caller's certificate; or why there is none.
pub(super) type Shaken = Result<(TlsStream<TcpStream>, Vec<CertificateName>), String>;

/// An address with TLS.
pub struct TlsAddress {
    listener: TcpListener,
    current: watch::Receiver<Tls>,
    handshakes: Handshakes,
}

impl std::fmt::Debug for TlsAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsAddress").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl TlsAddress {
    /// Listens on an address.
    pub(super) async fn bind(address: SocketAddr, current: watch::Receiver<Tls>) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self { listener, current, handshakes: Handshakes::default() })
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next connection that has ended its handshake, well or not.
    pub(super) async fn accept(&mut self) -> io::Result<Shaken> {
        loop {
            tokio::select! {
                biased; // A handshake that has ended comes before a new connection.
                shaken = self.handshakes.next(), if !self.handshakes.are_none() => {
                    if let Some(shaken) = shaken {
                        return Ok(shaken);
                    }
                }
                accepted = self.listener.accept() => {
                    let (stream, from) = accepted?;
                    if let Err(error) = stream.set_nodelay(true) {
                        debug!(%error, "a connection may answer late: TCP_NODELAY cannot be set");
                    }
                    let config = Arc::clone(&self.current.borrow().config);
                    self.handshakes.begin(from.ip(), shake_hands(stream, from, config));
                }
            }
        }
    }

    /// Accepts a connection and closes it, if one waits.
    pub(super) async fn close_next(&self) -> io::Result<()> {
        self.listener.accept().await.map(drop)
    }
}

async fn shake_hands(stream: TcpStream, from: SocketAddr, config: Arc<ServerConfig>) -> Shaken {
    let shaken = timeout(HANDSHAKE_TIME, TlsAcceptor::from(config).accept(stream)).await;
    match shaken {
        Ok(Ok(stream)) => {
            let names = names_of(&stream);
            Ok((stream, names))
        }
        Ok(Err(error)) => Err(format!("the handshake with {from} fails: {error}")),
        Err(_) => Err(format!("the handshake with {from} takes longer than {HANDSHAKE_TIME:?}")),
    }
}

/// The names in the certificate of the caller. The handshake has verified it.
fn names_of(stream: &TlsStream<TcpStream>) -> Vec<CertificateName> {
    let (_, connection) = stream.get_ref();
    connection.peer_certificates().and_then(<[_]>::first).map(pem::names).unwrap_or_default()
}

/// Handshakes that go on side by side.
#[derive(Default)]
struct Handshakes {
    running: FuturesUnordered<BoxFuture<'static, (u64, Option<Shaken>)>>,
    /// By their numbers, which grow: the address of the caller, and how to give the handshake up.
    known: BTreeMap<u64, (IpAddr, AbortHandle)>,
    begun: u64,
}

impl Handshakes {
    fn are_none(&self) -> bool {
        self.running.is_empty()
    }

    fn begin(&mut self, from: IpAddr, handshake: impl Future<Output = Shaken> + Send + 'static) {
        if self.known.len() >= HANDSHAKES_MAX {
            self.give_one_up();
        }
        let (abort, registration) = AbortHandle::new_pair();
        let number = self.begun;
        self.begun += 1;
        self.known.insert(number, (from, abort));
        let handshake = Abortable::new(handshake, registration);
        self.running.push(Box::pin(async move { (number, handshake.await.ok()) }));
    }

    /// Gives up the oldest handshake of the address that has the most: an address that opens many holds up itself, and not the others.
    fn give_one_up(&mut self) {
        let mut by_address: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for (from, _) in self.known.values() {
            *by_address.entry(*from).or_default() += 1;
        }
        let most = by_address.into_iter().max_by_key(|(_, count)| *count).map(|(from, _)| from);
        let oldest = self.known.iter().find(|(_, (from, _))| Some(*from) == most).map(|(number, _)| *number);
        if let Some((_, abort)) = oldest.and_then(|number| self.known.remove(&number)) {
            abort.abort();
        }
    }

    /// The next that ends. `None`: there is none.
    async fn next(&mut self) -> Option<Shaken> {
        let (number, shaken) = self.running.next().await?;
        self.known.remove(&number);
        Some(shaken.unwrap_or_else(|| {
            Err(format!("a handshake is given up: its address has the most of more than {HANDSHAKES_MAX}"))
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::*;
    use crate::pem::tests::certificate_until;

    /// Writes files of which the certificate is valid until the beginning of a year.
    fn files_until(folder: &Path, year: i32) -> ServerFiles {
        let (certificate, private) = certificate_until(year);
        let [cert, client_ca, key] = ["cert", "ca", "key"].map(|name| folder.join(name));
        for (file, text) in [(&cert, &certificate), (&client_ca, &certificate), (&key, &private)] {
            fs::write(file, text).unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
        }
        ServerFiles { cert, key, client_ca, client_crl: None }
    }

    #[tokio::test]
    async fn se_7_an_expired_certificate_is_refused_at_the_start_and_replaces_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let files = files_until(folder.path(), 2100);
        let known = read(&files, None).await.unwrap();
        let expired = "tls_cert: it has expired at 2021-01-01T00:00:00Z; renew it";
        let files = files_until(folder.path(), 2021);
        assert_eq!(read(&files, Some(known)).await.unwrap_err(), expired);
        let refused = TlsFiles::open(files, CertificateEnd::default()).await.err().expect("a refusal");
        assert_eq!(refused.to_string(), expired);
    }

    #[tokio::test]
    async fn the_end_of_the_certificate_is_told_when_it_is_read_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let year = |year: i16| Some(format!("{year}-01-01T00:00:00Z").parse().unwrap());
        let told = CertificateEnd::default();
        let (files, mut current) =
            TlsFiles::open(files_until(folder.path(), 2100), told.clone()).await.unwrap();
        assert_eq!(told.get(), year(2100));
        let changed = async {
            files_until(folder.path(), 2101);
            current.changed().await.unwrap();
        };
        tokio::select! {
            () = files.keep(Clock::start()) => unreachable!("it never ends"),
            () = changed => assert_eq!(told.get(), year(2101)),
        }
    }

    #[tokio::test]
    async fn se_11_who_opens_many_handshakes_holds_up_nobody_else() {
        let [many, other]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let mut handshakes = Handshakes::default();
        let (ended, end) = tokio::sync::oneshot::channel::<()>();
        handshakes.begin(other, async move {
            let _ = end.await;
            Err("it has ended".to_owned())
        });
        for _ in 0..3 * HANDSHAKES_MAX {
            handshakes.begin(many, futures::future::pending());
        }
        assert_eq!(handshakes.known.len(), HANDSHAKES_MAX);
        for _ in 0..=2 * HANDSHAKES_MAX {
            let given_up = handshakes.next().await.unwrap().unwrap_err();
            assert!(given_up.contains("given up"), "{given_up}");
        }
        assert_eq!(handshakes.running.len(), HANDSHAKES_MAX);
        ended.send(()).unwrap();
        assert_eq!(handshakes.next().await.unwrap().unwrap_err(), "it has ended");
    }
}
