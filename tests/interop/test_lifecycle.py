"""Each call of ElasticJob's lifecycle API does and returns the same with a fleet of ours and with one of Java.

Each test runs once on two Java instances and once on two of ours; what differs is said where it does.
"""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from interop.members import TOTAL, Lifecycle, LifecycleError, Member, MixedFleet, answers_dumps
from support.job_nodes import JOB, NEVER
from support.processes import PATIENCE, eventually, sidekeeper_binary

KINDS = ["java", "ours"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def two(fleet: MixedFleet, kind: str) -> tuple[Member, Member]:
    """Two instances that have two items each."""
    first, second = fleet.member(kind, 1), fleet.member(kind, 2)
    fleet.divide(first, second)
    return first, second


def by(key: str, answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(answers, key=lambda one: one[key])


def status(lifecycle: Lifecycle) -> Any:
    """The job's status, as the console shows it."""
    return lifecycle.call("JobStatistics", "getJobBriefInfo", JOB)["status"]


def servers(fleet: MixedFleet) -> dict[str, str | None]:
    return {ip: fleet.tree.get(f"servers/{ip}") for ip in fleet.tree.children("servers")}


def test_trigger(fleet: MixedFleet, lifecycle: Lifecycle, two: tuple[Member, Member]) -> None:
    before = len(fleet.executions())
    lifecycle.operate("trigger", JOB)
    eventually("each item once more", lambda: len(fleet.executions()) >= before + TOTAL)
    fleet.assert_clean()
    assert len(fleet.executions()) == before + TOTAL


@pytest.mark.parametrize(("job", "whole_server"), [(JOB, True), (None, True), (JOB, False)])
def test_disable_and_enable(
    fleet: MixedFleet, lifecycle: Lifecycle, two: tuple[Member, Member], job: str | None, whole_server: bool
) -> None:
    # Not the leader: a Java fleet whose leader is disabled may miss a resharding.
    staying, disabled = two
    ip = disabled.address if whole_server else None
    lifecycle.operate("disable", job, ip)
    expected = {disabled.address} if whole_server else {staying.address, disabled.address}
    assert {address for address, told in servers(fleet).items() if told == "DISABLED"} == expected
    if whole_server:
        fleet.divide(staying)
        assert status(lifecycle) == "OK"
    else:
        assert status(lifecycle) == "DISABLED"
        eventually("no leader", lambda: fleet.leader() is None)
    [on_server] = lifecycle.call("JobStatistics", "getJobsBriefInfo", disabled.address)
    assert (on_server["jobName"], on_server["status"], on_server["instanceCount"]) == (JOB, "DISABLED", 1)
    lifecycle.operate("enable", job, ip)
    assert set(servers(fleet).values()) == {"ENABLED"}
    eventually("a leader", lambda: fleet.leader() is not None)
    fleet.divide(staying, disabled)
    fleet.assert_once(fleet.fire())
    assert status(lifecycle) == "OK"


@pytest.mark.parametrize("call", ["shutdown", "remove"])
@pytest.mark.parametrize(("job", "whole_server"), [(JOB, True), (None, True), (JOB, False)])
def test_shutdown_and_remove(
    fleet: MixedFleet,
    lifecycle: Lifecycle,
    two: tuple[Member, Member],
    call: str,
    job: str | None,
    whole_server: bool,
) -> None:
    # Not the leader: a Java fleet whose leader is stopped may miss a resharding.
    staying, stopped = two
    lifecycle.operate(call, job, stopped.address if whole_server else None)
    fleet.gone(stopped)
    left = {staying.address} if whole_server else set()
    expected = left if call == "remove" else {staying.address, stopped.address}
    eventually("servers", lambda: set(servers(fleet)) == expected)
    if whole_server:
        fleet.assert_leads(staying)
        fleet.divide(staying)
        fleet.assert_once(fleet.fire())
        assert status(lifecycle) == "OK"
        assert fleet.tree.children("instances") == [staying.instance]
    else:
        fleet.gone(staying)
        eventually("no leader", lambda: fleet.leader() is None)
        assert status(lifecycle) == "CRASHED"


def test_items_disabled_and_enabled(fleet: MixedFleet, lifecycle: Lifecycle, two: tuple[Member, Member]) -> None:
    lifecycle.call("ShardingOperate", "disable", JOB, "1")
    assert fleet.tree.get("sharding/1/disabled") == ""
    fire = fleet.fire({0, 2, 3})
    assert set(fleet.counts(fire)) == {0, 2, 3}
    fleet.assert_clean()
    told = by("item", lifecycle.call("ShardingStatistics", "getShardingInfo", JOB))
    assert [one["status"] for one in told] == ["PENDING", "DISABLED", "PENDING", "PENDING"]
    lifecycle.call("ShardingOperate", "enable", JOB, "1")
    fleet.assert_once(fleet.fire())


def test_configuration(fleet: MixedFleet, lifecycle: Lifecycle, two: tuple[Member, Member], kind: str) -> None:
    told = lifecycle.call("JobConfiguration", "getJobConfiguration", JOB)
    assert {**told, "cron": None} == {
        **told,
        "cron": None,
        "jobName": JOB,
        "shardingTotalCount": TOTAL,
        "monitorExecution": True,
        "failover": False,
        "misfire": True,
        "maxTimeDiffSeconds": -1,
        "reconcileIntervalMinutes": 10,
        "shardingItemParameters": "",
        "jobParameter": "",
        "description": "",
        "props": {},
        "disabled": False,
        "overwrite": False,
        "staticSharding": False,
    }
    update = {**told, "shardingTotalCount": 6, "jobParameter": "x: 'y'", "shardingItemParameters": "0=a", "cron": NEVER}
    lifecycle.call("JobConfiguration", "updateJobConfiguration", update)
    # Java reshards at the next fire, and may still execute an item there that goes to another instance.
    fleet.divide(*two, total=6)
    fire = fleet.fire(total=6)
    fleet.assert_once(fire, total=6)
    starts = [event for member in two for event in member.events("start") if event["time"] >= fire]
    assert {(event["item"], event["parameter"]) for event in starts if event["parameter"]} == {(0, "a")}
    assert {(event["job_parameter"], event["total"]) for event in starts} == {("x: 'y'", 6)}
    with pytest.raises(LifecycleError):
        lifecycle.call("JobConfiguration", "updateJobConfiguration", {**update, "shardingTotalCount": 0})
    assert lifecycle.call("JobConfiguration", "getJobConfiguration", "noSuchJob") is None


def test_remove_of_the_configuration(
    fleet: MixedFleet, lifecycle: Lifecycle, two: tuple[Member, Member], kind: str
) -> None:
    """It removes the whole job. Ours stop; Java goes on without a configuration, and may elect a leader once more."""
    lifecycle.call("JobConfiguration", "removeJobConfiguration", JOB)
    eventually("no job", lambda: lifecycle.call("JobStatistics", "getJobBriefInfo", JOB) is None)
    assert lifecycle.call("JobStatistics", "getAllJobsBriefInfo") == []
    if kind == "ours":
        for member in two:
            assert member.popen.wait(PATIENCE) is not None  # its only job is over
        assert lifecycle.call("JobStatistics", "getJobsTotalCount") == 0


def test_statistics_of_jobs(fleet: MixedFleet, lifecycle: Lifecycle, two: tuple[Member, Member]) -> None:
    first, second = two
    assert lifecycle.call("JobStatistics", "getJobsTotalCount") == 1
    brief = lifecycle.call("JobStatistics", "getJobBriefInfo", JOB)
    assert brief["cron"]
    assert {**brief, "cron": ""} == {
        "jobName": JOB,
        "status": "OK",
        "description": "",
        "cron": "",
        "instanceCount": 2,
        "shardingTotalCount": TOTAL,
    }
    assert lifecycle.call("JobStatistics", "getAllJobsBriefInfo") == [brief]
    [on_server] = lifecycle.call("JobStatistics", "getJobsBriefInfo", first.address)
    assert (on_server["jobName"], on_server["status"], on_server["instanceCount"]) == (JOB, "OK", 1)
    assert lifecycle.call("JobStatistics", "getJobBriefInfo", "noSuchJob") is None
    second.leave()
    fleet.gone(second)
    # Our leader has resharded at once, a Java leader does at the next fire.
    fleet.divide(first)
    eventually("fine", lambda: status(lifecycle) == "OK")
    first.leave()
    fleet.gone(first)
    assert status(lifecycle) == "CRASHED"


def test_statistics_of_servers(fleet: MixedFleet, lifecycle: Lifecycle, two: tuple[Member, Member]) -> None:
    assert lifecycle.call("ServerStatistics", "getServersTotalCount") == 2
    told = by("serverIp", lifecycle.call("ServerStatistics", "getAllServersBriefInfo"))
    for member, one in zip(two, told):
        assert (one["serverIp"], one["instances"], one["jobNames"]) == (member.address, [member.instance], [JOB])
        assert str(one["disabledJobsNum"]) == "0"
    lifecycle.operate("disable", JOB, two[0].address)
    told = by("serverIp", lifecycle.call("ServerStatistics", "getAllServersBriefInfo"))
    assert [str(one["disabledJobsNum"]) for one in told] == ["1", "0"]
    # `sidekeeper servers` tells the same.
    place = ["--zookeeper", fleet.server.address, "--namespace", fleet.namespace]
    shown = subprocess.run(
        [str(sidekeeper_binary()), "servers", "--json", *place], capture_output=True, timeout=PATIENCE, check=True
    )
    for java, ours in zip(told, json.loads(shown.stdout)["servers"], strict=True):
        assert (ours["server_ip"], [job["job_name"] for job in ours["jobs"]]) == (java["serverIp"], java["jobNames"])
        assert sum(job["instance_count"] for job in ours["jobs"]) == len(java["instances"])
        assert str(sum(job["disabled"] for job in ours["jobs"])) == str(java["disabledJobsNum"])


def test_statistics_of_sharding(fleet: MixedFleet, lifecycle: Lifecycle, two: tuple[Member, Member]) -> None:
    owners = fleet.tree.owners()

    def expected(state: str) -> list[dict[str, Any]]:
        return [
            {
                "item": item,
                "serverIp": owner.split("@-@")[0],
                "instanceId": owner,
                "status": state,
                "failover": False,
            }
            for item, owner in sorted(owners.items())
        ]

    assert by("item", lifecycle.call("ShardingStatistics", "getShardingInfo", JOB)) == expected("PENDING")
    for member in two:
        member.command("hold")
    fleet.start_fire()
    for member in two:
        fleet.wait_running(member, fleet.items_of(member))
    assert by("item", lifecycle.call("ShardingStatistics", "getShardingInfo", JOB)) == expected("RUNNING")
    for member in two:
        member.command("release")
    fleet.assert_clean()
    assert by("item", lifecycle.call("ShardingStatistics", "getShardingInfo", JOB)) == expected("PENDING")


def test_dump(fleet: MixedFleet, lifecycle: Lifecycle, two: tuple[Member, Member], kind: str) -> None:
    """All nodes, one a line, with addresses masked in the order of their appearance."""
    if kind == "ours" and not answers_dumps():
        pytest.skip("this sidecar has no dump command")
    told = lifecycle.operate("dump", JOB, "127.0.0.1", two[0].dump_port)
    paths = [line.split(" | ")[0] for line in told.splitlines() if line.startswith(f"/{JOB}/")]
    assert not any(member.address in told for member in two)
    masks = {f"ip{number}": ip for number, ip in enumerate(masked_in_order(told, fleet), start=1)}
    plain = re.sub(r"ip\d+", lambda mask: masks[mask[0]], told)
    shown = [line.split(" | ")[0] for line in plain.splitlines() if line.startswith(f"/{JOB}/")]
    assert set(shown) == {f"/{JOB}/{path}" for path in fleet.tree.nodes() if path}
    # Children come in descending order, below their parents.
    top = [path for path in paths if path.count("/") == 2]
    assert top == sorted(top, reverse=True)


def masked_in_order(told: str, fleet: MixedFleet) -> list[str]:
    """The addresses that a dump has masked, in the order of their first appearance, from what it is a dump of."""
    found = []
    for item in sorted(fleet.tree.owners(), reverse=True):
        ip = fleet.tree.owners()[item].split("@-@")[0]
        if ip not in found:
            found.append(ip)
    assert f"/{JOB}/sharding/{max(fleet.tree.owners())}/instance | ip1@-@" in told
    return found
