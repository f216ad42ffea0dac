//! What the log is told of executions that are not what their schedule says. Decides nothing.

use tracing::{info, warn};

use crate::coordination::effect::RetryNews;
use crate::job::Item;

/// What becomes of an execution that has failed.
pub(super) fn retry(item: Item, news: RetryNews) {
    match news {
        RetryNews::Waits { attempt, of, pause } => {
            info!(%item, attempt, of, ?pause, "an execution failed and will be tried again");
        }
        RetryNews::Dropped { attempt, why } => {
            warn!(%item, attempt, why, "an execution that failed is not tried again");
        }
        RetryNews::GivenUp { attempts } => {
            warn!(%item, attempts, "an execution failed for the last time and is given up");
        }
    }
}
