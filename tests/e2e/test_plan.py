"""The command `plan`: through a sidecar and on ZooKeeper itself, and what the fleet then does."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from support.application import Application
from support.fleet import Fleet
from support.job_nodes import JOB, NEVER
from support.processes import PATIENCE, eventually, sidekeeper_binary


def command(*words: str) -> subprocess.CompletedProcess[str]:
    call = [str(sidekeeper_binary()), "plan", *words]
    return subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE, check=False)


def places(fleet: Fleet, application: Application) -> list[list[str]]:
    """The ways to ask: a sidecar, and ZooKeeper."""
    through = ["--endpoint", f"unix://{application.sidecar.socket}"]
    return [through, ["--zookeeper", fleet.server.address, "--namespace", fleet.namespace]]


def plan(fleet: Fleet, application: Application, *words: str) -> dict[str, Any]:
    """The plan, which is the same everywhere, and changes no node and leaves no watch."""

    with fleet.unchanged():
        answers = []
        for place in places(fleet, application):
            ended = command(JOB, *words, *place, "--json")
            assert ended.returncode == 0, ended.stderr
            answers.append(json.loads(ended.stdout))
            assert answers[-1].pop("as_of")
    assert answers[0] == answers[1]
    planned: dict[str, Any] = answers[0]
    return planned


def owners(planned: dict[str, Any]) -> dict[int, str]:
    return {item["item"]: item["next_instance_id"] for item in planned["items"] if item["next_instance_id"]}


def test_op_5_a_fleet_does_as_planned_and_a_plan_changes_nothing(fleet: Fleet) -> None:
    sidecars = [fleet.sidecar(number) for number in (1, 2, 3)]
    applications = [
        fleet.application(sidecar, cron=NEVER, instance_name=f"w-{number}", sharding_total_count=7)
        for number, sidecar in enumerate(sidecars[:2], 1)
    ]
    fleet.settle(*applications, total=7)
    assert plan(fleet, applications[0])["moves"] == 0
    # One joins.
    joining = plan(fleet, applications[0], "--join-id", "10.0.0.3@-@w-3")
    assert (joining["moves"], joining["all_at_once_reason"]) == (joining["least_moves"], "")
    applications.append(fleet.application(sidecars[2], cron=NEVER, instance_name="w-3", sharding_total_count=7))
    eventually("the plan with the third", lambda: fleet.tree.owners() == owners(joining))
    fleet.settle(*applications, total=7)
    # One leaves.
    leaving = plan(fleet, applications[1], "--leave", applications[0].instance)
    assert leaving["moves"] == leaving["least_moves"] > 0
    said = command(JOB, "--leave", applications[0].instance, *places(fleet, applications[1])[0]).stdout.splitlines()
    assert said[0] == f"{JOB}: {leaving['moves']} of 7 items move, at least {leaving['moves']} have to; one by one"
    assert len([line for line in said if line.split()[1:2] == [applications[0].instance]]) == leaving["moves"]
    applications[0].terminate()
    eventually("the plan without the first", lambda: fleet.tree.owners() == owners(leaving))
    fleet.settle(*applications[1:], total=7)
    # More items, by another strategy.
    more = plan(fleet, applications[1], "--total", "9", "--strategy", "ODEVITY")
    fleet.tree.configure(shardingTotalCount=9, jobShardingStrategyType="ODEVITY")
    eventually("the plan with nine items", lambda: fleet.tree.owners() == owners(more))


def test_a_plan_that_cannot_be_made_is_refused(fleet: Fleet) -> None:
    application = fleet.application(fleet.sidecar(1), cron=NEVER)
    fleet.settle(application)
    for place in places(fleet, application):
        for words, says in (
            ([JOB, "--total", "0"], "sharding_total_count: given `0`; allowed: 1 to 10000"),
            ([JOB, "--leave", "10.0.0.9@-@w-9"], "no online instance `10.0.0.9@-@w-9` that could leave"),
            ([JOB, "--strategy", "BEST"], "allowed: `AVG_ALLOCATION`"),
            (["nobody"], "the registry has no nodes of job `nobody`"),
        ):
            refused = command(*words, *place)
            assert (refused.returncode, says in refused.stderr) == (1, True), refused.stderr
    note = command(JOB, "--join", "2", *places(fleet, application)[0]).stdout
    assert "note: the ids of the instances that join are not known" in note
