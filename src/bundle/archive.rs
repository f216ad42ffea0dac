//! The archive: its files, its limit, and its manifest. Pure. Decides which file still fits.
//!
//! Each file is compressed for itself, as a member of the gzip stream, which may have any number of them (RFC 1952). So its size is known
//! before it is added, and no more than one file is in memory.

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, Header};

/// The most bytes of a bundle.
pub const BUNDLE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The most bytes of a file before it is compressed: twice the metrics of the most jobs. It is in memory as a whole.
const FILE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Kept free for the manifest, which comes last.
const MANIFEST_BYTES_MAX: usize = 1024 * 1024;
/// The most things that the manifest says are left out; further ones are counted.
const LEFT_OUT_MAX: usize = 1_000;
/// The folder of the files in the archive.
const FOLDER: &str = "sidekeeper-bundle";
/// Two empty blocks end an archive.
const END: [u8; 1024] = [0; 1024];

/// The archive so far.
#[derive(Debug)]
pub struct Archive {
    limit: usize,
    /// The seconds since 1970 that the files have.
    time: u64,
    bytes: usize,
    files: Vec<Value>,
    left_out: Vec<Value>,
    more_left_out: u64,
}

impl Archive {
    /// An empty archive of this time, in seconds since 1970.
    pub fn new(time: u64) -> Self {
        Self::within(BUNDLE_BYTES_MAX, time)
    }

    fn within(limit: usize, time: u64) -> Self {
        Self { limit, time, bytes: 0, files: Vec::new(), left_out: Vec::new(), more_left_out: 0 }
    }

    /// Adds a file, and returns the bytes to write. Empty: it does not fit, and the manifest says so.
    pub fn add(&mut self, name: &str, content: &[u8]) -> io::Result<Vec<u8>> {
        if content.len() > FILE_BYTES_MAX {
            self.leave_out(name, &format!("it would be larger than {FILE_BYTES_MAX} bytes"));
            return Ok(Vec::new());
        }
        let member = member(name, content, self.time)?;
        let room = self.limit.saturating_sub(MANIFEST_BYTES_MAX).saturating_sub(self.bytes);
        if member.len() > room {
            self.leave_out(name, &format!("the bundle would be larger than {} bytes", self.limit));
            return Ok(Vec::new());
        }
        self.bytes = self.bytes.saturating_add(member.len());
        let hash = hex::encode(Sha256::digest(content));
        self.files.push(json!({ "name": name, "bytes": content.len(), "sha256": hash }));
        Ok(member)
    }

    /// Says in the manifest that something is left out, and why.
    pub fn leave_out(&mut self, what: &str, why: &str) {
        if self.left_out.len() < LEFT_OUT_MAX {
            self.left_out.push(json!({ "what": what, "why": why }));
        } else {
            self.more_left_out = self.more_left_out.saturating_add(1);
        }
    }

    /// The bytes of the manifest and of the end. `facts`: what the manifest says besides.
    pub fn finish(self, facts: BTreeMap<&'static str, Value>) -> io::Result<Vec<u8>> {
        let mut manifest = json!({
            "files": self.files,
            "left_out": self.left_out,
            "more_left_out": self.more_left_out,
        });
        if let Some(manifest) = manifest.as_object_mut() {
            manifest.extend(facts.into_iter().map(|(name, value)| (name.to_owned(), value)));
        }
        let mut bytes = member("manifest.json", &serde_json::to_vec_pretty(&manifest)?, self.time)?;
        bytes.extend(compressed(&END)?);
        Ok(bytes)
    }
}

fn member(name: &str, content: &[u8], time: u64) -> io::Result<Vec<u8>> {
    let mut header = Header::new_gnu();
    header.set_size(u64::try_from(content.len()).unwrap_or(u64::MAX));
    header.set_mode(0o600);
    header.set_mtime(time);
    let mut builder = Builder::new(Vec::new());
    builder.append_data(&mut header, format!("{FOLDER}/{name}"), content)?;
    // Taken before the builder writes the end of the archive.
    compressed(&std::mem::take(builder.get_mut()))
}

fn compressed(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::MultiGzDecoder;

    use super::*;

    fn files(bytes: &[u8]) -> BTreeMap<String, String> {
        let mut archive = tar::Archive::new(MultiGzDecoder::new(bytes));
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            assert_eq!(entry.header().mode().unwrap(), 0o600);
            let name = entry.path().unwrap().display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            (name, String::from_utf8_lossy(&content).into_owned())
        });
        entries.collect()
    }

    #[test]
    fn the_manifest_has_the_size_and_the_hash_of_each_file() {
        let mut archive = Archive::new(7);
        let mut bytes = archive.add("status.json", b"{}").unwrap();
        bytes.extend(archive.add("jobs/job1.json", &[b'x'; 5_000]).unwrap());
        archive.leave_out("log.jsonl", "no sidecar was asked");
        bytes.extend(archive.finish(BTreeMap::from([("version", json!("1"))])).unwrap());
        let files = files(&bytes);
        let names: Vec<_> = files.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "sidekeeper-bundle/jobs/job1.json",
                "sidekeeper-bundle/manifest.json",
                "sidekeeper-bundle/status.json"
            ]
        );
        let manifest: Value = serde_json::from_str(&files["sidekeeper-bundle/manifest.json"]).unwrap();
        assert_eq!(manifest["version"], "1");
        assert_eq!(
            manifest["files"][0],
            json!({
                "name": "status.json", "bytes": 2,
                "sha256": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
            })
        );
        assert_eq!(manifest["left_out"], json!([{ "what": "log.jsonl", "why": "no sidecar was asked" }]));
    }

    #[test]
    fn a_file_that_does_not_fit_is_left_out_and_the_bundle_stays_within_its_limit() {
        let limit = MANIFEST_BYTES_MAX + 4_000;
        let mut archive = Archive::within(limit, 0);
        // Cannot be compressed: the digests of numbers.
        let noise: Vec<u8> = (0_u32..100).flat_map(|n| Sha256::digest(n.to_be_bytes()).to_vec()).collect();
        let mut bytes = archive.add("one", &noise).unwrap();
        assert!(archive.add("two", &noise).unwrap().is_empty());
        assert!(archive.add("large", &vec![0; FILE_BYTES_MAX + 1]).unwrap().is_empty());
        for number in 0..=LEFT_OUT_MAX {
            archive.leave_out(&format!("job {number}"), "why");
        }
        bytes.extend(archive.finish(BTreeMap::new()).unwrap());
        assert!(bytes.len() <= limit);
        let manifest: Value =
            serde_json::from_str(&files(&bytes)["sidekeeper-bundle/manifest.json"]).unwrap();
        assert_eq!(manifest["files"].as_array().unwrap().len(), 1);
        assert_eq!(manifest["left_out"][0]["what"], "two");
        assert_eq!(manifest["left_out"][1]["what"], "large");
        assert_eq!(manifest["more_left_out"], 3);
    }
}
