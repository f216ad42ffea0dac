"""`sidekeeper trigger --item --parameter`, and the same by the client library: real applications and ZooKeeper."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
import sidekeeper

from support.application import Application
from support.fleet import Fleet
from support.job_nodes import JOB, NEVER
from support.processes import PATIENCE, eventually, sidekeeper_binary


def call(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(sidekeeper_binary()), *words, "--json"]
    return subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE, check=False)


def told(*words: str) -> Any:
    ended = call(*words)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def on_zookeeper(fleet: Fleet) -> list[str]:
    return ["--zookeeper", fleet.server.address, "--namespace", fleet.namespace]


def started(applications: list[Application]) -> list[tuple[int, str]]:
    events = [event for application in applications for event in application.events("start")]
    assert {event["source"] for event in events} <= {"TRIGGER"}
    return sorted((event["item"], event["job_parameter"]) for event in events)


@pytest.mark.parametrize("way", ["sidecar", "zookeeper"])
def test_the_named_items_run_once_with_the_parameter(fleet: Fleet, way: str) -> None:
    applications = fleet.three(cron=NEVER, job_parameter="all")
    endpoint = f"unix://{applications[0].sidecar.socket}"
    through = ["--endpoint", endpoint] if way == "sidecar" else on_zookeeper(fleet)
    for application in applications:
        application.command("hold")
    words = ["--item", "5", "--item", "0", "--parameter", "day=1", "--request-id", "mine", *through]
    expected = {"triggered_instance_ids": [], "pending_instance_ids": [], "triggered_items": [0, 5]}
    assert told("trigger", JOB, *words) == expected
    eventually("both items run", lambda: started(applications) == [(0, "day=1"), (5, "day=1")])
    listed = told("triggers", JOB, *on_zookeeper(fleet))
    states = {one["item"]: one["state"] for one in listed["item_triggers"]}
    assert states == {0: "TRIGGER_STATE_TAKEN_UP", 5: "TRIGGER_STATE_TAKEN_UP"}
    assert "day=1" not in json.dumps(listed)
    assert told("trigger", JOB, *words) == expected
    for application in applications:
        application.command("release")

    def states_now() -> set[str]:
        return {one["state"] for one in told("triggers", JOB, *through)["item_triggers"]}

    eventually("both have ended", lambda: states_now() == {"TRIGGER_STATE_DONE"})
    assert len(started(applications)) == 2
    result = sidekeeper.trigger(JOB, items=[3], endpoint=endpoint)
    assert result == sidekeeper.TriggerResult((), (), (3,))
    eventually("the job's own parameter again", lambda: (3, "all") in started(applications))
    # A Java instance comes.
    fleet.tree.create("instances/10.0.0.9@-@1", "jobInstanceId: 10.0.0.9@-@1\nserverIp: 10.0.0.9\n")
    refused = call("trigger", JOB, "--item", "0", *through)
    assert refused.returncode == 1, refused.stderr
    assert "10.0.0.9@-@1" in refused.stderr
    with pytest.raises(sidekeeper.TriggerError) as raised:
        sidekeeper.trigger(JOB, parameter="day=2", endpoint=endpoint)
    assert (raised.value.code, raised.value.reason) == ("FAILED_PRECONDITION", "TRIGGER_NOT_SUPPORTED")
    fleet.tree.delete("instances/10.0.0.9@-@1")


def test_a_job_is_triggered_on_zookeeper_itself_once_for_a_request_and_nothing_is_registered(fleet: Fleet) -> None:
    applications = fleet.three(cron=NEVER)
    instances = fleet.tree.children("instances")
    servers = fleet.tree.children("servers")
    words = ["trigger", JOB, "--request-id", "mine"]
    expected = {"triggered_instance_ids": sorted(instances), "pending_instance_ids": [], "triggered_items": []}
    assert told(*words, *on_zookeeper(fleet)) == expected
    eventually("all items run", lambda: [item for item, _ in started(applications)] == list(range(6)))
    # The sidecars recognise the request.
    assert told(*words, "--endpoint", f"unix://{applications[0].sidecar.socket}") == expected
    assert (fleet.tree.children("instances"), fleet.tree.children("servers")) == (instances, servers)
    assert fleet.tree.children("trigger") == []
    assert len(started(applications)) == 6
    other = call("trigger", "other", *on_zookeeper(fleet))
    assert (other.returncode, "job `other` has no configuration" in other.stderr) == (1, True), other.stderr
    unknown = call("trigger", JOB, "--item", "6", *on_zookeeper(fleet))
    assert (unknown.returncode, "it has 6 items, from 0" in unknown.stderr) == (1, True), unknown.stderr
    assert "sidecar" not in unknown.stderr, "no sidecar was asked"
    unsaid = call("trigger", JOB, "--item", "1", "--request-id", "mine", *on_zookeeper(fleet))
    assert (unsaid.returncode, "was given to another request" in unsaid.stderr) == (1, True), unsaid.stderr
    away = call("trigger", JOB, "--zookeeper", "127.0.0.1:1", "--namespace", fleet.namespace)
    assert (away.returncode, "no session with ZooKeeper" in away.stderr) == (75, True), away.stderr
