"""What operators do through ElasticJob's lifecycle API, to fleets of both kinds."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from interop.members import LEADERS, TOTAL, Lifecycle, MixedFleet, Ours, command
from support.explain import explain
from support.job_nodes import JOB
from support.processes import PATIENCE, eventually, sidekeeper_binary
from support.sidecar import Sidecar

KINDS = ["java", "ours"]


@pytest.mark.parametrize("leader", LEADERS)
def test_a_disabled_item_is_not_executed(fleet: MixedFleet, lifecycle: Lifecycle, leader: str) -> None:
    java, ours = fleet.pair(leader)
    disabled = {fleet.items_of(java)[0], fleet.items_of(ours)[0]}
    for item in disabled:
        lifecycle.call("ShardingOperate", "disable", JOB, str(item))
    rest = set(range(TOTAL)) - disabled
    fires = [fleet.fire(rest), fleet.fire(rest)]
    assert [set(fleet.counts(fire)) for fire in fires] == [rest, rest]
    for item in disabled:
        lifecycle.call("ShardingOperate", "enable", JOB, str(item))
    fleet.assert_once(fleet.fire())


@pytest.mark.parametrize("leader", LEADERS)
@pytest.mark.parametrize("disabled", KINDS)
def test_a_disabled_server_owns_nothing(fleet: MixedFleet, lifecycle: Lifecycle, leader: str, disabled: str) -> None:
    java, ours = fleet.pair(leader)
    off, on = (java, ours) if disabled == "java" else (ours, java)
    lifecycle.operate("disable", JOB, off.address)
    fleet.assert_leads(on)
    fleet.divide(on)
    fire = fleet.fire()
    fleet.assert_once(fire)
    assert {one.member for one in fleet.told(fire)} == {on.name}
    lifecycle.operate("enable", JOB, off.address)
    fleet.divide(java, ours)
    fleet.assert_once(fleet.fire())


@pytest.mark.parametrize("leader", LEADERS)
def test_trigger(fleet: MixedFleet, lifecycle: Lifecycle, leader: str) -> None:
    _java, ours = fleet.pair(leader)
    before = len(fleet.executions())
    lifecycle.operate("trigger", JOB)
    eventually("each item once more", lambda: len(fleet.executions()) >= before + TOTAL)
    fleet.assert_clean()
    triggered = fleet.executions()
    assert len(triggered) == before + TOTAL
    assert sorted(one.item for one in triggered if one.source == "TRIGGER") == fleet.items_of(ours)
    fleet.assert_once(fleet.fire())


@pytest.mark.parametrize("leader", LEADERS)
def test_items_are_not_triggered_beside_a_java_instance(fleet: MixedFleet, leader: str) -> None:
    java, ours = fleet.pair(leader)
    assert isinstance(ours, Ours)
    before = fleet.tree.nodes()
    item = fleet.items_of(ours)[0]
    command = [str(sidekeeper_binary()), "trigger", JOB, "--endpoint", f"unix:{ours.sidecar.socket}"]
    for words in (["--item", str(item)], ["--parameter", "day=1"]):
        ended = subprocess.run([*command, *words], capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert (ended.returncode, ended.stdout) == (1, ""), ended
        assert "the Java instances of job" in ended.stderr, ended.stderr
        assert java.instance in ended.stderr, ended.stderr
        assert ours.instance not in ended.stderr, ended.stderr
    assert fleet.tree.nodes() == before
    fleet.assert_once(fleet.fire())
    assert all(one.source != "TRIGGER" for one in fleet.executions())


@pytest.mark.parametrize("leader", LEADERS)
def test_a_trigger_whose_item_a_java_instance_has_got_waits_for_a_sidecar_and_runs_once(
    fleet: MixedFleet, leader: str
) -> None:
    java, ours = fleet.pair(leader)
    [item, *_] = fleet.items_of(java)
    # The request came before the Java instance had registered: then it is not refused.
    trigger = f"/{fleet.namespace}-sidekeeper/{JOB}/fleet/triggers/mine.{item}"
    fleet.tree.client.create(trigger, b"parameter\nday=1", makepath=True)
    fleet.assert_once(fleet.fire())
    assert all(one.source != "TRIGGER" for one in fleet.executions())
    assert fleet.tree.client.get(trigger)[0] == b"parameter\nday=1"
    java.leave()
    fleet.gone(java)
    fleet.divide(ours)
    eventually("it has ended", lambda: not fleet.tree.client.exists(trigger))
    fleet.assert_once(fleet.fire())
    assert [one.item for one in fleet.executions() if one.source == "TRIGGER"] == [item]
    told = [event for event in ours.events("start") if event["job_parameter"] == "day=1"]
    assert [(event["item"], event["source"]) for event in told] == [(item, "TRIGGER")]


@pytest.mark.parametrize("leader", LEADERS)
@pytest.mark.parametrize("stopped", KINDS)
def test_remote_stop(fleet: MixedFleet, lifecycle: Lifecycle, leader: str, stopped: str) -> None:
    java, ours = fleet.pair(leader)
    off, on = (java, ours) if stopped == "java" else (ours, java)
    lifecycle.operate("shutdown", JOB, off.address)
    fleet.gone(off)
    fleet.assert_leads(on)
    fleet.divide(on)
    fire = fleet.fire()
    fleet.assert_once(fire)
    assert {one.member for one in fleet.told(fire)} == {on.name}
    # It does not come back by itself.
    assert fleet.tree.children("instances") == [on.instance]


@pytest.mark.parametrize("leader", LEADERS)
def test_remote_stop_of_all(fleet: MixedFleet, lifecycle: Lifecycle, leader: str) -> None:
    _java, _ours = fleet.pair(leader)
    lifecycle.operate("shutdown", JOB, None)
    eventually("no instances", lambda: not fleet.tree.children("instances"))
    eventually("no leader", lambda: fleet.leader() is None)


@pytest.mark.parametrize("leader", LEADERS)
def test_a_stopped_instance_finishes_first(fleet: MixedFleet, lifecycle: Lifecycle, leader: str) -> None:
    java, ours = fleet.pair(leader)
    items = fleet.items_of(ours)
    ours.command("hold")
    fire = fleet.start_fire()
    fleet.wait_running(ours, items)
    lifecycle.operate("shutdown", JOB, ours.address)
    fleet.gone(ours)
    ours.command("release")
    eventually("all executed", lambda: fleet.executed(fire) == set(range(TOTAL)))
    fleet.divide(java)
    fleet.assert_once(fleet.fire())
    fleet.assert_once()
    fleet.assert_clean()


@pytest.mark.parametrize("kind", KINDS)
def test_one_off_job(fleet: MixedFleet, lifecycle: Lifecycle, kind: str) -> None:
    first = fleet.member(kind, 1, cron=None if kind == "java" else "")
    other = "ours" if kind == "java" else "java"
    second = fleet.member(other, 1, cron=None if other == "java" else "")
    java = first if kind == "java" else second
    for call in (lambda: lifecycle.operate("trigger", JOB), lambda: java.command("trigger")):
        before = len(fleet.executions())
        call()
        eventually("each item once more", lambda: len(fleet.executions()) >= before + TOTAL)
        fleet.assert_clean()
        executed = fleet.executions()
        assert len(executed) == before + TOTAL
        assert all(one.outcome == "end" for one in executed)
    assert fleet.evenly([first.instance, second.instance])


@pytest.mark.parametrize("leader", LEADERS)
def test_a_failing_item_stops_nothing(fleet: MixedFleet, leader: str) -> None:
    java, ours = fleet.pair(leader, failover=True)
    failing = {fleet.items_of(java)[0], fleet.items_of(ours)[0]}
    for member in (java, ours):
        member.command("fail " + " ".join(map(str, failing)))
    fire = fleet.fire(set(range(TOTAL)) - failing)
    eventually("failed", lambda: {one.item for one in fleet.told(fire) if one.outcome == "failed"} == failing, PATIENCE)
    fleet.assert_clean()
    for member in (java, ours):
        member.command("fail")
    fleet.assert_once(fleet.fire())


def test_jobs_are_listed_as_elasticjobs_console_lists_them(fleet: MixedFleet, lifecycle: Lifecycle) -> None:
    states = {"OK": "OK", "DISABLED": "DISABLED", "CRASHED": "NO_INSTANCES"}

    def both_say(state: str) -> bool:
        [theirs] = lifecycle.call("JobStatistics", "getAllJobsBriefInfo")
        [ours] = listed(sidecar)
        assert (ours["job_name"], ours["cron"]) == (theirs["jobName"], theirs["cron"])
        assert ours["sharding_total_count"] == theirs["shardingTotalCount"]
        assert ours["instance_count"] == ours["java_instance_count"] == theirs["instanceCount"]
        return (ours["state"], theirs["status"]) == (f"JOB_STATE_{states[state]}", state)

    one, two = fleet.java(1), fleet.java(2)
    fleet.divide(one, two)
    # A sidecar of the namespace, without an application.
    sidecar = fleet.observer()
    assert both_say("OK")
    for member in (one, two):
        lifecycle.operate("disable", JOB, member.address)
    assert both_say("DISABLED")
    for member in (one, two):
        lifecycle.operate("enable", JOB, member.address)
    for member in (one, two):
        member.die()
        fleet.gone(member)
    eventually("no instance", lambda: both_say("CRASHED"))


def test_java_instances_follow_a_configuration_that_a_file_changes(fleet: MixedFleet, lifecycle: Lifecycle) -> None:
    one, two = fleet.java(1), fleet.java(2)
    fleet.divide(one, two)
    sidecar = fleet.observer()
    before = fleet.tree.get("config") or ""
    file = fleet.folder / "job.yaml"
    count = f"shardingTotalCount: {TOTAL}"
    assert count in before
    file.write_text(before.replace(count, f"shardingTotalCount: {TOTAL + 2}"))
    applied = command(sidecar, "apply", "-f", str(file), "--yes")
    assert applied.startswith(f"{JOB}: sharding_total_count\n"), applied
    # All else is as the Java instance has written it.
    assert fleet.tree.get("config") == file.read_text()
    told = lifecycle.call("JobConfiguration", "getJobConfiguration", JOB)
    assert told["shardingTotalCount"] == TOTAL + 2
    items = set(range(TOTAL + 2))
    assert set(fleet.counts(fleet.fire(items))) == items


def test_a_java_instance_is_stopped_and_its_server_removed_by_a_sidecar(fleet: MixedFleet) -> None:
    one, two = fleet.java(1), fleet.java(2)
    fleet.divide(one, two)
    sidecar = fleet.observer()
    stopped = two.instance
    assert command(sidecar, "stop", JOB, "--instance", stopped, "--yes") == f"stopped  {stopped} of {JOB}\n"
    fleet.gone(two)
    fleet.divide(one)
    fleet.assert_once(fleet.fire())
    assert sorted(fleet.tree.children("servers")) == sorted([one.address, two.address])
    command(sidecar, "remove", JOB, "--server", two.address, "--yes")
    assert fleet.tree.children("servers") == [one.address]


def listed(sidecar: Sidecar) -> list[dict[str, Any]]:
    """The jobs that the command `jobs` prints."""
    jobs: list[dict[str, Any]] = json.loads(command(sidecar, "jobs", "--json"))["jobs"]
    return jobs


def test_op_4_a_job_of_java_instances_alone_is_explained(fleet: MixedFleet, lifecycle: Lifecycle) -> None:
    one, two = fleet.java(1), fleet.java(2)
    fleet.divide(one, two)
    # A sidecar of the namespace, without an application.
    sidecar = fleet.observer()
    healthy = explain(sidecar)
    assert (healthy.codes(), healthy.status) == ([], 0)
    assert healthy.told["java_instance_count"] == 2
    # ElasticJob's lifecycle API disables an item, and enables it again.
    lifecycle.call("ShardingOperate", "disable", JOB, "1")
    found = explain(sidecar)
    assert (found.codes(), found.verdicts()[1]) == (["ITEM_DISABLED"], "BLOCKED")
    lifecycle.call("ShardingOperate", "enable", JOB, "1")
    assert explain(sidecar).codes() == []
    lifecycle.operate("disable", JOB, two.address)
    # The Java leader gives the items to the other instance at its next fire.
    found = explain(sidecar)
    assert "SERVER_DISABLED" in found.codes()
    fleet.divide(one)
    assert explain(sidecar).codes() == ["SERVER_DISABLED"]
    lifecycle.operate("enable", JOB, two.address)
    fleet.divide(one, two)
    assert explain(sidecar).codes() == []
    # One dies: the Java leader gives its items to the other one at the next fire, and until then says nothing.
    two.die()
    fleet.gone(two)
    eventually("it waits", lambda: "RESHARDING_WAITS_FOR_JAVA_FIRE" in explain(sidecar).codes())
    found = explain(sidecar)
    assert (set(found.verdicts().values()), found.status) == ({"WAITS"}, 0)
    assert found.told["findings"][0]["subject"] == {"instance_id": one.instance}
    fleet.divide(one)
    assert explain(sidecar).codes() == []
