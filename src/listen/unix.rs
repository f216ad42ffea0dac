//! Unix sockets: the file of a serving sidecar, and the file that a killed sidecar has left. Shell.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path as FilePath, PathBuf};

use tokio::net::{UnixListener, UnixStream};
use tracing::warn;

/// A socket that this process serves. Dropping it removes its file.
#[derive(Debug)]
pub struct UnixSocket {
    // Dropped before the listener, see `SocketFile`.
    file: SocketFile,
    listener: UnixListener,
}

impl UnixSocket {
    /// Listens on a socket. Replaces the file of a killed sidecar. Never replaces a file that a process
    /// serves, not even if that process is stopped or too busy to answer.
    pub async fn bind(path: &FilePath) -> io::Result<Self> {
        remove_stale(path).await?;
        let listener = UnixListener::bind(path)?;
        Ok(Self { file: SocketFile::of(path)?, listener })
    }

    /// The path of its file.
    pub fn path(&self) -> &FilePath {
        &self.file.path
    }

    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.listener.accept().await?.0)
    }
}

/// The file of a socket that this process serves. Dropping it removes the file, unless another process has
/// replaced it. Drop it before the listener: as long as the socket is open, no other file has this file's
/// number.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    id: FileId,
}

/// Device and number of a file, which distinguish it from all other existing files.
type FileId = (u64, u64);

impl SocketFile {
    /// The file of a socket that was bound just now.
    fn of(path: &FilePath) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), id: id(&std::fs::symlink_metadata(path)?) })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = remove_if(&self.path, self.id) {
            warn!(path = %self.path.display(), %error, "cannot remove the file of the socket");
        }
    }
}

fn id(file: &Metadata) -> FileId {
    (file.dev(), file.ino())
}

/// Removes this file, unless another process has replaced it.
fn remove_if(path: &FilePath, is: FileId) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if id(&found) == is => std::fs::remove_file(path),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes the file of a socket that no process serves. Fails if a process serves it.
async fn remove_stale(path: &FilePath) -> io::Result<()> {
    let before = match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => id(&found),
        // There is no file, or it is no socket: `bind` reports that.
        Ok(_) | Err(_) => return Ok(()),
    };
    match UnixStream::connect(path).await {
        // Only this error means that no process has the socket. A stopped process has a full queue, which is
        // EAGAIN.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => remove_if(path, before),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(_) => Err(taken("a process serves this socket")),
        Err(error) => Err(taken(&format!("a process may serve this socket ({error})"))),
    }
}

fn taken(why: &str) -> io::Error {
    let what = format!("{why}; stop that process, remove the file if there is none, or take another path");
    io::Error::new(io::ErrorKind::AddrInUse, what)
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixSocket as Socket;

    use super::*;

    async fn taken(path: &FilePath) -> String {
        let before = id(&std::fs::symlink_metadata(path).unwrap());
        let error = UnixSocket::bind(path).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
        assert_eq!(id(&std::fs::symlink_metadata(path).unwrap()), before);
        error.to_string()
    }

    #[tokio::test]
    async fn a_socket_is_replaced_only_if_no_process_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        let socket = Socket::new_stream().unwrap();
        socket.bind(&path).unwrap();
        let owner = socket.listen(1).unwrap();
        assert!(taken(&path).await.contains("a process serves this socket"));
        // The owner is stopped: its queue is full.
        let mut waiting = Vec::new();
        while let Ok(stream) = UnixStream::connect(&path).await {
            waiting.push(stream);
        }
        assert!(taken(&path).await.contains("a process may serve this socket"));
        drop(owner);
        let replaced = UnixSocket::bind(&path).await.unwrap();
        assert!(UnixStream::connect(&path).await.is_ok());
        drop(replaced);
        assert!(!path.exists());
        std::fs::write(&path, "no socket").unwrap();
        taken(&path).await;
    }

    #[tokio::test]
    async fn a_successors_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        let old = UnixSocket::bind(&path).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        let new = UnixSocket::bind(&path).await.unwrap();
        drop(old);
        assert!(UnixStream::connect(&path).await.is_ok());
        drop(new);
        assert!(!path.exists());
    }
}
