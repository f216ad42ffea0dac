//! The simulated disk of a sidecar's state file: the text outlives the process, a write takes time, and a crash in
//! between leaves the old text or the new one.

use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use sidekeeper::runner::clock::Clock;
use sidekeeper::runner::state_file::contents::{FormerProcess, Place};
use sidekeeper::runner::state_file::storage::Storage;
use sidekeeper::runner::state_file::writer::StateFile;

#[derive(Clone, Default)]
pub struct Disk {
    text: Arc<Mutex<Option<String>>>,
}

struct DiskFile {
    disk: Disk,
    clock: Clock,
}

impl Disk {
    /// Opens the state file at the start of a process; without a disk, the process has no state file.
    pub fn open(disk: Option<&Self>, clock: &Clock, ip: Ipv4Addr) -> (StateFile, Option<FormerProcess>) {
        let Some(disk) = disk else { return (StateFile::none(), None) };
        let storage = Arc::new(DiskFile { disk: disk.clone(), clock: clock.clone() });
        let place = Place { registry: "simulated".to_owned(), namespace: "/ns".to_owned(), instance_ip: ip };
        StateFile::on(storage, place, clock)
    }
}

impl Storage for DiskFile {
    fn read(&self) -> Result<Option<String>, String> {
        Ok(self.disk.text.lock().unwrap().clone())
    }

    fn put(&self, text: Option<String>) -> BoxFuture<'static, io::Result<()>> {
        let (clock, disk) = (self.clock.clone(), self.disk.clone());
        async move {
            clock.sleep(Duration::from_micros(300)).await;
            *disk.text.lock().unwrap() = text;
            clock.sleep(Duration::from_micros(300)).await;
            Ok(())
        }
        .boxed()
    }

    fn describe(&self) -> String {
        "state file".to_owned()
    }
}
