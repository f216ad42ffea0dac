"""Do the counters of a sidecar say what its applications have journalled (OP-7)?

Only the sidecar that runs at the end can be asked, so what is compared has begun since its start. Each execution that a
journal names is counted once, by its outcome or as lost. A few are in doubt: the journal has their end, but the report may
not have reached the sidecar before the session, the stream or the process ended. They may be counted either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from faults.judge import Execution, Record

#: How the journals name the outcomes of the metrics.
OUTCOMES = {"success": "end", "failure": "refused"}
SOURCES = ("SCHEDULE", "MISFIRE", "FAILOVER", "TRIGGER")

#: How long a report may be on its way, in seconds: while the registry is away the application repeats it.
ON_ITS_WAY = 6.0


class Counters(Protocol):
    """The metrics of a sidecar."""

    def total(self, name: str, **labels: str) -> float: ...


@dataclass
class Sidecar:
    """A sidecar and what its applications have journalled."""

    name: str
    #: When it was started, monotonic.
    started: float
    #: When it was stopped, and when it was let go on, monotonic.
    stops: Sequence[tuple[float, float]]
    #: The applications that have been beside it, also before its start.
    applications: Sequence[Record]
    executions: Sequence[Execution]

    def begun(self) -> list[Execution]:
        """The executions that it has begun."""
        return [one for one in self.executions if one.told > self.started]

    def doubtful(self) -> list[Execution]:
        """Those of them that may be counted as lost though the journal has their end."""
        return [one for one in self.begun() if one.outcome in OUTCOMES.values() and self._is_doubtful(one)]

    def problems(self, counters: Counters) -> list[str]:
        """The counters that differ from the journals."""
        mine = self.begun()
        items = len({one.item for one in mine})
        found = []

        def compare(what: str, counted: float, least: int, most: int) -> None:
            if not least <= counted <= most:
                allowed = str(least) if least == most else f"{least} to {most}"
                found.append(f"{self.name}: {what}: counted {counted:.0f}, journalled {allowed}")

        # An application that died may have been given executions that it had not begun.
        unseen = len(self._deaths()) * items
        begun = counters.total("executions_total") + counters.total("executions_lost_total")
        compare("executions that were begun", begun, len(mine), len(mine) + unseen)
        for source in SOURCES:
            for outcome, word in OUTCOMES.items():
                ended = [one for one in mine if (one.source, one.outcome) == (source, word)]
                doubtful = sum(map(self._is_doubtful, ended))
                counted = counters.total("executions_total", source=source.lower(), outcome=outcome)
                compare(f"{source} {outcome}", counted, len(ended) - doubtful, len(ended))
        moves = sum(self._received(application) for application in self.applications)
        # Applications that do not read, and those that die, get several changes as one, or miss them.
        merged = 0 if self.is_quiet() else 1_000
        compare("items that were received", counters.total("items_received_total"), moves, moves + merged)
        return found

    def is_quiet(self) -> bool:
        """Whether neither it nor one of its applications has been stopped or killed since its start."""
        stops = [*self.stops, *(stop for application in self.applications for stop in application.stops)]
        return not self._deaths() and not any(woken > self.started for _, woken in stops)

    def _deaths(self) -> list[float]:
        died = [application.died for application in self.applications]
        return [at for at in died if at is not None and at > self.started]

    def _is_doubtful(self, one: Execution) -> bool:
        """Whether the report of an execution may not have arrived in time."""
        end = one.end if one.end is not None else one.start
        since, until = one.start, end + ON_ITS_WAY
        lost = [
            entry["time"]
            for entry in one.application.entries
            if (entry["event"] == "session" and entry["state"] == "LOST")
            or (entry["event"] == "assignment" and entry["reason"] in ("DETACHED", "SESSION_LOST"))
        ]
        died = [] if one.application.died is None else [one.application.died]
        stops = [*self.stops, *one.application.stops]
        slept = any(stopped <= until and woken >= since for stopped, woken in stops)
        return one.ignored or slept or any(since <= at <= until for at in [*lost, *died])

    def _received(self, application: Record) -> int:
        """How many items came to an application, by its assignments."""
        owned: set[int] = set()
        received = 0
        for entry in _assignments(application.entries):
            if entry["time"] > self.started:
                items = set(entry["items"])
                received += len(items - owned)
                owned = items
        return received


def _assignments(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for entry in entries if entry["event"] == "assignment"]
