"""The configuration changes under a running fleet of both kinds, or does not fit."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
import yaml

from interop.members import JOB_CLASS, LEADERS, TOTAL, Lifecycle, MixedFleet, Ours
from support.job_nodes import JOB
from support.processes import PATIENCE, eventually

KINDS = ["java", "ours"]


@pytest.mark.parametrize("leader", LEADERS)
def test_the_total_goes_up_and_down(fleet: MixedFleet, leader: str) -> None:
    java, ours = fleet.pair(leader)
    for total in (7, 3):
        fleet.tree.configure(shardingTotalCount=total)
        fire = fleet.fire(total=total)
        fleet.divide(java, ours, total=total)
        eventually("no other items", lambda: fleet.tree.children("sharding") == [str(item) for item in range(total)])
        fleet.assert_nothing_lost(fire, total=total)
        fleet.assert_once(fleet.fire(total=total), total=total)
    fleet.assert_clean()


@pytest.mark.parametrize("leader", LEADERS)
def test_the_schedule_changes(fleet: MixedFleet, leader: str) -> None:
    _java, _ours = fleet.pair(leader)
    fleet.tree.configure(cron="0/2 * * * * ?")
    fleet.interval = 2.0
    fires = fleet.wait_fires(3)
    fleet.assert_once(*fires)
    assert [later - earlier for earlier, later in zip(fires, fires[1:])] == [2.0, 2.0]
    fleet.tree.configure(cron="0/3 * * * * ?")
    last = max(one.fire for one in fleet.executions())
    fleet.interval = 3.0

    def every_three_seconds() -> bool:
        fires = sorted({one.fire for one in fleet.executions() if one.fire > last + 2.0})
        return len(fires) >= 3 and all(fire % 3 == 0 and len(fleet.executed(fire)) == TOTAL for fire in fires[:3])

    eventually("the new schedule", every_three_seconds)


@pytest.mark.parametrize("leader", LEADERS)
def test_the_time_zone_changes(fleet: MixedFleet, leader: str) -> None:
    """ElasticJob looks at the time zone only when the schedule changes too; both kinds then fire at the same time."""
    _java, _ours = fleet.pair(leader)
    at = (datetime.now(timezone.utc) + timedelta(seconds=3)).replace(microsecond=0)
    local = at + timedelta(hours=8)
    cron = f"{local.second} {local.minute} {local.hour} {local.day} {local.month} ? {local.year},2099"
    fleet.tree.configure(cron=cron, timeZone="GMT+8:00")
    fleet.fires.append(at.timestamp())
    eventually("all executed", lambda: fleet.executed(at.timestamp()) == set(range(TOTAL)))
    fleet.assert_once(at.timestamp())


@pytest.mark.parametrize("leader", LEADERS)
def test_parameters_change(fleet: MixedFleet, leader: str) -> None:
    java, ours = fleet.pair(leader, sharding_item_parameters="0=a,1=b,2=c,3=d", job_parameter="first")
    fleet.tree.configure(shardingItemParameters="0=A,1=B,2=C", jobParameter="second")
    fire = fleet.fire()
    told = {
        event["item"]: (event["parameter"], event["job_parameter"], event["total"])
        for member in (java, ours)
        for event in member.events("start")
        if event["time"] >= fire
    }
    assert told == {0: ("A", "second", 4), 1: ("B", "second", 4), 2: ("C", "second", 4), 3: (None, "second", 4)}
    for member in (java, ours):
        items = fleet.items_of(member)
        # A list in no order: Java's is that of its assignment, and this is what both write.
        for event in member.events("start"):
            job, told_items, kind, instance_ip, unique = event["task_id"].split("@-@")
            assert (job, kind, f"{instance_ip}@-@{unique}") == (JOB, "READY", member.instance)
        assert sorted(map(int, told_items.split(","))) == items


@pytest.mark.parametrize("leader", LEADERS)
def test_monitoring_is_switched_off_and_on(fleet: MixedFleet, leader: str) -> None:
    java, ours = fleet.pair(leader)
    fleet.tree.configure(monitorExecution=False)
    for member in (java, ours):
        member.command("hold")
    fire = fleet.start_fire()
    eventually("all begun", lambda: len(fleet.told(fire)) == TOTAL)
    assert not [path for path in fleet.tree.nodes() if path.endswith("/running")]
    for member in (java, ours):
        member.command("release")
    eventually("all executed", lambda: fleet.executed(fire) == set(range(TOTAL)))
    fleet.assert_once(fire)
    fleet.tree.configure(monitorExecution=True)
    for member in (java, ours):
        member.command("hold")
    fleet.start_fire()
    for member in (java, ours):
        fleet.wait_running(member, fleet.items_of(member))
        member.command("release")
    fleet.assert_clean()


@pytest.mark.parametrize("leader", LEADERS)
def test_static_sharding(fleet: MixedFleet, leader: str) -> None:
    first = fleet.member(leader, 1, static_sharding=True)
    fleet.divide(first)
    other = "ours" if leader == "java" else "java"
    second = fleet.member(other, 1, static_sharding=True)
    for _ in range(2):
        fire = fleet.fire()
        assert {one.member for one in fleet.told(fire)} == {first.name}
    assert fleet.tree.children("instances") == sorted([first.instance, second.instance])
    # A change of the total causes a resharding all the same.
    fleet.tree.configure(shardingTotalCount=6)
    fleet.fire(total=6)
    fleet.divide(first, second, total=6)


@pytest.mark.parametrize("leader", LEADERS)
def test_static_sharding_gives_a_name_its_items_again(fleet: MixedFleet, leader: str) -> None:
    """H36: an id with a process's number never comes back, and its items wait; one with a name does."""
    static = {"static_sharding": True}
    named = {**static, "instance_name": "worker-0"}
    if leader == "java":
        java, ours = fleet.java(1, **static), fleet.ours(1, **named)
    else:
        # Another one leads, so that ours can go and come back.
        fleet.ours(2, **static)
        java, ours = fleet.java(1, **static), fleet.ours(1, **named)
    fleet.tree.configure(shardingTotalCount=6)
    fleet.fire(total=6)
    eventually("divided", lambda: len(fleet.items_of(ours)) >= 2)
    owners = fleet.tree.owners()
    mine = fleet.items_of(ours)
    for end in (Ours.leave, Ours.die):
        end(ours)
        eventually("gone", lambda: ours.instance not in fleet.tree.children("instances"))
        fire = fleet.fire(set(range(6)) - set(mine), total=6)
        assert fleet.executed(fire).isdisjoint(mine)
        again = fleet.ours(1, **named)
        assert again.instance == ours.instance == f"{again.address}@-@worker-0"
        ours = again
        fire = fleet.fire(total=6)
        assert {one.item for one in fleet.told(fire) if one.member == again.name} >= set(mine)
        assert fleet.tree.owners() == owners
    assert java.instance in fleet.tree.children("instances")


