"""Instances of both kinds come, go and die: who gets the items."""

from __future__ import annotations

import pytest
from peers import LEADERS, MixedFleet


@pytest.mark.parametrize("leader", LEADERS)
def test_join(fleet: MixedFleet, leader: str) -> None:
    java, ours = fleet.pair(leader)
    third = fleet.ours(2)
    fourth = fleet.java(2)
    fleet.divide(java, ours, third, fourth)
    fleet.assert_once(fleet.fire())
    # A Java instance may see the old assignment for a moment after a Java leader has divided, and execute what is
    # another one's by then.
    fleet.assert_nothing_lost()
    fleet.assert_clean()


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
