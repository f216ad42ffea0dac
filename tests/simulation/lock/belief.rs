//! What an application believes of its hold, by the events that it has heard.

use std::time::Duration;

use sidekeeper::coordination::lock::contract::Event;
use sidekeeper::job::FencingToken;

/// The belief of an application about its hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Belief {
    Waits,
    Holds { token: FencingToken, until: Option<Duration> },
    Free,
}

impl Belief {
    /// It hears an event. A grant is for its caller to take: the application may not want it any more.
    pub fn hear(&mut self, event: &Event) {
        match (event, &mut *self) {
            (Event::LeaseRenewed { lease_end }, Self::Holds { until, .. }) => {
                *until = (*until).max(Some(*lease_end));
            }
            (Event::Suspended { lease_end } | Event::Resumed { lease_end }, Self::Holds { until, .. }) => {
                *until = (*until).max(*lease_end);
            }
            (Event::Lost(_) | Event::Released, _) => *self = Self::Free,
            _ => {}
        }
    }
}
