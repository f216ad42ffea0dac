//! Which member should own which item when all members are sidecars? As few items move as balance allows. Pure, and
//! without a state of its own: the present owners are all that it knows of the past.
//!
//! Each member's share is its weight's part of all items, within one: the whole part, and perhaps a *seat* beyond it.
//! The seats go to the members that rank first for the job ([`crate::extension::rendezvous`]), where each member
//! counts in proportion to the fraction that rounding down has taken from its part; so over many jobs each member has
//! its weight's part, also if every job has one item only. Shares depend on the job's name and on the members, and not
//! on the owners.
//!
//! A member keeps the items it has had longest, up to its share; items beyond that, and items without an owner, go to
//! members that have less than their share. So as few items move as these shares allow. An item that moved because its
//! owner left is the first to move back when that owner returns. A resharding that is half carried out leads to the
//! same result as when it was begun, because an item that has moved stays. Among members of equal weights no member
//! gets more when another one joins: each item that moves goes to the newcomer, and a seat does if the newcomer ranks
//! above its holder.
//!
//! An item that asks for a label goes to members with that label, if there are any, whatever that does to the balance.
//!
//! A member that is detached, or whose items are reserved, is *absent*: it has its place in the balance. Its items stay
//! with it, it gets no others, and no other member loses or gets an item because it is absent or has returned.

use std::cmp::Reverse;

use crate::coordination::job::ownership::allocation::{Held, Member, Rule, former_rule};
use crate::extension::rendezvous::Ticket;
use crate::mutants::mutant;

