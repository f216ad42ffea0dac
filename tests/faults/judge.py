"""Checks the promises by the applications' journals, the store's log and ZooKeeper; it uses nothing of the project.

**At any time** (`Judge.always`):

- *At once.* No item is being executed by two applications at once, if both obey (P2). An execution lasts from the
  handler's begin until its end, or until it has stopped for a Cancel, or until its process has died. A stopped process
  executes nothing; when it wakes it may go on for `WAKE` before it has read its messages, and
  the store must refuse its writes then. A stopped *sidecar* excuses nothing.
- *Fenced.* The tokens that the store accepted for an item strictly grow, and no commit was accepted after a claim
  with a higher token (P3). This holds for applications that ignore what they are told, too.
- *Growing tokens.* Of two executions of an item the later one has the higher token (P3), unless the process that
  began the older one had been stopped between the Execute and the begin.
- *Cancelled in time.* When ZooKeeper ends a session, all executions that began in it have stopped (P4), unless
  the application ignores Cancels or is stopped, or the sidecar has just been stopped and can cancel nothing.
- *Once.* A fire of an item has been executed to its end at most once by the schedule.
- *Instant.* A FAILOVER is told for the instant of an execution of that item that was interrupted. If the latest
  execution before it was interrupted, that is the one. If not, the latest execution for its instant before it has not
  ended well, or its result may not have been recorded: within `RECORDING` after its end, and before the FAILOVER began,
  its application had died or was stopped, or its sidecar was stopped or replaced, or had lost its stream or its
  connection. If no journal has an execution for that instant, one was started that no application read: since the
  instant some application has died, was stopped or has left, or some session has begun or ended.
- *Checkpoint.* No execution gets a checkpoint that was written for another instant or item. A FAILOVER gets the last
  checkpoint that was recorded for its instant before its sidecar started it, or a later one, whose answer was lost.

**When faults have stopped:**

- *Redone.* Each execution that was interrupted was told again for its own instant, by a FAILOVER with a higher token.
  It was interrupted if it has begun and was not committed: its application died, got a Cancel, or was
  refused by the store. A misfire re-run does not replace it: that has another instant and another checkpoint.
- *Surplus.* A misfire re-run (source MISFIRE) names the newest fire that it covers. That fire has
  come, no execution has begun for it before, and no earlier re-run has covered it.
- *Lost.* Each fire of each item since the first assignment is settled (`Judge.missing`). It has been, if an
  execution for that instant was committed; or if one that makes up for missed fires was committed that names it or a
  later one, because one execution makes up for all fires that were missed until the one it names; what was
  interrupted counts as committed when another application has executed it for the same instant, and a FAILOVER of
  what a killed application had not read yet may make up for what was missed, too. It has to come as soon as the item
  is free: when no more than `BEFORE_MAKING_UP` executions by the schedule began in between.

ElasticJob promises nothing, and a lost fire is excused, only in this case: the item's owner was not able to execute
when it fired (dead, stopped, or without a session), and whoever executed the item next had attached after the fire.
An instance does not re-run fires from before its attachment: maybe the job had no instance on purpose. An execution that was
interrupted by its application's death or by a Cancel is no excuse: with failover another instance has to execute it.

**In a fleet of two versions** all of this is asked, but of *Instant*, *Checkpoint*, *Redone* and *Surplus* only what
sidecars of this version did among themselves (`Judge._alone`): they executed the item from before the interruption
until the FAILOVER, owned it and led meanwhile. A sidecar of the previous release may begin what makes up for missed
fires before the FAILOVER, and note that in place of what was interrupted. Its FAILOVER may have the instant of another
fire, and may leave a plan behind that becomes a re-run for the same instant. It may delete the flag of an interrupted item, so
that no instance takes the item over: *Redone* and *Lost* excuse an interruption whose flag was deleted so, by ZooKeeper's log
(`dropped_flags.py`), before the item was executed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from faults.fenced_store import Write

#: How long an application that was stopped may take to read its messages when it continues, in seconds.
WAKE = 1.0

#: How many executions by the schedule may come before one that makes up for a fire that was missed before them: one
#: that was due together with it, and one of a new owner.
BEFORE_MAKING_UP = 2

#: How long the result of an execution may be on its way before its sidecar and its application know what keeps it from
#: being recorded, in seconds: the longest session, and the time to wake.
RECORDING = 6.0 + WAKE

#: How long after an execution was stopped because of its lease its session, if that was lost, has ended at the latest or
#: been followed by another one, in seconds: above the safety margin of a session.
LIVED_ON = 3.0

#: How long after the order to kill an application its sidecar may start executions for it, in seconds: the process has
#: to end, and the sidecar to read the end of its stream.
DYING = 0.5

ENDS = ("end", "cancelled", "refused")


@dataclass
class Record:
    """One process of an application, and what was done to it. Times are monotonic."""

    name: str
    #: Which slot it was in.
    slot: int
    obeys: bool
    #: When it was killed, or ended in peace.
    died: float | None
    #: When it was stopped, and when it was let go on.
    stops: list[tuple[float, float]]
    #: Its journal.
    entries: list[dict[str, Any]]
    #: When it was asked to end in peace.
    left: float | None = None
    #: Whether its sidecar is of the previous release.
    previous: bool = False


@dataclass(frozen=True)
class Session:
    """A session of a sidecar with ZooKeeper. Times are wall clock."""

    slot: int
    session: str
    opened: float
    #: When ZooKeeper ended it, because it had not heard from it. None: it did not.
    expired: float | None
    #: When the slot's sidecars were stopped, and when they were let go on.
    stops: list[tuple[float, float]]

    def was_asleep(self) -> bool:
        """Whether the sidecar was stopped when the session ended, or had only just woken."""
        assert self.expired is not None
        return any(stopped <= self.expired <= woken + WAKE for stopped, woken in self.stops)


@dataclass
class Execution:
    """One execution, as its application journalled it. Times are monotonic, fires are wall clock."""

    application: Record
    item: int
    token: int
    source: str
    scheduled: float
    #: When its sidecar has begun it: the application may have been stopped then, and have begun later.
    fired: float
    start: float
    start_wall: float
    #: When it ended, whatever way. None: the journal says nothing.
    end: float | None = None
    #: end, cancelled, refused, or empty.
    outcome: str = ""
    reason: str = ""
    #: Whether it got a Cancel and went on.
    ignored: bool = False
    #: The checkpoint that it was given, as an earlier execution wrote it.
    given: dict[str, Any] | None = None
    #: Its checkpoints that were recorded: when that was answered, and their numbers.
    recorded: list[tuple[float, int]] = field(default_factory=list)

    @property
    def told(self) -> float:
        """When its sidecar has begun it, monotonic."""
        return self.start - (self.start_wall - self.fired)

    @property
    def interrupted(self) -> bool:
        """Whether it has begun and will never be committed."""
        died = not self.outcome and self.application.died is not None
        return died or self.outcome in ("cancelled", "refused")

    @property
    def name(self) -> str:
        return self.application.name

    @property
    def over(self) -> float:
        """When it was over at the latest."""
        died = self.application.died
        return min(one for one in (self.end, died, float("inf")) if one is not None)

    def spans(self) -> list[tuple[float, float]]:
        """When it was really being executed: without the times at which its process was stopped."""
        spans = []
        begin = self.start
        for stopped, woken in self.application.stops:
            if woken <= begin or stopped >= self.over:
                continue
            if stopped > begin:
                spans.append((begin, stopped))
            begin = woken + WAKE
            if begin >= self.over:
                return spans
        return [*spans, (begin, self.over)]

    def __str__(self) -> str:
        end = f"{self.end:.3f}" if self.end is not None else "-"
        return (
            f"{self.name} item {self.item} token {self.token:#x} {self.source} for {self.scheduled:.0f}: "
            f"{self.start:.3f}..{end} {self.outcome} {self.reason}".rstrip()
        )


@dataclass(frozen=True)
class Problem:
    """Something that must not be."""

    kind: str
    text: str
    executions: Sequence[Execution] = field(default=())

    def __str__(self) -> str:
        return "\n    ".join([f"{self.kind}: {self.text}", *map(str, self.executions)])


class Judge:
    """Looks at everything when it is over."""

    def __init__(
        self,
        applications: Iterable[Record],
        writes: Sequence[Write] = (),
        sessions: Sequence[Session] = (),
        unledgered: Collection[int] = (),
        reigns_of_previous: Sequence[tuple[float, float]] = (),
        dropped_flags: Sequence[tuple[int, float]] = (),
    ):
        """`unledgered`: items whose entry in the ledger was deleted. `reigns_of_previous`: from when until when sidecars of
        the previous release led, monotonic. `dropped_flags`: items whose flags the previous release has deleted without a
        takeover, and when; wall clock."""
        self.unledgered = unledgered
        self.dropped_flags = dropped_flags
        self.reigns_of_previous = reigns_of_previous
        self.applications = list(applications)
        self.writes = writes
        self.sessions = sessions
        #: How long before a session's end applications had got the Cancels of its executions, in seconds.
        self.margins: list[float] = []
        self.executions = sorted(
            (one for application in self.applications for one in self._executions(application)),
            key=lambda one: one.start,
        )
        self.excused = 0

    def _executions(self, application: Record) -> list[Execution]:
        found: dict[str, Execution] = {}
        for entry in application.entries:
            if entry["event"] == "start":
                found[entry["execution"]] = Execution(
                    application=application,
                    item=entry["item"],
                    token=entry["token"],
                    source=entry["source"],
                    scheduled=entry["scheduled"],
                    fired=entry["fired"],
                    start=entry["time"],
                    start_wall=entry["wall"],
                    given=entry.get("checkpoint"),
                )
            elif entry["event"] == "checkpoint":
                found[entry["execution"]].recorded.append((entry["time"], entry["number"]))
            elif entry["event"] == "ignored":
                found[entry["execution"]].ignored = True
            elif entry["event"] in ENDS:
                execution = found[entry["execution"]]
                execution.end = entry["time"]
                execution.outcome = entry["event"]
                execution.reason = entry.get("reason") or entry.get("write") or ""
        return list(found.values())

    def of(self, item: int) -> list[Execution]:
        return [one for one in self.executions if one.item == item]

    def items(self) -> list[int]:
        return sorted({one.item for one in self.executions})

    def always(self) -> list[Problem]:
        """What was wrong at some time."""
        return [
            *self.at_once(),
            *self.fenced(),
            *self.tokens(),
            *self.late(),
            *self.once(),
            *self.instants(),
            *self.checkpoints(),
        ]

    def late(self) -> list[Problem]:
        """Executions without a Cancel before the end of their session."""
        problems = []
        self.margins = []
        for session in self.sessions:
            if session.expired is None or session.was_asleep():
                continue
            for one in self.executions:
                if (
                    not one.application.obeys
                    or one.application.slot != session.slot
                    or not self._begun_in(one, session)
                ):
                    continue
                ahead = session.expired - (one.over + one.start_wall - one.start)
                at = session.expired - (one.start_wall - one.start)
                if ahead >= 0:
                    self.margins += [ahead] if one.reason == "LEASE_LOST" else []
                elif not any(stopped <= at <= woken + WAKE for stopped, woken in one.application.stops):
                    text = f"item {one.item} was being executed {-ahead:.3f} s after the end of {session}"
                    problems.append(Problem("late", text, (one,)))
        return problems

    def _stopped_early(self, one: Execution) -> bool:
        """Whether the application stopped by itself, because its lease had ended, and the session
        lived on: its sidecar came back in the last moment, and records a failed execution, not an interrupted one."""
        own = [session for session in self.sessions if session.slot == one.application.slot]
        session = next((session for session in own if self._begun_in(one, session)), None)
        if one.reason != "LEASE_LOST" or one.end is None or session is None:
            return False
        end = one.start_wall + one.end - one.start
        after = [other.opened for other in own if other.opened > session.opened]
        ended = [at for at in (session.expired, *after) if at is not None]
        return all(at > end + LIVED_ON for at in ended)

    def _begun_in(self, one: Execution, session: Session) -> bool:
        """Whether a session was its slot's latest when an execution began."""
        opened = [other for other in self.sessions if other.slot == session.slot and other.opened <= one.fired]
        latest = max(opened, key=lambda other: other.opened, default=None)
        return latest is session and (session.expired is None or one.fired <= session.expired)

    def at_once(self) -> list[Problem]:
        problems = []
        for item in self.items():
            spans = sorted(
                ((begin, end, index, one) for index, one in enumerate(self.of(item)) for begin, end in one.spans()),
                key=lambda span: span[:3],
            )
            latest: tuple[float, float, int, Execution] | None = None
            for span in spans:
                begin, end, _, one = span
                if not one.application.obeys:
                    continue
                if latest is not None and begin < latest[1] and one is not latest[3]:
                    over = min(end, latest[1]) - begin
                    text = f"item {item} was executed twice at once, for {over * 1000:.0f} ms"
                    if self._sidecar_stopped(latest[3].application.slot, begin + one.start_wall - one.start):
                        text += "; the first one's sidecar was stopped, and nobody told the application"
                    problems.append(Problem("at once", text, (latest[3], one)))
                if latest is None or end > latest[1]:
                    latest = span
        return problems

    def _sidecar_stopped(self, slot: int, at: float) -> bool:
        stops = {stop for session in self.sessions if session.slot == slot for stop in map(tuple, session.stops)}
        return any(stopped <= at <= woken + WAKE for stopped, woken in stops)

    def fenced(self) -> list[Problem]:
        problems = []
        highest: dict[int, int] = {}
        for write in self.writes:
            if not write.accepted:
                continue
            before = highest.get(write.item, 0)
            late = write.token <= before if write.kind == "claim" else write.token != before
            if late:
                problems.append(Problem("fence", f"{write} was accepted after token {before:#x}"))
            highest[write.item] = max(before, write.token)
        return problems

    def tokens(self) -> list[Problem]:
        problems = []
        for item in self.items():
            highest: Execution | None = None
            for one in self.of(item):
                if highest is not None and one.token <= highest.token:
                    if not self._was_stopped_before(one):
                        text = f"item {item}: the token does not grow"
                        problems.append(Problem("token", text, (highest, one)))
                    continue
                highest = one
        return problems

    def _was_stopped_before(self, one: Execution) -> bool:
        """Whether its process was stopped between the Execute and the begin."""
        told = one.start - (one.start_wall - one.fired)
        return any(stopped <= one.start and woken >= told for stopped, woken in one.application.stops)

    def once(self) -> list[Problem]:
        counted = [one for one in self.executions if one.source == "SCHEDULE" and one.outcome == "end"]
        counted = [one for one in counted if one.item not in self.unledgered]
        counts = Counter((one.item, one.scheduled) for one in counted)
        return [
            Problem(
                "once",
                f"item {item} was executed {count} times for {scheduled:.0f}",
                [one for one in counted if (one.item, one.scheduled) == (item, scheduled)],
            )
            for (item, scheduled), count in counts.items()
            if count > 1
        ]

    def failovers(self) -> list[Execution]:
        return [one for one in self.executions if one.source == "FAILOVER"]

    def _before(self, one: Execution) -> list[Execution]:
        """The executions for the same instant whose running nodes are older, the latest last."""
        same = [other for other in self.of(one.item) if other.scheduled == one.scheduled and other.token < one.token]
        return sorted(same, key=_token)

    def _alone(self, first: Execution | None, last: Execution) -> bool:
        """Whether only sidecars of this version have had the item and led, from an execution, or always, until another
        one."""
        since, token = (first.start, first.token) if first is not None else (0.0, 0)
        if any(begin <= last.start and end >= since for begin, end in self.reigns_of_previous):
            return False
        if any(other.application.previous for other in self.of(last.item) if token <= other.token <= last.token):
            return False
        return not any(
            begin <= last.start and end >= since
            for application in self.applications
            if application.previous
            for begin, end in _owned(application, last.item)
        )

    def _latest_but(self, count: int, one: Execution) -> Execution | None:
        """Of the executions of the item before this one the latest but so many."""
        before = sorted((other for other in self.of(one.item) if other.token < one.token), key=_token)
        return before[-1 - count] if len(before) > count else None

    def instants(self) -> list[Problem]:
        """Failovers for an instant that no instance had to execute again."""
        problems = []
        for one in self.failovers():
            before = self._before(one)
            # The interrupted execution came before the completed one.
            if not self._alone(self._latest_but(1, one), one):
                continue
            latest = self._latest_but(0, one)
            if latest is not None and latest.interrupted and latest.scheduled != one.scheduled:
                text = f"item {one.item} was taken over for {one.scheduled:.3f}, not for what was interrupted: {latest}"
                problems.append(Problem("instant", text, self._near(one)))
                continue
            if not before:
                if not self._may_be_unread(one):
                    text = f"item {one.item} was taken over for {one.scheduled:.3f}, which nobody had begun"
                    problems.append(Problem("instant", text, self._near(one)))
            elif before[-1].outcome == "end" and not self._may_be_unrecorded(before[-1], one):
                text = f"item {one.item} was taken over for {one.scheduled:.3f}, which was completed: {one}"
                problems.append(Problem("instant", text, self._near(one)))
        return problems

    def _near(self, one: Execution) -> list[Execution]:
        """What to look at, if something is wrong with an execution."""
        return [other for other in self.of(one.item) if -30 < other.start - one.start < 8]

    def _may_be_unread(self, one: Execution) -> bool:
        """Whether an execution for the same instant may have been started that no application has read."""
        wall = one.start_wall - one.start
        since = one.scheduled - wall

        def died(application: Record) -> bool:
            # One that was asked to end had ended by then.
            dying = DYING if application.left is None else 0.0
            return application.died is not None and since - dying <= application.died <= one.start

        return any(
            died(application)
            or any(stopped <= one.start and woken >= since for stopped, woken in application.stops)
            or _within(application.left, application.died, since, one.start)
            for application in self.applications
        ) or any(
            moment is not None and one.scheduled <= moment <= one.start_wall
            for session in self.sessions
            for moment in (session.opened, session.expired)
        )

    def _may_be_unrecorded(self, one: Execution, next_one: Execution) -> bool:
        """Whether something may have kept the result of an execution from being recorded before the next one began."""
        assert one.end is not None
        if one.ignored or one.end >= next_one.start:
            return True
        begin, end = one.end, min(next_one.start, one.end + RECORDING)
        wall = one.start_wall - one.start
        application = one.application
        if application.died is not None and begin <= application.died <= end:
            return True
        if any(stopped <= end and woken >= begin for stopped, woken in application.stops):
            return True
        for session in self.sessions:
            if session.slot != application.slot:
                continue
            if any(stopped <= end + wall and woken >= begin + wall for stopped, woken in session.stops):
                return True
            moments = (session.opened, session.expired)
            if any(moment is not None and begin + wall <= moment <= end + wall for moment in moments):
                return True
        connected = True
        for entry in sorted(application.entries, key=lambda entry: entry["time"]):
            if entry["time"] > end:
                break
            if entry["event"] == "session":
                connected = entry["state"] == "CONNECTED"
            elif entry["event"] == "assignment" and entry["reason"] in ("ATTACHED", "DETACHED"):
                connected = entry["reason"] == "ATTACHED"
            else:
                continue
            if entry["time"] >= begin and not connected:
                return True
        return not connected

    def checkpoints(self) -> list[Problem]:
        """Executions that were not given the checkpoint that they should have been given."""
        problems = []
        for one in self.executions:
            given = one.given
            if given is not None and (given["item"], given["scheduled"]) != (one.item, one.scheduled):
                written = f"item {given['item']} and {given['scheduled']:.3f}"
                text = f"an execution was given what was written for {written}: {one}"
                problems.append(Problem("checkpoint", text, self._near(one)))
                given = None
            if one.source != "FAILOVER":
                continue
            before = self._before(one)
            if not before or not self._alone(before[0], one):
                continue
            recorded = [(other.token, number) for other in before for at, number in other.recorded if at < one.told]
            got = (given["token"], given["number"]) if given is not None else (0, 0)
            if recorded and got < max(recorded):
                token, number = max(recorded)
                what = f"number {got[1]} of token {got[0]:#x}" if given is not None else "none"
                text = f"{one} was given {what}, not the last checkpoint, number {number} of token {token:#x}"
                problems.append(Problem("checkpoint", text, self._near(one)))
        return problems

    def redone(self, items: Iterable[int]) -> list[Problem]:
        """Interrupted executions that no application got again for the same instant."""
        problems = []
        for item in items:
            executions = self.of(item)
            for one in executions:
                later = [other for other in executions if other.token > one.token]
                failovers = [other for other in later if other.source == "FAILOVER"]
                redone = any(other.scheduled == one.scheduled for other in failovers) or self._was_dropped(one)
                last = min(failovers, key=_token, default=max(later, key=_token, default=one))
                if one.interrupted and not redone and self._alone(one, last) and not self._stopped_early(one):
                    text = f"item {item} was interrupted, and not executed again for {one.scheduled:.3f}: {one}"
                    near = [other for other in executions if -8 < other.start - one.start < 30]
                    problems.append(Problem("redone", text, near))
        return problems

    def surplus(self, items: Iterable[int], fires: Iterable[float]) -> list[Problem]:
        """Misfire re-runs of fires that were not missed. `fires` are all fires that there were."""
        problems = []
        fires = set(fires)
        for item in items:
            begun: dict[float, Execution] = {}
            covering: Execution | None = None
            for one in self.of(item):
                if one.source == "MISFIRE":
                    wrong, earlier = "", None
                    if one.scheduled not in fires or one.scheduled > one.fired:
                        wrong = "which was no fire"
                    elif one.scheduled in begun:
                        wrong, earlier = "which was begun before", begun[one.scheduled]
                    elif covering is not None and one.scheduled <= covering.scheduled:
                        wrong, earlier = "which an earlier re-run has covered", covering
                    if wrong and (earlier is None or self._alone(earlier, one)):
                        near = [other for other in self.of(item) if -8 < other.start - one.start < 1]
                        text = f"item {item} was made up for until {one.scheduled:.0f}, {wrong}: {one}"
                        problems.append(Problem("surplus", text, near))
                    if covering is None or one.scheduled > covering.scheduled:
                        covering = one
                begun.setdefault(one.scheduled, one)
        return problems

    def missing(self, items: Iterable[int], fires: Iterable[float]) -> list[Problem]:
        """The fires (wall clock) of these items that are not settled."""
        problems = []
        self.excused = 0
        fires = list(fires)
        for item in items:
            executions = self.of(item)
            for fire in fires:
                if any(self._makes_good(one, fire, executions) for one in executions):
                    continue
                if self._is_excused(executions, fire):
                    self.excused += 1
                    continue
                for_it = (one for one in executions if one.scheduled == fire or _makes_up(one, fire))
                if any(one.interrupted and self._was_dropped(one) for one in for_it):
                    continue
                near = [one for one in executions if abs(one.start_wall - fire) < 8]
                problems.append(Problem("lost", f"item {item} was not executed for {fire:.0f}", near))
        return problems

    def _was_dropped(self, one: Execution) -> bool:
        """Whether a sidecar of the previous release has deleted the flag of an interrupted execution, before the item was
        executed again."""
        over = one.over + one.start_wall - one.start - DYING
        later = (other for other in self.of(one.item) if other.token > one.token)
        following = min((other.start_wall for other in later), default=float("inf"))
        return any(item == one.item and over <= at <= following for item, at in self.dropped_flags)

    def _makes_good(self, one: Execution, fire: float, all_of_item: Sequence[Execution]) -> bool:
        if not _is_done(one, all_of_item):
            return False
        if one.scheduled == fire:
            return True
        makes_up = one.source == "MISFIRE" or self._took_over_what_was_not_read(one, all_of_item)
        if not makes_up or one.scheduled < fire:
            return False
        between = [
            other
            for other in all_of_item
            if other.source == "SCHEDULE" and other.scheduled > fire and other.start < one.start
        ]
        return len(between) <= BEFORE_MAKING_UP

    def _took_over_what_was_not_read(self, one: Execution, all_of_item: Sequence[Execution]) -> bool:
        """Whether it took over from an application that was killed before it read what it was to execute: then no
        journal says whether that made up for something."""
        fire = one.scheduled - one.start_wall + one.start
        return (
            one.source == "FAILOVER"
            and not any(other.scheduled == one.scheduled for other in all_of_item if other.start < one.start)
            and any(fire <= application.died <= one.start for application in self.applications if application.died)
        )

    def _is_excused(self, executions: Sequence[Execution], fire: float) -> bool:
        if any(one.scheduled == fire for one in executions):
            return False  # it was begun
        following = next(
            (one for one in executions if one.start_wall > fire and one.scheduled > fire),
            None,
        )
        before = next((one for one in reversed(executions) if one.start_wall <= fire), None)
        if following is None:
            return False
        if before is not None and before.application is following.application and not self._lost(before, following):
            return False
        attached = self._attached(following)
        return attached is not None and attached > fire

    def _attached(self, execution: Execution) -> float | None:
        """When the application of an execution attached last before it, wall clock."""
        told = [
            entry["wall"]
            for entry in execution.application.entries
            if entry["event"] == "assignment" and entry["reason"] == "ATTACHED" and entry["time"] <= execution.start
        ]
        return told[-1] if told else None

    def _lost(self, before: Execution, after: Execution) -> bool:
        """Whether an application was detached between two of its executions."""
        return any(
            entry["event"] == "assignment"
            and entry["reason"] == "DETACHED"
            and before.start < entry["time"] < after.start
            for entry in before.application.entries
        )

    def cancels(self) -> Counter[str]:
        """How many executions got a Cancel, by the reason."""
        told = [entry for application in self.applications for entry in application.entries]
        return Counter(entry["reason"] for entry in told if entry["event"] in ("cancelled", "ignored"))

    def sources(self) -> Counter[str]:
        return Counter(one.source for one in self.executions)

    def outcomes(self) -> Counter[str]:
        return Counter(one.outcome or "died" for one in self.executions)


def _token(one: Execution) -> int:
    return one.token


def _owned(application: Record, item: int) -> list[tuple[float, float]]:
    """When an application got assignments with an item."""
    told = sorted((entry for entry in application.entries if entry["event"] == "assignment"), key=lambda e: e["time"])
    ends = [entry["time"] for entry in told[1:]] + [float("inf") if application.died is None else application.died]
    return [(entry["time"], end) for entry, end in zip(told, ends) if item in entry["items"]]


def _makes_up(one: Execution, fire: float) -> bool:
    """Whether an execution was to make up for a missed fire."""
    return one.source in ("MISFIRE", "FAILOVER") and one.scheduled > fire


def _within(begin: float | None, end: float | None, since: float, until: float) -> bool:
    """Whether a time that may not have ended has something in common with another one."""
    return begin is not None and begin <= until and (end is None or end >= since)


def _is_done(one: Execution, all_of_item: Sequence[Execution]) -> bool:
    """Whether an execution was committed, or interrupted and committed by the application that took it over."""
    return one.outcome == "end" or any(
        other.source == "FAILOVER" and other.outcome == "end" and other.scheduled == one.scheduled
        for other in all_of_item
        if other.start > one.start
    )
