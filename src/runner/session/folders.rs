//! The folders that are known to exist, so that a thousand instances that register do not ask for the same folder a thousand
//! times.
//!
//! Another client may delete a folder. Then a transaction that needs it is refused, and what is known here is forgotten before
//! the transaction is tried again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, ready};

use crate::tree::{CommitResult, Error, Path};

type Creation = Shared<BoxFuture<'static, Result<bool, Error>>>;

/// The folders of one session.
#[derive(Clone, Default)]
pub(super) struct Folders {
    known: Arc<Mutex<BTreeMap<Path, Folder>>>,
}

enum Folder {
    Creating(Creation),
    /// It exists, or did.
    There,
}

impl Folders {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Path, Folder>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a folder by this function, unless it is known. True: it was created. The function gets the folder and those of
    /// its parents that are not known, topmost first.
    pub(super) fn ensure(
        &self,
        path: &Path,
        create: impl FnOnce(&[Path]) -> BoxFuture<'static, Result<bool, Error>>,
    ) -> BoxFuture<'static, Result<bool, Error>> {
        let mut known = self.lock();
        match known.get(path) {
            Some(Folder::There) => return Box::pin(ready(Ok(false))),
            Some(Folder::Creating(creation)) => return creation.clone().boxed(),
            None => {}
        }
        let (folders, folder, creating) = (self.clone(), path.clone(), create(&unknown(&known, path)));
        let creation = async move {
            let created = creating.await;
            let mut known = folders.lock();
            match &created {
                Ok(_) => {
                    known.extend(topmost(&folder).map(|top| (top, Folder::There)));
                    known.insert(folder, Folder::There)
                }
                Err(_) => known.remove(&folder),
            };
            created
        };
        let creation = creation.boxed().shared();
        known.insert(path.clone(), Folder::Creating(creation.clone()));
        creation.boxed()
    }

    /// Forgets all folders, if a transaction was refused because a node is missing.
    pub(super) fn learn(&self, result: &CommitResult) {
        if matches!(result, Err(error) if matches!(error.error, Error::NoNode(_))) {
            self.lock().retain(|_, folder| matches!(folder, Folder::Creating(_)));
        }
    }
}

/// The folder and those of its parents that are not known, topmost first.
fn unknown(known: &BTreeMap<Path, Folder>, path: &Path) -> Vec<Path> {
    let is_known = |path: &Path| path.is_root() || matches!(known.get(path), Some(Folder::There));
    let upwards = std::iter::successors(Some(path.clone()), Path::parent);
    let mut unknown: Vec<_> = upwards.take_while(|path| !is_known(path)).collect();
    unknown.reverse();
    unknown
}

/// The topmost folder above a folder: all jobs share it.
fn topmost(path: &Path) -> Option<Path> {
    std::iter::successors(path.parent(), Path::parent).take_while(|path| !path.is_root()).last()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;
    use crate::tree::CommitError;

    #[tokio::test]
    async fn a_folder_is_asked_for_once_until_a_transaction_misses_a_node() {
        let (folders, path) = (Folders::default(), Path::root().child("a/b/c"));
        let asked = AtomicUsize::new(0);
        let ensure = |answer: Result<bool, Error>| {
            folders.ensure(&path, |_| {
                asked.fetch_add(1, Ordering::Relaxed);
                Box::pin(ready(answer))
            })
        };
        assert_eq!(ensure(Err(Error::Suspended)).await, Err(Error::Suspended));
        assert_eq!(ensure(Ok(true)).await, Ok(true));
        // The topmost folder is there, too.
        let other = Path::root().child("a/d");
        let missing = [other.clone(), other.child("e")];
        let created = folders.ensure(&missing[1], |unknown| {
            assert_eq!(unknown, missing);
            Box::pin(ready(Ok(true)))
        });
        assert_eq!(created.await, Ok(true));
        assert_eq!(ensure(Ok(true)).await, Ok(false));
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        folders.learn(&Err(CommitError::from(Error::NodeExists(path.clone()))));
        assert_eq!(ensure(Ok(true)).await, Ok(false));
        folders.learn(&Err(CommitError::from(Error::NoNode(path.child("b")))));
        assert_eq!(ensure(Ok(true)).await, Ok(true));
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn callers_that_ask_at_the_same_time_share_one_request() {
        let (folders, path) = (Folders::default(), Path::root().child("a"));
        let (answer, answered) = oneshot::channel::<()>();
        let first = folders.ensure(&path, |_| Box::pin(async move { Ok(answered.await.is_ok()) }));
        let second = folders.ensure(&path, |_| unreachable!("the first request is in flight"));
        answer.send(()).unwrap();
        assert_eq!((second.await, first.await), (Ok(true), Ok(true)));
    }
}
