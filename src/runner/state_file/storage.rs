//! A place that keeps one text from one process of the sidecar to the next. Decides nothing.

use std::io;
use std::path::PathBuf;

use futures::future::BoxFuture;

/// Why the folder of the state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// The folder cannot be made or written.
    #[error("{folder}: {source}")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process uses the folder.
    #[error("{0} is used by another sidecar; give each its own")]
    Taken(PathBuf),
}

/// Keeps one text from one process to the next.
pub trait Storage: Send + Sync + 'static {
    /// The text; `None`: there is none. The error says why it cannot be used.
    fn read(&self) -> Result<Option<String>, String>;

    /// Replaces the text; `None`: removes it. Ends when the next process would find the new text after a crash. If it fails,
    /// the old text is removed, or the error says that it is not.
    fn put(&self, text: Option<String>) -> BoxFuture<'static, io::Result<()>>;

    /// Where the text is, for the log.
    fn describe(&self) -> String;
}
