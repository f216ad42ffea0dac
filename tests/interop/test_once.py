"""Listeners that act once for the whole job, around each fire, in one instance of either kind."""

from __future__ import annotations

from typing import Any

import pytest
from harness import eventually
from peers import LEADERS, TOTAL, MixedFleet

ONCE: dict[str, Any] = {"job_listener_types": ["ONCE"], "props": {"sidekeeper.once-listener": "true"}}


def calls(fleet: MixedFleet, kind: str, since: float) -> list[float]:
    """When the listeners of all instances were called, from an instant on."""
    told = [event for member in fleet.members() for event in member.events(kind)]
    return sorted(float(event["time"]) for event in told if float(event["time"]) >= since)


@pytest.mark.parametrize("leader", LEADERS)
def test_h25_one_instance_acts_before_the_first_item_and_after_the_last(fleet: MixedFleet, leader: str) -> None:
    fleet.pair(leader, **ONCE)
    for _ in range(3):
        fire = fleet.fire()
        eventually("after the last", lambda: calls(fleet, "once_after", fire))  # noqa: B023
        before, after = calls(fleet, "once_before", fire), calls(fleet, "once_after", fire)
        executions = fleet.told(fire)
        assert (len(before), len(after)) == (1, 1), fleet.told(fire)
        assert before[0] <= min(one.started for one in executions)
        assert after[0] >= max(one.ended or 0.0 for one in executions)
    fleet.assert_once(*fleet.fires[-3:], total=TOTAL)
    fleet.assert_clean()
