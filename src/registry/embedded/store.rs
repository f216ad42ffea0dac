//! Where the embedded registry keeps its persistent nodes and the transaction counter: one `redb` file.
//!
//! A thread of its own writes. Transactions that meet while it is busy travel to the disk together, and what waits
//! for it is at most one entry a node. A transaction is durable when the receiver that [`Store::write`] gave is told.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use tokio::sync::oneshot;

use super::guard::guarded;
use super::tree::{Change, Lifetime};
use crate::private;
use crate::tree::{Node, Path, Stat, Zxid};

/// The file's name inside the data folder.
const FILE: &str = "registry.redb";

/// Created, modified, version, modified in milliseconds, whether it is a container, data.
type Row<'a> = (i64, i64, i32, i64, bool, &'a [u8]);

/// The nodes by their paths.
const NODES: TableDefinition<'_, &str, Row<'_>> = TableDefinition::new("nodes");

/// Counters by name.
const COUNTERS: TableDefinition<'_, &str, i64> = TableDefinition::new("counters");

/// All transaction ids below this one may have been given away.
const RESERVED: &str = "reserved_zxids";

/// So many transaction ids are reserved by one write. A restart skips what is left of them, so it must not waste
/// the 63 bits; and using them up must be rare, since the next reservation makes a transaction wait for the disk.
pub(super) const ZXID_RANGE: i64 = 1_000_000;

/// Why the stored registry could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder could not be made.
    #[error("cannot create the data folder {folder}: {source}")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file cannot be read or written, or another process has it open.
    #[error("cannot open the registry's file {file}: {source}")]
    File {
        /// The file.
        file: PathBuf,
        /// Why.
        source: Box<redb::Error>,
    },
    /// The file holds something that this program does not write.
    #[error(
        "the registry's file {file} is damaged: {reason}; move it away to start with an empty registry, or restore a \
         copy of it"
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The thread that writes could not be started.
    #[error("cannot start the thread that writes the registry's file: {0}")]
    Thread(io::Error),
}

/// The outcome of a write: an error is a text, since several transactions share it.
pub(super) type Written = Result<(), Arc<str>>;

/// Told when a transaction is on the disk; `None` when it has nothing to write.
pub(super) type Durable = Option<oneshot::Receiver<Written>>;

pub(super) struct Store {
    database: Arc<Database>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What [`Store::open`] found.
pub(super) struct Stored {
    pub(super) nodes: Vec<(Node, Lifetime)>,
    /// The first transaction id that surely was not given away yet; [`ZXID_RANGE`] of them are reserved.
    pub(super) first_zxid: i64,
}

#[derive(Default)]
struct Shared {
    pending: Mutex<Pending>,
    wake: Condvar,
}

#[derive(Default)]
struct Pending {
    nodes: BTreeMap<Path, Option<(Node, Lifetime)>>,
    waiting: Vec<oneshot::Sender<Written>>,
    stop: bool,
}

impl Store {
    pub(super) fn open(folder: &FilePath) -> Result<(Self, Stored), OpenError> {
        private::folder(folder).map_err(|source| OpenError::Folder { folder: folder.to_owned(), source })?;
        let file = folder.join(FILE);
        let (database, first_zxid, rows) = guarded(|| {
            let database = open_database(&file)?;
            // A file that redb has repaired may have lost its last transaction, and that may have been a reservation.
            let first_zxid = reserve(&database, 0, ZXID_RANGE)?;
            let rows = read(&database)?;
            Ok((database, first_zxid, rows))
        })
        .map_err(|error| OpenError::of(&file, error))?;
        let nodes = rows.into_iter().map(|row| row.read(&file)).collect::<Result<_, _>>()?;
        let database = Arc::new(database);
        let shared = Arc::new(Shared::default());
        let (writer, written) = (Arc::clone(&shared), Arc::clone(&database));
        let thread = std::thread::Builder::new()
            .name("registry-store".to_owned())
            .spawn(move || write_until_stopped(&writer, &written))
            .map_err(OpenError::Thread)?;
        Ok((Self { database, shared, thread: Some(thread) }, Stored { nodes, first_zxid }))
    }

    /// Reserves [`ZXID_RANGE`] transaction ids, all at or above `at_least`; gives the first. Waits for the disk.
    pub(super) fn reserve(&self, at_least: i64) -> Result<i64, String> {
        guarded(|| reserve(&self.database, at_least, 0)).map_err(|error| error.to_string())
    }

