//! The file of tokens: read at the start, and again each second, so that a change counts without a restart. Shell.
//!
//! A file that becomes wrong changes nothing: the tokens that were read before stay in force, and the log says so.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

use super::token::Tokens;
use super::token_set::TokenSet;
use crate::coordination::time::Wakeup;
use crate::runner::clock::Clock;
use crate::secret_file;

/// How long the sidecar may go on with tokens that are no longer in the file.
const INTERVAL: Duration = Duration::from_secs(1);
/// A file with the most tokens is smaller.
const BYTES_MAX: u64 = 1024 * 1024;

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

async fn read(path: &Path) -> Result<TokenSet, String> {
    TokenSet::parse(&secret_file::read(path, BYTES_MAX).await?)
}
