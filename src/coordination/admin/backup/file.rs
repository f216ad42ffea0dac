//! The file of a backup: lines of JSON, the first with its version, the last with its checksum (docs/backup.md).
//!
//! A file is read as a whole and checked before anything of it is used: a file that was cut, changed or written by a later
//! version is refused.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::tokens::Landmark;
use super::{Home, Roots, Saved, belongs};
use crate::excerpt::Excerpt;
use crate::job::JobName;
use crate::tree::{Path, Zxid};

/// The version of the form that is written.
const VERSION: u32 = 1;
/// The most bytes of a file. A namespace of 5,000 jobs with ten items each takes about 20 MB.
pub const BYTES_MAX: usize = 128 * 1024 * 1024;

/// The first line of a backup: facts about the backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of the form.
    version: u32,
    /// The version of the program that has written it.
    sidekeeper: String,
    /// The namespace.
    pub namespace: String,
    /// When its reading began, as RFC 3339.
    pub created_at: String,
    /// The nodes by which its registry is recognised.
    pub registry: Vec<Landmark>,
}

/// The kind of a node's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Job,
    Own,
    StickyLock,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeLine {
    of: Kind,
    name: String,
    path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Summary {
    nodes: usize,
    highest_transaction: i64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    sha256: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    SidekeeperBackup(Header),
    Node(NodeLine),
    Summary(Summary),
    End(End),
}

/// The first line, as far as each version has it.
#[derive(Deserialize)]
struct AnyHeader {
    sidekeeper_backup: AnyVersion,
}

#[derive(Deserialize)]
struct AnyVersion {
    version: u32,
}

/// A backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup {
    /// The facts about the backup.
    pub header: Header,
    /// Its nodes, in the order of a restore.
    pub nodes: Vec<Saved>,
    /// The highest transaction id that it knows of.
    pub highest: Zxid,
}

/// Why a file is no backup.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// It is too large.
    #[error("the file has more than {BYTES_MAX} bytes")]
    TooLarge,
    /// It has another form.
    #[error("the file is no backup of Sidekeeper: {0}")]
    NoBackup(String),
    /// A later version wrote it.
    #[error(
        "the file has version {0} of the form, and this program reads version {VERSION}: restore it with a later version of Sidekeeper"
    )]
    Later(u32),
    /// It has no end.
    #[error("the file has no end: it was cut; make the backup again")]
    Cut,
    /// Its content does not have the checksum.
    #[error("the file does not have the checksum that it names: it was changed or damaged")]
    Damaged,
    /// A line cannot be read.
    #[error("line {line} of the file: {reason}")]
    Line {
        /// Its number, from 1 on.
        line: usize,
        /// Why.
        reason: String,
    },
}

/// Writes a backup.
#[derive(Debug)]
pub struct Writer {
    text: String,
    nodes: usize,
    highest: Zxid,
}

impl Writer {
    /// A backup without nodes.
    pub fn new(namespace: &str, created_at: &str, registry: Vec<Landmark>) -> Self {
        let header = Header {
            version: VERSION,
            sidekeeper: env!("CARGO_PKG_VERSION").to_owned(),
            namespace: namespace.to_owned(),
            created_at: created_at.to_owned(),
            registry,
        };
        let mut writer = Self { text: String::new(), nodes: 0, highest: Zxid(0) };
        writer.push(&Line::SidekeeperBackup(header));
        writer
    }

    /// Notes a transaction that the registry has carried out.
    pub fn note(&mut self, transaction: Zxid) {
        self.highest = self.highest.max(transaction);
    }

    /// Adds a node. Fails if the file would become too large.
    pub fn add(&mut self, saved: &Saved) -> Result<(), FileError> {
        let (of, name) = match &saved.home {
            Home::Job(job) => (Kind::Job, job.to_string()),
            Home::Own(job) => (Kind::Own, job.to_string()),
            Home::StickyLock(name) => (Kind::StickyLock, name.clone()),
        };
        let text = std::str::from_utf8(&saved.data).ok().map(str::to_owned);
        let hex = text.is_none().then(|| hex::encode(&saved.data));
        self.push(&Line::Node(NodeLine { of, name, path: saved.path.clone(), text, hex }));
        self.nodes = self.nodes.saturating_add(1);
        if self.text.len() > BYTES_MAX { Err(FileError::TooLarge) } else { Ok(()) }
    }

