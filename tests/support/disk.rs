//! A disk that is full on request of a test. The file of the embedded registry on it is a real file.
#![allow(unreachable_pub, reason = "two test binaries use it")]

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::backends::FileBackend;
use redb::{Database, StorageBackend};
use sidekeeper::registry::embedded::Embedded;

/// The system's number for "No space left on device".
const ENOSPC: i32 = 28;

#[derive(Debug, Clone, Default)]
pub struct Disk {
    is_full: Arc<AtomicBool>,
}

impl Disk {
    pub fn fill(&self) {
        self.is_full.store(true, Ordering::SeqCst);
    }

    pub fn make_room(&self) {
        self.is_full.store(false, Ordering::SeqCst);
    }

    /// Opens the registry in a folder of this disk.
    pub fn open(&self, folder: &Path) -> Embedded {
        let disk = self.clone();
        let open = move |path: &Path| {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
            let file = OnDisk { file: FileBackend::new(file)?, disk: disk.clone() };
            Ok(Database::builder().create_with_backend(file)?)
        };
        Embedded::open_by(folder, Arc::new(|| 1_700_000_000_123), Arc::new(open)).unwrap()
    }

    fn check_room(&self) -> io::Result<()> {
        match self.is_full.load(Ordering::SeqCst) {
            true => Err(io::Error::from_raw_os_error(ENOSPC)),
            false => Ok(()),
        }
    }
}

#[derive(Debug)]
struct OnDisk {
    file: FileBackend,
    disk: Disk,
}

impl StorageBackend for OnDisk {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.check_room()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.check_room()?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if let Err(full) = self.disk.check_room() {
            // A full disk stores a part of the data.
            self.file.write(offset, &data[..data.len() / 2])?;
            return Err(full);
        }
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }
}
