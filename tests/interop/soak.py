"""A mixed fleet under random kills: no fire lost, no node left, no instance stuck. Run by `make soak`.

Two Java instances and two of ours share twenty items that fire every two seconds, with failover on. Every quarter of a
minute one of them is killed as by kill -9, and started again a little later. Afterwards:

- each item has been executed for each fire, or for a later fire whose misfire re-run covers it. Two exceptions: the item's owner was
  dead at the fire (ElasticJob re-runs no fires of an instance whose death was not known yet); or a Java instance led at the resharding
  before (Java loses such fires by itself: it reads the items from a cache that is behind, or has items before its scheduler runs).
  These are counted, beside the losses of a fleet of Java instances only (`--java-only`). The owners and the leaders are
  read from the server's transaction log (`soak_judge.py`);
- each execution that a dead instance had begun has been executed by another one;
- no item has been executed twice for the same fire on instances of ours;
- every item has an owner that is alive, and no node of an execution or a takeover is left.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from interop.members import Member, MixedFleet, elasticjob_version
from interop.soak_judge import History, Kill, Lost, Run, is_java, judge
from interop.transaction_log import changes
from support.processes import eventually, executing
from support.zookeeper import ZooKeeperServer

ITEMS = 20
INTERVAL = 2.0
KILL_INTERVAL = 15.0
SESSION = 3.0

#: How often a Java leader is reminded of an instance that it has left out.
REMINDERS = 3

#: What counts as late, in seconds.
LATE = 0.5

#: How long after a kill all items are executed at a fire again: the session, its check, and a fire with a resharding; and how
#: long takeovers may take, in seconds.
RECOVERY = SESSION + 1.0 + 3 * INTERVAL

JOB = {
    "sharding_total_count": ITEMS,
    "cron": "0/2 * * * * ?",
    "failover": True,
    "concurrency": ITEMS,
}


def run(fleet: MixedFleet, seconds: float, chance: random.Random, kinds: Sequence[str]) -> list[Kill]:
    """Lets the fleet work, and kills and restarts its members; returns the kills."""
    fleet.interval = INTERVAL
    JOB["cron"] = f"0/{INTERVAL:.0f} * * * * ?"
    slots = [(kind, number + 1) for number, kind in enumerate(kinds)]
    alive = {}
    for slot in slots:
        alive[slot] = start(fleet, slot)
        settle(fleet, list(alive.values()))
    end = time.monotonic() + seconds
    kills = []
    while time.monotonic() < end - RECOVERY:
        time.sleep(KILL_INTERVAL * chance.uniform(0.5, 1.0))
        slot = chance.choice(slots)
        victim = alive[slot]
        # So that about half of the kills meet it while it executes.
        time.sleep(INTERVAL - time.time() % INTERVAL + chance.uniform(0.0, 0.5))
        at = time.time()
        victim.die()
        interrupted = frozenset(executing(victim.events("start", "end")))
        print(f"{time.strftime('%H:%M:%S')} killed {victim.name} executing {sorted(interrupted)}", flush=True)
        time.sleep(chance.uniform(0.0, 2 * SESSION))
        kills.append(Kill(at, victim.name, victim.instance, interrupted, replaced=time.time()))
        alive[slot] = start(fleet, slot)
    time.sleep(RECOVERY)
    settle(fleet, list(alive.values()))
    fleet.wait_fires(2, total=ITEMS)
    return kills


def settle(fleet: MixedFleet, members: list[Member]) -> None:
    """Waits until all members own items.

    A Java leader may miss an instance that joined during a resharding (H5), until a server's node changes: so one changes.
    """
    instances = [member.instance for member in members]
    for _ in range(REMINDERS):
        try:
            eventually("divided", lambda: fleet.evenly(instances, ITEMS), timeout=RECOVERY)
            return
        except AssertionError:
            if not is_java(fleet.leader() or ""):
                break
            print(f"{time.strftime('%H:%M:%S')} a Java leader has left somebody out, and is reminded", flush=True)
            fleet.tree.set(f"servers/{members[0].address}", "ENABLED")
    fleet.divide(*members, total=ITEMS)


def start(fleet: MixedFleet, slot: tuple[str, int]) -> Member:
    kind, number = slot
    member = fleet.member(kind, number, SESSION, **JOB)
    # Java executes a few items at a time: even half of the fleet has to be done before the next fire.
    member.command("duration 150")
    return member


def problems_of(fleet: MixedFleet, kills: list[Kill]) -> list[str]:
    """Returns what went wrong, and prints what became of the fires."""
    problems = []
    executions = [one for one in fleet.executions() if one.outcome == "end"]
    first = min(one.fire for one in executions) + 3 * INTERVAL
    last = max(one.fire for one in executions) - 2 * INTERVAL
    fires = [first + number * INTERVAL for number in range(int((last - first) / INTERVAL) + 1)]
    history = History(changes(fleet.server.data, fleet.tree.root), fleet.tree.root)
    runs = [Run(one.item, one.fire, one.source, one.started) for one in executions]
    verdict = judge(history, runs, kills, fires, ITEMS, INTERVAL, RECOVERY)
    for lost in sorted(verdict.lost, key=lambda lost: (lost.fire, lost.item)):
        print(describe(lost))
    problems += [f"under a leader of ours: {describe(lost)}" for lost in verdict.lost_by_ours]
    for kill in kills:
        for item in kill.executing:
            if not any(one.item == item and kill.at < one.started < kill.at + RECOVERY for one in executions):
                problems.append(f"item {item}, which {kill.member} was executing, was not taken over")
    try:
        fleet.assert_none_twice()
    except AssertionError as error:
        problems.append(f"executed twice: {error}")
    sources = sorted({one.source or "by Java" for one in executions})
    told = {source: sum((one.source or "by Java") == source for one in executions) for source in sources}
    ordinary = [one.started - one.fire for one in executions if one.source in ("", "SCHEDULE")]
    led_by_java = sum(is_java(history.leader(fire)) for fire in fires)
    print(f"{len(fires)} fires, {led_by_java} of them under a Java leader; {len(kills)} kills")
    print(f"{len(executions)} executions {told}; {sum(late > LATE for late in ordinary)} began more than {LATE} s late")
    print(
        f"{verdict.made_up} made up for by a later one, {verdict.late} late at a division, {verdict.excused} of the dead"
    )
    print(f"lost: {len(verdict.lost_by_ours)} under a leader of ours, {len(verdict.lost_by_java)} under a Java leader")
    return problems


def describe(lost: Lost) -> str:
    when = "no division" if lost.divided is None else f"divided at {clock(lost.divided)}"
    when += f", met an execution by {lost.met}" if lost.met else ""
    return f"item {lost.item} lost at {clock(lost.fire)}: of {lost.owner or 'nobody'}; {when}, leader {lost.leader}"


def clock(seconds: float) -> str:
    return f"{time.strftime('%H:%M:%S', time.localtime(seconds))}.{int(seconds % 1 * 1000):03}"


def main() -> int:
    global INTERVAL, RECOVERY
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--java-only", action="store_true", help="four Java instances, for comparison")
    parser.add_argument("--ours-first", action="store_true", help="the first leader is one of ours")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--interval", type=int, default=2, help="seconds; a busy machine needs more")
    arguments = parser.parse_args()
    INTERVAL = float(arguments.interval)
    RECOVERY = SESSION + 1.0 + 3 * INTERVAL
    version = ".".join(map(str, elasticjob_version()))
    print(f"{arguments.minutes} minutes, seed {arguments.seed}, ElasticJob {version}", flush=True)
    with tempfile.TemporaryDirectory(prefix="sk-zk-") as folder:
        server = ZooKeeperServer(Path(folder))
        client = server.client()
        namespace = f"soak-{uuid.uuid4().hex[:8]}"
        fleet = MixedFleet(Path(tempfile.mkdtemp(prefix="sk-")), server, client, namespace)
        try:
            kinds = ["java"] * 4 if arguments.java_only else ["java", "java", "ours", "ours"]
            if arguments.ours_first:
                kinds.reverse()
            kills = run(fleet, arguments.minutes * 60, random.Random(arguments.seed), kinds)
            fleet.tree.configure(cron="0 0 0 1 1 ? 2099")
            problems = problems_of(fleet, kills)
            eventually("no leftovers", lambda: not fleet.tree.leftovers())
        except AssertionError as error:
            problems = [str(error)]
            print(fleet.state())
        if problems:
            print("\n".join(problems))
            shutil.copytree(server.data, fleet.folder / "zookeeper")
            print(f"logs, and the server's transactions: {fleet.folder}")
            fleet.end()
        else:
            print("nothing lost, nothing left")
            fleet.end()
            fleet.remove_files()
        client.stop()
        server.kill()
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
