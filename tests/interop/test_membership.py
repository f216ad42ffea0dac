"""Instances of both kinds come, go and die: who gets the items."""

from __future__ import annotations

import pytest
from peers import MixedFleet

LEADERS = ["java", "ours"]


@pytest.mark.parametrize("leader", LEADERS)
def test_join(fleet: MixedFleet, leader: str) -> None:
    java, ours = fleet.pair(leader)
    assert len(fleet.items_of(java)) == len(fleet.items_of(ours)) == 2
    third = fleet.ours(2)
    fourth = fleet.java(2)
    fleet.divide(java, ours, third, fourth)
    fleet.fire()
    fleet.assert_once()


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
