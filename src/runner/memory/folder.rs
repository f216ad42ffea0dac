//! A shelf on a disk: a folder that one process has at a time, with one file for nobody else's eyes.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use futures::future::BoxFuture;
use tracing::warn;

use super::{MemoryError, Shelf};
use crate::private;

/// The file's name in its folder.
pub(super) const FILE: &str = "session.json";
/// Where the file is written before it takes the place of the last one.
pub(super) const NEW_FILE: &str = "session.json.new";
/// Who has the folder locks this.
pub(super) const LOCK_FILE: &str = "lock";
/// The largest file that is read, in bytes: far more than ten thousand attachments take.
const BYTES_MAX: u64 = 16 * 1024 * 1024;

pub(super) struct Folder {
    path: PathBuf,
    /// Locked for as long as it is open.
    _lock: File,
}

impl Folder {
    /// Makes the folder if it is missing, and takes it.
    pub(super) fn open(folder: &Path) -> Result<Self, MemoryError> {
        let failed = |source| MemoryError::Folder { folder: folder.to_owned(), source };
        private::folder(folder).map_err(failed)?;
        let file = folder.join(LOCK_FILE);
        let opened = private::file().create(true).write(true).open(&file);
        let lock = opened.map_err(|source| MemoryError::Folder { folder: file, source })?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => MemoryError::Taken(folder.to_owned()),
            fs::TryLockError::Error(source) => failed(source),
        })?;
        Ok(Self { path: folder.to_owned(), _lock: lock })
    }
}

impl Shelf for Folder {
    fn read(&self) -> Result<Option<String>, String> {
        read(&self.path.join(FILE))
    }

    fn put(&self, text: Option<String>) -> BoxFuture<'static, io::Result<()>> {
        let folder = self.path.clone();
        let storing = tokio::task::spawn_blocking(move || match text {
            Some(text) => replace(&folder, &text).or_else(|error| {
                warn!(folder = %folder.display(), %error, "the session cannot be written down");
                remove(&folder)
            }),
            None => remove(&folder),
        });
        Box::pin(async move { storing.await.map_err(io::Error::other)? })
    }

    fn describe(&self) -> String {
        self.path.join(FILE).display().to_string()
    }
}

/// Puts the new file in the place of the old one: whoever looks, after a crash as well, sees one of them whole.
fn replace(folder: &Path, text: &str) -> io::Result<()> {
    let new = folder.join(NEW_FILE);
    // One that a crash has left may have other permissions.
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

/// What a file has; `None`: there is none. The error says why it is not believed.
pub(super) fn read(path: &Path) -> Result<Option<String>, String> {
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
