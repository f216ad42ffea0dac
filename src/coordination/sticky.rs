//! Who should own what when everybody is a sidecar: as few items move as balance allows. Pure, and without a memory:
//! the owners are the memory.
//!
//! Each member's share is its weight's part of all items, within one. A member keeps the items it has had longest, up to
//! its share; what is beyond, and what nobody has, goes to those who lack. So an item that moved because its owner left
//! is the first to move back when that comes again, and no other item moves for it. A division that is half carried out
//! leads to the same result as when it was begun, because what has moved is kept.
//!
//! An item that asks for a label goes to members with that label, if there are any, whatever that does to the balance.
//!
//! A member that is away for a while has its place in the balance: what it has stays with it, it gets nothing new, and
//! nobody else has to give or take because it has gone or come back.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::mutants::mutant;

/// Somebody who may own items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    /// How many items it gets in proportion to others; at least 1.
    pub(super) weight: u32,
    /// The labels it has.
    pub(super) labels: BTreeSet<String>,
    /// Whether it is away, and keeps what it has.
    pub(super) absent: bool,
}

/// An item, as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Its owner's place among the members; `None`: nobody who stays.
    pub(super) owner: Option<usize>,
    /// When it came to its owner, in any unit that grows.
    pub(super) since: i64,
    /// The label that it asks for.
    pub(super) label: Option<String>,
}

/// Gives each item an owner, by its place among the members. Empty if no member is there. Costs
/// O(items x log items + items x members) at worst, the second only for items with labels.
pub(super) fn allocate(items: &[Held], members: &[Member]) -> Vec<usize> {
    if members.iter().all(|member| member.absent) {
        return Vec::new();
    }
    let eligible: Vec<Option<Vec<usize>>> = items.iter().map(|item| eligible(item, members)).collect();
    let shares = shares_with_room(items, members);
    let mut counts = vec![0_usize; members.len()];
    let is_absent = |place: &usize| members.get(*place).is_some_and(|member| member.absent);
    let mut owners: Vec<Option<usize>> = items.iter().map(|item| item.owner.filter(is_absent)).collect();
    let mut order: Vec<usize> = (0..items.len()).collect();
    // Who asks for a label comes first: others can go anywhere.
    order.sort_by_key(|place| {
        let asks = eligible.get(*place).is_some_and(Option::is_some);
        (Reverse(asks), items.get(*place).map(|item| item.since), *place)
    });
    for place in &order {
        let owner = items.get(*place).and_then(|item| item.owner).filter(|_| !mutant!(StickyForgetsOwners));
        let Some(owner) = owner else { continue };
        if is_absent(&owner) {
            continue;
        }
        let may = eligible.get(*place).and_then(Option::as_ref).is_none_or(|them| them.contains(&owner));
        let room = counts.get(owner) < shares.get(owner);
        if let Some(count) = counts.get_mut(owner).filter(|_| may && room)
            && let Some(kept) = owners.get_mut(*place)
        {
            *count += 1;
            *kept = Some(owner);
        }
    }
    order.sort_by_key(|place| (Reverse(eligible.get(*place).is_some_and(Option::is_some)), *place));
    for place in order {
        let Some(owner) = owners.get_mut(place).filter(|owner| owner.is_none()) else { continue };
        let anybody: Vec<usize>;
        let them = match eligible.get(place).and_then(Option::as_ref) {
            Some(them) => them,
            None => {
                anybody = (0..members.len()).filter(|place| !is_absent(place)).collect();
                &anybody
            }
        };
        let lacks = |member: &&usize| counts.get(**member) < shares.get(**member);
        let fullness = |member: &&usize| {
            // In units of one item at weight 1; compared crosswise it would need no scale, but ties are what matters.
            let weight = members.get(**member).map_or(1, |member| u64::from(member.weight.max(1)));
            let count = counts.get(**member).map_or(0, |count| u64::try_from(*count).unwrap_or(u64::MAX));
            count.saturating_mul(1 << 20) / weight
        };
        let chosen = them.iter().find(lacks).or_else(|| them.iter().min_by_key(fullness));
        if let Some(chosen) = chosen.copied() {
            *owner = Some(chosen);
            if let Some(count) = counts.get_mut(chosen) {
                *count += 1;
            }
        }
    }
    owners.into_iter().map(Option::unwrap_or_default).collect()
}

/// Whom an item may go to; `None`: anybody.
fn eligible(item: &Held, members: &[Member]) -> Option<Vec<usize>> {
    let label = item.label.as_ref()?;
    let has = |(place, member): (usize, &Member)| {
        (member.labels.contains(label) && !member.absent).then_some(place)
    };
    let them: Vec<_> = members.iter().enumerate().filter_map(has).collect();
    (!them.is_empty()).then_some(them)
}

