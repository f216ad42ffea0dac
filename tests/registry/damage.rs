//! A damaged file of the embedded registry: it is opened with its readable nodes, or refused with its name.

use std::fs;
use std::sync::mpsc::channel;

use sidekeeper::registry::Registry;
use sidekeeper::registry::embedded::{Embedded, OpenError};
use sidekeeper::tree::{NodeKind, Operation};

use crate::registries::{PATIENCE, commit, path};

/// The number of damaged files: each kind of damage ten times.
const FILES: u64 = 60;
/// The size of redb's pages, in bytes.
const PAGE: usize = 4096;

/// Random numbers, the same in each run (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end).unwrap()).unwrap()
    }
}

/// The file of a registry that was in use for a while.
async fn whole() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    {
        let session = Embedded::open(folder.path()).unwrap().open().await.unwrap();
        commit(&*session, vec![Operation::create(path("/jobs"), NodeKind::Persistent, "")]).await;
        for batch in 0..20 {
            let node = |number| {
                let at = path(&format!("/jobs/{batch}-{number}"));
                Operation::create(at, NodeKind::Persistent, [7; 200])
            };
            commit(&*session, (0..50).map(node).collect()).await;
            commit(&*session, vec![Operation::set(path("/jobs"), format!("{batch}"))]).await;
        }
    }
    fs::read(folder.path().join("registry.redb")).unwrap()
}

/// Damages a file in the way of its number; returns a description of the damage.
fn damage(number: u64, bytes: &mut Vec<u8>) -> String {
    let random = &mut Random(number);
    match number % 6 {
        0 => {
            let at = random.below(bytes.len());
            bytes[at] ^= 1 << random.below(8);
            format!("a bit of byte {at} is wrong")
        }
        1 => {
            // The header is a small and important part of the file.
            let at = random.below(PAGE / 8);
            bytes[at] = bytes[at].wrapping_add(1 + u8::try_from(random.below(255)).unwrap());
            format!("byte {at} is another one")
        }
        2 => {
            let length = random.below(bytes.len());
            bytes.truncate(length);
            format!("only {length} bytes are left")
        }
        3 => {
            let at = random.below(bytes.len() / PAGE) * PAGE;
            bytes[at..at + PAGE].fill(0);
            format!("the page at {at} is empty")
        }
        4 => {
            let at = random.below(bytes.len() / PAGE) * PAGE;
            for byte in &mut bytes[at..at + PAGE] {
                *byte = u8::try_from(random.below(256)).unwrap();
            }
            format!("the page at {at} is noise")
        }
        _ => {
            let at: Vec<_> = (0..100).map(|_| random.below(bytes.len())).collect();
            for at in at {
                bytes[at] ^= 0xff;
            }
            "a hundred bytes are wrong".to_owned()
        }
    }
}

#[tokio::test]
async fn a_damaged_file_is_opened_with_its_readable_nodes_or_refused_with_its_name() {
    let whole = whole().await;
    let mut refused = 0;
    for number in 0..FILES {
        let mut bytes = whole.clone();
        let how = damage(number, &mut bytes);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("registry.redb");
        fs::write(&file, &bytes).unwrap();
        let (sender, opened) = channel();
        let damaged = folder.path().to_owned();
        let opening = std::thread::spawn(move || sender.send(Embedded::open(&damaged)));
        let opened = opened.recv_timeout(PATIENCE);
        let opened = opened.unwrap_or_else(|error| panic!("file {number} ({how}) is not opened: {error}"));
        opening.join().unwrap().unwrap();
        match opened {
            Ok(registry) => {
                let session = registry.open().await.unwrap();
                let children = session.children(&path("/jobs")).await.unwrap();
                let children = children.map_or(0, |children| children.len());
                assert!(
                    children >= 950 || bytes.is_empty(),
                    "file {number} ({how}): only {children} nodes are left of 1000"
                );
                // The registry can be used.
                commit(&*session, vec![Operation::set(path("/"), "still here")]).await;
            }
            Err(error) => {
                refused += 1;
                let text = error.to_string();
                assert!(matches!(error, OpenError::Damaged { .. }), "file {number} ({how}): {text}");
                assert!(text.contains(&file.display().to_string()), "file {number} ({how}): {text}");
                assert!(text.contains("move it away"), "file {number} ({how}): {text}");
            }
        }
    }
    assert!(refused > FILES / 4, "only {refused} of {FILES} files were damaged enough");
}
