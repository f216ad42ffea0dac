"""Listeners that act once for the whole job, before the first item of a fire and after the last one."""

from __future__ import annotations

from typing import Any

import pytest

from interop.members import LEADERS, TOTAL, Member, MixedFleet
from support.processes import eventually

#: What Java needs, and what ours need, in the one configuration that they share.
ONCE: dict[str, Any] = {"job_listener_types": ["ONCE"], "props": {"sidekeeper.once-listener": "true"}}


def acts(members: tuple[Member, ...], kind: str, fire: float) -> list[float]:
    """When an instance acted for a fire."""
    return [event["time"] for member in members for event in member.events(kind) if event["time"] >= fire]


@pytest.mark.parametrize("leader", LEADERS)
def test_one_instance_acts_once_for_the_whole_job(fleet: MixedFleet, leader: str) -> None:
    members = fleet.pair(leader, **ONCE)
    for _ in range(3):
        fire = fleet.fire()
        eventually("acted after", lambda since=fire: acts(members, "once_after", since))
        fleet.assert_clean()
        fleet.assert_once(fire)
        told = fleet.told(fire)
        [before] = acts(members, "once_before", fire)
        [after] = acts(members, "once_after", fire)
        assert before <= min(one.started for one in told)
        assert max(one.ended or 0.0 for one in told) <= after
        assert {one.item for one in told} == set(range(TOTAL))
