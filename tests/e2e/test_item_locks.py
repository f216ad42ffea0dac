"""Executions that hold a lock for their item, in jobs of two namespaces that share the locks."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.application import Application
from support.fleet import Fleet
from support.job_nodes import EACH_SECOND, JOB, NEVER, Tree
from support.processes import PATIENCE, eventually
from support.sidecar import Sidecar
from support.znodes import children, data


class TwoNamespaces:
    """Two deployments on one server: the namespaces are apart, and the root of the locks is the same."""

    def __init__(self, fleet: Fleet, binary: Path):
        self.fleet, self.binary = fleet, binary
        self.root = f"/{fleet.namespace}-shared"
        self.trees = [fleet.tree, Tree(fleet.tree.client, f"{fleet.namespace}-b")]
        self.sidecars: list[Sidecar] = []
        for number, namespace in enumerate((fleet.namespace, f"{fleet.namespace}-b"), 1):
            options = ["--lock-root", self.root]
            sidecar = Sidecar(number, fleet.folder, fleet.server.address, namespace, "6s", options)
            fleet.processes.append(sidecar)
            self.sidecars.append(sidecar)

    def application(self, number: int, **configuration: Any) -> Application:
        props = {"sidekeeper.item-lock": "ledger", **configuration.pop("props", {})}
        configuration = {"sharding_total_count": 3, "props": props, **configuration}
        application = self.fleet.application(self.sidecars[number], **configuration)
        application.wait("its items", lambda events: [e for e in events if e["event"] == "assignment" and e["items"]])
        return application

    def lock(self, item: int) -> str:
        return f"{self.root}/ledger@-@{item}"

    def queue(self, item: int) -> list[str]:
        """Who stands in the queue of an item's lock, the holder first."""
        client = self.fleet.tree.client
        names = sorted(children(client, self.lock(item)), key=lambda name: name[-10:])
        told = [data(client, f"{self.lock(item)}/{name}") for name in names]
        return [who for who in told if who is not None]

    def item(self, number: int, item: int) -> dict[str, Any]:
        """The state of an item, as the command says it."""
        words = [
            str(self.binary),
            "watch",
            JOB,
            "--json",
            "--once",
            "--endpoint",
            f"unix://{self.sidecars[number].socket}",
        ]
        told = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert told.returncode == 0, told.stderr
        return next(one for one in json.loads(told.stdout)["items"] if one["item"] == item)


@pytest.fixture
def two(fleet: Fleet, binary: Path) -> TwoNamespaces:
    return TwoNamespaces(fleet, binary)


def begun(application: Application, item: int, source: str | None = None) -> list[dict[str, Any]]:
    starts = [event for event in application.events("start") if event["item"] == item]
    return [event for event in starts if source in (None, event["source"])]


def test_s53_jobs_of_two_namespaces_never_execute_an_item_at_once(two: TwoNamespaces) -> None:
    applications = [two.application(number, cron=EACH_SECOND) for number in (0, 1)]
    for application in applications:
        application.command("duration 60")
    for application in applications:
        # Both fire at the same instants.
        application.wait(
            "five executions of each item",
            lambda events: all(
                sum(e["event"] == "end" and e["item"] == item for e in events) >= 5 for item in range(3)
            ),
        )
    for item in range(3):
        executions = []
        for application in applications:
            ends = {event["execution_id"]: event for event in application.events("end")}
            executions += [
                (start["time"], ends[start["execution_id"]]["time"], start["lock_token"])
                for start in begun(application, item)
                if start["execution_id"] in ends
            ]
        executions.sort()
        overlaps = [(one, other) for one, other in zip(executions, executions[1:]) if one[1] > other[0]]
        assert overlaps == []
        tokens = [token for _, _, token in executions]
        assert tokens == sorted(set(tokens))
        assert tokens[0] > 0