    /// The file.
    pub fn finish(mut self) -> Vec<u8> {
        self.push(&Line::Summary(Summary { nodes: self.nodes, highest_transaction: self.highest.0 }));
        let sha256 = sum(self.text.as_bytes());
        self.push(&Line::End(End { sha256 }));
        self.text.into_bytes()
    }

    fn push(&mut self, line: &Line) {
        // These values have texts, numbers and lists only, which JSON can always have.
        self.text.push_str(&serde_json::to_string(line).unwrap_or_default());
        self.text.push('\n');
    }
}

impl Backup {
    /// Reads a file, and checks it as a whole.
    pub fn read(file: &[u8]) -> Result<Self, FileError> {
        if file.len() > BYTES_MAX {
            return Err(FileError::TooLarge);
        }
        let text = std::str::from_utf8(file).map_err(|_| FileError::NoBackup("it is no text".to_owned()))?;
        let no_backup = |reason: String| FileError::NoBackup(Excerpt::of(&reason).into_string());
        let first = text.lines().next().unwrap_or_default();
        let any: AnyHeader = serde_json::from_str(first).map_err(|error| no_backup(error.to_string()))?;
        if any.sidekeeper_backup.version > VERSION {
            return Err(FileError::Later(any.sidekeeper_backup.version));
        }
        let whole = text.strip_suffix('\n').ok_or(FileError::Cut)?;
        let (body, last) = whole.rsplit_once('\n').ok_or(FileError::Cut)?;
        let Ok(Line::End(end)) = serde_json::from_str(last) else { return Err(FileError::Cut) };
        if sum(format!("{body}\n").as_bytes()) != end.sha256 {
            return Err(FileError::Damaged);
        }
        let (mut header, mut summary) = (None, None);
        let mut nodes = Vec::new();
        for (number, line) in (1..).zip(body.lines()) {
            let wrong = |reason: String| FileError::Line { line: number, reason };
            let read = serde_json::from_str(line);
            match read.map_err(|error| wrong(Excerpt::of(&error.to_string()).into_string()))? {
                Line::SidekeeperBackup(found) if number == 1 => header = Some(found),
                Line::Node(node) if number > 1 && summary.is_none() => {
                    nodes.push(node.saved().ok_or_else(|| wrong("a backup has no such node".to_owned()))?);
                }
                Line::Summary(found) if number > 1 && summary.is_none() => summary = Some(found),
                Line::SidekeeperBackup(_) | Line::Node(_) | Line::Summary(_) | Line::End(_) => {
                    return Err(wrong("it is not where it belongs".to_owned()));
                }
            }
        }
        let header = header.ok_or_else(|| no_backup("its first line is another one".to_owned()))?;
        let summary = summary.filter(|summary| summary.nodes == nodes.len()).ok_or(FileError::Damaged)?;
        Ok(Self { header, nodes, highest: Zxid(summary.highest_transaction) })
    }

    /// How many jobs it has.
    pub fn jobs(&self) -> usize {
        let jobs = self.nodes.iter().filter_map(|saved| match &saved.home {
            Home::Job(job) => Some(job),
            Home::Own(_) | Home::StickyLock(_) => None,
        });
        jobs.collect::<std::collections::BTreeSet<_>>().len()
    }
}

impl NodeLine {
    /// The node. `None`: it is none that a backup has.
    fn saved(self) -> Option<Saved> {
        let data: Arc<[u8]> = match (self.text, self.hex) {
            (Some(text), None) => text.into_bytes().into(),
            (None, Some(hex)) => hex::decode(&hex).ok()?.into(),
            (Some(_), Some(_)) | (None, None) => return None,
        };
        let job = || JobName::parse(&self.name).ok();
        let home = match self.of {
            Kind::Job => Home::Job(job()?),
            Kind::Own => Home::Own(job()?),
            Kind::StickyLock => Home::StickyLock(self.name),
        };
        let saved = Saved { home, path: self.path, data };
        // The paths of all namespaces have the same form.
        belongs(Roots { namespace: &Path::root().child("n") }, &saved).then_some(saved)
    }
}

