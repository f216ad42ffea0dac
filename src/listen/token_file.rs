//! The file of tokens: read at the start, and then again and again ([`super::reread`]). Shell.

use std::path::{Path, PathBuf};

use tokio::sync::watch;

use super::reread;
use super::token::Tokens;
use super::token_set::TokenSet;
use crate::credential_file;
use crate::runner::clock::Clock;

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
        let Self { path, current } = self;
        let read = || async { read(&path).await.map(Some) };
        reread::keep(current, read, ("the tokens", path.display()), clock).await;
    }
}

async fn read(path: &Path) -> Result<TokenSet, String> {
    TokenSet::parse(&credential_file::read_secret(path, BYTES_MAX).await?)
}
