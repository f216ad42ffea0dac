//! Where a sidecar that nobody has configured has its socket, and which folders are safe for one. Shell: reads the file
//! system, changes nothing.
//!
//! Sidecar, commands and client libraries look at the same places, so that they find each other without an address.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

/// The variable that names the folder of a user's sockets (XDG Base Directory Specification).
const VARIABLE: &str = "XDG_RUNTIME_DIR";
/// The folder of a sidecar within that.
const NAME: &str = "sidekeeper";
/// The folder of a sidecar that is a service of the system.
const OF_SYSTEM: &str = "/run/sidekeeper";
/// The name of the socket.
const SOCKET: &str = "api.sock";
/// The user who may do everything on a machine.
const ROOT: u32 = 0;

/// Who owns the files of users that a user namespace does not have. In a sandbox whose only user is the sidecar's, these
/// are the files of root.
const NOBODY: u32 = 65_534;
const UID_MAP: &str = "/proc/self/uid_map";

/// The right of others to write, and the bit by which only a file's owner may remove it.
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// The places where a socket without an address may be, the best first.
pub(crate) fn sockets(environment: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let of_user = environment(VARIABLE).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let folders = of_user.map(|folder| folder.join(NAME)).into_iter().chain([PathBuf::from(OF_SYSTEM)]);
    folders.map(|folder| folder.join(SOCKET)).collect()
}

/// The place where a sidecar of this user serves without an address: within the first folder that is its user's own.
pub(crate) fn own_socket(environment: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let own = geteuid().as_raw();
    let is_own = |folder: &Path| fs::metadata(folder).is_ok_and(|found| found.is_dir() && found.uid() == own);
    sockets(environment).into_iter().find(|socket| {
        let folder = socket.parent();
        // The sidecar makes its folder in that of the user.
        let of_user = folder.filter(|folder| *folder != Path::new(OF_SYSTEM)).and_then(Path::parent);
        folder.is_some_and(is_own) || of_user.is_some_and(is_own)
    })
}

/// Fails if a user who is neither this process's nor root could replace a socket with this path.
///
/// Each folder on the way has to belong to one of the two. If others may write into one, it needs the sticky bit, as
/// `/tmp` has it, or it is a volume: whoever it is mounted for may use it, as in a pod.
pub(crate) fn check(socket: &Path) -> io::Result<()> {
    let own = geteuid().as_raw();
    let folder = socket.parent().unwrap_or(Path::new("/"));
    // The links on the way first, then the folders to which they lead.
    for path in folder.ancestors() {
        check_owner(path, &fs::symlink_metadata(path)?, own)?;
    }
    for path in fs::canonicalize(folder)?.ancestors() {
        let found = fs::symlink_metadata(path)?;
        check_owner(path, &found, own)?;
        let is_open = found.mode() & OTHERS_WRITE != 0 && found.mode() & STICKY == 0;
        if is_open && !is_volume(path, &found)? {
            return Err(refused(
                path,
                "every user may replace files in it: run `chmod o-w` or `chmod +t` on it",
            ));
        }
    }
    Ok(())
}

fn check_owner(path: &Path, found: &Metadata, own: u32) -> io::Result<()> {
    match found.uid() {
        uid if uid == own || uid == ROOT => Ok(()),
        NOBODY if !is_root_mapped(&fs::read_to_string(UID_MAP).unwrap_or_default()) => Ok(()),
        uid => Err(refused(path, &format!("it belongs to uid {uid}, who could replace the socket"))),
    }
}

/// Whether the root of the machine is a user of this process's user namespace, by the table of its users.
fn is_root_mapped(table: &str) -> bool {
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    // Without a table there are no such namespaces.
    table.is_empty() || table.lines().filter_map(first).any(|first| first == "0")
}

/// Whether another file system begins here.
fn is_volume(path: &Path, found: &Metadata) -> io::Result<bool> {
    let Some(parent) = path.parent() else { return Ok(false) };
    Ok(fs::metadata(parent)?.dev() != found.dev())
}

fn refused(path: &Path, why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("{} is not safe for a socket: {why}", path.display()),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn rights(folder: &Path, mode: u32) {
        fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_folder_of_the_user_comes_before_that_of_the_system() {
        let given = |text: &'static str| move |name: &str| (name == VARIABLE).then(|| OsString::from(text));
        let all = sockets(&given("/run/user/7"));
        assert_eq!(all, ["/run/user/7/sidekeeper/api.sock", "/run/sidekeeper/api.sock"].map(PathBuf::from));
        for none in ["", "relative"] {
            assert_eq!(sockets(&given(none)), [PathBuf::from("/run/sidekeeper/api.sock")]);
        }
    }

    #[test]
    fn in_a_sandbox_without_root_its_files_are_those_of_nobody() {
        assert!(is_root_mapped("         0          0 4294967295\n"));
        assert!(
            is_root_mapped("0 100000 65536\n")
                && is_root_mapped("1000 1000 1\n0 0 1\n")
                && is_root_mapped("")
        );
        assert!(!is_root_mapped("      1000       1000          1\n"));
    }

    #[test]
    fn a_sidecar_serves_in_a_folder_of_its_own_user() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().as_os_str().to_owned();
        let environment = move |name: &str| (name == VARIABLE).then(|| path.clone());
        assert_eq!(own_socket(&environment), Some(folder.path().join("sidekeeper/api.sock")));
    }

    #[test]
    fn se_2_a_folder_that_others_can_write_is_refused_unless_it_is_sticky() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let socket = inner.join("s.sock");
        check(&socket).unwrap();
        for (open, sticky) in [(&inner, 0o1777), (&folder.path().to_owned(), 0o1777)] {
            rights(open, 0o777);
            let error = check(&socket).unwrap_err().to_string();
            assert!(error.contains(&*open.to_string_lossy()) && error.contains("every user"), "{error}");
            rights(open, sticky);
            check(&socket).unwrap();
            rights(open, 0o700);
        }
        assert_eq!(check(&folder.path().join("none/s.sock")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn se_2_a_folder_or_a_link_of_another_user_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (inner, link) = (folder.path().join("inner"), folder.path().join("link"));
        fs::create_dir(&inner).unwrap();
        symlink(&inner, &link).unwrap();
        check(&link.join("s.sock")).unwrap();
        let found = fs::symlink_metadata(&inner).unwrap();
        check_owner(&inner, &found, found.uid()).unwrap();
        if found.uid() != ROOT {
            assert!(
                check_owner(&inner, &found, found.uid() + 1)
                    .unwrap_err()
                    .to_string()
                    .contains("belongs to uid")
            );
            return;
        }
        // Only root can give files away.
        for given in [&inner, &link] {
            nix::unistd::fchownat(
                nix::fcntl::AT_FDCWD,
                given,
                Some(12_345.into()),
                None,
                nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW,
            )
            .unwrap();
            let error = check(&link.join("s.sock")).unwrap_err().to_string();
            assert!(error.contains("belongs to uid 12345"), "{error}");
        }
    }
}
