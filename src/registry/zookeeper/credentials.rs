//! The credentials with which this process connects to ZooKeeper: the digest, the user for SASL, Kerberos, TLS.
//!
//! The process reads the files again for each connection, and each second while a connection lasts. So a change of a file counts
//! without a restart. A file that becomes wrong changes nothing: the credentials that were read before stay in force.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::pki_types::UnixTime;
use tokio::time::sleep;
use zookeeper_client as zk;

use super::kerberos;
use super::tls::{Pem, Tls};
use crate::credential_file::{CertificateEnd, Reminder, public, secret};
use crate::pem::moment;

/// How long a connection may go on with what is no longer in the files.
const INTERVAL: Duration = Duration::from_secs(1);

/// Where credentials are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialFiles {
    /// `user:password` for the scheme `digest`.
    pub digest: Option<PathBuf>,
    /// `user:password` for SASL DIGEST-MD5.
    pub sasl: Option<PathBuf>,
    /// The service of the servers in Kerberos. The user's ticket is in the cache of the process.
    pub kerberos: Option<kerberos::Service>,
    /// The authorities of the servers' certificates, in PEM. If set, connections use TLS.
    pub ca: Option<PathBuf>,
    /// The revocation lists of these authorities, in PEM.
    pub crl: Option<PathBuf>,
    /// The client certificate with its chain, in PEM.
    pub cert: Option<PathBuf>,
    /// Its key, in PEM.
    pub key: Option<PathBuf>,
}

impl CredentialFiles {
    fn are_none(&self) -> bool {
        *self == Self::default()
    }
}

/// The texts that were read.
#[derive(Clone, PartialEq, Eq, Default)]
struct Texts {
    digest: Option<String>,
    sasl: Option<(String, String)>,
    kerberos: Option<kerberos::Service>,
    tls: Option<Pem>,
}

/// The credentials of one connection.
#[derive(Default)]
pub(super) struct Presented {
    texts: Texts,
    tls: Option<Tls>,
}

impl Presented {
    /// How connections are encrypted. `None`: they are not.
    pub(super) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// The service of the servers, for which a ticket is needed before they are connected with.
    pub(super) fn kerberos(&self) -> Option<&kerberos::Service> {
        self.texts.kerberos.as_ref()
    }

    /// A connector of the client library that shows this to a server with this host.
    pub(super) fn connector(&self, host: &str) -> zk::Connector {
        let mut connector = zk::Client::connector();
        if let Some(digest) = &self.texts.digest {
            connector = connector.with_auth("digest", digest.as_bytes());
        }
        if let Some((user, password)) = &self.texts.sasl {
            connector = connector.with_sasl(zk::SaslOptions::digest_md5(user.clone(), password.clone()));
        }
        if let Some(service) = &self.texts.kerberos {
            connector = connector.with_sasl(service.sasl(host));
        }
        if let Some(tls) = &self.tls {
            connector = connector.with_tls(tls.options());
        }
        connector
    }

    /// The credentials in words, without secrets: for the log.
    pub(super) fn in_words(&self) -> String {
        let user = |text: &str| text.split(':').next().unwrap_or_default().to_owned();
        let digest = self.texts.digest.as_deref().map(|text| format!("the digest of `{}`", user(text)));
        let sasl = self.texts.sasl.as_ref().map(|(user, _)| format!("the SASL user `{user}`"));
        let kerberos = self.texts.kerberos.as_ref().map(|_| "Kerberos".to_owned());
        let certificate = self.texts.tls.as_ref().and_then(|pem| pem.identity.as_ref());
        let certificate = certificate.map(|_| "a client certificate".to_owned());
        let shown: Vec<_> = [digest, sasl, kerberos, certificate].into_iter().flatten().collect();
        if shown.is_empty() { "no authentication".to_owned() } else { shown.join(" and ") }
    }
}

/// The credentials of an ensemble. Clones share what was read.
#[derive(Clone)]
pub(super) struct Credentials {
    files: CredentialFiles,
    /// The digest, if no file has it.
    digest: Option<String>,
    current: Arc<Mutex<Option<Arc<Presented>>>>,
    reminder: Arc<Reminder>,
    /// The end of the client certificate that is in force.
    end: CertificateEnd,
}

impl Credentials {
    pub(super) fn new(files: CredentialFiles, digest: Option<String>) -> Self {
        Self {
            files,
            digest,
            current: Arc::default(),
            reminder: Arc::default(),
            end: CertificateEnd::default(),
        }
    }

    /// None at all: for a conversation with ourselves.
    pub(super) fn none() -> Self {
        Self::new(CredentialFiles::default(), None)
    }

    /// Has others know when the client certificate expires, from the next reading of the files on.
    pub(super) fn tell_end(&mut self, end: CertificateEnd) {
        self.end = end;
    }

    /// Whether servers get to know a user by a digest, by SASL or by Kerberos. This user then owns the nodes that the sidecar creates.
    pub(super) fn name_a_user(&self) -> bool {
        let files = &self.files;
        self.digest.is_some() || files.digest.is_some() || files.sasl.is_some() || files.kerberos.is_some()
    }

