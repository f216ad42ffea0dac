//! A leader resigns, to the next candidate or to a named one. Decides nothing: candidates make way by
//! `coordination/lock/contender.rs`.

use std::time::Duration;

use tokio::sync::{oneshot, watch};

use crate::coordination::lock::picture::LockState;
use crate::coordination::time::Wakeup;
use crate::extension::lock::HandOver;
use crate::tree::{Error, Node, Operation, Path};

use super::look::LockError;
use super::observer::{Observed, TooMany};
use super::registry::{Locks, ReleaseError};

/// How long the candidates before the successor may take to make way: a few requests of each.
const HAND_OVER_TAKES: Duration = Duration::from_secs(5);

/// Why a leader has not resigned to a named successor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResignError {
    /// The campaign has ended.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// The candidate does not lead, so that it cannot choose.
    #[error("this candidate does not lead the election {0}, and cannot name a successor; resign without one")]
    NotLeader(Path),
    /// No candidate has this value.
    #[error(
        "the election {election} has no candidate with the value or node name `{successor}` that waits; the leader leads on"
    )]
    NoSuccessor {
        /// The election.
        election: Path,
        /// The value or the node's name.
        successor: String,
    },
    /// A candidate before the successor does not make way.
    #[error(
        "candidate `{before}` of the election {election} stands before the successor, and has not made way; candidates of \
             other programs than sidecars never do; the leader leads on"
    )]
    NoWay {
        /// The election.
        election: Path,
        /// The name of the candidate's node.
        before: String,
    },
    /// The registry's answer.
    #[error("election {election}: {error}; the leader leads on")]
    Registry {
        /// The election.
        election: Path,
        /// Why.
        #[source]
        error: Error,
    },
    /// Too many observed elections.
    #[error(transparent)]
    TooMany(#[from] TooMany),
}

impl Locks {
    /// Ends a campaign. Ends when its node is deleted. `successor`: the value or the node name of the candidate that shall
    /// lead next; then the candidates before it make way first.
    pub async fn resign(&self, campaign_id: &str, successor: Option<&str>) -> Result<(), ResignError> {
        let Some(successor) = successor else { return Ok(self.release(campaign_id).await?) };
        let (answer, answered) = oneshot::channel();
        let (locks, id, successor) = (self.clone(), campaign_id.to_owned(), successor.to_owned());
        // A caller that goes away must not leave the successor's name in the leader's node. The task ends after some seconds.
        self.shared().clock.spawn(async move {
            let mut result = locks.make_way(&id, &successor).await;
            if result.is_ok() {
                result = locks.release(&id).await.map_err(ResignError::from);
            }
            // A caller that has gone away needs no answer.
            let _ = answer.send(result);
        });
        // Dropped without an answer only when the sidecar stops.
        answered.await.unwrap_or_else(|_| Err(ReleaseError::Unknown(campaign_id.to_owned()).into()))
    }

    /// Has the candidates between the leader and its successor stand again, behind the successor.
    async fn make_way(&self, campaign_id: &str, successor: &str) -> Result<(), ResignError> {
        let (lock, handle) = self.find(campaign_id)?;
        let election = lock.lock().clone();
        let held = handle.held.borrow().clone();
        let Some((own, _)) = held else { return Err(ResignError::NotLeader(election)) };
        let failed = |error| ResignError::Registry { election: election.clone(), error };
        let session = self.shared().current.borrow().clone().ok_or_else(|| failed(Error::Suspended))?;
        let mut observed = self.observe(&lock)?;
        let deadline = self.shared().clock.now().mono.saturating_add(HAND_OVER_TAKES);
        let over = self.shared().clock.sleep_until(Wakeup { wall: None, mono: Some(deadline) });
        let mut over = std::pin::pin!(over);
        let mut announced: Option<Node> = None;
        let result = loop {
            let now = state_led_by(&mut observed, &own);
            if let Some((leader, state)) = now {
                let is_named =
                    |node: &Node| node.path.name() == successor || *node.data == *successor.as_bytes();
                match state.waiting.iter().position(is_named).map(|place| (place, &state.waiting)) {
                    Some((0, _)) => break Ok(()),
                    Some((place, waiting)) => {
                        if let (None, Some(next)) = (&announced, waiting.get(place)) {
                            let data = HandOver::write(next.path.name(), HandOver::read(&leader.data).value);
                            // Restored also if the outcome of this request is unknown.
                            announced = Some(leader);
                            if let Err(error) = session.commit(vec![Operation::set(own.clone(), &data)]).await
                            {
                                break Err(failed(error.error));
                            }
                        }
                    }
                    // The sidecar's view may be some milliseconds old.
                    None => match self.look(&lock).await {
                        Ok(now) if now.waiting.iter().any(is_named) => {}
                        Ok(_) => {
                            let successor = successor.to_owned();
                            break Err(ResignError::NoSuccessor { election: election.clone(), successor });
                        }
                        Err(LockError::Registry { error, .. }) => break Err(failed(error)),
                        Err(LockError::NoSession | LockError::Free(_)) => {
                            break Err(failed(Error::Suspended));
                        }
                    },
                }
            }
            tokio::select! {
                biased;
                changed = observed.changed() => if changed.is_err() {
                    // The sidecar is stopping.
                    break Err(failed(Error::Suspended));
                },
                () = &mut over => {
                    let before = observed.borrow().as_ref().and_then(|seen| {
                        Some(seen.state.waiting.first()?.path.name().to_owned())
                    });
                    let Some(before) = before else { break Err(failed(Error::Suspended)) };
                    break Err(ResignError::NoWay { election: election.clone(), before });
                }
            }
        };
        if let (Err(_), Some(leader)) = (&result, announced) {
            // The leader leads on with its value. If it cannot be written, the node is lost with the session.
            let value = HandOver::read(&leader.data).value;
            if let Err(error) = session.commit(vec![Operation::set(own.clone(), value)]).await {
                tracing::warn!(event = "LEADER_VALUE_NOT_RESTORED", path = %own, error = %error.error, "the value of the leader cannot be restored");
            }
        }
        result
    }
}

/// The leader's node and the state of the election, if it is known that this node leads.
fn state_led_by(observed: &mut watch::Receiver<Observed>, own: &Path) -> Option<(Node, LockState)> {
    let seen = observed.borrow_and_update().clone().filter(|seen| seen.is_current)?;
    let leader = seen.state.holders.first().filter(|leader| leader.path == *own)?.clone();
    Some((leader, LockState::clone(&seen.state)))
}