def test_an_execution_that_waits_is_shown_with_the_holder_and_runs_next(two: TwoNamespaces) -> None:
    first, second = (two.application(number, cron=NEVER) for number in (0, 1))
    first.command("hold 1")
    two.trees[0].fire_once()
    first.wait("item 1", lambda events: [e for e in events if e["event"] == "start" and e["item"] == 1])
    fire = two.trees[1].fire_once()
    second.wait("the other items", lambda events: {e["item"] for e in events if e["event"] == "end"} == {0, 2})
    eventually("the wait is shown", lambda: two.item(1, 1)["waiting_for_lock"] is not None)
    shown = two.item(1, 1)
    assert shown["waiting_for_lock"]["lock_name"] == "ledger@-@1"
    assert shown["waiting_for_lock"]["holder"] == f"{first.instance} of job {JOB}"
    assert not shown["running"]
    assert two.trees[1].get("sharding/1/running") is None
    assert "waits for the lock of its item" in two.sidecars[1].log.read_text()
    first.command("release")
    second.wait("item 1", lambda events: [e for e in events if e["event"] == "end" and e["item"] == 1])
    [start] = begun(second, 1)
    assert (start["source"], start["scheduled"]) == ("SCHEDULE", fire)
    eventually("the locks are given back", lambda: [two.queue(item) for item in range(3)] == [[], [], []])
    assert two.item(1, 1)["waiting_for_lock"] is None


def test_s54_an_execution_gives_up_at_its_limit(two: TwoNamespaces) -> None:
    first = two.application(0, cron=NEVER)
    second = two.application(1, cron=NEVER, misfire=False, props={"sidekeeper.item-lock-timeout": "1s"})
    first.command("hold 1")
    two.trees[0].fire_once()
    first.wait("item 1", lambda events: [e for e in events if e["event"] == "start" and e["item"] == 1])
    two.trees[1].fire_once()
    log = two.sidecars[1].log
    eventually("it gives up", lambda: "the lock of its item was not free in time" in log.read_text())
    eventually("its node is gone", lambda: len(two.queue(1)) == 1)
    assert "fire skipped" in log.read_text()
    assert begun(second, 1) == []
    first.command("release")
    two.trees[1].fire_once()
    second.wait("item 1", lambda events: [e for e in events if e["event"] == "end" and e["item"] == 1])


def test_s55_an_item_that_moves_away_leaves_the_queue(two: TwoNamespaces) -> None:
    first, second = (two.application(number, cron=NEVER) for number in (0, 1))
    first.command("hold")
    two.trees[0].fire_once()
    first.wait("its items", lambda events: len({e["item"] for e in events if e["event"] == "start"}) == 3)
    two.trees[1].fire_once()
    eventually("all wait", lambda: all(len(two.queue(item)) == 2 for item in range(3)))
    third = two.fleet.application(
        two.sidecars[1], sharding_total_count=3, cron=NEVER, props={"sidekeeper.item-lock": "ledger"}
    )
    third.wait("an item", lambda events: [e for e in events if e["event"] == "assignment" and e["items"]])
    moved = third.owned()
    assert moved
    for item in moved:
        eventually(
            "the former owner is gone", lambda item=item: all(second.instance not in who for who in two.queue(item))
        )
    first.command("release")


def test_s56_a_lost_lock_cancels_the_execution_which_is_then_taken_over(two: TwoNamespaces) -> None:
    application = two.application(0, cron=NEVER, failover=True)
    application.command("hold 1")
    two.trees[0].fire_once()
    application.wait("item 1", lambda events: [e for e in events if e["event"] == "start" and e["item"] == 1])
    client = two.fleet.tree.client
    [node] = client.get_children(two.lock(1))
    client.delete(f"{two.lock(1)}/{node}")
    application.wait("the cancellation", lambda events: [e for e in events if e["event"] == "cancelled"])
    application.command("release")
    application.wait("the failover", lambda events: [e for e in events if e["event"] == "end" and e["item"] == 1])
    [cancelled] = application.events("cancelled")
    assert (cancelled["item"], cancelled["reason"]) == (1, "ITEM_LOCK_LOST")
    first, again = begun(application, 1)
    assert (again["source"], again["scheduled"]) == ("FAILOVER", first["scheduled"])
    assert again["lock_token"] > first["lock_token"]


def test_a_drain_does_not_take_the_lock_from_an_execution(two: TwoNamespaces) -> None:
    first, second = (two.application(number, cron=NEVER) for number in (0, 1))
    first.command("hold 1")
    two.trees[0].fire_once()
    first.wait("item 1", lambda events: [e for e in events if e["event"] == "start" and e["item"] == 1])
    two.trees[1].fire_once()
    eventually("the other one waits", lambda: len(two.queue(1)) == 2)
    two.sidecars[0].popen.send_signal(signal.SIGTERM)
    eventually("the drain", lambda: "draining" in two.sidecars[0].log.read_text())
    assert begun(second, 1) == []
    first.command("release")
    second.wait("item 1", lambda events: [e for e in events if e["event"] == "end" and e["item"] == 1])
    [end] = [event for event in first.events("end") if event["item"] == 1]
    assert begun(second, 1)[0]["time"] >= end["time"]
