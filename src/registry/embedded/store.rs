//! The embedded registry's file: one `redb` file with its persistent nodes and the transaction counter.
//!
//! A thread of its own writes the file. Transactions that arrive during a write go to the disk together; the
//! waiting changes are at most one entry a node. A transaction is durable when the receiver from
//! [`Store::write`] gets its result.
//!
//! A full disk suspends the registry. The tree is changed before the disk is, and a transaction is
//! acknowledged after. redb refuses every request after a failed write. So the store closes the file then,
//! and opens it again until the file has all waiting transactions. The store notifies the registry of both
//! ([`Outage`]). In the meantime the registry acknowledges nothing, and all sessions are suspended. The
//! failed transactions stay in the tree, and their outcome is unknown, as when a connection with ZooKeeper
//! breaks. The store never again uses a file that lacks an acknowledged transaction.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

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

/// Counters by name: [`RESERVED`], [`WRITES`].
const COUNTERS: TableDefinition<'_, &str, i64> = TableDefinition::new("counters");

/// All transaction ids below this one may have been used.
const RESERVED: &str = "reserved_zxids";

/// The number of writes in the file. A reopened file must have all writes that succeeded, because it may be
/// another file.
const WRITES: &str = "writes";

/// The pause before a file that could not be written is opened again. Attempts do not empty a full disk, and
/// a person who has made room does not notice a second.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// After so many attempts the error is logged again: about once a minute.
const LOGGED_AGAIN: u32 = 60;

/// The transaction ids that one write reserves. A restart skips the unused ids of a range, so the range must
/// not waste the 63 bits. But ranges must be used up rarely, because the next reservation makes a transaction
/// wait for the disk.
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
        /// The damage.
        reason: String,
    },
    /// The thread that writes the file could not be started.
    #[error("cannot start the thread that writes the registry's file: {0}")]
    Thread(io::Error),
}

/// The outcome of a write: an error is a text, since several transactions share it.
pub(super) type Written = Result<(), Arc<str>>;

/// Gets the result when a transaction is on the disk. `None`: the transaction has nothing to write.
pub(super) type Durable = Option<oneshot::Receiver<Written>>;

/// Opens a database in a file. Makes the file if it is missing.
pub type OpenDatabase = Arc<dyn Fn(&FilePath) -> Result<Database, redb::Error> + Send + Sync>;

/// The registry, which the store notifies of the begin and the end of an outage.
pub(super) trait Outage: Send + Sync + 'static {
    /// Nothing can be written, for this reason. From now on no session hands over changes that need the disk.
    fn begins(&self, reason: &Arc<str>);

    /// All changes are written that were handed over before. `is_idle` confirms it; otherwise the outage goes
    /// on, and the result is false.
    fn ends(&self, is_idle: &dyn Fn() -> bool) -> bool;
}

pub(super) struct Store {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The result of [`Opened::read`].
pub(super) struct Stored {
    pub(super) nodes: Vec<(Node, Lifetime)>,
    /// The first transaction id that was surely never used. [`ZXID_RANGE`] ids from it on are reserved.
    pub(super) first_zxid: i64,
}

/// An open file that no thread writes yet.
pub(super) struct Opened {
    shared: Shared,
}

struct Shared {
    file: PathBuf,
    open: OpenDatabase,
    disk: Mutex<Disk>,
    pending: Mutex<Pending>,
    wake: Condvar,
}

/// Held while the file is written or read.
struct Disk {
    /// `None`: the store closed it, because a write failed.
    database: Option<Database>,
    /// The number of writes that it surely has.
    writes: i64,
}

#[derive(Default)]
struct Pending {
    nodes: BTreeMap<Path, Option<(Node, Lifetime)>>,
    waiting: Vec<oneshot::Sender<Written>>,
    /// Whether something is on its way to the disk.
    is_busy: bool,
    /// Whether a reservation has failed. Then the file is opened again even if no change waits.
    is_broken: bool,
    stop: bool,
}

impl Opened {
    /// Opens the file in a folder, and reads all that is in it.
    pub(super) fn read(folder: &FilePath, open: OpenDatabase) -> Result<(Self, Stored), OpenError> {
        private::folder(folder).map_err(|source| OpenError::Folder { folder: folder.to_owned(), source })?;
        let file = folder.join(FILE);
        let (database, first_zxid, writes, rows) = guarded(|| {
            let database = open_whole(&file, &open)?;
            // A file that redb has repaired may have lost its last transaction, and that may have been a reservation.
            let first_zxid = reserve(&database, 0, ZXID_RANGE)?;
            let (writes, rows) = (writes(&database)?, read(&database)?);
            Ok((database, first_zxid, writes, rows))
        })
        .map_err(|error| OpenError::of(&file, error))?;
        let nodes = rows.into_iter().map(|row| row.read(&file)).collect::<Result<_, _>>()?;
        let shared = Shared {
            file,
            open,
            disk: Mutex::new(Disk { database: Some(database), writes }),
            pending: Mutex::default(),
            wake: Condvar::new(),
        };
        Ok((Self { shared }, Stored { nodes, first_zxid }))
    }

