"""Sidecars that are killed and started again while their applications go on executing (``state_dir``)."""

from __future__ import annotations

import json

import pytest

from support.application import Application
from support.fleet import Fleet
from support.job_nodes import NEVER
from support.processes import eventually
from support.sidecar import Sidecar

GRACE = {"sidekeeper.grace": "30s"}


def start(fleet: Fleet, number: int, session_timeout: str = "6s") -> Sidecar:
    """The sidecar with this number, or its next process, which finds what the last one has left."""
    options = ["--state-dir", str(fleet.folder / f"state-{number}")]
    return fleet.sidecar(number, session_timeout, options)


def executing(
    fleet: Fleet, session_timeout: str = "6s", named: bool = False, **configuration: object
) -> tuple[Application, Application]:
    """Two applications of three items each; the second executes its items until it is let go."""
    configuration = {"cron": NEVER, "props": GRACE, **configuration}
    name = {"instance_name": "worker-2"} if named else {}
    first = fleet.application(fleet.sidecar(1, session_timeout), **configuration)
    second = fleet.application(start(fleet, 2, session_timeout), **configuration, **name)
    fleet.settle(first, second)
    second.command(" ".join(["hold", *map(str, second.owned())]))
    fleet.tree.fire_once()
    second.wait(
        "executions",
        lambda events: sum(event["event"] == "start" for event in events) == 3,
    )
    first.wait(
        "executions",
        lambda events: sum(event["event"] == "end" for event in events) == 3,
    )
    return first, second


def attachments(application: Application) -> int:
    return sum(event["reason"] == "ATTACHED" for event in application.events("assignment"))


def created(fleet: Fleet, *paths: str) -> dict[str, int]:
    """The transaction that created each of these nodes."""
    nodes = {path: fleet.tree.client.exists(fleet.tree.path(path)) for path in paths}
    return {path: stat.czxid for path, stat in nodes.items() if stat is not None}


def states(fleet: Fleet, number: int) -> list[str]:
    """The files in a sidecar's state directory, without the lock."""
    return sorted(path.name for path in (fleet.folder / f"state-{number}").iterdir() if path.name != "lock")


def assert_executed_once(application: Application, items: list[int]) -> None:
    assert sorted(event["item"] for event in application.events("start")) == items
    assert sorted(event["item"] for event in application.events("end")) == items
    assert application.events("cancelled") == []


@pytest.mark.parametrize(("failover", "named"), [(False, False), (True, False), (False, True)])
def test_what_runs_survives_the_death_of_the_sidecar_and_is_executed_once(
    fleet: Fleet, failover: bool, named: bool
) -> None:
    first, second = executing(fleet, failover=failover, named=named)
    instance, items, owners = second.instance, second.owned(), fleet.tree.owners()
    running = [f"sharding/{item}/running" for item in items]
    nodes = created(fleet, f"instances/{instance}", *running)
    assert len(nodes) == 4
    second.sidecar.kill()
    second.command(f"release {items[0]}")  # this one ends while there is no sidecar
    second.wait("an end", lambda events: any(event["event"] == "end" for event in events))
    sidecar = start(fleet, 2)
    eventually("its return", lambda: attachments(second) == 2)
    assert second.instance == instance
    # The result that could not be reported is reported; everything else is as if nothing had happened.
    eventually("the end of the first", lambda: fleet.tree.get(running[0]) is None)
    del nodes[running[0]]
    assert created(fleet, f"instances/{instance}", *running) == nodes
    assert fleet.tree.owners() == owners
    second.command("release")
    eventually("nothing runs", lambda: created(fleet, *running) == {})
    assert_executed_once(second, items)
    assert len(first.events("start")) == 3
    assert fleet.tree.owners() == owners
    assert fleet.tree.children("leader/failover/items") == []
    # A later process can do it again, and a process that ends well leaves no state file.
    sidecar.kill()
    sidecar = start(fleet, 2)
    eventually("its return", lambda: attachments(second) == 3)
    assert second.instance == instance
    assert states(fleet, 2) == ["session.json"]
    second.popen.terminate()
    assert second.popen.wait(20) == 0
    sidecar.terminate()
    assert states(fleet, 2) == []
    assert fleet.tree.get(f"instances/{instance}") is None


