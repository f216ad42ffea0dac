"""Measures ElasticJob and sidecars by turns, and prints tables; `make compare`.

    python -m compare [--rounds 3] [--kinds java python go rust] [--only "50 items" join] [--short] [--write]

In each round each kind takes its turn at each measurement, and another kind begins. `--short` measures once and little,
and fails if a count of sidecars is above its bound (requests of a fire, items that move), or if an instance of ElasticJob
does not start. It never fails for a time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from compare.instances import KINDS, Kind
from compare.report import Rounds, tables, write
from compare.scenarios import EVENTS, SIZES, Figures, Size, join, register, steady
from interop.members import elasticjob_version
from support.processes import ROOT
from support.zookeeper import ZooKeeperServer

#: How often a fleet of ElasticJob is started that does not settle.
ATTEMPTS = 3

#: The most items of 30 that have to move when a third instance joins two.
MOVES_MAX = 10

PAGE = ROOT / "docs" / "benchmarks.md"


def turns(kinds: list[Kind], rounds: int) -> Iterator[Kind]:
    """All kinds in each round, another one first each time."""
    for number in range(rounds):
        at = number % len(kinds)
        yield from kinds[at:] + kinds[:at]


def machine() -> str:
    """What the figures depend on."""

    def line(*command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]

    processor = next((text for text in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in text), ":?")
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr.splitlines()[0]
    version = ".".join(map(str, elasticjob_version()))
    commit = line("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    return (
        f"Measured on {datetime.now(timezone.utc).date()} at {commit}: {os.cpu_count()} cores, {processor.partition(':')[2].strip()}, "
        f"{line('uname', '-sr')}; ElasticJob {version} on {java}, with the JVM's default settings; load before: "
        f"{os.getloadavg()[0]:.1f}."
    )


def requests_max(size: Size) -> int:
    """The most requests of a fire whose items fit into one transaction of each instance."""
    return 4 * size.instances + 10


def short(server: ZooKeeperServer) -> int:
    """The counts of sidecars."""
    kind, size = KINDS["python"], replace(SIZES["50 items, 3 instances, every 2 s"], fires=3)
    requests, moved = steady(server, kind, size)["requests"], join(server, kind)["moved"]
    print(
        f"{requests:.0f} requests a fire (at most {requests_max(size)}), {moved:.0f} items moved (at most {MOVES_MAX})"
    )
    register(server, KINDS["java"])
    return 1 if requests > requests_max(size) or moved > MOVES_MAX else 0


def measure(server: ZooKeeperServer, kinds: list[Kind], rounds: int, only: list[str]) -> str:
    """All measurements; returns the tables."""

    def is_wanted(name: str) -> bool:
        return not only or any(part in name for part in only)

    stuck = 0

    def take(name: str, kind: Kind, measuring: Callable[[], Figures]) -> Figures:
        nonlocal stuck
        for attempt in range(ATTEMPTS):
            try:
                figures = measuring()
            except AssertionError:
                if not kind.is_java or attempt == ATTEMPTS - 1:
                    raise
                stuck += 1
            else:
                told = ", ".join(f"{figure} {value:.2f}" for figure, value in figures.items())
                print(f"{name}, {kind.name}: {told}", file=sys.stderr, flush=True)
                return figures
        raise AssertionError("no attempt")

    measured: dict[str, Rounds] = {}
    events: dict[str, Rounds] = {}
    for name, size in SIZES.items():
        for kind in turns(kinds, rounds) if is_wanted(name) else ():
            figures = take(name, kind, partial(steady, server, kind, size))
            measured.setdefault(name, {}).setdefault(kind.name, []).append(figures)
    for name, event in EVENTS.items():
        for kind in turns(kinds, rounds) if is_wanted(name) else ():
            figures = take(name, kind, partial(event, server, kind))
            events.setdefault(name, {}).setdefault(kind.name, []).append(figures)
    note = f"\n\nFleets of ElasticJob that did not settle, and were started again: {stuck}." if stuck else ""
    return tables(measured, events) + note


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--only", nargs="+", default=[], help="parts of the names of measurements")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sk-zk-") as folder:
        server = ZooKeeperServer(Path(folder))
        try:
            if arguments.short:
                return short(server)
            head = machine()
            kinds = [KINDS[name] for name in arguments.kinds]
            text = f"{head}\n\n{measure(server, kinds, arguments.rounds, arguments.only)}"
        finally:
            server.kill()
    print(text)
    if arguments.write:
        write(PAGE, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
