//! Bounds of the places that callers may take at once: a bound for all together, and one for each if several users are served, so that none
//! of them takes more than half. Pure.
//!
//! A caller is a user of the machine, or the name of a certificate. Its connections and its tokens do not matter.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::caller::CallerName;

/// A bound. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Bound {
    total: usize,
    each: usize,
    used: Arc<Mutex<Used>>,
}

#[derive(Debug, Default)]
struct Used {
    total: usize,
    /// Callers that have none are not in it.
    by_caller: BTreeMap<CallerName, usize>,
}

impl Bound {
    /// So much for all callers together. `several`: no one of them may have more than half.
    pub(super) fn new(total: usize, several: bool) -> Self {
        Self { total, each: if several { total / 2 } else { total }, used: Arc::default() }
    }

    /// Takes so much for a caller. `None`: the bound leaves less.
    pub(super) fn take(&self, caller: &CallerName, amount: usize) -> Option<Taken> {
        let mut taken = Taken { bound: self.clone(), caller: caller.clone(), amount: 0 };
        taken.add(amount).then_some(taken)
    }

    /// The most that each caller may have.
    pub(super) fn each(&self) -> usize {
        self.each
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The places that a caller has taken. They are given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    bound: Bound,
    caller: CallerName,
    amount: usize,
}

impl Taken {
    /// Takes more. `false`: the bound leaves less, and nothing was taken.
    pub(super) fn add(&mut self, amount: usize) -> bool {
        let mut used = self.bound.used();
        let total = used.total.saturating_add(amount);
        let own = used.by_caller.get(&self.caller).copied().unwrap_or(0).saturating_add(amount);
        if total > self.bound.total || own > self.bound.each {
            return false;
        }
        used.total = total;
        if own > 0 {
            used.by_caller.insert(self.caller.clone(), own);
        }
        drop(used);
        self.amount = self.amount.saturating_add(amount);
        true
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut used = self.bound.used();
        used.total = used.total.saturating_sub(self.amount);
        if let Some(own) = used.by_caller.get_mut(&self.caller) {
            *own = own.saturating_sub(self.amount);
            if *own == 0 {
                used.by_caller.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn se_11_one_of_several_callers_has_no_more_than_half() {
        let bound = Bound::new(10, true);
        let [one, other] = [7, 8].map(CallerName::User);
        let mut first = bound.take(&one, 4).unwrap();
        assert!(first.add(1) && !first.add(1), "it has half");
        assert!(bound.take(&one, 1).is_none());
        let second = bound.take(&other, 5).unwrap();
        assert!(bound.take(&CallerName::Unknown, 1).is_none(), "all is taken");
        drop(first);
        assert!(bound.take(&one, 5).is_some());
        drop(second);
        let used = bound.used();
        assert_eq!((used.total, used.by_caller.len()), (0, 0));
        assert!(Bound::new(10, false).take(&one, 10).is_some(), "alone it may have all");
    }
}
