//! The file of tokens: read at the start, and again each second, so that a change counts without a restart. Shell.
//!
//! A file that becomes wrong changes nothing: the tokens that were read before stay in force, and the log says so.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use nix::unistd::geteuid;
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;
use tokio::sync::watch;
use tracing::{info, warn};

use super::token::Tokens;
use super::token_set::TokenSet;
use crate::coordination::time::Wakeup;
use crate::runner::clock::Clock;

/// How long the sidecar may go on with tokens that are no longer in the file.
const INTERVAL: Duration = Duration::from_secs(1);
/// A file with the most tokens is smaller.
const BYTES_MAX: u64 = 1024 * 1024;
/// The rights of others on a file.
const OF_OTHERS: u32 = 0o007;

/// Why the tokens could not be read. Has no text of the file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct TokenFileError {
    path: PathBuf,
    reason: String,
}

/// The file, and those who want to know its tokens.
pub struct TokenFile {
    path: PathBuf,
    current: watch::Sender<Option<TokenSet>>,
}

impl TokenFile {
    /// Reads the file. Fails if other users can use it, or if it is wrong.
    pub async fn open(path: PathBuf) -> Result<(Self, Tokens), TokenFileError> {
        match read(&path).await {
            Ok(set) => {
                let (current, tokens) = watch::channel(Some(set));
                Ok((Self { path, current }, tokens.into()))
            }
            Err(reason) => Err(TokenFileError { path, reason }),
        }
    }

    /// Reads the file again and again. Never ends.
    pub async fn keep(self, clock: Clock) {
        let mut known_fault = None;
        loop {
            let mono = Some(clock.now().mono.saturating_add(INTERVAL));
            clock.sleep_until(Wakeup { wall: None, mono }).await;
            let path = self.path.display();
            match read(&self.path).await {
                Ok(set) => {
                    known_fault = None;
                    let changed = self.current.send_if_modified(|current| {
                        let differs = current.as_ref() != Some(&set);
                        *current = Some(set);
                        differs
                    });
                    if changed {
                        info!(%path, "the tokens have changed");
                    }
                }
                Err(reason) if known_fault.as_ref() == Some(&reason) => {}
                Err(reason) => {
                    warn!(%path, reason, "the tokens cannot be read again: those that were read before stay in force");
                    known_fault = Some(reason);
                }
            }
        }
    }
}

async fn read(path: &PathBuf) -> Result<TokenSet, String> {
    let unreadable = |error: io::Error| error.to_string();
    let file = File::open(path).await.map_err(unreadable)?;
    let found = file.metadata().await.map_err(unreadable)?;
    if !found.is_file() {
        return Err("it is no file".to_owned());
    }
    check_rights(found.mode(), found.uid(), geteuid().as_raw())?;
    if found.len() > BYTES_MAX {
        return Err(format!("it is larger than {BYTES_MAX} bytes"));
    }
    let mut text = String::new();
    file.take(BYTES_MAX).read_to_string(&mut text).await.map_err(unreadable)?;
    TokenSet::parse(&text)
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

#[cfg(test)]
mod tests {
    use super::*;

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
