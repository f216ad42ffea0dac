"""What the workers of the demo have told, and whether it is as it should be.

No clock, no files, no processes: events come in, lines and verdicts go out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

__all__ = ["INTERVAL", "ITEMS", "Execution", "Ledger", "clock"]

#: The items of the job, and the time from one fire to the next; as in worker.py.
ITEMS = range(6)
INTERVAL = timedelta(seconds=2)


def clock(instant: datetime) -> str:
    """Returns the local time of day."""
    return instant.astimezone().strftime("%H:%M:%S")


@dataclass
class Execution:
    """One execution, as its worker told it."""

    worker: str
    pid: int
    item: int
    parameter: str
    fire: datetime
    source: str
    fencing_token: int
    ended: bool = False
    #: Whether its worker was killed before it ended.
    interrupted: bool = False


@dataclass
class Ledger:
    """All that has happened."""

    #: By execution id, in the order of their starts.
    executions: dict[str, Execution] = field(default_factory=dict)
    #: The items of each worker now.
    owned: dict[str, list[int]] = field(default_factory=dict)
    #: How many assignments each worker was told, and the items of each.
    assignments: defaultdict[str, list[list[int]]] = field(default_factory=lambda: defaultdict(list))
    #: The errors so far.
    wrong: list[str] = field(default_factory=list)

    def take(self, event: dict[str, Any]) -> None:
        """Takes an event of a worker."""
        worker, kind = event["worker"], event["event"]
        if kind == "assignment":
            self.owned[worker] = event["items"]
            self.assignments[worker].append(event["items"])
        elif kind == "start":
            execution_id = event["execution_id"]
            if execution_id in self.executions:
                self.wrong.append(f"execution {execution_id} was started twice")
            self.executions[execution_id] = Execution(
                worker=worker,
                pid=event["pid"],
                item=event["item"],
                parameter=event["parameter"],
                fire=datetime.fromisoformat(event["fire"]),
                source=event["source"],
                fencing_token=event["fencing_token"],
            )
        elif kind == "end":
            self.executions[event["execution_id"]].ended = True

    def open_of(self, pid: int) -> list[Execution]:
        """What a process executes now."""
        return [one for one in self.executions.values() if one.pid == pid and not one.ended]

    def executes_all(self, worker: str, pid: int) -> bool:
        """Whether a process executes all items that its worker owns."""
        return sorted(one.item for one in self.open_of(pid)) == self.owned[worker] != []

    def killed(self, pid: int) -> list[Execution]:
        """A process was killed; returns what it executed."""
        interrupted = self.open_of(pid)
        for one in interrupted:
            one.interrupted = True
        return interrupted

    def of_fire(self, fire: datetime) -> list[Execution]:
        """The executions of a fire, by item."""
        return sorted((one for one in self.executions.values() if one.fire == fire), key=lambda one: one.item)

    def is_over(self, fire: datetime) -> bool:
        """Whether each item of a fire has been executed to its end, or interrupted."""
        return {one.item for one in self.of_fire(fire) if one.ended or one.interrupted} == set(ITEMS)

    def divided_among(self, workers: set[str]) -> bool:
        """Whether these workers, and no others, own all items, and each of them some."""
        owners = {worker: items for worker, items in self.owned.items() if items}
        return owners.keys() == workers and sorted(item for items in owners.values() for item in items) == list(ITEMS)

    def fires(self, first: datetime, last: datetime) -> list[datetime]:
        """The scheduled fires from the first to the last."""
        count = int((last - first) / INTERVAL)
        return [first + INTERVAL * number for number in range(count + 1)]

    def faults(self, first: datetime, last: datetime) -> list[str]:
        """Returns what is not as it should be, from the first fire to the last: nothing, one hopes."""
        faults = list(self.wrong)
        started: defaultdict[tuple[datetime, int], list[Execution]] = defaultdict(list)
        for one in self.executions.values():
            started[one.fire, one.item].append(one)
            if not one.ended and not one.interrupted:
                faults.append(f"fire {clock(one.fire)}, item {one.item}: {one.worker} began it and did not end it")
        for fire in self.fires(first, last):
            faults += [
                f"fire {clock(fire)}, item {item}: not executed" for item in ITEMS if (fire, item) not in started
            ]
        for (fire, item), several in sorted(started.items()):
            if len(several) > 1:
                by = ", ".join(one.worker for one in several)
                faults.append(f"fire {clock(fire)}, item {item}: executed {len(several)} times, by {by}")
        return faults + self._token_faults()

    def _token_faults(self) -> list[str]:
        """Fencing tokens of an item grow with each execution."""
        faults = []
        last: dict[int, Execution] = {}
        for one in sorted(self.executions.values(), key=lambda one: one.fire):
            before = last.get(one.item)
            if before is not None and before.fire < one.fire and before.fencing_token >= one.fencing_token:
                faults.append(
                    f"fire {clock(one.fire)}, item {one.item}: fencing token {one.fencing_token} after "
                    f"{before.fencing_token}"
                )
            last[one.item] = one
        return faults

    def table(self, first: datetime, last: datetime) -> list[str]:
        """Returns the lines of the table: a row for each fire, a column for each item, the worker in each cell."""
        names = {one.item: one.parameter for one in self.executions.values()}
        lines = ["fire      " + "".join(f"{f'{item} {names.get(item)}':<13}" for item in ITEMS).rstrip()]
        for fire in self.fires(first, last):
            cells = dict.fromkeys(ITEMS, "")
            for one in self.of_fire(fire):
                mark = "!" if one.interrupted else "" if one.source == "SCHEDULE" else "*"
                cells[one.item] += f"{one.worker}{mark} "
            lines.append(f"{clock(fire)}  " + "".join(f"{cells[item] or '-':<13}" for item in ITEMS).rstrip())
        return lines

    def counts(self) -> Counter[str]:
        """How many executions each worker began."""
        return Counter(one.worker for one in self.executions.values())
