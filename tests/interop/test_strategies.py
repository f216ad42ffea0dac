"""Both kinds of leaders shard alike, with each of ElasticJob's strategies."""

from __future__ import annotations

from typing import Any

import pytest

from interop.members import LEADERS, MixedFleet, elasticjob_version
from support.job_nodes import JOB
from support.processes import eventually

NEW_IN_3_0_5 = pytest.mark.skipif(
    elasticjob_version() < (3, 0, 5), reason="SINGLE_SHARDING_BALANCE is not in ElasticJob before 3.0.5"
)

TOTAL = 8


def hash_code(text: str) -> int:
    """Java's String.hashCode, of ASCII."""
    code = 0
    for character in text:
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    return code - (1 << 32) if code >= 1 << 31 else code


def average(instances: list[str]) -> dict[int, str]:
    each, rest = divmod(TOTAL, len(instances))
    owners = {}
    for number, instance in enumerate(instances):
        owners.update({number * each + item: instance for item in range(each)})
        if number < rest:
            owners[len(instances) * each + number] = instance
    return owners


def expected(strategy: str, instances: list[str]) -> dict[int, str]:
    descending = sorted(instances, reverse=True)
    if strategy == "ODEVITY" and hash_code(JOB) % 2 == 0:
        descending.reverse()
    if strategy == "ROUND_ROBIN":
        offset = abs(hash_code(JOB)) % len(descending)
        descending = descending[offset:] + descending[:offset]
    return average(descending)


@pytest.mark.parametrize("leader", LEADERS)
@pytest.mark.parametrize("strategy", ["AVG_ALLOCATION", "ODEVITY", "ROUND_ROBIN"])
def test_each_strategy_shards_as_java_does(fleet: MixedFleet, leader: str, strategy: str) -> None:
    job: dict[str, Any] = {"job_sharding_strategy_type": strategy, "sharding_total_count": TOTAL}
    java, ours = fleet.pair(leader, **job)
    members = [java, ours, fleet.ours(2, **job)]
    fleet.divide(*members, total=TOTAL)
    assert fleet.tree.owners() == expected(strategy, [member.instance for member in members])
    fleet.assert_once(fleet.fire(total=TOTAL), total=TOTAL)


@NEW_IN_3_0_5
@pytest.mark.parametrize("leader", LEADERS)
def test_balance_of_several_items(fleet: MixedFleet, leader: str) -> None:
    fleet.pair(leader, job_sharding_strategy_type="SINGLE_SHARDING_BALANCE", sharding_total_count=3)
    fleet.assert_once(fleet.fire(total=3), total=3)


@NEW_IN_3_0_5
@pytest.mark.parametrize("leader", LEADERS)
def test_the_relay_of_one_item(fleet: MixedFleet, leader: str) -> None:
    """With one item and this strategy, the servers take turns, one execution each."""
    job: dict[str, Any] = {"job_sharding_strategy_type": "SINGLE_SHARDING_BALANCE", "sharding_total_count": 1}
    first = fleet.member(leader, 1, **job)
    second = fleet.member("ours" if leader == "java" else "java", 1, **job)
    third = fleet.ours(2, **job)
    for member in (first, second, third):
        # Java checks the rotation at its own fire: an instance that has ended by then, and has named Java, makes Java execute again.
        member.command("duration 500")
    members = {member.name: member.address for member in (first, second, third)}
    turns: list[str] = []
    for _ in range(7):
        executed, following = take_turn(fleet, members)
        assert not turns or executed == turns[-1]
        turns.append(following)
    assert set(turns[:3]) == set(members.values())
    assert turns[3:6] == turns[:3]


def take_turn(fleet: MixedFleet, members: dict[str, str]) -> tuple[str, str]:
    """Has the job fire; returns the server that has executed it, and the one that it has named to be next."""
    fire = fleet.fire(total=1)
    fleet.assert_once(fire, total=1)
    [executed] = [members[one.member] for one in fleet.told(fire)]

    def named() -> str | None:
        told = fleet.tree.get("next-job-instance-ip")
        return None if told == executed else told

    following = eventually("the next one named", named)
    assert following is not None
    return executed, following