def test_a_job_fires_after_a_restart_and_missed_fires_are_re_run(fleet: Fleet) -> None:
    application = fleet.application(start(fleet, 1), cron="0/2 * * * * ?", props=GRACE)
    fleet.settle(application)
    for life in (1, 2, 3):
        wanted = len(application.events("end")) + 12
        eventually("two fires", lambda wanted=wanted: len(application.events("end")) >= wanted)
        application.sidecar.kill()
        application.sidecar = start(fleet, 1)
        eventually("its return", lambda life=life: attachments(application) == life + 1)
    application.sidecar.terminate()
    told = [(event["item"], event["scheduled"]) for event in application.events("start")]
    assert len(told) == len(set(told)), "a fire was executed twice"
    assert len(told) == len(application.events("end"))
    fires = sorted({scheduled for _, scheduled in told})
    assert all(later - earlier <= 4 for earlier, later in zip(fires, fires[1:])), fires


def test_a_session_that_is_over_is_not_waited_for(fleet: Fleet) -> None:
    first, second = executing(fleet, session_timeout="2s")
    instance, items = second.instance, second.owned()
    second.sidecar.kill()
    second.wait(
        "cancels",
        lambda events: sum(event["event"] == "cancelled" for event in events) == 3,
    )
    fleet.settle(first)
    assert fleet.tree.get(f"instances/{instance}") is None
    sidecar = start(fleet, 2, "2s")
    eventually("its return", lambda: attachments(second) == 2)
    fleet.settle(first, second)
    assert "the session of the former process is over" in sidecar.log.read_text()
    assert second.events("end") == []
    assert sorted(event["item"] for event in second.events("start")) == items


def test_an_application_that_does_not_come_back_leaves_when_its_grace_is_over(
    fleet: Fleet,
) -> None:
    first, second = executing(fleet, "60s", props={"sidekeeper.grace": "2s"})
    instance = second.instance
    second.sidecar.kill()
    second.kill()
    start(fleet, 2, "60s")
    fleet.settle(first)
    nodes = fleet.tree.nodes().items()
    assert not any(instance in path or instance in data for path, (data, _) in nodes)
    assert not any(path.endswith("/running") for path, _ in nodes)


def test_without_grace_what_was_executed_is_over_at_once(fleet: Fleet) -> None:
    first, second = executing(fleet, "60s", props={})
    former = second.instance
    second.sidecar.kill()
    second.wait("cancels", lambda events: sum(event["event"] == "cancelled" for event in events) == 3)
    start(fleet, 2, "60s")
    eventually("its return", lambda: attachments(second) == 2)
    fleet.settle(first, second)
    eventually("nothing runs", lambda: not any(path.endswith("/running") for path in fleet.tree.nodes()))
    # It is the same one only if it was back before the session was.
    assert fleet.tree.children("instances") == sorted({first.instance, second.instance})
    nodes = fleet.tree.nodes().items()
    assert former == second.instance or not any(former in path or former in data for path, (data, _) in nodes)


def test_a_state_that_is_damaged_is_ignored(fleet: Fleet) -> None:
    _, second = executing(fleet, "2s")
    second.sidecar.kill()
    file = fleet.folder / "state-2" / "session.json"
    written = json.loads(file.read_text())
    assert file.stat().st_mode & 0o777 == 0o600
    assert [member["instance"] for member in written["members"]] == [second.instance]
    file.write_text(file.read_text()[:-10])
    sidecar = start(fleet, 2, "2s")
    eventually("its return", lambda: attachments(second) == 2)
    assert "what the former process left is ignored" in sidecar.log.read_text()
