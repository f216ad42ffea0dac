//! The state file's folder on the disk. One process uses it at a time, and other users cannot read the file.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use futures::future::BoxFuture;
use tracing::warn;

use crate::private;

use super::storage::{StateFileError, Storage};

/// The file's name in its folder.
pub(crate) const FILE: &str = "session.json";
/// The name under which a new file is written before it replaces the last one.
pub(crate) const NEW_FILE: &str = "session.json.new";
/// The file that the process locks which uses the folder.
pub(crate) const LOCK_FILE: &str = "lock";
/// The largest file that is read, in bytes: far more than ten thousand instances take.
const BYTES_MAX: u64 = 16 * 1024 * 1024;

pub(crate) struct Folder {
    path: PathBuf,
    lock: File,
}

impl Drop for Folder {
    /// To close the file is not enough: a process that is being started has a copy of it until it executes its program.
    fn drop(&mut self) {
        if let Err(error) = self.lock.unlock() {
            warn!(event = "STATE_LOCK_KEPT", folder = %self.path.display(), %error, "the state directory stays locked until the process ends");
        }
    }
}

impl Folder {
    /// Makes the folder if it is missing, and locks it.
    pub(crate) fn open(folder: &Path) -> Result<Self, StateFileError> {
        let failed = |source| StateFileError::Folder { folder: folder.to_owned(), source };
        private::folder(folder).map_err(failed)?;
        let file = folder.join(LOCK_FILE);
        let opened = private::file().create(true).write(true).open(&file);
        let lock = opened.map_err(|source| StateFileError::Folder { folder: file, source })?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => StateFileError::Taken(folder.to_owned()),
            fs::TryLockError::Error(source) => failed(source),
        })?;
        Ok(Self { path: folder.to_owned(), lock })
    }
}

impl Storage for Folder {
    fn read(&self) -> Result<Option<String>, String> {
        read(&self.path.join(FILE))
    }

    fn put(&self, text: Option<String>) -> BoxFuture<'static, io::Result<()>> {
        let folder = self.path.clone();
        let storing = tokio::task::spawn_blocking(move || {
            match text {
            Some(text) => replace(&folder, &text).or_else(|error| {
                warn!(event = "STATE_NOT_WRITTEN", folder = %folder.display(), %error, "the state file cannot be written, so it is removed");
                remove(&folder)
            }),
            None => remove(&folder),
        }
        });
        Box::pin(async move { storing.await.map_err(io::Error::other)? })
    }

    fn describe(&self) -> String {
        self.path.join(FILE).display().to_string()
    }
}

/// Replaces the old file by the new one: a reader finds one of them whole, also after a crash.
fn replace(folder: &Path, text: &str) -> io::Result<()> {
    let new = folder.join(NEW_FILE);
    // A file that a crash has left may have other permissions.
    if let Err(error) = fs::remove_file(&new)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = private::file().create_new(true).write(true).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, folder.join(FILE))?;
    File::open(folder)?.sync_all()
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_file(folder.join(FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => File::open(folder)?.sync_all(),
    }
}

/// The text of a file; `None`: there is none. The error says why it cannot be used.
pub(crate) fn read(path: &Path) -> Result<Option<String>, String> {
    let file = match private::at_once().read(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    let mode = metadata.permissions().mode();
    if !metadata.is_file() {
        return Err("it is no regular file; remove it".to_owned());
    }
    if private::lets_others_in(mode) {
        return Err(format!("it is no file of ours alone: its mode is {}", private::shown(mode)));
    }
    let mut text = String::new();
    file.take(BYTES_MAX).read_to_string(&mut text).map_err(|error| error.to_string())?;
    Ok(Some(text))
}
