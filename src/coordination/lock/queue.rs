//! Whose turn is it? The order of a lock's queue (locks specification 8.3).
//!
//! The lowest number holds. A contender waits only for a lower number, whatever library has made it, so no circle of
//! waiting contenders can arise. A reader waits only for writers. A list may show contenders that have gone, and never
//! misses one with a lower number: the server that has created our node has applied everything before it.

use crate::extension::lock::{Child, Mode, NUMBER_MAX, permit_number};
use crate::mutants::mutant;

/// The state of a contender, by the children of its lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It holds the lock.
    Holds,
    /// It waits.
    Waits {
        /// The contender that it waits for.
        before: String,
        /// The contender with the lowest number.
        first: String,
        /// The contenders with lower numbers.
        position: usize,
    },
    /// It waits for a permit: all are taken.
    Full {
        /// The contender that has had its node for the longest time.
        first: String,
    },
    /// Its node does not exist.
    Absent,
    /// Nobody can say whose turn it is.
    Unclear(Unclear),
}

/// Why nobody can say whose turn it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unclear {
    /// The node has contenders of another kind, which do not exclude this one.
    OtherKind {
        /// One of them.
        name: String,
    },
    /// The server's counter is at its end, so that numbers are not unique.
    CounterAtEnd {
        /// The contender without a number of its own.
        name: String,
    },
}

/// The state of the contender with this name, which asks for this.
pub(crate) fn turn(mode: Mode, own: &str, children: &[String]) -> Turn {
    let mut own_number = None;
    let mut queue = Vec::with_capacity(children.len());
    for name in children {
        match Child::read(name) {
            Child::Contender { mode: other, .. } | Child::WithoutNumber(other) if !mode.is_with(other) => {
                return Turn::Unclear(Unclear::OtherKind { name: name.clone() });
            }
            Child::OtherRecipe => return Turn::Unclear(Unclear::OtherKind { name: name.clone() }),
            Child::WithoutNumber(_) => return Turn::Unclear(Unclear::CounterAtEnd { name: name.clone() }),
            Child::Contender { number, .. } if name == own => own_number = Some(number),
            Child::Contender { mode, number } => queue.push((number, mode, name)),
            Child::Delay { .. } | Child::Foreign => {}
        }
    }
    let Some(own_number) = own_number else { return Turn::Absent };
    // A reader that was a writer before has the writer's number (Curator's downgrade).
    let is_twin = |other: Mode| (mode == Mode::Read) != (other == Mode::Read);
    let equal = queue.iter().find(|(number, other, _)| *number == own_number && !is_twin(*other));
    if own_number == NUMBER_MAX || equal.is_some() {
        let name = equal.map_or(own, |(_, _, name)| name).to_owned();
        return Turn::Unclear(Unclear::CounterAtEnd { name });
    }
    let is_lower = |(number, other, _): &&(u32, Mode, &String)| {
        *number < own_number || (*number == own_number && *other == Mode::Read)
    };
    let lower = || queue.iter().filter(is_lower);
    let blocks = |(_, other, _): &&(u32, Mode, &String)| mode != Mode::Read || *other == Mode::Write;
    let before = lower().filter(blocks).max();
    let first = lower().min();
    match (before, first) {
        (Some((_, _, before)), Some((_, _, first))) => {
            let position = lower().count();
            Turn::Waits { before: (*before).clone(), first: (*first).clone(), position }
        }
        _ => Turn::Holds,
    }
}

/// The state of a contender for a permit of a semaphore, which has so many: Curator counts all nodes, whatever their names
/// (locks specification 1.5).
pub(crate) fn permit_turn(permits: usize, own: &str, children: &[String]) -> Turn {
    if !children.iter().any(|name| name == own) {
        return Turn::Absent;
    }
    if children.len() <= permits || mutant!(SemaphoreNotCounted) {
        return Turn::Holds;
    }
    let others = children.iter().filter(|name| *name != own);
    let first = others.min_by_key(|name| (permit_number(name).unwrap_or(NUMBER_MAX), *name));
    first.map_or(Turn::Holds, |first| Turn::Full { first: first.clone() })
}

