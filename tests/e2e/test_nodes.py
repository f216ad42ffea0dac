"""What is in ZooKeeper, node by node, as ElasticJob's peers and console expect it."""

from __future__ import annotations

from itertools import chain

import yaml

from support.application import Application
from support.fleet import Fleet
from support.job_nodes import EACH_SECOND, JOB, NEVER
from support.processes import eventually

#: Nodes that may be there or not, and are empty: parents of what comes and goes.
EMPTY_PARENTS = {
    "leader/election/latch",
    "leader/failover",
    "leader/failover/items",
    "leader/failover/latch",
    "leader/sharding",
    "trigger",
}


def expected_at_rest(applications: list[Application], owners: dict[int, str]) -> set[str]:
    """The paths below the job's root when nothing happens."""
    return {
        *("", "config", "servers", "instances", "leader", "leader/election", "leader/election/instance", "sharding"),
        *(f"servers/{application.sidecar.address}" for application in applications),
        *(f"instances/{application.instance}" for application in applications),
        *chain.from_iterable((f"sharding/{item}", f"sharding/{item}/instance") for item in owners),
    }


def assert_at_rest(fleet: Fleet, applications: list[Application]) -> None:
    owners = fleet.tree.owners()
    expected = expected_at_rest(applications, owners)

    def at_rest() -> dict[str, tuple[str, int]] | None:
        nodes = fleet.tree.nodes()
        return nodes if set(nodes) - EMPTY_PARENTS == expected else None

    # The same look is judged that was at rest: the next fire may come at once.
    nodes = eventually("no other nodes than those at rest", at_rest)
    sessions = {}
    for application in applications:
        data, sessions[application.instance] = nodes[f"instances/{application.instance}"]
        assert application.instance.startswith(f"{application.sidecar.address}@-@")
        assert application.instance.count("@-@") == 1
        assert len(application.instance.encode()) <= 50
        assert yaml.safe_load(data) == {
            "jobInstanceId": application.instance,
            "serverIp": application.sidecar.address,
        }
        assert nodes[f"servers/{application.sidecar.address}"] == ("ENABLED", 0)
    assert 0 not in sessions.values()
    assert len(set(sessions.values())) == len(applications)  # a session for each sidecar
    leader, session = nodes["leader/election/instance"]
    assert session == sessions[leader]
    for item, owner in owners.items():
        assert nodes[f"sharding/{item}"] == ("", 0)
        assert nodes[f"sharding/{item}/instance"] == (owner, 0)
    ephemeral = {path for path, (_, owner) in nodes.items() if owner != 0 and not path.startswith("instances/")}
    assert ephemeral == {"leader/election/instance"}
    assert all(nodes[path][0] == "" for path in EMPTY_PARENTS & nodes.keys())
    assert [application.instance for application in applications if application.events("assignment")[-1]["leader"]] == [
        leader
    ]


def test_three_sidecars_at_rest(fleet: Fleet) -> None:
    applications = fleet.three(
        cron=NEVER, sharding_item_parameters="0=Beijing,1=Shanghai", job_parameter="all", description="orders"
    )
    assert sorted(fleet.tree.owners()) == [0, 1, 2, 3, 4, 5]
    assert sorted(len(application.owned()) for application in applications) == [2, 2, 2]
    assert_at_rest(fleet, applications)
    # ElasticJob's lifecycle API counts every child of the namespace as a job.
    assert fleet.tree.client.get_children(fleet.tree.namespace) == [JOB]
    configuration = yaml.safe_load(fleet.tree.get("config") or "")
    assert configuration == {
        "cron": NEVER,
        "description": "orders",
        "disabled": False,
        "failover": False,
        "jobName": JOB,
        "jobParameter": "all",
        "maxTimeDiffSeconds": -1,
        "misfire": True,
        "monitorExecution": True,
        "overwrite": False,
        "reconcileIntervalMinutes": 10,
        "shardingItemParameters": "0=Beijing,1=Shanghai",
        "shardingTotalCount": 6,
        "staticSharding": False,
    } or configuration == {**configuration, "timeZone": "UTC"}


def test_at_rest_again_after_all_that_happened(fleet: Fleet) -> None:
    first, second, third = fleet.three(cron=EACH_SECOND)
    first.wait("executions", lambda events: sum(event["event"] == "end" for event in events) >= 4)
    second.terminate()
    fleet.settle(first, third)
    again = fleet.application(second.sidecar, cron=EACH_SECOND)
    fleet.settle(first, again, third)
    third.kill()
    fleet.settle(first, again)
    back = fleet.application(third.sidecar, cron=EACH_SECOND)
    fleet.settle(first, again, back)
    assert_at_rest(fleet, [first, again, back])


def test_assignments_carry_the_token_of_their_node(fleet: Fleet) -> None:
    applications = fleet.three(cron=NEVER)
    for application in applications:
        told = application.events("assignment")[-1]
        for item in told["items"]:
            _, stat = fleet.tree.client.get(fleet.tree.path(f"sharding/{item}/instance"))
            assert told["tokens"][str(item)] == stat.czxid


def test_running_nodes_exist_exactly_while_items_are_executed(fleet: Fleet) -> None:
    applications = fleet.three(cron=NEVER, sharding_item_parameters="0=Beijing,1=Shanghai", job_parameter="all")
    for application in applications:
        application.command("hold")
    fleet.tree.fire_once()
    for application in applications:
        application.wait("executions", lambda events: sum(event["event"] == "start" for event in events) == 2)
    nodes = fleet.tree.nodes()
    for application in applications:
        session = nodes[f"instances/{application.instance}"][1]
        started = application.events("start")
        assert sorted(event["item"] for event in started) == application.owned()
        for event in started:
            item = event["item"]
            assert nodes[f"sharding/{item}/running"] == (application.instance, session)
            _, stat = fleet.tree.client.get(fleet.tree.path(f"sharding/{item}/running"))
            assert event["fencing_token"] == stat.czxid
            assert event["parameter"] == {0: "Beijing", 1: "Shanghai"}.get(item)
            assert (event["job_parameter"], event["total"], event["source"]) == ("all", 6, "SCHEDULE")
            items = ",".join(map(str, application.owned()))
            assert event["task_id"] == f"{JOB}@-@{items}@-@READY@-@{application.instance}"
    applications[0].command("release")
    mine = applications[0].owned()
    eventually("its running nodes gone", lambda: not [i for i in mine if fleet.tree.get(f"sharding/{i}/running")])
    running = [item for item in range(6) if fleet.tree.get(f"sharding/{item}/running") is not None]
    assert running == sorted(set(range(6)) - set(mine))
    for application in applications[1:]:
        application.command("release")
    assert_at_rest(fleet, applications)
