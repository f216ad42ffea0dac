"""Random faults on a fleet beside an ensemble of three ZooKeeper servers. Run by `make faults`.

Four sidecars with an application each share twelve items that fire every two seconds, with failover on. Two items take
longer than a session; one of the applications ignores each Cancel. Faults of all kinds, drawn from a
seed (`fault_kinds.py`), hit them. When the last is over, all instances have to be back within a bound; then everything is
judged (`judge.py`), also what ZooKeeper holds at rest and while items are held open.

With `--previous` every second sidecar is of the previous release. Then, now and then, the application of the instance
that leads is killed and started again, so that both versions lead by turns.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Callable

from faults.counters import Sidecar as CountedSidecar
from faults.dropped_flags import dropped_flags, of_servers
from faults.ensemble import Server, now
from faults.fault_kinds import Fault, draw
from faults.fenced_store import Write
from faults.fleet import AWAY, SESSION, FaultFleet, Slot, own_fleet, sleep_until
from faults.judge import Judge, Problem, Record, Session
from support.job_nodes import JOB, NEVER
from support.metrics import Metrics
from support.processes import Process, sidekeeper_binary

SLOTS = 4
ITEMS = 12
INTERVAL = 2.0
CRON = "0/2 * * * * ?"

#: How long executions take, in seconds: most of them, and those of two items, longer than a session.
DURATION = 0.4
DURATIONS = {0: 1.2 * SESSION, 7: 1.7 * SESSION}

#: When the last fault is over everybody is back within this time, in seconds: sessions that have to end, servers that
#: elect (their `initLimit`), the longest pause between two attempts to connect and to attach (5 s), a resharding that
#: waits for the longest execution.
RECOVERY = SESSION + 10 + 5 + max(DURATIONS.values())

#: How often executions write checkpoints, in seconds.
CHECKPOINTS = 0.5

#: In a fleet of two versions: after how many faults the leader is deposed, and how often each version has to lead.
DEPOSED_EACH = 3
LEADS_MIN = 2

#: The pause between two looks at the leader, in seconds.
LEADER_INTERVAL = 0.1

#: How many fires without faults follow, so that missed fires can be re-run.
WHOLE_FIRES = 4


@dataclass
class Result:
    """How a run ended."""

    problems: list[str]
    summary: str


class Run:
    """One run on a fleet."""

    def __init__(
        self, fleet: FaultFleet, faults: list[Fault], tell: Callable[[str], None], previous: Path | None = None
    ):
        self.fleet = fleet
        self.previous = previous
        self.faults = faults
        self.tell = tell
        self._ends: list[tuple[float, int, Fault, Callable[[], None]]] = []
        self._numbers = iter(range(1 << 30))
        self.problems: list[str] = []
        self.recovered = 0.0

    def go(self) -> Result:
        fleet = self.fleet
        fleet.checkpoints = CHECKPOINTS
        for number in range(SLOTS):
            slot = fleet.slot(
                previous=self.previous if number % 2 == 0 else None,
                obeys=number != SLOTS - 1,
                duration=DURATION,
                durations=DURATIONS,
                sharding_total_count=ITEMS,
                cron=CRON,
            )
            assert slot.application.instance
        fleet.divide(timeout=40)
        began = time.time()
        self.leaders = Leaders(fleet)
        try:
            self._inflict()
            ended = self._become_whole()
        finally:
            self.leaders.end()
        self.problems += fleet.ended_by_themselves() + fleet.panics()
        return self._judge(began, ended)

    def _become_whole(self) -> float:
        """Waits until nothing is wrong any more. Returns when the fires that are judged ended, wall clock."""
        try:
            if self.previous is not None:
                self._depose_until_both_have_led()
            self._recover()
            ended = time.time()
            self._rest()
        except AssertionError as error:
            self.problems.append(f"recovery: {error}")
            return time.time() - 2 * INTERVAL
        return ended

    def _inflict(self) -> None:
        """Has each fault begin and end in its time; one that has to wait for another delays all that follow."""
        start = now()
        undeposed = 0
        for fault in self.faults:
            undeposed += 1
            if self.previous is not None and undeposed >= DEPOSED_EACH and self._depose():
                undeposed = 0
            begin = start + fault.begin
            while self._ends and self._ends[0][0] <= begin:
                self._end_next()
            sleep_until(begin)
            self.tell(f"{time.strftime('%H:%M:%S')} {now():.3f} {fault}")
            # A server that leads may have to be elected first.
            start += max(0.0, now() - begin)
            undo = self._inflict_on_servers(fault) if fault.on_servers else self._inflict_on_slot(fault)
            heapq.heappush(self._ends, (now() + fault.duration, next(self._numbers), fault, undo))
        while self._ends:
            self._end_next()

    def _end_next(self) -> None:
        at, _, _, undo = heapq.heappop(self._ends)
        sleep_until(at)
        undo()

    def _depose(self) -> bool:
        """Kills the application of the instance that leads, if nothing else is wrong with it, and starts it again."""
        slot = self.leaders.now()
        if slot is None or slot.is_disturbed():
            return False
        self.tell(f"{time.strftime('%H:%M:%S')} {now():.3f} leading application of slot {slot.number} killed")
        slot.kill_application()
        slot.start_application()
        return True

    def _depose_until_both_have_led(self) -> None:
        """While no fault lasts: deposes the leader until each version has led often enough."""
        while min(self._led().values()) < LEADS_MIN:
            count = len(self.leaders.seen)
            self.fleet.look("a leader is deposed", self._depose, RECOVERY)
            self.fleet.look("somebody else leads", lambda: len(self.leaders.seen) > count, RECOVERY)

    def _led(self) -> dict[str, int]:
        """How often each version has begun to lead."""
        led = [slot.previous is not None for slot in self.leaders.seen]
        return {"the previous release": led.count(True), "this version": led.count(False)}

    def _inflict_on_slot(self, fault: Fault) -> Callable[[], None]:
        slot = self.fleet.slots[fault.slot]
        what, _, how = fault.kind.partition(" ")
        if what in ("cut", "hole", "delay"):
            return self._inflict_on_link(slot, fault, what, how)
        if fault.kind == "sidecar killed":
            slot.kill_sidecar()
            return slot.start_sidecar
        if fault.kind == "application killed":
            slot.kill_application()
            return slot.start_application
        victims: dict[str, list[Process]] = {"sidecar": [slot.sidecar], "application": [slot.application]}
        stopped = victims.get(what, [slot.sidecar, slot.application])
        for process in stopped:
            process.freeze()

        def go_on() -> None:
            for process in stopped:
                process.thaw()

        return go_on

    def _inflict_on_link(self, slot: Slot, fault: Fault, what: str, how: str) -> Callable[[], None]:
        if what == "cut":
            slot.link.cut()
        elif what == "hole":
            direction = how.split()[0]
            slot.link.hole(*(("up", "down") if direction == "both" else (direction,)))
        else:
            slot.link.delay(0.05 + 0.35 * fault.dice)
        return lambda: slot.link.heal(reset=what == "hole" and fault.dice < 0.5)

    def _inflict_on_servers(self, fault: Fault) -> Callable[[], None]:
        ensemble = self.fleet.ensemble
        ensemble.wait_serving()
        if fault.kind == "ensemble away short":
            for server in ensemble.servers:
                server.stop()

            def all_go_on() -> None:
                for server in ensemble.servers:
                    server.go_on()

            return all_go_on
        if fault.kind == "ensemble away long":
            ensemble.kill()
            return ensemble.start
        leads = fault.kind.startswith("leader")
        server = ensemble.leader() if leads else ensemble.follower()
        if fault.kind.endswith("cut off"):
            return self._cut_off(server, leads, self.fleet.slots[fault.slot], fault)
        if fault.kind.endswith("killed"):
            server.kill()
            return server.start
        server.stop()
        return server.go_on

    def _cut_off(self, server: Server, leads: bool, slot: Slot, fault: Fault) -> Callable[[], None]:
        """Parts a server from the others, with a slot on its side."""
        ensemble = self.fleet.ensemble
        self.fleet.part(slot, server)
        if leads:
            ensemble.cut_off(server, noticed=fault.dice < 0.5)
        else:
            ensemble.cut(server, ensemble.leader())

        def heal() -> None:
            ensemble.heal()
            slot.link.all_again()

        return heal

    def _recover(self) -> None:
        """All instances are back and own the items evenly; then some fires without faults."""
        over = now()
        self.fleet.ensemble.wait_serving()
        self.fleet.divide(timeout=RECOVERY)
        self.recovered = now() - over
        time.sleep(WHOLE_FIRES * INTERVAL + max(DURATIONS.values()))

    def _rest(self) -> None:
        """At rest nothing is left; while items are held open, and only then, there are their running nodes."""
        fleet = self.fleet
        fleet.tree.configure(cron=NEVER)
        fleet.look("nothing is executed", lambda: not fleet.executing(), 30)
        fleet.look("no leftovers", lambda: not fleet.tree.leftovers())
        for slot in fleet.slots:
            slot.application.command("hold")
        fleet.fire()
        fleet.look("all executed", lambda: fleet.executing() == set(range(ITEMS)))
        expected = {item: slot.application.instance for slot in fleet.slots for item in slot.application.executing()}
        fleet.look("running nodes", lambda: fleet.running() == expected)
        for slot in fleet.slots:
            slot.application.command("release")
        fleet.look("nothing is executed", lambda: not fleet.executing(), 30)
        fleet.look("no leftovers", lambda: not fleet.tree.leftovers())

    def _judge(self, began: float, ended: float) -> Result:
        judge = self.fleet.judge(self.leaders.reigns_of_previous(), self._dropped_flags())
        fires, found = pass_judgement(judge, began, ended)
        kinds = Counter(fault.kind for fault in self.faults)
        refused = sum(not write.accepted for write in judge.writes)
        lines = [
            f"{len(self.faults)} faults: " + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())),
            f"{len(fires)} fires of {ITEMS} items, {len(judge.executions)} executions: {_told(judge.sources())}; "
            f"{_told(judge.outcomes())}",
            f"told to stop: {_told(judge.cancels())}; writes refused by the store: {refused} of {len(judge.writes)}",
            _told_in_time(judge),
            f"fires excused, because the next executing instance attached later: {judge.excused}",
            f"everybody back {self.recovered:.1f} s after the last fault; longest time from a fire to its execution "
            f"by the schedule {_lateness(judge):.1f} s",
        ]
        counters, told = self._counters(judge)
        problems = self.problems + [str(problem) for problem in found] + counters
        counts = Counter(problem.kind for problem in found)
        failovers = judge.failovers()
        given = sum(one.given is not None for one in failovers)
        lines.insert(3, f"{len(failovers)} failovers, {given} with a checkpoint")
        if self.previous is not None:
            led = ", ".join(f"{version} {count} times" for version, count in self._led().items())
            lines.append(
                f"led: {led}; flags of interrupted items deleted by the previous release: {len(judge.dropped_flags)}"
            )
        lines.append(told)
        lines.append(f"problems: {_told(counts)}" if problems else "no problems")
        self._keep(began, ended)
        return Result(problems, "\n".join(lines))

    def _counters(self, judge: Judge) -> tuple[list[str], str]:
        """The counters that differ from the journals, and how many executions were compared (`counters.py`)."""
        scraped = [(slot.journalled(judge.executions), slot.http) for slot in self.fleet.slots if slot.http is not None]
        problems = [problem for sidecar, port in scraped for problem in sidecar.problems(Metrics(port))]
        begun, doubtful = (
            sum(len(found(sidecar)) for sidecar, _ in scraped)
            for found in (CountedSidecar.begun, CountedSidecar.doubtful)
        )
        if doubtful == begun:
            problems.append("no execution can be compared with the counters")
        told = f"{len(problems)} counters differ; {begun} executions of {len(scraped)} sidecars, {doubtful} in doubt"
        return problems, told

    def _dropped_flags(self) -> list[tuple[int, float]]:
        """The flags that sidecars of the previous release have deleted without a takeover."""
        slots = [slot for slot in self.fleet.slots if slot.previous is not None]
        sessions = {int(session.session, 16) for slot in slots for session in slot.sessions()}
        if not slots:
            return []
        folders = [server.data for server in self.fleet.ensemble.servers]
        return dropped_flags(of_servers(folders, f"/{self.fleet.namespace}/{JOB}"), sessions)

    def _keep(self, began: float, ended: float) -> None:
        """Keeps what is needed to judge again, beside the journals."""
        records = [asdict(application.record()) for application in self.fleet.applications]
        writes = [asdict(write) for write in self.fleet.store.log()]
        sessions = [asdict(session) for session in self.fleet.sessions()]
        kept = {
            "began": began,
            "ended": ended,
            "records": records,
            "writes": writes,
            "sessions": sessions,
            "reigns_of_previous": self.leaders.reigns_of_previous(),
            "dropped_flags": self._dropped_flags(),
        }
        (self.fleet.folder / "run.json").write_text(json.dumps(kept))


class Leaders:
    """The slots that have led during a run, by ZooKeeper."""

    def __init__(self, fleet: FaultFleet):
        self._fleet = fleet
        #: The slots that have led, one after the other.
        self.seen: list[Slot] = []
        #: Between which looks each of them has come to lead, monotonic.
        self._begins: list[tuple[float, float]] = []
        self._looked = now()
        self._instance = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="leaders", daemon=True)
        self._thread.start()

    def now(self) -> Slot | None:
        """The slot that leads, as far as is known."""
        if not self.seen or self.seen[-1].application.last_instance() != self._instance:
            return None
        return self.seen[-1]

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def reigns_of_previous(self) -> list[tuple[float, float]]:
        """From when until when sidecars of the previous release may have led, monotonic."""
        ends = [*(until for _, until in self._begins[1:]), math.inf]
        reigns = zip(self.seen, self._begins, ends, strict=True)
        return [(since, end) for slot, (since, _), end in reigns if slot.previous is not None]

    def _look(self) -> None:
        while not self._over.wait(LEADER_INTERVAL):
            try:
                instance = self._fleet.tree.get("leader/election/instance")
            except AWAY:
                continue
            looked, self._looked = self._looked, now()
            # After a restart of its application a slot has another instance.
            if instance and instance != self._instance:
                self._instance = instance
                address = instance.partition("@-@")[0]
                slots = [slot for slot in self._fleet.slots if slot.sidecar.address == address]
                self._begins += [(looked, self._looked) for _ in slots]
                self.seen += slots


def pass_judgement(judge: Judge, began: float, ended: float) -> tuple[list[float], list[Problem]]:
    """Returns the fires that were judged, and what was wrong with them and at any time."""
    first = (began // INTERVAL + 2) * INTERVAL
    # The last fires may still be under way: they exist so that missed fires before them are re-run.
    count = int((ended - max(DURATIONS.values()) - INTERVAL - first) // INTERVAL)
    fires = [first + number * INTERVAL for number in range(count)]
    # The schedule fires since before the first execution, which may be long before the judged fires.
    starts = [began, ended, *(one.start_wall for one in judge.executions)]
    all_fires = [
        number * INTERVAL for number in range(int(min(starts) // INTERVAL) - 5, int(max(starts) // INTERVAL) + 1)
    ]
    items = range(ITEMS)
    problems = [*judge.always(), *judge.redone(items), *judge.surplus(items, all_fires), *judge.missing(items, fires)]
    return fires, problems


def judge_again(folder: Path) -> int:
    """Judges a run that was kept."""
    kept = json.loads((folder / "run.json").read_text())
    judge = Judge(
        [Record(**record) for record in kept["records"]],
        [Write(**write) for write in kept["writes"]],
        [Session(**session) for session in kept["sessions"]],
        reigns_of_previous=kept["reigns_of_previous"],
        dropped_flags=kept["dropped_flags"],
    )
    _, found = pass_judgement(judge, kept["began"], kept["ended"])
    print("\n".join(map(str, found)))
    return 1 if found else 0


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def _told_in_time(judge: Judge) -> str:
    ended = sum(session.expired is not None for session in judge.sessions)
    least = f"{min(judge.margins):.2f} s" if judge.margins else "never necessary"
    return (
        f"{ended} of {len(judge.sessions)} sessions were ended by ZooKeeper; told to stop before that: {least} at least"
    )


def _lateness(judge: Judge) -> float:
    late = [one.start_wall - one.scheduled for one in judge.executions if one.source == "SCHEDULE"]
    return max(late, default=0.0)


def run(faults: int, seed: int, tell: Callable[[str], None] = print, previous: Path | None = None) -> Result:
    """Runs on an ensemble and a fleet of its own; keeps the files if something was wrong."""
    with own_fleet() as fleet:
        result = Run(fleet, draw(seed, faults, SLOTS, SESSION), tell, previous).go()
    if result.problems:
        result.problems.append(f"journals and logs: {fleet.folder}")
    else:
        fleet.remove_files()
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument(
        "--previous", type=Path, metavar="BINARY", help="the previous release's sidecar, for every second"
    )
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="judge a run that was kept once more")
    arguments = parser.parse_args()
    if arguments.judge:
        return judge_again(arguments.judge)
    binaries = ", ".join(map(str, filter(None, [sidekeeper_binary(), arguments.previous])))
    print(f"{arguments.faults} faults, seed {arguments.seed}, {binaries}", flush=True)
    result = run(arguments.faults, arguments.seed, lambda line: print(line, flush=True), arguments.previous)
    print("\n".join([*result.problems, result.summary]), flush=True)
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
