"""The judge of the soak: whether each fire of each item of a mixed fleet was executed, by the nodes and the server's clock.

`History` has the job's nodes at each moment: the owner of each item, the leader, and whether the resharding flag was up.
`judge` finds the fires without an execution, and says for each which instance owned the item, and under which leader it was lost.
Both work on values only: `soak.py` collects them, `test_soak_judge.py` invents them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from interop.transaction_log import Change

_LEADER = "leader/election/instance"
_FLAGS = ("leader/sharding/necessary", "leader/sharding/processing")


@dataclass(frozen=True)
class Kill:
    """A member that was killed."""

    at: float
    member: str
    instance: str
    executing: frozenset[int]
    #: When another one took its place.
    replaced: float


@dataclass(frozen=True)
class Run:
    """An execution that came to its end."""

    item: int
    #: The fire that it was for.
    fire: float
    #: Its source. Empty: Java does not report it.
    source: str
    started: float


@dataclass(frozen=True)
class Lost:
    """A fire of an item that was neither executed nor re-run, though its owner lived."""

    fire: float
    item: int
    #: The item's owner at that fire. Empty: it had none.
    owner: str
    #: The leader at the resharding, or at the fire if there was no resharding.
    leader: str
    #: When the item changed hands, if that can be why: when it was given to a Java instance, or taken from one of ours
    #: right after the fire.
    divided: float | None
    #: The instance that executed the item at the fire, or had taken it over, but not for this fire. Empty: none.
    met: str = ""

    @property
    def under_java(self) -> bool:
        """Whether Java lost the fire: a Java instance led, and the item was not a sidecar's all the time."""
        had_all_the_time = bool(self.owner) and not is_java(self.owner) and self.divided is None
        return is_java(self.leader) and not had_all_the_time


@dataclass
class Verdict:
    """What became of all fires."""

    #: Covered by a later misfire re-run.
    made_up: int = 0
    #: Executed late, because of a resharding.
    late: int = 0
    #: Owned by an instance that was dead.
    excused: int = 0
    lost: list[Lost] = field(default_factory=list)

    @property
    def lost_by_ours(self) -> list[Lost]:
        return [one for one in self.lost if not one.under_java]

    @property
    def lost_by_java(self) -> list[Lost]:
        return [one for one in self.lost if one.under_java]


class Node:
    """What was in one node, from when to when."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._values: list[str | None] = []
        self._zxids: list[int] = []

    def add(self, change: Change) -> None:
        # A server's clock may be set back; the order of the transactions may not.
        time = max(change.time, self._times[-1]) if self._times else change.time
        if self._zxids and self._zxids[-1] == change.zxid:
            self._values[-1] = change.data
            return
        self._times.append(time)
        self._values.append(change.data)
        self._zxids.append(change.zxid)

    def at(self, time: float) -> str | None:
        """What was in it at a time. None: there was no such node."""
        place = bisect_right(self._times, time)
        return self._values[place - 1] if place else None

    def last(self, time: float, zxid: int | None = None) -> str | None:
        """What was last in it until a time, or before a transaction; also if it has been deleted since."""
        place = bisect_right(self._times, time) if zxid is None else bisect_right(self._zxids, zxid - 1)
        return next((value for value in reversed(self._values[:place]) if value is not None), None)

    def written(self, first: float, last: float) -> list[tuple[float, int]]:
        """When it was given a value after the first time and until the last, each with the transaction."""
        known = zip(self._times, self._zxids, self._values)
        return [(time, zxid) for time, zxid, value in known if first < time <= last and value is not None]

    def next_absence(self, time: float) -> float | None:
        """The first moment from a time on at which it is not there."""
        if self.at(time) is None:
            return time
        place = bisect_right(self._times, time)
        later = zip(self._times[place:], self._values[place:])
        return next((at for at, value in later if value is None), None)


class History:
    """What the nodes of a job said, and when."""

    def __init__(self, changes: Iterable[Change], root: str):
        self._nodes: dict[str, Node] = {}
        for change in changes:
            self._nodes.setdefault(change.path.removeprefix(f"{root}/"), Node()).add(change)

    def node(self, path: str) -> Node:
        return self._nodes.get(path, Node())

    def leader(self, time: float) -> str:
        """The leader, or the last one before. Empty: there was none."""
        return self.node(_LEADER).last(time) or ""

    def is_dividing(self, time: float) -> bool:
        """Whether no execution could start because a resharding was due or in progress."""
        return any(self.node(flag).at(time) is not None for flag in _FLAGS)

    def divided_by(self, time: float) -> float | None:
        """The first moment from a time on without a resharding."""
        while self.is_dividing(time):
            ends = [self.node(flag).next_absence(time) for flag in _FLAGS]
            if None in ends:
                return None
            time = max(end for end in ends if end is not None)
        return time

    def owner(self, item: int, fire: float) -> str:
        """An item's owner at a fire. During a resharding that is the next owner: all instances wait for the resharding."""
        settled = self.divided_by(fire)
        return self.node(f"sharding/{item}/instance").at(fire if settled is None else settled) or ""

    def given(self, item: int, first: float, last: float) -> list[tuple[float, int]]:
        """When an item got an owner, each with the transaction."""
        return self.node(f"sharding/{item}/instance").written(first, last)

    def leader_before(self, zxid: int) -> str:
        """The leader at a transaction."""
        return self.node(_LEADER).last(0.0, zxid) or ""


