//! Folders and files for nobody else's eyes, as `state_dir` and `data_dir` are. Shell.
//!
//! Decides their permissions. A file or folder that exists may be an operator's choice: a file of ours that lets others in is
//! closed to them; a folder is only warned about, because it may be one that others need.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use tracing::warn;

/// The permissions of a folder of ours: all to its owner, nothing to anybody else.
const FOLDER_MODE: u32 = 0o700;
/// The permissions of a file of ours: reading and writing to its owner, nothing to anybody else.
const FILE_MODE: u32 = 0o600;
/// Permissions of anybody but the owner and the group.
const OTHERS: u32 = 0o007;
/// The permissions of a mode, without the kind of the file.
const PERMISSIONS: u32 = 0o7777;

/// Makes a folder if it is missing. Warns of one that lets others in.
pub fn folder(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
    let mode = fs::metadata(folder)?.permissions().mode();
    if lets_others_in(mode) {
        warn!(
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

/// Options to open a file, without waiting for the other end if it is a pipe in its place.
pub fn at_once() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(nix::libc::O_NONBLOCK);
    options
}

/// Closes a file to others that an earlier version has made, or somebody has copied. Warns if that is not permitted.
pub fn close_to_others(path: &Path, file: &File) -> io::Result<()> {
    let mode = file.metadata()?.permissions().mode();
    if lets_others_in(mode)
        && let Err(error) = file.set_permissions(Permissions::from_mode(FILE_MODE))
    {
        warn!(
            file = %path.display(),
            mode = shown(mode),
            %error,
            "other users may read this file, and it cannot be closed to them; give it to the sidecar's user"
        );
    }
    Ok(())
}

/// Whether anybody but the owner and the group may do something.
pub fn lets_others_in(mode: u32) -> bool {
    mode & OTHERS != 0
}

/// A mode as `chmod` takes it.
pub fn shown(mode: u32) -> String {
    format!("{:o}", mode & PERMISSIONS)
}