    /// Starts the thread that writes.
    pub(super) fn start(self, outage: impl Outage) -> Result<Store, OpenError> {
        let shared = Arc::new(self.shared);
        let writer = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("registry-store".to_owned())
            .spawn(move || write_until_stopped(&writer, &outage))
            .map_err(OpenError::Thread)?;
        Ok(Store { shared, thread: Some(thread) })
    }
}

impl Store {
    /// Reserves [`ZXID_RANGE`] transaction ids, all at or above `at_least`, and returns the first. Waits for
    /// the disk. If it fails, the outage has begun, and the caller handles that.
    pub(super) fn reserve(&self, at_least: i64) -> Result<i64, Arc<str>> {
        let mut disk = self.shared.disk();
        let reserved = disk.try_with(&self.shared, |database, _| reserve(database, at_least, 0));
        drop(disk);
        reserved.map_err(|error| {
            self.shared.pending().is_broken = true;
            self.shared.wake.notify_one();
            self.shared.trouble(&error)
        })
    }

    /// Hands over changes. `None`: these changes have nothing for the disk, and all earlier changes are on
    /// it, so there is nothing to wait for.
    ///
    /// If the disk fails, the changes stay here for the next write.
    pub(super) fn write(&self, changes: &[Change]) -> Durable {
        let mut kept = changes.iter().filter(|change| change.lifetime != Lifetime::Ephemeral).peekable();
        let mut pending = self.shared.pending();
        if kept.peek().is_none() && pending.nodes.is_empty() && !pending.is_busy {
            return None;
        }
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
    /// Writes the waiting changes and closes the file, so that it can be opened again at once.
    fn drop(&mut self) {
        self.shared.pending().stop = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic. If it did, nothing would be left to do here.
            let _ = thread.join();
        }
    }
}

/// Nodes that are written together.
struct Batch {
    nodes: BTreeMap<Path, Option<(Node, Lifetime)>>,
    waiting: Vec<oneshot::Sender<Written>>,
    /// Whether a reservation has failed: an outage has begun.
    is_broken: bool,
    stop: bool,
}

impl Shared {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is something to write, or, in an outage, until the next attempt is due.
    fn next(&self, is_out: bool) -> Batch {
        let pending = self.pending();
        let mut pending = if is_out {
            let waited = self.wake.wait_timeout_while(pending, RETRY_PAUSE, |pending| !pending.stop);
            waited.unwrap_or_else(PoisonError::into_inner).0
        } else {
            let is_idle =
                |pending: &mut Pending| pending.waiting.is_empty() && !pending.is_broken && !pending.stop;
            self.wake.wait_while(pending, is_idle).unwrap_or_else(PoisonError::into_inner)
        };
        let nodes = std::mem::take(&mut pending.nodes);
        let waiting = std::mem::take(&mut pending.waiting);
        pending.is_busy = !nodes.is_empty();
        let is_broken = std::mem::take(&mut pending.is_broken);
        Batch { nodes, waiting, is_broken, stop: pending.stop }
    }

    /// Writes nodes. Without nodes it only makes sure that the file can be written, if a write has failed
    /// before.
    fn write(&self, nodes: &BTreeMap<Path, Option<(Node, Lifetime)>>) -> Result<(), redb::Error> {
        let mut disk = self.disk();
        if nodes.is_empty() && disk.database.is_some() {
            return Ok(());
        }
        disk.try_with(self, |database, writes| write_nodes(database, nodes, writes.saturating_add(1)))?;
        disk.writes = disk.writes.saturating_add(1);
        Ok(())
    }

