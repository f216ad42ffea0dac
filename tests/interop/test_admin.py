"""Operators' calls that have no equal in ElasticJob, to fleets with Java instances: plans, notes, request ids, cancels of a whole fleet."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from interop.members import LEADERS, TOTAL, Lifecycle, MixedFleet, told
from support.explain import explain
from support.job_nodes import JOB
from support.processes import PATIENCE, eventually, sidekeeper_binary
from support.sidecar import Sidecar


def planned(sidecar: Sidecar, *words: str) -> tuple[dict[str, Any], dict[int, str]]:
    """A plan, and the owners that it names."""
    plan = told(sidecar, "plan", JOB, *words)
    assert plan["all_at_once_reason"], plan
    return plan, {item["item"]: item["next_instance_id"] for item in plan["items"] if item["next_instance_id"]}


@pytest.mark.parametrize("strategy", ["AVG_ALLOCATION", "ODEVITY", "ROUND_ROBIN"])
def test_a_java_leader_divides_the_items_as_planned(fleet: MixedFleet, strategy: str) -> None:
    job: dict[str, Any] = {"sharding_total_count": 7, "job_sharding_strategy_type": strategy}
    one, two = fleet.java(1, **job), fleet.java(2, **job)
    fleet.assert_leads(one)
    fleet.divide(one, two, total=7)
    sidecar = fleet.observer()
    assert planned(sidecar)[0]["moves"] == 0
    # An instance of a sidecar joins.
    plan, owners = planned(sidecar, "--join-id", "10.0.0.4@-@w-4")
    assert plan["moves"] >= plan["least_moves"] > 0
    third = fleet.ours(4, instance_name="w-4", **job)
    assert third.instance == "10.0.0.4@-@w-4"
    fleet.divide(one, two, third, total=7)
    assert fleet.tree.owners() == owners
    # More items.
    _, owners = planned(sidecar, "--total", "9")
    fleet.tree.configure(shardingTotalCount=9)
    fleet.divide(one, two, third, total=9)
    assert fleet.tree.owners() == owners
    # A Java instance leaves.
    _, owners = planned(sidecar, "--leave", two.instance)
    two.leave()
    fleet.gone(two)
    fleet.divide(one, third, total=9)
    assert fleet.tree.owners() == owners
    assert planned(sidecar)[0]["moves"] == 0


def disablings(sidecar: Sidecar) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = told(sidecar, "job", JOB)["disablings"]
    return found


def test_elasticjobs_console_sees_a_disabling_with_a_note_and_enabling_by_it_forgets_the_note(
    fleet: MixedFleet, lifecycle: Lifecycle
) -> None:
    one, two = fleet.java(1), fleet.java(2)
    fleet.divide(one, two)
    sidecar = fleet.observer()
    why = ["--reason", "repair", "--until", "2h", "--yes"]
    # No sidecar has an instance that could enable in two hours.
    assert told(sidecar, "disable", JOB, "--item", "1", *why)["ends_by_itself"] is False
    [noted] = disablings(sidecar)
    assert (noted["item"], noted["reason"]) == (1, "repair")
    assert all(noted[key] for key in ("author", "since", "until"))
    shown = lifecycle.call("ShardingStatistics", "getShardingInfo", JOB)
    assert [one["status"] for one in sorted(shown, key=lambda one: one["item"])][1] == "DISABLED"
    assert set(fleet.counts(fleet.fire({0, 2, 3}))) == {0, 2, 3}
    lifecycle.call("ShardingOperate", "enable", JOB, "1")
    assert disablings(sidecar) == []
    fleet.assert_once(fleet.fire())
    # It disables the item again, and nobody knows why.
    lifecycle.call("ShardingOperate", "disable", JOB, "1")
    [forgotten] = disablings(sidecar)
    assert (forgotten["item"], forgotten["reason"], forgotten["author"], forgotten["until"]) == (1, "", "", None)
    assert explain(sidecar).of(1)[0]["message"] == "the item is disabled"
    told(sidecar, "enable", JOB, "--item", "1")

    told(sidecar, "disable", JOB, "--server", two.address, *why)
    [noted] = disablings(sidecar)
    assert (noted["server_ip"], noted["reason"]) == (two.address, "repair")
    assert all(noted[key] for key in ("author", "until"))
    servers = {one["serverIp"]: one for one in lifecycle.call("ServerStatistics", "getAllServersBriefInfo")}
    assert {ip: str(one["disabledJobsNum"]) for ip, one in servers.items()} == {one.address: "0", two.address: "1"}
    fleet.divide(one)
    lifecycle.operate("enable", JOB, two.address)
    assert disablings(sidecar) == []
    lifecycle.operate("disable", JOB, two.address)
    [forgotten] = disablings(sidecar)
    assert (forgotten["server_ip"], forgotten["reason"], forgotten["author"]) == (two.address, "", "")
    lifecycle.operate("enable", JOB, two.address)
    fleet.divide(one, two)


@pytest.mark.parametrize("leader", LEADERS)
def test_a_sidecar_keeps_the_end_of_a_disabling_beside_java_instances(fleet: MixedFleet, leader: str) -> None:
    fleet.pair(leader)
    sidecar = fleet.observer()
    assert told(sidecar, "disable", JOB, "--item", "1", "--until", "3s", "--yes")["ends_by_itself"] is True
    eventually("enabled", lambda: fleet.tree.get("sharding/1/disabled") is None)
    assert disablings(sidecar) == []
    fleet.assert_once(fleet.fire())


def test_a_repeated_trigger_of_java_instances_makes_them_fire_once(fleet: MixedFleet) -> None:
    one, two = fleet.java(1), fleet.java(2)
    fleet.divide(one, two)
    sidecars = [fleet.observer(3), fleet.observer(4)]
    before = len(fleet.executions())

    def run(sidecar: Sidecar, request_id: str, fires: int) -> None:
        """Triggers, and waits until each item has been executed so many times."""
        answer = told(sidecar, "trigger", JOB, "--request-id", request_id)
        assert sorted(answer["triggered_instance_ids"]) == sorted([one.instance, two.instance])
        eventually("executed", lambda: len(fleet.executions()) == before + fires * TOTAL)
        eventually("all triggers taken up", lambda: fleet.tree.children("trigger") == [])
        fleet.assert_clean()
        assert len(fleet.executions()) == before + fires * TOTAL

    run(sidecars[0], "mine", fires=1)
    # A repetition at another sidecar has the same answer, and triggers nobody: a further request executes each item once more only.
    run(sidecars[1], "mine", fires=1)
    run(sidecars[1], "another", fires=2)
    triggers = told(sidecars[0], "triggers", JOB)["triggers"]
    assert {(one["request_id"], one["state"]) for one in triggers} == {
        ("mine", "TRIGGER_STATE_DONE"),
        ("another", "TRIGGER_STATE_DONE"),
    }


@pytest.mark.parametrize("leader", LEADERS)
def test_a_cancel_of_the_whole_fleet_names_the_java_instances_that_it_does_not_reach(
    fleet: MixedFleet, leader: str
) -> None:
    java, ours = fleet.pair(leader)
    sidecar = fleet.observer()
    of_java, of_ours = fleet.items_of(java), fleet.items_of(ours)
    for member in (java, ours):
        member.command("hold")
    fire = fleet.start_fire()
    fleet.wait_running(java, of_java)
    fleet.wait_running(ours, of_ours)
    reached = told(sidecar, "cancel", JOB, "--fleet")["fleet_executions"]
    reach = {one["item"]: (one["instance_id"], one["reach"]) for one in reached}
    assert reach == {
        **dict.fromkeys(of_java, (java.instance, "CANCEL_REACH_JAVA")),
        **dict.fromkeys(of_ours, (ours.instance, "CANCEL_REACH_SIDECAR")),
    }
    ours.wait(
        "cancelled", lambda events: {one["item"] for one in events if one["event"] == "cancelled"} == set(of_ours)
    )
    # The executions of the Java instance go on.
    assert all(fleet.tree.get(f"sharding/{item}/running") is not None for item in of_java)
    for member in (java, ours):
        member.command("release")
    eventually("Java's have ended", lambda: fleet.executed(fire) == set(of_java))
    fleet.assert_clean()
    # No later execution is cancelled.
    fleet.assert_once(fleet.fire())


@pytest.mark.parametrize("whom", ["a sidecar", "ZooKeeper"])
def test_each_admin_call_works_for_a_job_of_java_instances_alone(
    fleet: MixedFleet, lifecycle: Lifecycle, whom: str
) -> None:
    """Through a sidecar without applications, and without any; ElasticJob's lifecycle API gives the same answers."""
    one, two = fleet.java(1), fleet.java(2)
    fleet.divide(one, two)
    place = ["--zookeeper", fleet.server.address, "--namespace", fleet.namespace]
    if whom == "a sidecar":
        place = ["--endpoint", f"unix://{fleet.observer().socket}"]

    def call(*words: str, status: int = 0) -> str:
        done = subprocess.run(
            [str(sidekeeper_binary()), *words, *place], capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == status, (words, done)
        return done.stdout + done.stderr

    def told(*words: str) -> Any:
        return json.loads(call(*words, "--json"))

    def same_items() -> bool:
        theirs = sorted(lifecycle.call("ShardingStatistics", "getShardingInfo", JOB), key=lambda item: item["item"])
        ours = told("items", JOB)["items"]
        assert [(item["item"], item["instance_id"]) for item in ours] == [
            (item["item"], item["instanceId"]) for item in theirs
        ]
        assert [item["disabled"] for item in ours] == [item["status"] == "DISABLED" for item in theirs]
        return True

    # What the job is.
    [brief] = told("jobs")["jobs"]
    theirs = lifecycle.call("JobStatistics", "getJobBriefInfo", JOB)
    assert (brief["job_name"], brief["cron"], brief["java_instance_count"]) == (JOB, theirs["cron"], 2)
    assert (brief["state"], theirs["status"]) == ("JOB_STATE_OK", "OK")
    assert {instance["instance_id"] for instance in told("instances", JOB)["instances"]} == {one.instance, two.instance}
    assert {server["server_ip"] for server in told("servers")["servers"]} == {one.address, two.address}
    assert same_items()
    configuration = lifecycle.call("JobConfiguration", "getJobConfiguration", JOB)
    assert told("job", JOB)["configuration"]["sharding_total_count"] == configuration["shardingTotalCount"]
    # Why it runs, and how its items would move.
    assert told("explain", JOB)["findings"] == []
    assert told("plan", JOB)["moves"] == 0
    call("doctor")
    call("bundle", "--output", str(fleet.folder / "bundle"))
    call("backup", "--output", str(fleet.folder / "backup"))
    # Triggers: one of all items, and none of an item, because a Java instance cannot be told which.
    before = len(fleet.executions())
    assert sorted(told("trigger", JOB)["triggered_instance_ids"]) == sorted([one.instance, two.instance])
    eventually("each item once more", lambda: len(fleet.executions()) == before + TOTAL)
    nodes = fleet.tree.children("trigger")
    assert "(TRIGGER_NOT_SUPPORTED)" in call("trigger", JOB, "--item", "1", status=1)
    assert fleet.tree.children("trigger") == nodes
    told("triggers", JOB)
    # Items and servers are disabled and enabled.
    call("disable", JOB, "--item", "1", "--yes")
    assert same_items()
    assert told("items", JOB)["items"][1]["disabled"]
    call("enable", JOB, "--item", "1")
    assert same_items()
    for verb, disabled in (("disable", 1), ("enable", 0)):
        call(verb, JOB, "--server", two.address, *(["--yes"] if verb == "disable" else []))
        servers = {
            server["serverIp"]: server for server in lifecycle.call("ServerStatistics", "getAllServersBriefInfo")
        }
        assert str(servers[two.address]["disabledJobsNum"]) == str(disabled)
    # Its configuration, from a file.
    file = fleet.folder / "job.yaml"
    file.write_text((fleet.tree.get("config") or "").replace("jobParameter: ''", "jobParameter: 'of a file'"))
    call("diff", str(file), status=2)
    call("apply", "-f", str(file), "--yes")
    call("diff", str(file))
    assert lifecycle.call("JobConfiguration", "getJobConfiguration", JOB)["jobParameter"] == "of a file"
    # Its executions are Java's own.
    if whom == "a sidecar":
        assert told("cancel", JOB, "--fleet")["fleet_executions"] == []
    # Its instances and servers, and itself.
    call("remove", JOB, "--yes", status=1)
    for member in (two, one):
        call("stop", JOB, "--instance", member.instance, "--yes")
        fleet.gone(member)
    call("remove", JOB, "--server", two.address, "--yes")
    assert fleet.tree.children("servers") == [one.address]
    call("remove", JOB, "--yes")
    assert lifecycle.call("JobStatistics", "getJobBriefInfo", JOB) is None
    call("restore", str(fleet.folder / "backup"), "--yes")
    assert lifecycle.call("JobConfiguration", "getJobConfiguration", JOB) == configuration
