//! Folders and files that only their owner may read, such as `state_dir` and `data_dir`. Shell.
//!
//! Decides their permissions. An operator may have chosen the permissions of a file or folder that exists.
//! The sidecar closes its own files to other users. It only warns about a folder, because other users may
//! need it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use tracing::warn;

/// The permissions of the sidecar's folders: all for the owner, none for others.
const FOLDER_MODE: u32 = 0o700;
/// The permissions of the sidecar's files: read and write for the owner, none for others.
const FILE_MODE: u32 = 0o600;
/// The permissions of users other than the owner and the group.
const OTHERS: u32 = 0o007;
/// The permission bits of a mode, without the kind of the file.
const PERMISSIONS: u32 = 0o7777;

/// Makes a folder if it is missing. Warns if other users may enter a folder that exists.
pub fn folder(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
    let mode = fs::metadata(folder)?.permissions().mode();
    if lets_others_in(mode) {
        warn!(event = "FILE_OPEN",
            folder = %folder.display(),
            mode = shown(mode),
            "other users may look into this folder; run `chmod {FOLDER_MODE:o}` on it, unless they need it"
        );
    }
    Ok(())
}

/// Options to make a file that only its owner may read.
pub fn file() -> OpenOptions {
    let mut options = at_once();
    options.mode(FILE_MODE);
    options
}

/// Options to open a file. Opening does not wait for the other end if the file is a pipe.
pub fn at_once() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(nix::libc::O_NONBLOCK);
    options
}

/// Closes an existing file to other users: an earlier version made it, or a person copied it. Warns if that
/// is not permitted.
pub fn close_to_others(path: &Path, file: &File) -> io::Result<()> {
    let mode = file.metadata()?.permissions().mode();
    if lets_others_in(mode)
        && let Err(error) = file.set_permissions(Permissions::from_mode(FILE_MODE))
    {
        warn!(event = "FILE_OPEN",
            file = %path.display(),
            mode = shown(mode),
            %error,
            "other users may read this file, and it cannot be closed to them; give it to the sidecar's user"
        );
    }
    Ok(())
}

/// Whether users other than the owner and the group have any permission.
pub fn lets_others_in(mode: u32) -> bool {
    mode & OTHERS != 0
}

/// A mode as `chmod` takes it.
pub fn shown(mode: u32) -> String {
    format!("{:o}", mode & PERMISSIONS)
}
