"""Instances register, leave and die: which instance gets the items, how soon, and which nodes are left in ZooKeeper."""

from __future__ import annotations

import time

import pytest

from support.fleet import Fleet
from support.job_nodes import NEVER
from support.processes import PATIENCE, eventually


def without_trace(fleet: Fleet, instance: str) -> bool:
    """Whether no node is, or is about, an instance."""
    return not any(instance in path or instance in data for path, (data, _) in fleet.tree.nodes().items())


@pytest.mark.parametrize("executing", [False, True])
def test_a_killed_application_leaves_within_a_second(fleet: Fleet, executing: bool) -> None:
    first, second, third = fleet.three(cron=NEVER)
    instance = second.instance
    interrupted: list[int] = []
    if executing:
        second.command("hold")
        interrupted = second.owned()
        fleet.tree.fire_once()
        second.wait("executions", lambda events: sum(event["event"] == "start" for event in events) == 2)
        for other in (first, third):
            other.wait("executions", lambda events: sum(event["event"] == "end" for event in events) == 2)
    killed = time.monotonic()
    second.kill()
    eventually("no trace of the killed application", lambda: without_trace(fleet, instance), timeout=1.0)
    fleet.settle(first, third, timeout=max(0.05, 1.0 - (time.monotonic() - killed)))
    assert second.sidecar.popen.poll() is None  # it left on its application's behalf
    assert sorted(event["item"] for event in second.events("start")) == interrupted
    # Failover is off: what was interrupted is not executed again.
    executed = sorted(event["item"] for event in first.events("start") + third.events("start"))
    assert executed == (sorted(set(range(6)) - set(interrupted)) if executing else [])


def test_a_killed_sidecar_leaves_with_its_session(fleet: Fleet) -> None:
    first, second, third = fleet.three(session_timeout="3s", cron=NEVER)
    instance = second.instance
    second.sidecar.kill()
    killed = time.monotonic()
    second.wait("the end of its stream", lambda events: [one for one in events if one.get("reason") == "DETACHED"])
    assert fleet.tree.get(f"instances/{instance}") is not None  # ZooKeeper cannot know yet
    fleet.settle(first, third)
    took = time.monotonic() - killed
    assert 1.0 < took < 6.0, took  # expiry is looked at in ticks, and counts from the last ping
    assert without_trace(fleet, instance)


def test_an_application_whose_sidecar_is_stopped_stops_before_others_take_over(fleet: Fleet) -> None:
    first, second, third = fleet.three(session_timeout="6s", cron=NEVER, failover=True)
    instance, items = second.instance, second.owned()
    second.command("hold")
    fleet.tree.fire_once()
    second.wait("executions", lambda events: sum(event["event"] == "start" for event in events) == 2)
    # The sidecar cannot say that its session ends; the application knows until when it may go on.
    second.sidecar.freeze()
    second.wait("cancels", lambda events: sum(event["event"] == "cancelled" for event in events) == 2)
    assert instance in fleet.tree.children("instances")
    assert {event["reason"] for event in second.events("cancelled")} == {"LEASE_LOST"}

    def taken_over() -> list[int]:
        events = first.events("start") + third.events("start")
        return sorted(event["item"] for event in events if event["source"] == "FAILOVER")

    eventually("its items taken over", lambda: taken_over() == items)
    assert instance not in fleet.tree.children("instances")
    second.command("release")
    second.sidecar.thaw()
    fleet.settle(first, second, third)


def test_an_application_that_leaves_leaves_no_trace(fleet: Fleet) -> None:
    first, second, third = fleet.three(cron=NEVER)
    instance = second.instance
    second.terminate()
    assert without_trace(fleet, instance) or eventually(
        "no trace of the application", lambda: without_trace(fleet, instance), timeout=1.0
    )
    fleet.settle(first, third)
    for application in (first, third):
        application.terminate()
    eventually(
        "no ephemeral nodes",
        lambda: not [path for path, (_, owner) in fleet.tree.nodes().items() if owner != 0],
    )
    assert fleet.tree.children("instances") == []
    assert fleet.tree.get("leader/election/instance") is None


def test_a_leaving_application_finishes_first(fleet: Fleet) -> None:
    first, second, third = fleet.three(cron=NEVER)
    second.command("hold")
    fleet.tree.fire_once()
    second.wait("executions", lambda events: sum(event["event"] == "start" for event in events) == 2)
    second.popen.terminate()
    for other in (first, third):
        other.wait("executions", lambda events: sum(event["event"] == "end" for event in events) == 2)
    assert fleet.tree.get(f"instances/{second.instance}") is not None
    second.command("release")
    assert second.popen.wait(PATIENCE) == 0
    fleet.settle(first, third)
    assert len(second.events("end")) == 2


def test_a_sidecar_that_gets_sigterm_leaves_at_once(fleet: Fleet) -> None:
    first, second, third = fleet.three(session_timeout="30s", cron=NEVER)
    instance = second.instance
    second.sidecar.terminate()
    fleet.settle(first, third)
    assert without_trace(fleet, instance)
    assert second.popen.poll() is None  # it waits for its sidecar to come back


def test_a_server_that_is_disabled_owns_nothing_until_it_is_enabled(fleet: Fleet) -> None:
    first, second, third = fleet.three(cron=NEVER)
    fleet.tree.set(f"servers/{second.sidecar.address}", "DISABLED")
    fleet.settle(first, third)
    second.wait("no items", lambda events: not [one for one in events if one["event"] == "assignment"][-1]["items"])
    assert fleet.tree.get(f"instances/{second.instance}") is not None
    fleet.tree.set(f"servers/{second.sidecar.address}", "ENABLED")
    fleet.settle(first, second, third)


def test_each_item_is_assigned_to_one_application_at_a_time(fleet: Fleet) -> None:
    """Items change their owner one by one, and each has one owner at a time: one instance only gets a token."""
    total = 200
    sidecars = [fleet.sidecar(number) for number in (1, 2, 3)]
    applications = []
    for sidecar in [*sidecars, *sidecars]:
        applications.append(fleet.application(sidecar, sharding_total_count=total, cron=NEVER))
        fleet.settle(*applications[-3:], total=total)
        if len(applications) >= 3:
            applications[-3].terminate()
            fleet.settle(*applications[-2:], total=total)
    told: dict[tuple[int, int], str] = {}
    owned: dict[tuple[str, int], set[int]] = {}
    for application in applications:
        for event in application.events("assignment"):
            for item, token in event["tokens"].items():
                owned.setdefault((event["instance"], int(item)), set()).add(token)
    for (instance, item), tokens in owned.items():
        for token in tokens:
            assert told.setdefault((item, token), instance) == instance, (item, token)
