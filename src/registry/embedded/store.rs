//! Where the embedded registry keeps its persistent nodes and the transaction counter: one `redb` file.
//!
//! A thread of its own writes. Transactions that meet while it is busy travel to the disk together, and what waits
//! for it is at most one entry a node. A transaction is durable when the receiver that [`Store::write`] gave is told.
//!
//! redb refuses all after a write that failed, so the file is closed then, and opened again until what waits is in it.
//! The registry is told of both ([`Outage`]), and lets nobody act meanwhile.

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

/// All transaction ids below this one may have been given away.
const RESERVED: &str = "reserved_zxids";

/// How many writes are in the file. A file that is opened again must have all that succeeded: it may be another one now.
const WRITES: &str = "writes";

/// How long to wait before a file that could not be written is opened again. A disk that is full is not made emptier by
/// trying; a person who has made room does not notice a second.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// After so many tries it is said again that nothing can be written: about each minute.
const SAID_AGAIN: u32 = 60;

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

/// Opens a database in a file, which it makes if it is missing.
pub type OpenDatabase = Arc<dyn Fn(&FilePath) -> Result<Database, redb::Error> + Send + Sync>;

/// The registry, as the store tells it that nothing can be written, and that this is over.
pub(super) trait Outage: Send + Sync + 'static {
    /// Nothing can be written, for this reason; after this nobody hands over what has to be waited for.
    fn begins(&self, reason: &Arc<str>);

    /// All is written that was handed over before, if `is_idle` says so; otherwise it goes on, and this gives false.
    fn ends(&self, is_idle: &dyn Fn() -> bool) -> bool;
}

pub(super) struct Store {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What [`Opened::read`] found.
pub(super) struct Stored {
    pub(super) nodes: Vec<(Node, Lifetime)>,
    /// The first transaction id that surely was not given away yet; [`ZXID_RANGE`] of them are reserved.
    pub(super) first_zxid: i64,
}

/// A file that is open, and that nobody writes yet.
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
    /// `None`: it was closed, because a write failed.
    database: Option<Database>,
    /// How many writes it has surely.
    writes: i64,
}

#[derive(Default)]
struct Pending {
    nodes: BTreeMap<Path, Option<(Node, Lifetime)>>,
    waiting: Vec<oneshot::Sender<Written>>,
    /// Whether something is on its way to the disk.
    is_busy: bool,
    /// Whether a reservation has failed, so that the file is to be opened again though nothing waits.
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

    /// Starts to write.
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
    /// Reserves [`ZXID_RANGE`] transaction ids, all at or above `at_least`; gives the first. Waits for the disk. If that
    /// fails, the outage has begun: the caller sees to it.
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

    /// Hands over what changed. `None`: all that came before is on the disk, and nothing of this is kept there, so there
    /// is nothing to wait for.
    ///
    /// If the disk fails, the changes stay here and go with the next write.
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
    /// Writes what waits and closes the file, so that it can be opened again at once.
    fn drop(&mut self) {
        self.shared.pending().stop = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, there would be nothing left to do here.
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

    /// Waits until there is something to write, or, in an outage, until it is time for another try.
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

    /// Writes nodes; without any, makes sure that something could be written if a write has failed before.
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
            let what = if is_full { "make room in" } else { "look after the disk of" };
            format!("{what} data_dir {folder}, and the sidecar goes on by itself")
        } else {
            "stop the sidecar, and restore a copy of the file or move it away".to_owned()
        };
        format!("the registry's file {} cannot be written: {error}; {remedy}", self.file.display()).into()
    }
}

impl Disk {
    /// Does something with the database, which is opened if it is closed, and closed if that fails: redb refuses all that
    /// comes after a failure, and after a panic nobody knows what it has in memory.
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
    // How often it has failed in this outage.
    let mut failures: u32 = 0;
    loop {
        let Batch { nodes, waiting, is_broken, stop } = shared.next(is_out);
        is_out |= is_broken;
        match shared.write(&nodes) {
            Ok(()) => {
                shared.pending().is_busy = false;
                tell(waiting, &Ok(()));
                if is_out && outage.ends(&|| shared.pending().nodes.is_empty()) {
                    tracing::info!(file = %shared.file.display(), "the registry's file can be written again");
                    (is_out, failures) = (false, 0);
                }
            }
            Err(error) => {
                let reason = shared.trouble(&error);
                if failures.is_multiple_of(SAID_AGAIN) {
                    tracing::error!(
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
                tell(waiting, &Err(Arc::clone(&reason)));
                let late = std::mem::take(&mut shared.pending().waiting);
                tell(late, &Err(reason));
                if stop {
                    let lost = shared.pending().nodes.len();
                    tracing::error!(nodes = lost, "the process ends before these changes could be written");
                }
            }
        }
        if stop {
            return;
        }
    }
}

fn tell(waiting: Vec<oneshot::Sender<Written>>, written: &Written) {
    for waiter in waiting {
        // Nobody waits when the caller dropped its future.
        let _ = waiter.send(written.clone());
    }
}

/// Opens a file that only its owner may read.
pub(super) fn open_file(path: &FilePath) -> Result<Database, redb::Error> {
    let file = private::file().read(true).write(true).create(true).truncate(false).open(path)?;
    private::close_to_others(path, &file)?;
    Ok(Database::builder().create_file(file)?)
}

/// Opens a file. Fails if what it holds is not what was written.
fn open_whole(path: &FilePath, open: &OpenDatabase) -> Result<Database, redb::Error> {
    let mut database = open(path)?;
    // redb compares checksums only here. A damaged byte of a node would be believed otherwise.
    if !database.check_integrity()? {
        tracing::warn!(
            file = %path.display(),
            "the registry's file was damaged and has been repaired; the last writes may be missing"
        );
    }
    Ok(database)
}

/// Opens a file again that this process has written.
fn reopen(path: &FilePath, open: &OpenDatabase, written: i64) -> Result<Database, redb::Error> {
    // One that is gone would be made anew, without what the tree is built on.
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
        // A write failed before there was any.
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