fn sum(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(home: Home, path: &str, data: &[u8]) -> Saved {
        Saved { home, path: path.to_owned(), data: data.into() }
    }

    fn file() -> (Vec<Saved>, Vec<u8>) {
        let job = JobName::parse("bill").unwrap();
        let nodes = vec![
            saved(Home::Own(job.clone()), "checkpoints/0", b"5\n\xff\x00"),
            saved(Home::Job(job.clone()), "", b"class"),
            saved(Home::Job(job), "config", "cron: '\u{1}\u{e9}'\n".as_bytes()),
            saved(Home::StickyLock("nightly".to_owned()), "record", b"{}"),
        ];
        let landmark = Landmark { path: "/ns".to_owned(), created: 3, created_ms: 5 };
        let mut writer = Writer::new("ns", "2026-11-28T03:00:00Z", vec![landmark]);
        for node in &nodes {
            writer.add(node).unwrap();
        }
        writer.note(Zxid(70));
        writer.note(Zxid(7));
        (nodes, writer.finish())
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let (nodes, file) = file();
        let backup = Backup::read(&file).unwrap();
        assert_eq!((backup.nodes, backup.highest), (nodes, Zxid(70)));
        assert_eq!((backup.header.namespace.as_str(), backup.header.registry.len()), ("ns", 1));
        let text = String::from_utf8(file).unwrap();
        assert!(text.starts_with(r#"{"sidekeeper_backup":{"version":1,"#), "{text}");
        assert!(
            text.contains(r#"{"node":{"of":"own","name":"bill","path":"checkpoints/0","hex":"350aff00"}}"#)
        );
    }

    #[test]
    fn a_file_that_was_cut_or_changed_anywhere_is_refused() {
        let (_, file) = file();
        for end in 0..file.len() {
            assert!(Backup::read(&file[..end]).is_err(), "cut after {end} bytes");
        }
        for at in 0..file.len() {
            let mut changed = file.clone();
            changed[at] ^= 1;
            assert!(Backup::read(&changed).is_err(), "byte {at} changed");
        }
        let lines: Vec<_> = std::str::from_utf8(&file).unwrap().lines().collect();
        let without = [&lines[..2], &lines[3..]].concat().join("\n") + "\n";
        assert_eq!(Backup::read(without.as_bytes()), Err(FileError::Damaged));
    }

    #[test]
    fn another_version_and_nodes_outside_of_a_namespace_are_refused() {
        let later = b"{\"sidekeeper_backup\":{\"version\":2,\"news\":1}}\n";
        assert_eq!(Backup::read(later), Err(FileError::Later(2)));
        assert!(matches!(Backup::read(b"cron: x\n"), Err(FileError::NoBackup(_))));
        let job = JobName::parse("bill").unwrap();
        for node in [
            saved(Home::Job(job.clone()), "../other", b""),
            saved(Home::Job(job.clone()), "a//b", b""),
            saved(Home::StickyLock("x".to_owned()), "owner", b""),
            saved(Home::StickyLock("..".to_owned()), "record", b""),
            // Nodes of an execution, of a request, and below nodes that have none.
            saved(Home::Job(job.clone()), "sharding/0/running", b""),
            saved(Home::Job(job.clone()), "sharding/0/disabled/x", b""),
            saved(Home::Own(job.clone()), "fleet/cancels/mine", b"all"),
            saved(Home::Own(job), "fleet/triggers/mine.0", b""),
        ] {
            let mut writer = Writer::new("ns", "", Vec::new());
            writer.add(&node).unwrap();
            let refused = Backup::read(&writer.finish());
            assert!(matches!(refused, Err(FileError::Line { line: 2, .. })), "{node:?}: {refused:?}");
        }
    }
}
