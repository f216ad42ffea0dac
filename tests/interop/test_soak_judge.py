"""The judge of the soak names the leader that lost a fire: invented histories, and the log of a real server."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.client import KazooClient

from interop.soak_judge import History, Kill, Run, Verdict, judge
from interop.transaction_log import Change, changes
from support.zookeeper import ZooKeeperServer

ROOT = "/ns/orderSync"
JAVA, OTHER_JAVA, OURS, OTHER_OURS = "10.0.1.1@-@71", "10.0.1.2@-@72", "10.0.0.1@-@a-1", "10.0.0.2@-@b-2"

#: A fire, in seconds since the epoch, and how fires follow each other.
FIRE, INTERVAL, RECOVERY = 1_000.0, 2.0, 10.0

LEADER = "leader/election/instance"
NECESSARY = "leader/sharding/necessary"


class Story:
    """An invented history of the nodes: all writes of one time are one transaction."""

    def __init__(self, leader: str, owner: str):
        self._changes: list[Change] = []
        self._zxid = 0
        self.runs: list[Run] = []
        self.kills: list[Kill] = []
        self.write(FIRE - 60, {LEADER: leader, "sharding/0/instance": owner})

    def write(self, time: float, nodes: dict[str, str | None]) -> None:
        self._zxid += 1
        self._changes += [Change(self._zxid, time, f"{ROOT}/{path}", data) for path, data in nodes.items()]

    def divide(self, time: float, owner: str) -> None:
        """As a leader of ours without the flag: the old node goes and the new one comes in one transaction."""
        self._zxid += 1
        path = f"{ROOT}/sharding/0/instance"
        self._changes += [Change(self._zxid, time, path, data) for data in (None, owner)]

    def run(self, started: float, fire: float | None = None, source: str = "") -> None:
        self.runs.append(Run(0, started // INTERVAL * INTERVAL if fire is None else fire, source, started))

    def kill(self, at: float, instance: str) -> None:
        self.kills.append(Kill(at, "a member", instance, frozenset(), at + 1))

    def judged(self, fire: float = FIRE) -> Verdict:
        history = History(self._changes, ROOT)
        return judge(history, self.runs, self.kills, [fire], 1, INTERVAL, RECOVERY)


def told(verdict: Verdict) -> tuple[int, int]:
    """How many fires were lost under a leader of ours, and under a Java leader."""
    return len(verdict.lost_by_ours), len(verdict.lost_by_java)


def test_what_is_executed_is_not_lost() -> None:
    story = Story(OURS, JAVA)
    story.run(FIRE + 0.01)
    assert told(story.judged()) == (0, 0)


@pytest.mark.parametrize("item", range(4))
def test_a_fire_of_an_instance_whose_scheduler_started_after_it(item: int) -> None:
    """Items 6 to 9 of a soak with ElasticJob 3.0.5: our leader resharded 70 ms before the fire."""
    story = Story(OURS, OTHER_OURS)
    story.divide(FIRE - 0.070, JAVA)
    story.run(FIRE - INTERVAL + 0.01, source="SCHEDULE")
    story.run(FIRE + INTERVAL + 0.01 * item)
    (lost,) = story.judged().lost_by_ours
    assert (lost.owner, lost.leader, lost.divided) == (JAVA, OURS, FIRE - 0.070)


def test_a_fire_that_java_read_its_former_items_for() -> None:
    """The fifth of that soak: our leader resharded 15 ms before the fire, and Java's cache was behind."""
    story = Story(OURS, OTHER_OURS)
    story.kill(FIRE - 4, OTHER_OURS)
    story.divide(FIRE - 0.015, OTHER_JAVA)
    (lost,) = story.judged().lost_by_ours
    assert (lost.owner, lost.leader) == (OTHER_JAVA, OURS)


def test_the_same_under_a_java_leader_is_javas() -> None:
    story = Story(JAVA, OTHER_OURS)
    story.divide(FIRE - 0.070, JAVA)
    assert told(story.judged()) == (0, 1)


def test_the_leader_of_the_resharding_counts_not_the_leader_at_the_fire() -> None:
    story = Story(JAVA, OTHER_OURS)
    story.divide(FIRE - 1.5, OTHER_JAVA)
    story.write(FIRE - 1.0, {LEADER: None})
    story.write(FIRE - 0.5, {LEADER: OURS})
    assert told(story.judged()) == (0, 1)


def test_a_sidecar_loses_the_fires_of_its_items_under_any_leader() -> None:
    assert told(Story(JAVA, OURS).judged()) == (1, 0)
    story = Story(JAVA, OTHER_OURS)
    story.divide(FIRE - 0.5, OURS)
    assert told(story.judged()) == (1, 0)