def is_java(instance: str) -> bool:
    return instance.rpartition("@-@")[2].isdigit()


def judge(
    history: History,
    runs: Sequence[Run],
    kills: Sequence[Kill],
    fires: Sequence[float],
    items: int,
    interval: float,
    recovery: float,
) -> Verdict:
    """Says what became of each of these fires.

    `interval` is the time from one fire to the next, `recovery` the time after a fault until all fires are whole again.
    """
    done = {(one.fire, one.item) for one in runs}
    by_item: dict[int, list[Run]] = {item: [one for one in runs if one.item == item] for item in range(items)}
    verdict = Verdict()
    for fire in fires:
        for item in range(items):
            if (fire, item) in done:
                continue
            of_item = by_item[item]
            # One misfire re-run covers all fires that were missed until the one that it names.
            makes_up = (one for one in of_item if one.source == "MISFIRE" and one.fire > fire)
            owner = history.owner(item, fire)
            if any(one.started < fire + recovery for one in makes_up) or _is_missed(
                history, item, of_item, fire, recovery
            ):
                verdict.made_up += 1
            elif _is_late(history, of_item, fire, interval):
                verdict.late += 1
            elif any(kill.instance == owner and kill.at - interval <= fire for kill in kills):
                verdict.excused += 1
            else:
                verdict.lost.append(_lost(history, fire, item, owner, interval, recovery))
    return verdict


def _is_missed(history: History, item: int, runs: Iterable[Run], fire: float, recovery: float) -> bool:
    """Whether a fire came during an execution of its item, was flagged as a misfire, and was re-run.

    ElasticJob flags it when that execution has ended, unless it is flagged already, and executes it once more after the
    next one; it does not report that.
    """
    flag = history.node(f"sharding/{item}/misfire")
    flagged = [fire] if flag.at(fire) is not None else [time for time, _ in flag.written(fire, fire + recovery)]
    return bool(flagged) and any(flagged[0] < one.started < fire + recovery for one in runs)


def _is_late(history: History, runs: Iterable[Run], fire: float, interval: float) -> bool:
    """Whether an item was executed as early as possible after a resharding that was in progress at the fire.

    Java does not report for which fire; an instance that waits beyond the next fire executes once for both.
    """
    settled = history.divided_by(fire)
    return settled is not None and any(settled > fire and fire <= one.started < settled + interval for one in runs)


def _lost(history: History, fire: float, item: int, owner: str, interval: float, recovery: float) -> Lost:
    settled = history.divided_by(fire) or fire
    nodes = (history.node(f"sharding/{item}/{name}").at(settled) for name in ("running", "failover"))
    met = next((holder for holder in nodes if holder), "")
    soon = history.given(item, fire, fire + interval)[:1]
    if owner and not is_java(owner):
        given = soon if settled == fire else []
    else:
        given = history.given(item, fire - recovery, settled) or soon
    if not given:
        return Lost(fire, item, owner, history.leader(fire), None, met)
    time, zxid = given[-1]
    return Lost(fire, item, owner, history.leader_before(zxid), time, met)
