//! Locks: the state machine of one contender for one lock. Pure.
//!
//! An application holds a lock while its stream is open and the lease of the sidecar's session lasts. The contender's node
//! in the lock's queue is its place, and the id of the transaction that created that node is the fencing token: grants
//! follow the queue, and the queue follows creation (locks specification 6.4).
//!
//! An election is a lock whose contenders are candidates: they hear who leads, and can stand again after a loss.
//!
//! [`contender`] decides, [`claim`] joins the two contenders of a semaphore, [`queue`] says whose turn it is, [`delay`] when
//! the first may hold after another one has vanished, [`contract`] has
//! the inputs and effects, [`picture`] has a lock's nodes for observers. All contenders of a sidecar share its session; they
//! share nothing else.

pub mod claim;
pub mod contender;
pub mod contract;
mod delay;
pub mod picture;
pub mod queue;