def test_what_a_java_leader_took_from_a_sidecar_right_after_the_fire_is_javas() -> None:
    story = Story(JAVA, OURS)
    story.divide(FIRE + 0.05, OTHER_JAVA)
    assert told(story.judged()) == (0, 1)
    # Under a leader of ours it is not.
    story = Story(OTHER_OURS, OURS)
    story.divide(FIRE + 0.05, JAVA)
    assert told(story.judged()) == (1, 0)


def test_while_the_flag_is_up_the_next_owner_has_the_fire() -> None:
    story = Story(JAVA, OURS)
    story.write(FIRE - 1, {NECESSARY: ""})
    story.write(FIRE + 0.1, {"sharding/0/instance": None})
    story.write(FIRE + 0.2, {"sharding/0/instance": OTHER_JAVA, NECESSARY: None})
    (lost,) = story.judged().lost_by_java
    assert (lost.owner, lost.leader) == (OTHER_JAVA, JAVA)
    # An execution right after the flag's deletion is for that fire, also after the next fire.
    story.run(FIRE + 0.4, fire=FIRE + INTERVAL)
    verdict = story.judged()
    assert (told(verdict), verdict.late) == ((0, 0), 1)


def test_an_execution_long_after_the_flag_is_for_another_fire() -> None:
    story = Story(OURS, JAVA)
    story.write(FIRE - 1, {NECESSARY: ""})
    story.write(FIRE + 0.2, {NECESSARY: None})
    story.run(FIRE + 0.2 + INTERVAL)
    assert told(story.judged()) == (1, 0)


def test_fires_of_a_dead_instance_are_excused_until_its_items_have_another_owner() -> None:
    story = Story(OURS, JAVA)
    story.kill(FIRE - 1, JAVA)
    verdict = story.judged()
    assert (told(verdict), verdict.excused) == ((0, 0), 1)
    story.divide(FIRE + 1.5, OTHER_JAVA)
    assert told(story.judged(FIRE + INTERVAL)) == (1, 0)


def test_a_later_misfire_execution_covers_a_missed_fire() -> None:
    story = Story(OURS, OTHER_OURS)
    story.run(FIRE + 2.5, fire=FIRE + INTERVAL, source="MISFIRE")
    verdict = story.judged()
    assert (told(verdict), verdict.made_up) == ((0, 0), 1)


def test_a_fire_during_an_execution_is_re_run_when_java_has_flagged_it() -> None:
    story = Story(OURS, JAVA)
    story.write(FIRE + 0.5, {"sharding/0/misfire": ""})
    assert told(story.judged()) == (1, 0)
    story.run(FIRE + 2.5)
    verdict = story.judged()
    assert (told(verdict), verdict.made_up) == ((0, 0), 1)
    # A flag that was deleted before is for another fire.
    story = Story(OURS, JAVA)
    story.write(FIRE - 1.5, {"sharding/0/misfire": ""})
    story.write(FIRE - 0.5, {"sharding/0/misfire": None})
    story.run(FIRE + 2.5)
    assert told(story.judged()) == (1, 0)


def test_the_servers_log_has_every_change_in_order(zookeeper: ZooKeeperServer, client: KazooClient) -> None:
    root = "/judged/orderSync"
    other = zookeeper.client()
    try:
        client.create(f"{root}/sharding/0/instance", JAVA.encode(), makepath=True)
        other.create(f"{root}/{LEADER}", OURS.encode(), ephemeral=True, makepath=True)
        transaction = client.transaction()
        transaction.delete(f"{root}/sharding/0/instance")
        transaction.create(f"{root}/sharding/0/instance", OTHER_JAVA.encode())
        _, _second = transaction.commit()
        client.set(f"{root}/sharding/0/instance", OURS.encode())
        stat: Any = client.exists(f"{root}/sharding/0/instance")
    finally:
        other.stop()
        other.close()
    told = changes(zookeeper.data, root)
    owners = [change.data for change in told if change.path.endswith("0/instance")]
    assert owners == [JAVA, None, OTHER_JAVA, OURS]
    leaders = [change.data for change in told if change.path.endswith(LEADER)]
    assert leaders == [OURS, None]
    (last,) = [change for change in told if change.zxid == stat.mzxid]
    assert abs(last.time - stat.mtime / 1000) < 0.001
    assert [change.zxid for change in told] == sorted(change.zxid for change in told)
    history = History(told, root)
    assert history.owner(0, last.time) == OURS
