#!/usr/bin/env python3
"""Six items, three workers that come and go, and a schedule of two seconds: nothing is lost, nothing runs twice.

    demo.py --sidekeeper target/release/sidekeeper                              one sidecar, nothing else installed
    demo.py --sidekeeper target/release/sidekeeper --zookeeper 127.0.0.1:2181   a sidecar for each worker

Ends by itself within a minute. Its status is 0 if each item of each fire was executed exactly once, and 1 if not.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Callable

from fleet import Fleet
from ledger import INTERVAL, Ledger, clock

#: How long each step, and how long the whole demo may take, in seconds.
STEP_TIMEOUT = 15.0
TOTAL_TIMEOUT = 60.0

#: How late the executions of a fire may be for the story to wait for them; it goes on between two fires.
LATE = 2.5 * INTERVAL

#: How often the journal is looked at, in seconds; a killed worker's executions last thirty times as long.
LOOK_INTERVAL = 0.01


class DemoError(Exception):
    """The demo cannot go on."""


class Demo:
    """The story, and what is shown of it."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._ledger = Ledger()
        self._journal = fleet.journal.open(encoding="utf-8")
        self._rest = ""
        self._pids: dict[str, int] = {}
        self._fires_shown: set[datetime] = set()
        self._end = time.monotonic() + TOTAL_TIMEOUT
        #: The verified fires, from the first to the last.
        self._first: datetime | None = None
        self._last: datetime | None = None

    def play(self) -> bool:
        """Plays the story, and returns whether all was well."""
        self._start("worker-1", "worker-2")
        self._until("the items are divided among worker-1 and worker-2", self._divided("worker-1", "worker-2"))
        # Before this there were items without an owner, and a fire of them may have found nobody.
        self._first = next_fire(datetime.now(timezone.utc))
        self._fires(2)
        self._start("worker-3")
        self._until("worker-3 has its share", self._divided("worker-1", "worker-2", "worker-3"))
        self._fires(2)
        self._say("worker-2 is asked to leave")
        self._fleet.terminate("worker-2")
        self._until("worker-2 has left its items", self._divided("worker-1", "worker-3"))
        self._fires(2)
        self._start("worker-2")
        self._until("worker-2 has its share again", self._divided("worker-1", "worker-2", "worker-3"))
        self._fires(1)
        self._kill("worker-3")
        self._until("worker-3's items have new owners", self._divided("worker-1", "worker-2"))
        self._fires(3)
        self._say("all workers are asked to leave")
        self._fleet.terminate_workers()
        self._look()
        return self._sum_up()

    def _start(self, *workers: str) -> None:
        for worker in workers:
            self._pids[worker] = self._fleet.start(worker)
            self._say(f"{worker} starts")

    def _kill(self, worker: str) -> None:
        """Kills a worker while it executes."""
        pid = self._pids[worker]
        # All that it owns: an execution that it was told and had not begun would look like a lost one.
        self._until(f"{worker} executes all its items", lambda: self._ledger.executes_all(worker, pid))
        self._fleet.kill(worker)
        self._look()  # what it had still told
        interrupted = self._ledger.killed(pid)
        self._ledger.owned.pop(worker, None)
        if not interrupted:
            raise DemoError(f"{worker} had ended its executions before it was killed")
        items = ", ".join(f"{one.item} ({one.parameter})" for one in interrupted)
        self._say(f"{worker} is killed while it executes items {items}")

    def _fires(self, count: int) -> None:
        """Waits until so many fires that begin from now on are over."""
        fire = next_fire(datetime.now(timezone.utc))
        for _ in range(count):
            self._until(f"the fire of {clock(fire)} is over", self._over(fire))
            self._last = fire
            fire += INTERVAL

    def _over(self, fire: datetime) -> Callable[[], bool]:
        """Whether a fire is over, or late enough to go on without it: the summary tells what it lacks."""
        latest = fire + LATE
        return lambda: self._ledger.is_over(fire) or datetime.now(timezone.utc) > latest

    def _divided(self, *workers: str) -> Callable[[], bool]:
        return lambda: self._ledger.divided_among(set(workers))

    def _until(self, what: str, true: Callable[[], bool]) -> None:
        """Shows what happens until something is true."""
        end = min(time.monotonic() + STEP_TIMEOUT, self._end)
        while not true():
            self._fleet.check()
            if time.monotonic() > end:
                raise DemoError(f"waited in vain until {what}")
            time.sleep(LOOK_INTERVAL)
            self._look()

    def _look(self) -> None:
        """Takes and shows what the workers have told since the last look."""
        self._rest += self._journal.read()
        *lines, self._rest = self._rest.split("\n")
        for line in lines:
            event = json.loads(line)
            self._ledger.take(event)
            if event["event"] == "assignment":
                items = " ".join(map(str, event["items"])) or "none"
                leads = ", leads" if event["leader"] else ""
                told = f"generation {event['generation']}, {event['reason'].lower()}{leads}"
                self._say(f"{event['worker']} has items {items}   ({told})")
        for fire in sorted({one.fire for one in self._ledger.executions.values()} - self._fires_shown):
            if self._ledger.is_over(fire):
                self._fires_shown.add(fire)
                self._say(f"fire {clock(fire)}: {self._who(fire)}")

    def _who(self, fire: datetime) -> str:
        return ", ".join(
            f"{one.item} {one.parameter} {'INTERRUPTED at' if one.interrupted else 'by'} {one.worker}"
            for one in self._ledger.of_fire(fire)
        )

    def _sum_up(self) -> bool:
        if self._first is None or self._last is None:
            raise DemoError("there was no fire")
        ledger = self._ledger
        show("")
        for line in ledger.table(self._first, self._last):
            show(line)
        show("! interrupted by the kill   * made up for, or taken over")
        show("")
        for worker, count in sorted(ledger.counts().items()):
            told = ledger.assignments[worker]
            show(f"{worker}: {count} executions; {len(told)} assignments: {' '.join(map(items_text, told))}")
        interrupted = [one for one in ledger.executions.values() if one.interrupted]
        for one in interrupted:
            show(f"interrupted: fire {clock(one.fire)}, item {one.item} ({one.parameter}) at {one.worker}")
        faults = ledger.faults(self._first, self._last)
        for fault in faults:
            show(f"WRONG: {fault}")
        fires = len(ledger.fires(self._first, self._last))
        verdict = "NOT each" if faults else "each"
        show(
            f"{fires} fires of 6 items from {clock(self._first)} to {clock(self._last)}: {verdict} executed exactly "
            f"once, {len(interrupted)} of them interrupted."
        )
        return not faults

    def _say(self, text: str) -> None:
        show(f"{datetime.now().astimezone():%H:%M:%S.%f}"[:-4] + f"  {text}")