/// Gives each item an owner, by its place among the members. Empty if all members are absent. Costs O(items x log items
/// + items x members) at worst, the second only for items with labels.
pub(crate) fn allocate(items: &[Held], members: &[Member], rule: Rule) -> Vec<usize> {
    if members.iter().all(|member| member.absent) {
        return Vec::new();
    }
    let eligible: Vec<Option<Vec<usize>>> = items.iter().map(|item| eligible(item, members)).collect();
    let shares = shares_with_room(items, members, rule);
    let mut counts = vec![0_usize; members.len()];
    let is_absent = |place: &usize| members.get(*place).is_some_and(|member| member.absent);
    let mut owners: Vec<Option<usize>> = items.iter().map(|item| item.owner.filter(is_absent)).collect();
    let mut order: Vec<usize> = (0..items.len()).collect();
    // Items that ask for a label come first: others can go to any member.
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
            // The unit is one item at weight 1. Comparing crosswise would need no scale, but ties are what matters.
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

/// The members that the item may go to; `None`: any.
fn eligible(item: &Held, members: &[Member]) -> Option<Vec<usize>> {
    let label = item.label.as_ref()?;
    let has = |(place, member): (usize, &Member)| {
        (member.labels.contains(label) && !member.absent).then_some(place)
    };
    let them: Vec<_> = members.iter().enumerate().filter_map(has).collect();
    (!them.is_empty()).then_some(them)
}

/// How many items each member may have. A present member may have its share if all members are present, or its part of
/// the items that the absent members do not keep, whichever is more: so an absent member takes no item from any other.
fn shares_with_room(items: &[Held], members: &[Member], rule: Rule) -> Vec<usize> {
    let owners: Vec<_> = items.iter().map(|item| item.owner).collect();
    let weight = |member: &Member| u64::from(member.weight.max(1));
    let shares = |owners: &[Option<usize>], weight: &dyn Fn(&Member) -> u64| {
        let weights: Vec<_> = members.iter().map(|member| (weight(member), member.draw)).collect();
        shares(owners, &weights, rule)
    };
    let everybody = shares(&owners, &weight);
    if members.iter().all(|member| !member.absent) {
        return everybody;
    }
    let is_absent = |place: &usize| members.get(*place).is_some_and(|member| member.absent);
    let free: Vec<_> = owners.into_iter().filter(|owner| !owner.as_ref().is_some_and(is_absent)).collect();
    let present = |member: &Member| if member.absent { 0 } else { weight(member) };
    let present = shares(&free, &present);
    everybody.into_iter().zip(present).map(|(one, other)| one.max(other)).collect()
}

/// How many of these items, given by their owners, each member gets; a member is its weight and its draw.
fn shares(owners: &[Option<usize>], members: &[(u64, u64)], rule: Rule) -> Vec<usize> {
    let wide = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let all = members.iter().map(|(weight, _)| weight).sum::<u64>().max(1);
    let total = wide(owners.len());
    let exact = |(weight, _): &(u64, u64)| {
        let part = total.saturating_mul(*weight);
        (part / all, part % all)
    };
    let mut parts: Vec<(u64, u64)> = members.iter().map(exact).collect();
    let seats = total.saturating_sub(parts.iter().map(|(whole, _)| whole).sum());
    let order = match rule {
        Rule::Rendezvous if !mutant!(SeatKeptFromNewcomer) => {
            // A member whose part is whole has weight 0; there are more of the others than seats.
            let ticket =
                |((_, rest), (_, draw)): (&(u64, u64), &(u64, u64))| Ticket { draw: *draw, weight: *rest };
            let mut tickets: Vec<_> = parts.iter().zip(members).map(ticket).zip(0..).collect();
            tickets.sort_by(|(one, place), (other, after)| one.compare(*other).then(place.cmp(after)));
            tickets.into_iter().map(|(_, place)| place).collect()
        }
        Rule::Rendezvous | Rule::Former => former_rule::order_of_seats(owners, &parts),
    };
    for place in order.into_iter().take(usize::try_from(seats).unwrap_or(usize::MAX)) {
        if let Some((whole, _)) = parts.get_mut(place) {
            *whole += 1;
        }
    }
    parts.into_iter().map(|(whole, _)| usize::try_from(whole).unwrap_or(usize::MAX)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::extension::rendezvous;
    use crate::job::JobName;

    fn member(name: &str) -> Member {
        let draw = rendezvous::draw(&JobName::parse("job").unwrap(), name);
        Member { weight: 1, labels: BTreeSet::new(), draw, absent: false }
    }

    /// By the rule that is in force.
    fn allocate(items: &[Held], members: &[Member]) -> Vec<usize> {
        super::allocate(items, members, Rule::Rendezvous)
    }

    fn members(count: usize) -> Vec<Member> {
        (0..count).map(|place| member(&format!("m{place}"))).collect()
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
    fn a_newcomer_to_ten_members_with_a_thousand_items_gets_ninety_and_nothing_else_moves() {
        let ten = allocate(&held(&vec![None; 1_000]), &members(10));
        assert_eq!(counts(&ten, 10), [100; 10]);
        let before = held(&ten.into_iter().map(Some).collect::<Vec<_>>());
        let after = allocate(&before, &members(11));
        assert_eq!(moved(&before, &after), counts(&after, 11)[10]);
        assert!((90..=91).contains(&moved(&before, &after)));
    }

    #[test]
    fn only_the_items_of_a_member_that_leaves_move() {
        let owners: Vec<_> = (0..50).map(|item| Some(item % 5)).collect();
        let before = held(&owners.iter().map(|owner| owner.filter(|owner| *owner != 4)).collect::<Vec<_>>());
        let after = allocate(&before, &members(4));
        assert_eq!(moved(&before, &after), 10);
        let mut counts = counts(&after, 4);
        counts.sort();
        assert_eq!(counts, [12, 12, 13, 13]);
    }

    #[test]
    fn a_member_that_returns_gets_the_items_back_that_moved_last_and_no_others() {
        // Item 6 to 8 were a third member's, and came to the others later.
        let mut before = held(&[0, 0, 0, 1, 1, 1, 0, 0, 1].map(Some));
        for item in &mut before[6..] {
            item.since = 7;
        }
        assert_eq!(allocate(&before, &members(3)), [0, 0, 0, 1, 1, 1, 2, 2, 2]);
    }

    #[test]
    fn a_resharding_that_is_half_done_is_finished_as_it_was_begun() {
        for (items, count) in [(10, 3), (17, 4), (50, 6), (7, 9)] {
            let begin = held(&(0..items).map(|item| Some(item % (count - 1))).collect::<Vec<_>>());
            let goal = allocate(&begin, &members(count));
            let moving: Vec<_> = (0..items).filter(|item| begin[*item].owner != Some(goal[*item])).collect();
            // Any of the moves may have happened first.
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
    fn labels_are_obeyed_while_a_member_has_them() {
        let mut them = members(3);
        them[2].labels.insert("gpu".to_owned());
        let mut items = held(&[0, 0, 0, 1, 1, 1].map(Some));
        items[0].label = Some("gpu".to_owned());
        items[1].label = Some("tpu".to_owned());
        let owners = allocate(&items, &them);
        assert_eq!(owners[0], 2);
        assert_eq!(counts(&owners, 3), [2, 2, 2]);
        // No member has the other item: any may get it.
        assert_eq!(owners[1], 0);
    }

    #[test]
    fn no_item_moves_when_a_member_is_absent_for_a_while() {
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
                for absent in 0..count {
                    let mut fewer = them.clone();
                    fewer[absent].absent = true;
                    let during = allocate(&before, &fewer);
                    let case = format!("{items} items, {count} members, weight {heavy}, {absent} absent");
                    assert_eq!(moved(&before, &during), 0, "{case}");
                }
            }
        }
    }

    #[test]
    fn an_absent_member_keeps_its_items_and_gets_no_others() {
        let mut them = members(3);
        them[2].absent = true;
        // Six new items, and no other member has any: the absent member keeps its one.
        let owners = allocate(&held(&[Some(2), None, None, None, None, None, None]), &them);
        assert_eq!(owners[0], 2);
        assert_eq!(counts(&owners, 3), [3, 3, 1]);
        // A member joins: it gets the items that the present members can spare.
        them.insert(0, member("newcomer"));
        let before = held(&[1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3].map(Some));
        let after = allocate(&before, &them);
        assert_eq!(after[8..], [3, 3, 3, 3]);
        assert_eq!(counts(&after, 4), [2, 3, 3, 4]);
        // With all members present, only the missing items move.
        them[3].absent = false;
        let before = held(&after.into_iter().map(Some).collect::<Vec<_>>());
        let after = allocate(&before, &them);
        assert_eq!((counts(&after, 4), moved(&before, &after)), (vec![3; 4], 1));
    }

    #[test]
    fn nobody_gets_nothing() {
        let absent = Member { absent: true, ..members(1).remove(0) };
        assert_eq!(allocate(&held(&[None]), &[absent]), Vec::<usize>::new());
        assert_eq!(allocate(&held(&[None]), &[]), Vec::<usize>::new());
        assert_eq!(allocate(&[], &members(1)), Vec::<usize>::new());
    }
}
