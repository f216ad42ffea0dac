"""The schedule, and what operators do to items."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from support.application import Application
from support.fleet import Fleet
from support.job_nodes import EACH_SECOND, NEVER
from support.processes import eventually


def started(applications: list[Application]) -> list[dict[str, Any]]:
    return [event for application in applications for event in application.events("start")]


@pytest.mark.smoke
def test_each_item_once_for_each_second(fleet: Fleet) -> None:
    applications = fleet.three(cron=EACH_SECOND)
    # From the second fire after the resharding to the last one that has ended everywhere.
    settled = max(event["scheduled"] for event in started(applications)) if started(applications) else 0.0
    for application in applications:
        application.wait(
            "four more fires",
            lambda events: (
                len({e["scheduled"] for e in events if e["event"] == "end" and e["scheduled"] > settled}) >= 5
            ),
        )
    ends = [max(event["scheduled"] for event in application.events("end")) - 1.0 for application in applications]
    first, last = min(e["scheduled"] for e in started(applications) if e["scheduled"] > settled) + 1.0, min(ends)
    counts = Counter((event["scheduled"], event["item"]) for event in started(applications))
    fires = [first + second for second in range(int(last - first) + 1)]
    assert len(fires) >= 2
    assert {(fire, item): counts[fire, item] for fire in fires for item in range(6)} == {
        (fire, item): 1 for fire in fires for item in range(6)
    }
    assert set(counts.values()) == {1}
    for application in applications:
        for item in application.owned():
            tokens = [event["fencing_token"] for event in application.events("start") if event["item"] == item]
            assert tokens == sorted(set(tokens))


def test_a_disabled_item_is_not_executed(fleet: Fleet) -> None:
    applications = fleet.three(cron=EACH_SECOND)
    owner = next(application for application in applications if 2 in application.owned())
    owner.wait("an execution of item 2", lambda events: [e for e in events if e["event"] == "start" and e["item"] == 2])
    fleet.tree.create("sharding/2/disabled")
    owner.wait(
        "item 2 assigned as disabled",
        lambda events: [e for e in events if e["event"] == "assignment"][-1]["disabled"] == [2],
    )
    before = [event["item"] for event in owner.events("start")].count(2)
    other = next(item for item in owner.owned() if item != 2)
    seen = len([event for event in owner.events("start") if event["item"] == other])
    owner.wait(
        "three more fires of the other item",
        lambda events: len([e for e in events if e["event"] == "start" and e["item"] == other]) >= seen + 3,
    )
    assert [event["item"] for event in owner.events("start")].count(2) == before
    fleet.tree.delete("sharding/2/disabled")
    owner.wait(
        "item 2 again",
        lambda events: [e["item"] for e in events if e["event"] == "start"].count(2) > before,
    )
    assert {event["item"] for event in started(applications)} == set(range(6))


def test_a_fire_during_a_stop_of_the_sidecar_is_re_run(fleet: Fleet) -> None:
    sidecar = fleet.sidecar(1, session_timeout="30s")
    application = fleet.application(sidecar, cron=NEVER)
    fleet.settle(application)
    sidecar.freeze()
    fire = fleet.tree.fire_once()
    eventually("the fire has come", lambda: time.time() > fire + 2.0)
    sidecar.thaw()
    application.wait("six items", lambda events: sum(event["event"] == "end" for event in events) == 6)
    starts = application.events("start")
    assert sorted(event["item"] for event in starts) == list(range(6))
    assert {(event["scheduled"], event["source"]) for event in starts} == {(fire, "MISFIRE")}