def items_text(items: list[int]) -> str:
    """Returns items in brackets."""
    return f"[{' '.join(map(str, items))}]"


def next_fire(instant: datetime) -> datetime:
    """Returns the first fire after an instant: the schedule is each even second."""
    seconds = int(INTERVAL.total_seconds())
    return datetime.fromtimestamp((int(instant.timestamp()) // seconds + 1) * seconds, timezone.utc)


def show(line: str) -> None:
    """Prints a line at once, also into a pipe."""
    print(line, flush=True)  # noqa: T201 - that is what it is for


def run(sidekeeper: Path, zookeeper: str | None) -> int:
    """Plays the demo, and returns its exit status."""
    namespace = f"sidekeeper-demo-{uuid.uuid4().hex[:8]}"
    where = f"ZooKeeper {zookeeper}, namespace {namespace}" if zookeeper else "the embedded registry"
    show(f"Job orderSync: 6 items, each even second, on {where}")
    with tempfile.TemporaryDirectory(prefix="sidekeeper-demo-") as folder:
        fleet = Fleet(sidekeeper, Path(folder), zookeeper, namespace)
        try:
            return 0 if Demo(fleet).play() else 1
        except KeyboardInterrupt:
            show("interrupted")
            return 130
        except (DemoError, OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            show(fleet.last_words())
            show(f"FAILED: {error}")
            return 1
        finally:
            fleet.end()


def main() -> int:
    """Reads the arguments, and runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sidekeeper", type=Path, required=True, help="the sidecar's binary")
    parser.add_argument("--zookeeper", metavar="HOST:PORT", help="a ZooKeeper; default: the embedded registry")
    arguments = parser.parse_args()
    if not os.access(arguments.sidekeeper, os.X_OK):
        parser.error(f"--sidekeeper {arguments.sidekeeper}: no such program; build it first")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up like Ctrl-C
    return run(arguments.sidekeeper.resolve(), arguments.zookeeper)


if __name__ == "__main__":
    sys.exit(main())