    /// Hands over what changed. `None`: nothing of it is kept, so there is nothing to wait for.
    ///
    /// If the disk fails, the changes stay here and go with the next write.
    pub(super) fn write(&self, changes: &[Change]) -> Durable {
        let mut kept = changes.iter().filter(|change| change.lifetime != Lifetime::Ephemeral).peekable();
        kept.peek()?;
        let mut pending = self.shared.lock();
        for Change { path, content, lifetime } in kept {
            let node = content.as_ref().map(|(data, stat)| {
                (Node { path: path.clone(), data: Arc::clone(data), stat: *stat }, *lifetime)
            });
            pending.nodes.insert(path.clone(), node);
        }
        let (sender, receiver) = oneshot::channel();
        pending.waiting.push(sender);
        self.shared.wake.notify_one();
        Some(receiver)
    }
}

impl Drop for Store {
    /// Writes what waits and closes the file, so that it can be opened again at once.
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, there would be nothing left to do here.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the file, or makes it; only its owner may read it. Fails if what it holds is not what was written.
fn open_database(path: &FilePath) -> Result<Database, redb::Error> {
    let file = private::file().read(true).write(true).create(true).truncate(false).open(path)?;
    private::close_to_others(path, &file)?;
    let mut database = Database::builder().create_file(file)?;
    // redb compares checksums only here. A damaged byte of a node would be believed otherwise.
    if !database.check_integrity()? {
        tracing::warn!(
            file = %path.display(),
            "the registry's file was damaged and has been repaired; what was written last may be missing"
        );
    }
    Ok(database)
}

fn write_until_stopped(shared: &Shared, database: &Database) {
    loop {
        let mut pending = shared.lock();
        while pending.waiting.is_empty() && !pending.stop {
            pending = shared.wake.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
        let nodes = std::mem::take(&mut pending.nodes);
        let waiting = std::mem::take(&mut pending.waiting);
        let stop = pending.stop;
        drop(pending);
        let written = if nodes.is_empty() { Ok(()) } else { guarded(|| write_nodes(database, &nodes)) };
        let written = written.map_err(|error| {
            tracing::warn!(%error, nodes = nodes.len(), "cannot write the registry's file; kept for the next write");
            let mut pending = shared.lock();
            for (path, node) in nodes {
                pending.nodes.entry(path).or_insert(node);
            }
            Arc::from(error.to_string())
        });
        for waiter in waiting {
            // Nobody waits when the caller dropped its future.
            let _ = waiter.send(written.clone());
        }
        if stop {
            return;
        }
    }
}

fn write_nodes(
    database: &Database,
    nodes: &BTreeMap<Path, Option<(Node, Lifetime)>>,
) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(NODES)?;
        for (path, node) in nodes {
            let Some((Node { data, stat, .. }, lifetime)) = node else {
                table.remove(path.as_str())?;
                continue;
            };
            let is_container = *lifetime == Lifetime::Container;
            let Stat { created, modified, version, modified_ms, .. } = *stat;
            table.insert(
                path.as_str(),
                (created.0, modified.0, version, modified_ms, is_container, &**data),
            )?;
        }
    }
    transaction.commit()?;
    Ok(())
}

/// Reserves [`ZXID_RANGE`] transaction ids, `skipped` above those that the file has reserved; gives the first.
fn reserve(database: &Database, at_least: i64, skipped: i64) -> Result<i64, redb::Error> {
    let transaction = database.begin_write()?;
    let first = {
        // Opened here, too, so that a new file has both tables.
        transaction.open_table(NODES)?;
        let mut counters = transaction.open_table(COUNTERS)?;
        let stored = counters.get(RESERVED)?.map_or(1, |value| value.value().saturating_add(skipped));
        let first = stored.max(at_least);
        counters.insert(RESERVED, first.saturating_add(ZXID_RANGE))?;
        first
    };
    transaction.commit()?;
    Ok(first)
}

/// What the file has of a node.
struct StoredNode {
    path: String,
    data: Arc<[u8]>,
    stat: Stat,
    lifetime: Lifetime,
}

impl StoredNode {
    fn read(self, file: &FilePath) -> Result<(Node, Lifetime), OpenError> {
        let Self { path, data, stat, lifetime } = self;
        let path = Path::parse(&path).map_err(|error| OpenError::damaged(file, error.to_string()))?;
        Ok((Node { path, data, stat }, lifetime))
    }
}

fn read(database: &Database) -> Result<Vec<StoredNode>, redb::Error> {
    let table = database.begin_read()?.open_table(NODES)?;
    let mut nodes = Vec::new();
    for entry in table.iter()? {
        let (path, value) = entry?;
        let (created, modified, version, modified_ms, is_container, data) = value.value();
        let stat = Stat {
            created: Zxid(created),
            modified: Zxid(modified),
            version,
            ephemeral_owner: None,
            modified_ms,
        };
        let lifetime = if is_container { Lifetime::Container } else { Lifetime::Persistent };
        nodes.push(StoredNode { path: path.value().to_owned(), data: data.into(), stat, lifetime });
    }
    Ok(nodes)
}

impl OpenError {
    /// What redb says of a file, as somebody can mend it.
    fn of(file: &FilePath, error: redb::Error) -> Self {
        // The disk, another process or another version may be the reason; what else it finds wrong is in the file.
        let is_elsewhere = if let redb::Error::Io(error) = &error {
            !matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
        } else {
            matches!(error, redb::Error::DatabaseAlreadyOpen | redb::Error::UpgradeRequired(_))
        };
        if is_elsewhere {
            return Self::File { file: file.to_owned(), source: Box::new(error) };
        }
        Self::damaged(file, error.to_string())
    }

    fn damaged(file: &FilePath, reason: String) -> Self {
        Self::Damaged { file: file.to_owned(), reason }
    }

    /// A stored node whose parent is not stored.
    pub(super) fn orphan(folder: &FilePath, node: &Path) -> Self {
        Self::damaged(&folder.join(FILE), format!("the parent of node `{node}` is missing"))
    }
}
