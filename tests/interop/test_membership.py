"""Instances of both kinds register, leave and die: which instance gets the items."""

from __future__ import annotations

import time

import pytest

from interop.members import LEADERS, MixedFleet
from support.processes import eventually


@pytest.mark.parametrize("leader", LEADERS)
def test_join(fleet: MixedFleet, leader: str) -> None:
    java, ours = fleet.pair(leader)
    third = fleet.ours(2)
    fourth = fleet.java(2)
    fleet.divide(java, ours, third, fourth)
    fleet.assert_once(fleet.fire())
    # A Java instance may see the old assignment for a moment after a Java leader has resharded, and execute what is
    # another one's by then.
    fleet.assert_nothing_lost()
    fleet.assert_clean()


def test_a_sidecar_that_a_java_leader_overlooks_gets_items(fleet: MixedFleet) -> None:
    """A Java leader reads the instances, waits for running items, and reshards among the instances that it has read (H5)."""
    fleet.interval = 2.0
    java, first = fleet.pair("java", cron="0/2 * * * * ?")
    item = fleet.items_of(first)[0]
    first.command(f"hold {item}")
    fleet.wait_running(first, [item])
    second = fleet.ours(2)
    eventually(
        "the leader waits for the item",
        lambda: max(one.fire for one in fleet.executions() if one.java) + 2 * fleet.interval < time.time(),
    )
    third = fleet.ours(3)
    server = f"servers/{third.address}"
    before = fleet.tree.version(server)
    first.command("release")
    fleet.divide(java, first, second, third)
    # It has reminded the leader.
    assert fleet.tree.version(server) > before


@pytest.mark.parametrize("leader", LEADERS)
@pytest.mark.parametrize("leaving", ["java", "ours"])
def test_leave(fleet: MixedFleet, leader: str, leaving: str) -> None:
    java, ours = fleet.pair(leader)
    gone, staying = (java, ours) if leaving == "java" else (ours, java)
    gone.leave()
    fleet.gone(gone)
    fleet.assert_leads(staying)
    fleet.divide(staying)
    fleet.fire()
    fleet.assert_once()
    fleet.assert_clean()


@pytest.mark.parametrize("leader", LEADERS)
@pytest.mark.parametrize("killed", ["java", "ours"])
def test_killed_without_failover(fleet: MixedFleet, leader: str, killed: str) -> None:
    java, ours = fleet.pair(leader)
    dead, alive = (java, ours) if killed == "java" else (ours, java)
    interrupted = fleet.items_of(dead)
    dead.command("hold")
    fire = fleet.start_fire()
    fleet.wait_running(dead, interrupted)
    dead.die()
    fleet.gone(dead)
    fleet.assert_leads(alive)
    fleet.divide(alive)
    last = fleet.fire()
    fleet.assert_once(last)
    # What was interrupted is not executed again.
    assert set(fleet.counts(fire)) == set(range(4)) - set(interrupted)
    fleet.assert_clean()


@pytest.mark.parametrize("leader", LEADERS)
def test_a_killed_application_leaves_at_once(fleet: MixedFleet, leader: str) -> None:
    java, ours = fleet.pair(leader, session=20.0)
    ours.kill()
    fleet.gone(ours)
    fleet.divide(java)
    fleet.fire()
    fleet.assert_once()
