"""Items that a crashed instance was executing, and the instance that executes them again."""

from __future__ import annotations

import pytest

from interop.members import LEADERS, Member, MixedFleet
from support.processes import eventually, executing

KINDS = ["java", "ours"]


def crash(fleet: MixedFleet, leader: str, crashed: str, total: int) -> tuple[Member, Member, list[int], float]:
    """Kills an instance that executes all of its items; returns it, the survivor, these items and the fire."""
    java, ours = fleet.pair(leader, failover=True, sharding_total_count=total)
    dead, alive = (java, ours) if crashed == "java" else (ours, java)
    items = fleet.items_of(dead)
    dead.command("hold")
    fire = fleet.start_fire()
    fleet.wait_running(dead, items)
    eventually("the others executed", lambda: fleet.executed(fire) == set(range(total)) - set(items))
    dead.die()
    return dead, alive, items, fire


@pytest.mark.parametrize("leader", LEADERS)
@pytest.mark.parametrize("crashed", KINDS)
def test_one_item(fleet: MixedFleet, leader: str, crashed: str) -> None:
    _, alive, [item], fire = crash(fleet, leader, crashed, total=2)
    eventually("taken over", lambda: item in fleet.executed(fire))
    fleet.assert_once(fire, total=2)
    taken = [one for one in fleet.told(fire) if one.item == item and one.outcome == "end"]
    assert [one.member for one in taken] == [alive.name]
    if not taken[0].java:
        assert taken[0].source == "FAILOVER"
    fleet.assert_leads(alive)
    fleet.divide(alive, total=2)
    fleet.assert_once(fleet.fire(total=2), total=2)
    fleet.assert_clean()


@pytest.mark.parametrize("leader", LEADERS)
@pytest.mark.parametrize("crashed", KINDS)
def test_two_items_at_once(fleet: MixedFleet, leader: str, crashed: str) -> None:
    _, alive, items, fire = crash(fleet, leader, crashed, total=4)
    eventually("taken over", lambda: fleet.executed(fire) >= set(items))
    fleet.divide(alive)
    fleet.assert_once(fleet.fire())
    fleet.assert_nothing_lost()
    if crashed == "java":
        fleet.assert_once(fire)
    fleet.assert_clean()


@pytest.mark.parametrize("survivor", KINDS)
def test_a_busy_survivor_takes_items_when_it_is_done(fleet: MixedFleet, survivor: str) -> None:
    java, ours = fleet.pair(survivor, failover=True)
    alive, dead = (java, ours) if survivor == "java" else (ours, java)
    lost = fleet.items_of(dead)
    for member in (dead, alive):
        member.command("hold")
    fire = fleet.start_fire()
    fleet.wait_running(dead, lost)
    own = fleet.items_of(alive)
    fleet.wait_running(alive, own)
    dead.die()
    fleet.gone(dead)
    if survivor == "java":
        eventually("flagged", lambda: fleet.tree.children("leader/failover/items") == list(map(str, lost)))
        assert executing(alive.events("start", "end")) == set(own)
    alive.command("release")
    eventually("all executed", lambda: fleet.executed(fire) == set(range(4)))
    fleet.divide(alive)
    fleet.assert_once(fleet.fire())
    fleet.assert_clean()


@pytest.mark.parametrize("crashed", KINDS)
def test_survivors_of_both_kinds_share_what_is_left(fleet: MixedFleet, crashed: str) -> None:
    """Java survivors flag, and delete running nodes, each on its own (H11): nothing may be lost by that."""
    members = [fleet.member(kind, number, failover=True) for number in (1, 2) for kind in KINDS]
    fleet.divide(*members, total=4)
    dead = members[0 if crashed == "java" else 1]
    [item] = fleet.items_of(dead)
    dead.command("hold")
    fire = fleet.start_fire()
    fleet.wait_running(dead, [item])
    eventually("the others executed", lambda: len(fleet.executed(fire)) == 3)
    dead.die()
    eventually("taken over", lambda: item in fleet.executed(fire))
    fleet.divide(*[member for member in members if member is not dead])
    fleet.assert_once(fleet.fire())
    fleet.assert_clean()


@pytest.mark.parametrize("dead_kind", KINDS)
@pytest.mark.parametrize("restarted", KINDS)
def test_the_only_instance_recovers_its_item_after_a_restart(fleet: MixedFleet, dead_kind: str, restarted: str) -> None:
    dead = fleet.member(dead_kind, 1, failover=True)
    fleet.divide(dead)
    dead.command("hold 1 2")
    fire = fleet.start_fire()
    fleet.wait_running(dead, [1, 2])
    eventually("the others executed", lambda: fleet.executed(fire) == {0, 3})
    dead.die()
    fleet.gone(dead)
    again = fleet.member(restarted, 2, failover=True)
    eventually("recovered", lambda: fleet.executed(fire) == set(range(4)))
    fleet.divide(again)
    fleet.assert_once(fleet.fire())
    fleet.assert_clean()


@pytest.mark.parametrize("dead_kind", KINDS)
def test_two_instances_that_come_back_together_are_not_stuck(fleet: MixedFleet, dead_kind: str) -> None:
    """Persistent running nodes of a dead instance stop a Java fleet for good: no instance is alone (H4)."""
    dead = fleet.member(dead_kind, 1, failover=True)
    fleet.divide(dead)
    dead.command("hold 1 2")
    fire = fleet.start_fire()
    fleet.wait_running(dead, [1, 2])
    eventually("the others executed", lambda: fleet.executed(fire) == {0, 3})
    dead.die()
    fleet.gone(dead)
    first = fleet.ours(2, failover=True)
    second = fleet.ours(3, failover=True)
    eventually("recovered", lambda: fleet.executed(fire) == set(range(4)))
    fleet.divide(first, second)
    fleet.assert_once(fleet.fire())
    fleet.assert_clean()


def test_a_stale_running_node_stops_no_instance(fleet: MixedFleet) -> None:
    """A persistent running node of a killed Java instance, found by a fleet that never knew it."""
    java, ours = fleet.pair("ours", failover=True)
    item = fleet.items_of(ours)[0]
    fleet.tree.create(f"sharding/{item}/running", "10.0.9.9@-@77")
    fire = fleet.start_fire()
    eventually("all executed", lambda: fleet.executed(fire) == set(range(4)))
    third = fleet.ours(2, failover=True)
    fleet.divide(java, ours, third)
    fleet.assert_once(fleet.fire())
    fleet.assert_clean()


@pytest.mark.parametrize("leader", LEADERS)
def test_failover_switched_off(fleet: MixedFleet, leader: str) -> None:
    java, ours = fleet.pair(leader, failover=True)
    fleet.tree.configure(failover=False)
    items = fleet.items_of(java)
    java.command("hold")
    fire = fleet.start_fire()
    fleet.wait_running(java, items)
    for item in items:
        assert fleet.tree.nodes()[f"sharding/{item}/running"][1] != 0  # ephemeral again
    java.die()
    fleet.gone(java)
    fleet.divide(ours)
    fleet.assert_once(fleet.fire())
    assert set(fleet.counts(fire)) == set(range(4)) - set(items)
    fleet.assert_clean()