    /// The credentials in the files, or the last ones that were right. Fails if the files have never been right.
    pub(super) async fn presented(&self) -> Result<Arc<Presented>, String> {
        match self.read().await {
            Ok(presented) => Ok(presented),
            Err(reason) => self.current().ok_or(reason),
        }
    }

    /// The credentials in the files, as soon as they differ from these.
    pub(super) async fn changed(&self, shown: &Presented) -> Arc<Presented> {
        if self.files.are_none() {
            return std::future::pending().await;
        }
        let mut known_fault = None;
        loop {
            sleep(INTERVAL).await;
            match self.read().await {
                Ok(presented) if presented.texts != shown.texts => return presented,
                Ok(_) => known_fault = None,
                Err(reason) if known_fault.as_ref() == Some(&reason) => {}
                Err(reason) => {
                    tracing::warn!(
                        event = "CREDENTIALS_NOT_READ",
                        reason,
                        "the credentials for ZooKeeper cannot be read again: those that were read before stay in force"
                    );
                    known_fault = Some(reason);
                }
            }
        }
    }

    /// The credentials in force, in words, without secrets.
    pub(super) fn in_words(&self) -> String {
        self.current().map_or_else(|| "no authentication".to_owned(), |presented| presented.in_words())
    }

    fn current(&self) -> Option<Arc<Presented>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the files, and keeps what they have. Fails if something is wrong; the error has no text of a file.
    async fn read(&self) -> Result<Arc<Presented>, String> {
        let files = &self.files;
        let digest = match &files.digest {
            None => self.digest.clone(),
            Some(file) => Some(user_and_password("digest_file", file).await?.0),
        };
        let sasl = match &files.sasl {
            None => None,
            Some(file) => Some(user_and_password("zookeeper_sasl_file", file).await?.1),
        };
        let tls = match &files.ca {
            None => None,
            Some(ca) => Some(Pem {
                ca: public("zookeeper_ca", ca).await?,
                crl: match &files.crl {
                    None => None,
                    Some(crl) => Some(public("zookeeper_crl", crl).await?),
                },
                identity: match (&files.cert, &files.key) {
                    (Some(cert), Some(key)) => {
                        Some((public("zookeeper_cert", cert).await?, secret("zookeeper_key", key).await?))
                    }
                    _ => None,
                },
            }),
        };
        let texts = Texts { digest, sasl, kerberos: files.kerberos.clone(), tls };
        let presented = match self.current().filter(|current| current.texts == texts) {
            Some(current) => current,
            None => {
                let tls = texts.tls.as_ref().map(Tls::new).transpose()?;
                let presented = Arc::new(Presented { texts, tls });
                *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&presented));
                presented
            }
        };
        self.end.set(presented.tls.as_ref().and_then(Tls::end));
        self.remind(&presented);
        Ok(presented)
    }

    /// Warns if the client certificate expires soon.
    fn remind(&self, presented: &Presented) {
        let (Some(tls), Some(file)) = (&presented.tls, &self.files.cert) else { return };
        if let Some(end) = self.reminder.due(UnixTime::now(), |soon| tls.expires_before(soon)) {
            let (path, expires) = (file.display(), moment(end));
            tracing::warn!(event = "CERT_EXPIRES",
                %path,
                expires,
                "renew the client certificate for ZooKeeper: from then on servers refuse it; the sidecar needs no restart"
            );
        }
    }
}

/// The text `user:password` of a file, and its two parts.
async fn user_and_password(setting: &str, file: &Path) -> Result<(String, (String, String)), String> {
    let text = secret(setting, file).await?;
    let text = text.trim_end_matches(['\n', '\r']);
    let parts = text.split_once(':').filter(|(user, _)| !user.is_empty() && !text.contains('\n'));
    let (user, password) =
        parts.ok_or_else(|| format!("{setting}: {}: it is not one line `user:password`", file.display()))?;
    Ok((text.to_owned(), (user.to_owned(), password.to_owned())))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::pem::tests::certificate_until;

    #[tokio::test]
    async fn the_end_of_the_client_certificate_is_that_of_the_files_that_are_in_force() {
        let folder = tempfile::tempdir().unwrap();
        let [ca, cert, key] = ["ca", "cert", "key"].map(|name| folder.path().join(name));
        let write_until = |year| {
            let (certificate, private) = certificate_until(year);
            for (file, text) in [(&ca, &certificate), (&cert, &certificate), (&key, &private)] {
                fs::write(file, text).unwrap();
                fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
            }
        };
        let files = CredentialFiles {
            ca: Some(ca.clone()),
            cert: Some(cert.clone()),
            key: Some(key.clone()),
            ..CredentialFiles::default()
        };
        let told = CertificateEnd::default();
        let mut credentials = Credentials::new(files, None);
        credentials.tell_end(told.clone());
        // Also one that has expired: the servers decide.
        for year in [2100, 2021] {
            write_until(year);
            credentials.presented().await.unwrap();
            assert_eq!(told.get(), Some(format!("{year}-01-01T00:00:00Z").parse().unwrap()));
        }
        write_until(2102);
        fs::write(&key, "no key").unwrap();
        credentials.presented().await.unwrap();
        assert_eq!(told.get(), Some("2021-01-01T00:00:00Z".parse().unwrap()));
    }
}
