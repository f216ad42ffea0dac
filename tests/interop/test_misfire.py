"""Fires that meet an item which is still being executed."""

from __future__ import annotations

import pytest

from interop.members import LEADERS, MixedFleet
from support.processes import eventually

EVERY_TWO_SECONDS = "0/2 * * * * ?"


@pytest.mark.parametrize("leader", LEADERS)
def test_a_sidecar_re_runs_a_misfire_at_once(fleet: MixedFleet, leader: str) -> None:
    fleet.interval = 2.0
    _java, ours = fleet.pair(leader, cron=EVERY_TWO_SECONDS)
    item, _other = fleet.items_of(ours)
    ours.command(f"hold {item}")
    fleet.wait_running(ours, [item])
    eventually("flagged", lambda: fleet.tree.get(f"sharding/{item}/misfire") is not None)
    ours.command("release")
    made_up = eventually(
        "made up for", lambda: [one for one in fleet.executions() if one.source == "MISFIRE" and one.outcome == "end"]
    )
    assert {(one.item, one.java) for one in made_up} == {(item, False)}
    fleet.assert_nothing_lost(*fleet.wait_fires(2))
    # Only missed fires were re-run.
    assert {one.item for one in fleet.executions() if one.source == "MISFIRE"} == {item}


@pytest.mark.parametrize("leader", LEADERS)
def test_java_flags_a_misfire_and_re_runs_it_late(fleet: MixedFleet, leader: str) -> None:
    fleet.interval = 2.0
    java, _ours = fleet.pair(leader, cron=EVERY_TWO_SECONDS)
    items = fleet.items_of(java)
    java.command(f"hold {items[0]}")
    fleet.wait_running(java, items[:1])
    held = max(one.fire for one in fleet.executions())
    eventually(
        "ours has fired twice more",
        lambda: max((one.fire for one in fleet.executions() if not one.java), default=0.0) >= held + 4.0,
    )
    java.command("release")
    eventually("flagged", lambda: fleet.tree.get(f"sharding/{items[0]}/misfire") is not None)
    eventually("made up for", lambda: all(fleet.tree.get(f"sharding/{item}/misfire") is None for item in items))
    fleet.assert_nothing_lost(*fleet.wait_fires(2))


@pytest.mark.parametrize("leader", LEADERS)
def test_no_misfire_is_re_run_when_the_job_switches_that_off(fleet: MixedFleet, leader: str) -> None:
    fleet.interval = 2.0
    _java, ours = fleet.pair(leader, cron=EVERY_TWO_SECONDS, misfire=False)
    item, other = fleet.items_of(ours)
    ours.command(f"hold {item}")
    fleet.wait_running(ours, [item])
    held = max(one.fire for one in fleet.executions() if one.item == item and not one.java)
    eventually(
        "two more fires of the other item",
        lambda: max((one.fire for one in fleet.executions() if one.item == other), default=0.0) >= held + 4.0,
    )
    ours.command("release")
    fleet.assert_nothing_lost(*fleet.wait_fires(2))
    assert not [one for one in fleet.executions() if one.source == "MISFIRE"]
    assert [one.fire for one in fleet.executions() if one.item == item].count(held + 2.0) == 0
