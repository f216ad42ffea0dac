"""`sidekeeper cancel --fleet`: through a sidecar, and on ZooKeeper itself."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from support.application import Application
from support.fleet import Fleet
from support.job_nodes import JOB, NEVER
from support.processes import PATIENCE, eventually, sidekeeper_binary


def told(*words: str) -> Any:
    command = [str(sidekeeper_binary()), *words, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def items(applications: list[Application], event: str) -> list[int]:
    return sorted(one["item"] for application in applications for one in application.events(event))


@pytest.mark.parametrize("way", ["sidecar", "zookeeper"])
def test_the_executions_of_all_sidecars_are_cancelled_and_no_later_one(fleet: Fleet, way: str) -> None:
    applications = fleet.three(cron=NEVER)
    through = ["--endpoint", f"unix://{applications[0].sidecar.socket}"]
    zookeeper = ["--zookeeper", fleet.server.address, "--namespace", fleet.namespace]
    place = through if way == "sidecar" else zookeeper
    for application in applications:
        application.command("hold")
    told("trigger", JOB, *through)
    eventually("all items run", lambda: items(applications, "start") == list(range(6)))
    # An execution of a Java instance.
    fleet.tree.create("sharding/9/running", "10.0.0.9@-@1")
    answer = told("cancel", JOB, "--fleet", *place, "--request-id", "mine")
    reach = {one["item"]: one["reach"] for one in answer["fleet_executions"]}
    assert reach == {**dict.fromkeys(range(6), "CANCEL_REACH_SIDECAR"), 9: "CANCEL_REACH_JAVA"}
    eventually("all are cancelled", lambda: items(applications, "cancelled") == list(range(6)))
    eventually(
        "all have ended",
        lambda: [path for path in fleet.tree.nodes() if path.endswith("/running")] == ["sharding/9/running"],
    )
    # The node of the cancel stays, and concerns no later execution, nor does a repetition.
    told("trigger", JOB, *through)
    eventually("all items run again", lambda: len(items(applications, "start")) == 12)
    again = told("cancel", JOB, "--fleet", *place, "--request-id", "mine")
    assert [one["item"] for one in again["fleet_executions"]] == [9]
    for application in applications:
        application.command("release")
    eventually("all items have run", lambda: items(applications, "end") == list(range(6)))
    assert len(items(applications, "cancelled")) == 6
    fleet.tree.delete("sharding/9/running")
