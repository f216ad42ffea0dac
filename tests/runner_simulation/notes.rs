//! What one process of a sidecar leaves for the next: a shelf that outlives it, on which writing takes its time, and a
//! crash in between leaves the old text or the new one.

use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use sidekeeper::runner::clock::Clock;
use sidekeeper::runner::memory::{FormerLife, Memory, Place, Shelf};

#[derive(Clone, Default)]
pub struct Notes {
    text: Arc<Mutex<Option<String>>>,
}

struct Held {
    notes: Notes,
    clock: Clock,
}

impl Notes {
    /// What a process does at its start; without notes it keeps nothing.
    pub fn open(notes: Option<&Self>, clock: &Clock, ip: Ipv4Addr) -> (Memory, Option<FormerLife>) {
        let Some(notes) = notes else { return (Memory::none(), None) };
        let shelf = Arc::new(Held { notes: notes.clone(), clock: clock.clone() });
        let place = Place { registry: "simulated".to_owned(), namespace: "/ns".to_owned(), instance_ip: ip };
        Memory::on(shelf, place, clock)
    }
}

impl Shelf for Held {
    fn read(&self) -> Result<Option<String>, String> {
        Ok(self.notes.text.lock().unwrap().clone())
    }

    fn put(&self, text: Option<String>) -> BoxFuture<'static, io::Result<()>> {
        let (clock, notes) = (self.clock.clone(), self.notes.clone());
        async move {
            clock.sleep(Duration::from_micros(300)).await;
            *notes.text.lock().unwrap() = text;
            clock.sleep(Duration::from_micros(300)).await;
            Ok(())
        }
        .boxed()
    }

    fn describe(&self) -> String {
        "notes".to_owned()
    }
}
