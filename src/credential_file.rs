//! Reads files with credentials: secrets, which are tokens, passwords and keys, and certificates. Shell.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use nix::unistd::geteuid;
use rustls::pki_types::UnixTime;
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;

/// The rights of others on a file.
const OF_OTHERS: u32 = 0o007;

/// Larger files of TLS are refused, in bytes: a bundle of all public authorities has a quarter of that.
const FILE_MAX: u64 = 1024 * 1024;

/// The text of the file of a setting, which other users must not be able to use.
pub(crate) async fn secret(setting: &str, file: &Path) -> Result<String, String> {
    read_secret(file, FILE_MAX).await.map_err(|reason| format!("{setting}: {}: {reason}", file.display()))
}

/// The text of the file of a setting, which everybody may know.
pub(crate) async fn public(setting: &str, file: &Path) -> Result<String, String> {
    let wrong = |error: io::Error| format!("{setting}: {}: {error}", file.display());
    let mut text = String::new();
    let opened = File::open(file).await.map_err(wrong)?;
    let read = opened.take(FILE_MAX).read_to_string(&mut text).await.map_err(wrong)?;
    if u64::try_from(read).is_ok_and(|read| read < FILE_MAX) {
        Ok(text)
    } else {
        Err(format!("{setting}: {}: it is larger than {FILE_MAX} bytes", file.display()))
    }
}

/// The text of a file of at most so many bytes. Fails if other users can use the file. The error has no text of it.
pub(crate) async fn read_secret(path: &Path, bytes_max: u64) -> Result<String, String> {
    let unreadable = |error: io::Error| error.to_string();
    let file = File::open(path).await.map_err(unreadable)?;
    let found = file.metadata().await.map_err(unreadable)?;
    if !found.is_file() {
        return Err("it is no file".to_owned());
    }
    check_rights(found.mode(), found.uid(), geteuid().as_raw())?;
    if found.len() > bytes_max {
        return Err(format!("it is larger than {bytes_max} bytes"));
    }
    let mut text = String::new();
    file.take(bytes_max).read_to_string(&mut text).await.map_err(unreadable)?;
    Ok(text)
}

/// Fails if a user who is neither this process's nor root can read or change the file, unless by its group.
fn check_rights(mode: u32, owner: u32, own: u32) -> Result<(), String> {
    if owner != own && owner != 0 {
        return Err(format!(
            "it belongs to uid {owner}, who could change it: `chown` it to uid {own} or root"
        ));
    }
    if mode & OF_OTHERS != 0 {
        return Err(format!("other users may use it (mode {:04o}): `chmod 0600` it", mode & 0o7777));
    }
    Ok(())
}

/// The end of a certificate that the sidecar shows, as the file that is in force has it. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct CertificateEnd(Arc<Mutex<Option<Timestamp>>>);

impl CertificateEnd {
    /// The end; `None`: the sidecar shows no certificate.
    pub fn get(&self) -> Option<Timestamp> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, end: Option<Timestamp>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = end;
    }
}

/// The ends of all certificates that the sidecar shows. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct CertificateEnds {
    /// The one that callers see.
    pub listener: CertificateEnd,
    /// The one that ZooKeeper sees.
    pub registry: CertificateEnd,
}

/// How long before its end a certificate is announced to expire.
const SOON: Duration = Duration::from_secs(14 * DAY);
const DAY: u64 = 86_400;

/// Warns of certificates that expire soon, once a day.
#[derive(Debug, Default)]
pub(crate) struct Reminder {
    /// The time of the last warning.
    warned: Mutex<Option<UnixTime>>,
}

impl Reminder {
    /// When a certificate expires, if a warning is due. `expires`: when it does, if that is before a moment.
    pub(crate) fn due(
        &self,
        now: UnixTime,
        expires: impl FnOnce(UnixTime) -> Option<UnixTime>,
    ) -> Option<UnixTime> {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        // A clock that was set back warns again.
        if warned.is_some_and(|at| (at.as_secs()..at.as_secs().saturating_add(DAY)).contains(&now.as_secs()))
        {
            return None;
        }
        let soon = Duration::from_secs(now.as_secs()).saturating_add(SOON);
        let end = expires(UnixTime::since_unix_epoch(soon))?;
        *warned = Some(now);
        Some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn se_7_a_certificate_that_expires_soon_is_announced_once_a_day() {
        let at = |days: u64| UnixTime::since_unix_epoch(Duration::from_secs(days * DAY));
        let (reminder, end) = (Reminder::default(), at(100));
        let due = |now| reminder.due(now, |before| (before > end).then_some(end));
        assert_eq!(due(at(80)), None);
        assert_eq!(due(at(86)), None);
        let minute = UnixTime::since_unix_epoch(Duration::from_secs(86 * DAY + 60));
        assert_eq!(due(minute), Some(end));
        assert_eq!(due(at(87)), None);
        assert_eq!(due(at(88)), Some(end));
        assert_eq!(due(at(200)), Some(end), "it has expired");
        assert_eq!(due(at(90)), Some(end), "the clock was set back");
    }

    #[test]
    fn a_file_that_other_users_can_use_is_refused() {
        for (mode, owner) in [(0o100_600, 7), (0o100_400, 0), (0o100_440, 0), (0o100_660, 7)] {
            assert_eq!(check_rights(mode, owner, 7), Ok(()), "{mode:o} {owner}");
        }
        for (mode, owner) in [(0o100_604, 7), (0o100_602, 7), (0o100_601, 0), (0o100_600, 8)] {
            assert!(check_rights(mode, owner, 7).is_err(), "{mode:o} {owner}");
        }
    }
}
