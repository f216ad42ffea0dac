//! Threads for the connections of others than the sidecar's own user: a lane for each caller. So a caller that floods the sidecar
//! competes for the processors as another process does, by the kernel's scheduler, and holds up neither fires nor other callers. Shell.
//!
//! Only bytes and calls are handled there. Tasks that a call begins run on the main runtime ([`Clock::spawn`]).
//!
//! [`Clock::spawn`]: crate::runner::clock::Clock::spawn

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use futures::future::BoxFuture;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tracing::error;

use super::caller::CallerName;

/// The most lanes. Beyond it callers share the one of those whom the sidecar does not know.
const LANES_MAX: usize = 16;
/// New connections that wait for a lane. Beyond it they are closed.
const WAITING_MAX: usize = 64;
/// The stack of each thread, in bytes.
const STACK_SIZE: usize = 1024 * 1024;

/// The connections of one lane.
pub(crate) type Incoming<C> = ReceiverStream<io::Result<C>>;
/// Serves the connections of a lane until the sidecar stops.
pub(crate) type Serve<C> = Arc<dyn Fn(Incoming<C>) -> BoxFuture<'static, ()> + Send + Sync>;

/// The outcome for a connection.
pub(super) enum Given<C> {
    /// A lane serves it.
    Taken,
    /// It is the caller's to serve: there is no lane for it.
    Back(C),
    /// It is closed: its lane has too many that wait.
    Closed,
}

/// The lanes of a sidecar, for connections of this kind.
pub struct Lanes<C> {
    serve: Serve<C>,
    open: Mutex<Open<C>>,
}

struct Open<C> {
    by_caller: BTreeMap<CallerName, mpsc::Sender<io::Result<C>>>,
    /// Each ends with its thread.
    threads: Vec<oneshot::Receiver<()>>,
}

impl<C> Lanes<C> {
    /// None yet; each will serve so.
    pub(crate) fn new(serve: Serve<C>) -> Self {
        Self { serve, open: Mutex::new(Open { by_caller: BTreeMap::new(), threads: Vec::new() }) }
    }

    /// Gives a connection to the lane of its caller, which is opened if there is none.
    pub(super) fn give(&self, caller: &CallerName, connection: C) -> Given<C> {
        let mut open = self.open();
        let mut name = caller.clone();
        if !open.by_caller.contains_key(&name) && open.by_caller.len() >= LANES_MAX {
            name = CallerName::Unknown;
        }
        let lane = match open.by_caller.get(&name) {
            Some(lane) => lane.clone(),
            None => {
                let (lane, connections) = mpsc::channel(WAITING_MAX);
                let serving = (self.serve)(ReceiverStream::new(connections));
                if !open.start(serving) {
                    return Given::Back(connection);
                }
                open.by_caller.insert(name, lane.clone());
                lane
            }
        };
        drop(open);
        match lane.try_send(Ok(connection)) {
            Ok(()) => Given::Taken,
            Err(_) => Given::Closed,
        }
    }

    /// Performs something on a thread of its own. It has to end when the sidecar stops.
    pub(crate) fn run(&self, task: BoxFuture<'static, ()>) -> bool {
        self.open().start(task)
    }

    /// Ends when all threads have ended.
    pub(crate) async fn ended(&self) {
        let threads = std::mem::take(&mut self.open().threads);
        // An error says that the thread has ended.
        futures::future::join_all(threads).await;
    }

    fn open(&self) -> MutexGuard<'_, Open<C>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> Open<C> {
    fn start(&mut self, task: BoxFuture<'static, ()>) -> bool {
        let (end, ended) = oneshot::channel();
        let run = move || {
            match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(task),
                Err(error) => {
                    error!(event = "LANE_NOT_STARTED", %error, "cannot serve other users: no runtime")
                }
            }
            drop(end);
        };
        let started = thread::Builder::new().name("lane".to_owned()).stack_size(STACK_SIZE).spawn(run);
        match started {
            Ok(_) => self.threads.push(ended),
            Err(ref error) => {
                error!(event = "LANE_NOT_STARTED", %error, "cannot start a thread for other users")
            }
        }
        started.is_ok()
    }
}
