"""Many items are in flight when all sidecars are cut off for longer than their sessions: are they executed again for
the instants that were interrupted, with their checkpoints? Run by `make failover-instants`.

Three sidecars share 48 items. An execution lasts longer than the pause between two fires, so that each item has missed
a fire when its execution is interrupted, and what makes up for that fire waits beside the failover. In each round all
links are cut at once, until all sessions have ended, and let through again. Until all is taken over the links delay
what passes, and tear it: a watch reports some changes of a transaction before the others, so that for a moment a sidecar
sees a part of them. Then the next round begins. At the end everything is judged (`judge.py`).
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Callable

from faults.ensemble import now
from faults.fleet import FaultFleet, own_fleet
from faults.judge import Problem
from support.job_nodes import EACH_SECOND, NEVER
from support.processes import sidekeeper_binary

SLOTS = 3
ITEMS = 48
CRON = EACH_SECOND

#: How long an execution lasts, in seconds: longer than the pause between two fires, so that one is missed; the items
#: differ, so that the misfire re-runs do not begin at the same time everywhere.
DURATIONS = {item: 3.0 + 0.25 * (item % 8) for item in range(ITEMS)}

#: How often an execution writes a checkpoint, in seconds.
CHECKPOINTS = 0.5

#: How long ZooKeeper waits for word from a sidecar, and how long all are cut off, in seconds.
SESSION = 3.0
AWAY = 9.0

#: How much later everything comes, each way, until all is taken over, in seconds: so that fires come in between.
DELAY = 0.05

#: How long it may take until all are back and have taken over what was interrupted, in seconds.
RECOVERY = 60.0

#: Nodes that are there while something has to be taken over.
TAKING_OVER = re.compile(r"sharding/\d+/(failover|failovering)|leader/failover/items/\d+")


@dataclass
class Result:
    """How the rounds ended."""

    problems: list[str]
    summary: str


def rounds(fleet: FaultFleet, count: int, tell: Callable[[str], None] = print) -> Result:
    """Cuts all sidecars off, so many times, and judges what became of it."""
    fleet.checkpoints = CHECKPOINTS
    slots = fleet.start(
        SLOTS, session=SESSION, sharding_total_count=ITEMS, cron=CRON, misfire=True, durations=DURATIONS
    )
    everything = set(range(ITEMS))
    for number in range(count):
        fleet.look("all in flight", lambda: fleet.executing() == everything, RECOVERY)
        for slot in slots:
            slot.link.cut()
        time.sleep(AWAY)
        for slot in slots:
            slot.link.heal()
            slot.link.tear()
            slot.link.delay(DELAY)
        healed = now()
        fleet.divide(timeout=RECOVERY)
        fleet.look("all taken over", lambda: begun(fleet, healed) == everything and not taking_over(fleet), RECOVERY)
        for slot in slots:
            slot.link.heal()
        judge = fleet.judge()
        problems = [*judge.instants(), *judge.checkpoints()]
        tell(f"round {number + 1}: {len(judge.failovers())} failovers, {_told(problems)}")
    fleet.tree.configure(cron=NEVER)
    fleet.look("nothing is executed", lambda: not fleet.executing() and not fleet.running(), RECOVERY)
    judge = fleet.judge()
    problems = [*judge.always(), *judge.redone(range(ITEMS))]
    failovers = judge.failovers()
    redone = [one for one in judge.executions if one.interrupted]
    summary = (
        f"{count} rounds of {ITEMS} items: {len(judge.executions)} executions, {len(redone)} interrupted, "
        f"{len(failovers)} failovers, {sum(one.given is not None for one in failovers)} with a checkpoint; "
        f"{_told(problems)}"
    )
    return Result([*map(str, problems), *fleet.ended_by_themselves(), *fleet.panics()], summary)


def begun(fleet: FaultFleet, since: float) -> set[int]:
    """What has begun since a moment of the monotonic clock."""
    events = [event for slot in fleet.slots for event in slot.application.events("start")]
    return {event["item"] for event in events if event["time"] > since}


def taking_over(fleet: FaultFleet) -> list[str]:
    return [path for path in fleet.tree.nodes() if TAKING_OVER.fullmatch(path)]


def _told(problems: list[Problem]) -> str:
    counts = Counter(problem.kind for problem in problems)
    told = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
    return f"problems: {told}" if told else "no problems"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    print(f"{arguments.rounds} rounds, {sidekeeper_binary()}", flush=True)
    with own_fleet() as fleet:
        result = rounds(fleet, arguments.rounds, lambda line: print(line, flush=True))
    if result.problems:
        result.problems.append(f"journals and logs: {fleet.folder}")
    else:
        fleet.remove_files()
    print("\n".join([*result.problems, result.summary]), flush=True)
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