/// How many of the first contenders hold the lock, by the modes of the queue in its order.
pub(crate) fn holders(mut modes: impl Iterator<Item = Mode>) -> usize {
    match modes.next() {
        None => 0,
        Some(Mode::Mutex | Mode::Write | Mode::Candidate | Mode::Permit) => 1,
        Some(Mode::Read) => 1 + modes.take_while(|mode| *mode == Mode::Read).count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn waits(before: &str, first: &str, position: usize) -> Turn {
        Turn::Waits { before: before.to_owned(), first: first.to_owned(), position }
    }

    #[test]
    fn the_lowest_number_holds_and_each_other_contender_waits_for_the_next_lower_one() {
        let queue =
            names(&["zz-lock-0000000009", "aa-lock-0000000010", "bblock-0000000003", "x__lock__0000000004"]);
        assert_eq!(turn(Mode::Mutex, "bblock-0000000003", &queue), Turn::Holds);
        assert_eq!(
            turn(Mode::Mutex, "x__lock__0000000004", &queue),
            waits("bblock-0000000003", "bblock-0000000003", 1)
        );
        assert_eq!(
            turn(Mode::Mutex, "aa-lock-0000000010", &queue),
            waits("zz-lock-0000000009", "bblock-0000000003", 3)
        );
        assert_eq!(turn(Mode::Mutex, "cc-lock-0000000001", &queue), Turn::Absent);
    }

    #[test]
    fn foreign_children_do_not_count() {
        let queue = names(&["!x", "000", "readme", "lease-1", "aa-lock-0000000001"]);
        assert_eq!(turn(Mode::Mutex, "aa-lock-0000000001", &queue), Turn::Holds);
    }

    #[test]
    fn readers_hold_together_and_wait_for_the_nearest_lower_writer_only() {
        let [r1, w2, r3, w4, r5] = [
            "a__READ__0000000001",
            "b__WRIT__0000000002",
            "c__READ__0000000003",
            "d__WRIT__0000000004",
            "e__READ__0000000005",
        ];
        let queue = names(&[r1, w2, r3, w4, r5]);
        assert_eq!(turn(Mode::Read, r1, &queue), Turn::Holds);
        assert_eq!(turn(Mode::Write, w2, &queue), waits(r1, r1, 1));
        assert_eq!(turn(Mode::Read, r3, &queue), waits(w2, r1, 2));
        assert_eq!(turn(Mode::Read, r5, &queue), waits(w4, r1, 4));
        assert_eq!(turn(Mode::Read, r3, &names(&[r1, r3, w4])), Turn::Holds);
    }

    #[test]
    fn a_writer_waits_for_the_reader_that_an_earlier_writer_has_become() {
        let (writer, reader, next) = ("a__WRIT__0000000001", "a__READ__0000000001", "b__WRIT__0000000002");
        assert_eq!(turn(Mode::Write, next, &names(&[reader, next])), waits(reader, reader, 1));
        assert_eq!(turn(Mode::Write, next, &names(&[writer, reader, next])), waits(writer, reader, 2));
    }

    #[test]
    fn a_permit_is_held_while_no_more_nodes_than_permits_are_there_of_whatever_name() {
        let queue = names(&["b-lease-0000000002", "a-lease-0000000003", "by hand"]);
        assert_eq!(permit_turn(3, "a-lease-0000000003", &queue), Turn::Holds);
        let full = Turn::Full { first: "b-lease-0000000002".to_owned() };
        assert_eq!(permit_turn(2, "a-lease-0000000003", &queue), full);
        let full = Turn::Full { first: "a-lease-0000000003".to_owned() };
        assert_eq!(permit_turn(2, "b-lease-0000000002", &queue), full);
        assert_eq!(permit_turn(3, "c-lease-0000000004", &queue), Turn::Absent);
    }

    #[test]
    fn nobody_holds_when_numbers_are_not_unique_or_kinds_are_mixed() {
        let end = "a-lock-2147483647";
        let unclear =
            |mode, own: &str, queue: &[&str]| matches!(turn(mode, own, &names(queue)), Turn::Unclear(_));
        assert!(unclear(Mode::Mutex, end, &[end]));
        assert!(unclear(Mode::Mutex, "a-lock-0000000005", &["a-lock-0000000005", "b-lock-0000000005"]));
        assert!(unclear(Mode::Mutex, "a-lock-0000000005", &["a-lock-0000000005", "b-lock--2147483648"]));
        assert!(unclear(Mode::Mutex, "a-lock-0000000005", &["a-lock-0000000005", "b__READ__0000000001"]));
        assert!(unclear(Mode::Read, "b__READ__0000000001", &["b__READ__0000000001", "a-lock-0000000005"]));
        assert!(unclear(Mode::Write, "b__WRIT__0000000001", &["b__WRIT__0000000001", "leases"]));
        assert!(unclear(Mode::Candidate, "b-latch-0000000002", &["b-latch-0000000002", "a-lock-0000000005"]));
        assert!(unclear(Mode::Mutex, "a-lock-0000000005", &["b-latch-0000000002", "a-lock-0000000005"]));
        assert!(unclear(Mode::Write, "b__WRIT__0000000001", &["b__WRIT__0000000001", "c__WRIT__0000000001"]));
    }
}
