//! Unix sockets: the file of a serving sidecar with its rights, and the file that a killed sidecar has left. Shell.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path as FilePath, PathBuf};

use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{Gid, Group, chown};
use tokio::net::{UnixListener, UnixSocket as Unbound, UnixStream};
use tracing::warn;

use crate::config::UnixAddress;
use crate::runtime_folder;

/// Connections that wait to be accepted, at most.
const WAITING_MAX: u32 = 1_024;

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
    ///
    /// At no moment the file gives more rights than its address names, whatever the umask is. Fails if another user could
    /// replace the file.
    pub async fn bind(address: &UnixAddress) -> io::Result<Self> {
        let path = &address.path;
        runtime_folder::check(path)?;
        let group = address.group.as_deref().map(group).transpose()?;
        remove_stale(path).await?;
        let socket = Unbound::new_stream()?;
        // On Linux the file gets the rights of the socket. Elsewhere this has no effect or fails, and the umask counts until
        // the rights are set below.
        let _ = fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR);
        socket.bind(path)?;
        let (file, listener) = (SocketFile::of(path)?, socket.listen(WAITING_MAX)?);
        if group.is_some() {
            chown(path, None, group)?;
        }
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(address.mode))?;
        Ok(Self { file, listener })
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
            warn!(event = "SOCKET_NOT_REMOVED", path = %self.path.display(), %error, "cannot remove the file of the socket");
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

/// The group with this name or this number.
fn group(name: &str) -> io::Result<Gid> {
    if let Ok(number) = name.parse() {
        return Ok(Gid::from_raw(number));
    }
    let found = Group::from_name(name)?;
    let missing =
        || io::Error::new(io::ErrorKind::InvalidInput, format!("this system has no group `{name}`"));
    found.map(|group| group.gid).ok_or_else(missing)
}

fn taken(why: &str) -> io::Error {
    let what = format!("{why}; stop that process, remove the file if there is none, or take another path");
    io::Error::new(io::ErrorKind::AddrInUse, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn taken(path: &FilePath) -> String {
        let before = id(&std::fs::symlink_metadata(path).unwrap());
        let error = UnixSocket::bind(&path.into()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
        assert_eq!(id(&std::fs::symlink_metadata(path).unwrap()), before);
        error.to_string()
    }

    #[tokio::test]
    async fn a_socket_is_replaced_only_if_no_process_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        let socket = Unbound::new_stream().unwrap();
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
        let replaced = UnixSocket::bind(&path.as_path().into()).await.unwrap();
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
        let old = UnixSocket::bind(&path.as_path().into()).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        let new = UnixSocket::bind(&path.as_path().into()).await.unwrap();
        drop(old);
        assert!(UnixStream::connect(&path).await.is_ok());
        drop(new);
        assert!(!path.exists());
    }

    /// The rights of the file, and its group.
    fn rights(path: &FilePath) -> (u32, u32) {
        let found = std::fs::symlink_metadata(path).unwrap();
        (found.mode() & 0o777, found.gid())
    }

    #[tokio::test]
    async fn the_file_has_the_rights_of_its_address() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        let own = UnixSocket::bind(&path.as_path().into()).await.unwrap();
        assert_eq!(rights(&path).0, 0o600);
        drop(own);
        let ours = nix::unistd::getegid().as_raw();
        let group = Some(ours.to_string());
        let shared = UnixAddress { path: path.clone(), mode: 0o666, group };
        let shared = UnixSocket::bind(&shared).await.unwrap();
        assert_eq!(rights(&path), (0o666, ours));
        drop(shared);
        let nobody = UnixAddress { group: Some("no such group".to_owned()), ..path.as_path().into() };
        let error = UnixSocket::bind(&nobody).await.unwrap_err().to_string();
        assert!(error.contains("`no such group`") && !path.exists(), "{error}");
    }
}