/// How many items each member may have. Who is there may have what it has if everybody is, and its part of what those
/// who are away do not keep, whichever is more: so an absence takes nothing from anybody.
fn shares_with_room(items: &[Held], members: &[Member]) -> Vec<usize> {
    let owners: Vec<_> = items.iter().map(|item| item.owner).collect();
    let weight = |member: &Member| u64::from(member.weight.max(1));
    let everybody = shares(&owners, &members.iter().map(weight).collect::<Vec<_>>());
    if members.iter().all(|member| !member.absent) {
        return everybody;
    }
    let is_absent = |place: &usize| members.get(*place).is_some_and(|member| member.absent);
    let free: Vec<_> = owners.into_iter().filter(|owner| !owner.as_ref().is_some_and(is_absent)).collect();
    let present = |member: &Member| if member.absent { 0 } else { weight(member) };
    let present = shares(&free, &members.iter().map(present).collect::<Vec<_>>());
    everybody.into_iter().zip(present).map(|(one, other)| one.max(other)).collect()
}

/// How many of these items, by their owners, each member gets by its weight.
fn shares(owners: &[Option<usize>], weights: &[u64]) -> Vec<usize> {
    let wide = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let all = weights.iter().sum::<u64>().max(1);
    let total = wide(owners.len());
    let exact = |weight: &u64| (total.saturating_mul(*weight) / all, total.saturating_mul(*weight) % all);
    let mut shares: Vec<(u64, u64)> = weights.iter().map(exact).collect();
    let left = total.saturating_sub(shares.iter().map(|(whole, _)| whole).sum());
    let mut held = vec![0_u64; weights.len()];
    for owner in owners.iter().flatten() {
        if let Some(held) = held.get_mut(*owner) {
            *held += 1;
        }
    }
    // What is left over stays where it is: with members that have more than the whole part now.
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|place| {
        let (whole, rest) = shares.get(*place).copied().unwrap_or_default();
        (Reverse(held.get(*place).copied() > Some(whole)), Reverse(rest), *place)
    });
    for place in order.into_iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
        if let Some((whole, _)) = shares.get_mut(place) {
            *whole += 1;
        }
    }
    shares.into_iter().map(|(whole, _)| usize::try_from(whole).unwrap_or(usize::MAX)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(count: usize) -> Vec<Member> {
        vec![Member { weight: 1, labels: BTreeSet::new(), absent: false }; count]
    }

    fn held(owners: &[Option<usize>]) -> Vec<Held> {
        owners.iter().map(|owner| Held { owner: *owner, ..Held::default() }).collect()
    }

    fn counts(owners: &[usize], members: usize) -> Vec<usize> {
        (0..members).map(|member| owners.iter().filter(|owner| **owner == member).count()).collect()
    }

    fn moved(before: &[Held], after: &[usize]) -> usize {
        before.iter().zip(after).filter(|(before, after)| before.owner != Some(**after)).count()
    }

    #[test]
    fn who_joins_ten_members_with_a_thousand_items_gets_ninety_and_nothing_else_moves() {
        let ten = allocate(&held(&vec![None; 1_000]), &members(10));
        assert_eq!(counts(&ten, 10), [100; 10]);
        let before = held(&ten.into_iter().map(Some).collect::<Vec<_>>());
        let after = allocate(&before, &members(11));
        assert_eq!(moved(&before, &after), counts(&after, 11)[10]);
        assert!((90..=91).contains(&moved(&before, &after)));
    }

    #[test]
    fn what_a_leaver_had_is_all_that_moves() {
        let owners: Vec<_> = (0..50).map(|item| Some(item % 5)).collect();
        let before = held(&owners.iter().map(|owner| owner.filter(|owner| *owner != 4)).collect::<Vec<_>>());
        let after = allocate(&before, &members(4));
        assert_eq!(moved(&before, &after), 10);
        assert_eq!(counts(&after, 4), [13, 13, 12, 12]);
    }

    #[test]
    fn who_comes_back_gets_back_what_came_last_and_no_more() {
        // Item 6 to 8 were a third member's, and came to the others later.
        let mut before = held(&[0, 0, 0, 1, 1, 1, 0, 0, 1].map(Some));
        for item in &mut before[6..] {
            item.since = 7;
        }
        assert_eq!(allocate(&before, &members(3)), [0, 0, 0, 1, 1, 1, 2, 2, 2]);
    }

    #[test]
    fn a_division_that_is_half_done_is_finished_as_it_was_begun() {
        for (items, count) in [(10, 3), (17, 4), (50, 6), (7, 9)] {
            let begin = held(&(0..items).map(|item| Some(item % (count - 1))).collect::<Vec<_>>());
            let goal = allocate(&begin, &members(count));
            let moving: Vec<_> = (0..items).filter(|item| begin[*item].owner != Some(goal[*item])).collect();
            // Whatever has moved first.
            for mask in 0..1_u32 << moving.len().min(8) {
                let mut half = begin.clone();
                for (since, item) in (10..).zip(&moving).filter(|(since, _)| mask >> (since - 10) & 1 == 1) {
                    half[*item] = Held { owner: Some(goal[*item]), since, label: None };
                }
                assert_eq!(
                    allocate(&half, &members(count)),
                    goal,
                    "{items} items, {count} members, {mask:b}"
                );
            }
        }
    }

    #[test]
    fn balance_is_within_one_and_by_weight() {
        let mut weighted = members(3);
        weighted[1].weight = 3;
        let owners = allocate(&held(&vec![None; 50]), &weighted);
        assert_eq!(counts(&owners, 3), [10, 30, 10]);
        for (items, count) in [(1, 3), (10, 3), (11, 10), (100, 7)] {
            let owners = allocate(&held(&vec![Some(0); items]), &members(count));
            let counts = counts(&owners, count);
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
        }
    }

    #[test]
    fn labels_are_obeyed_while_somebody_has_them() {
        let mut them = members(3);
        them[2].labels.insert("gpu".to_owned());
        let mut items = held(&[0, 0, 0, 1, 1, 1].map(Some));
        items[0].label = Some("gpu".to_owned());
        items[1].label = Some("tpu".to_owned());
        let owners = allocate(&items, &them);
        assert_eq!(owners[0], 2);
        assert_eq!(counts(&owners, 3), [2, 2, 2]);
        // Nobody has the other one: anybody may.
        assert_eq!(owners[1], 0);
    }

    #[test]
    fn nothing_moves_when_a_member_goes_away_for_a_while_and_comes_back() {
        for (items, count) in [(50, 5), (11, 3), (7, 9), (1, 2), (100, 7)] {
            for heavy in 1..=4 {
                let mut them = members(count);
                them[0].weight = heavy;
                them[count - 1].labels.insert("gpu".to_owned());
                let mut before = held(&vec![None; items]);
                for item in before.iter_mut().step_by(3) {
                    item.label = Some("gpu".to_owned());
                }
                for _ in 0..2 {
                    let owners = allocate(&before, &them);
                    for (item, owner) in before.iter_mut().zip(owners) {
                        item.owner = Some(owner);
                    }
                }
                for away in 0..count {
                    let mut fewer = them.clone();
                    fewer[away].absent = true;
                    let during = allocate(&before, &fewer);
                    let case = format!("{items} items, {count} members, weight {heavy}, {away} away");
                    assert_eq!(moved(&before, &during), 0, "{case}");
                }
            }
        }
    }

    #[test]
    fn who_is_away_gets_nothing_new_and_gives_nothing() {
        let mut them = members(3);
        them[2].absent = true;
        // Six new items, and nobody else has any: the member that is away keeps its one.
        let owners = allocate(&held(&[Some(2), None, None, None, None, None, None]), &them);
        assert_eq!(owners[0], 2);
        assert_eq!(counts(&owners, 3), [3, 3, 1]);
        // Somebody joins: it gets what those who are there can spare.
        them.insert(0, Member { weight: 1, labels: BTreeSet::new(), absent: false });
        let before = held(&[1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3].map(Some));
        let after = allocate(&before, &them);
        assert_eq!(after[8..], [3, 3, 3, 3]);
        assert_eq!(counts(&after, 4), [2, 3, 3, 4]);
        // With everybody there, only what is missing moves.
        them[3].absent = false;
        let before = held(&after.into_iter().map(Some).collect::<Vec<_>>());
        let after = allocate(&before, &them);
        assert_eq!((counts(&after, 4), moved(&before, &after)), (vec![3; 4], 1));
    }

    #[test]
    fn nobody_gets_nothing() {
        let away = Member { absent: true, ..members(1).remove(0) };
        assert_eq!(allocate(&held(&[None]), &[away]), Vec::<usize>::new());
        assert_eq!(allocate(&held(&[None]), &[]), Vec::<usize>::new());
        assert_eq!(allocate(&[], &members(1)), Vec::<usize>::new());
    }
}