def test_another_java_class_is_refused_by_us(fleet: MixedFleet) -> None:
    java = fleet.java(1)
    ours = fleet.ours(1, job_class="com.example.OtherJob")
    assert ours.popen.wait(PATIENCE) != 0
    assert "com.example.OtherJob" in ours.log.read_text()
    assert JOB_CLASS in ours.log.read_text()
    assert fleet.tree.children("instances") == [java.instance]


def test_java_refuses_the_class_of_another_job(fleet: MixedFleet) -> None:
    ours = fleet.ours(1, job_class="com.example.OtherJob")
    java = fleet.java(1)
    [refused] = java.wait("refused", lambda events: [one for one in events if one["event"] == "refused"])
    assert "com.example.OtherJob" in refused["message"]
    assert fleet.tree.children("instances") == [ours.instance]


@pytest.mark.parametrize("class_given", [True, False])
def test_the_root_has_the_class_that_java_expects(fleet: MixedFleet, class_given: bool) -> None:
    first = fleet.ours(1) if class_given else fleet.ours(1, job_class="")
    java = fleet.java(1)
    assert fleet.tree.get("") == (JOB_CLASS if class_given else "")
    fleet.divide(first, java)
    assert fleet.ours(2, job_class="").instance  # without a class it joins what there is


@pytest.mark.parametrize("kind", KINDS)
def test_only_overwrite_replaces_the_configuration(fleet: MixedFleet, lifecycle: Lifecycle, kind: str) -> None:
    other = "ours" if kind == "java" else "java"
    fleet.member(other, 1, description="first", job_parameter="0123")
    fleet.member(kind, 1, description="second")
    assert yaml.safe_load(fleet.tree.get("config") or "")["description"] == "first"
    fleet.member(kind, 2, description="third", overwrite=True, job_parameter="* & 'x': y")
    eventually("overwritten", lambda: yaml.safe_load(fleet.tree.get("config") or "")["description"] == "third")
    # Each kind reads the same, also when the other kind wrote it.
    told = lifecycle.call("JobConfiguration", "getJobConfiguration", JOB)
    assert (told["description"], told["jobParameter"], told["overwrite"]) == ("third", "* & 'x': y", True)
