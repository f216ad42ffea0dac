//! A set of items. Neighbours share a word: an item of its own in a tree costs several times as much. Decides nothing.

use std::collections::BTreeMap;

use crate::job::Item;

/// Some items.
#[derive(Debug, Default)]
pub(super) struct ItemSet {
    /// Which of 64 items there are, by the first one's number in 64ths. None of the words is zero.
    words: BTreeMap<u32, u64>,
}

impl ItemSet {
    /// Adds an item.
    pub(super) fn insert(&mut self, item: Item) {
        let (word, bit) = place(item);
        *self.words.entry(word).or_default() |= bit;
    }

    /// Removes an item. `false`: it was not there.
    pub(super) fn remove(&mut self, item: Item) -> bool {
        let (word, bit) = place(item);
        let Some(items) = self.words.get_mut(&word).filter(|items| **items & bit != 0) else { return false };
        *items &= !bit;
        if *items == 0 {
            self.words.remove(&word);
        }
        true
    }

    /// Whether there is no item.
    pub(super) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The number of items.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.words.values().map(|items| usize::try_from(items.count_ones()).unwrap()).sum()
    }
}

fn place(Item(item): Item) -> (u32, u64) {
    (item / u64::BITS, 1 << (item % u64::BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_the_same_word_and_of_others_come_and_go_on_their_own() {
        let mut set = ItemSet::default();
        let items = [0, 1, 63, 64, 127, 128, 9_999, u32::MAX].map(Item);
        for (number, item) in items.into_iter().enumerate() {
            assert!(!set.remove(item));
            set.insert(item);
            set.insert(item);
            assert_eq!(set.len(), number + 1);
        }
        for (number, item) in items.into_iter().enumerate() {
            assert!(!set.is_empty());
            assert!(set.remove(item) && !set.remove(item));
            assert_eq!(set.len(), items.len() - number - 1);
        }
        assert!(set.is_empty());
    }
}