    /// Why nothing can be written, and what to do.
    fn trouble(&self, error: &redb::Error) -> Arc<str> {
        let folder = self.file.parent().unwrap_or(&self.file).display();
        let remedy = if let redb::Error::Io(error) = error {
            let is_full = matches!(
                error.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
            );
            let what = if is_full { "make room in" } else { "check the disk of" };
            format!("{what} data_dir {folder}, then the sidecar goes on by itself")
        } else {
            "stop the sidecar, and restore a copy of the file or move it away".to_owned()
        };
        format!("the registry's file {} cannot be written: {error}; {remedy}", self.file.display()).into()
    }
}

impl Disk {
    /// Works with the database. Opens a closed database before, and closes it after an error: redb refuses
    /// all requests after a failure, and after a panic the state of its memory is unknown.
    fn try_with<T>(
        &mut self,
        shared: &Shared,
        work: impl FnOnce(&Database, i64) -> Result<T, redb::Error>,
    ) -> Result<T, redb::Error> {
        let (database, writes) = (self.database.take(), self.writes);
        let (database, done) = guarded(|| {
            let database = match database {
                Some(database) => database,
                None => reopen(&shared.file, &shared.open, writes)?,
            };
            let done = work(&database, writes)?;
            Ok((database, done))
        })?;
        self.database = Some(database);
        Ok(done)
    }
}

fn write_until_stopped(shared: &Shared, outage: &impl Outage) {
    let mut is_out = false;
    // The number of failures in this outage.
    let mut failures: u32 = 0;
    loop {
        let Batch { nodes, waiting, is_broken, stop } = shared.next(is_out);
        is_out |= is_broken;
        match shared.write(&nodes) {
            Ok(()) => {
                shared.pending().is_busy = false;
                answer(waiting, &Ok(()));
                if is_out && outage.ends(&|| shared.pending().nodes.is_empty()) {
                    tracing::info!(file = %shared.file.display(), "the registry's file can be written again");
                    (is_out, failures) = (false, 0);
                }
            }
            Err(error) => {
                let reason = shared.trouble(&error);
                if failures.is_multiple_of(LOGGED_AGAIN) {
                    tracing::error!(
                        event = "DISK_FULL",
                        nodes = nodes.len(),
                        "{reason}; until then nothing starts, and the sidecar is not ready"
                    );
                }
                (is_out, failures) = (true, failures.saturating_add(1));
                let mut pending = shared.pending();
                for (path, node) in nodes {
                    pending.nodes.entry(path).or_insert(node);
                }
                pending.is_busy = false;
                drop(pending);
                outage.begins(&reason);
                answer(waiting, &Err(Arc::clone(&reason)));
                let late = std::mem::take(&mut shared.pending().waiting);
                answer(late, &Err(reason));
                if stop {
                    let lost = shared.pending().nodes.len();
                    tracing::error!(
                        event = "CHANGES_NOT_WRITTEN",
                        nodes = lost,
                        "the process ends, and these changes are not written"
                    );
                }
            }
        }
        if stop {
            return;
        }
    }
}

fn answer(waiting: Vec<oneshot::Sender<Written>>, written: &Written) {
    for waiter in waiting {
        // The receiver is closed when the caller dropped its future.
        let _ = waiter.send(written.clone());
    }
}

/// Opens a file that only its owner may read.
pub(super) fn open_file(path: &FilePath) -> Result<Database, redb::Error> {
    let file = private::file().read(true).write(true).create(true).truncate(false).open(path)?;
    private::close_to_others(path, &file)?;
    Ok(Database::builder().create_file(file)?)
}

/// Opens a file. Fails if its content is not the written content.
fn open_whole(path: &FilePath, open: &OpenDatabase) -> Result<Database, redb::Error> {
    let mut database = open(path)?;
    // redb compares checksums only here. Without it, a damaged byte of a node would be accepted.
    if !database.check_integrity()? {
        tracing::warn!(event = "DATA_REPAIRED",
            file = %path.display(),
            "the registry's file was damaged and has been repaired; the last writes may be missing"
        );
    }
    Ok(database)
}

/// Opens a file again that this process has written.
fn reopen(path: &FilePath, open: &OpenDatabase, written: i64) -> Result<Database, redb::Error> {
    // Fails if the file is missing. Otherwise redb would make a new one, without the nodes that the tree has.
    std::fs::metadata(path)?;
    let database = open_whole(path, open)?;
    let found = writes(&database)?;
    if found < written {
        return Err(redb::Error::Corrupted(format!("it has {found} of the {written} writes that succeeded")));
    }
    Ok(database)
}

fn writes(database: &Database) -> Result<i64, redb::Error> {
    let transaction = database.begin_read()?;
    let counters = match transaction.open_table(COUNTERS) {
        // A write failed before the file had one.
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(0),
        counters => counters?,
    };
    Ok(counters.get(WRITES)?.map_or(0, |value| value.value()))
}

fn write_nodes(
    database: &Database,
    nodes: &BTreeMap<Path, Option<(Node, Lifetime)>>,
    writes: i64,
) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        transaction.open_table(COUNTERS)?.insert(WRITES, writes)?;
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

/// Reserves [`ZXID_RANGE`] transaction ids, `skipped` above those that the file has reserved. Returns the
/// first.
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

/// A node's content in the file.
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
    /// An error of redb, in the words that help a person to repair the file.
    fn of(file: &FilePath, error: redb::Error) -> Self {
        // The disk, another process or another version may be the reason. All other errors mean that the file
        // is damaged.
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
