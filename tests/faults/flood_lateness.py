"""Measures how late a job fires while another user floods its sidecar. Run by `make flood-lateness`; prints a table.

A sidecar serves two users. An application of the first one has a job that fires each second. The second one floods, in each of
the ways of `support.flood`, by turns with times in which it does nothing. Lateness is the time from an item's instant to the
begin of its handler. A flooder takes processor time like any other program, so a program that only computes takes its turn, too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.application import Application
from support.flooder import KINDS, flooding
from support.job_nodes import EACH_SECOND
from support.measures import percentile, resident
from support.processes import eventually, free_port
from support.sidecar import EmbeddedSidecar
from support.squatter import UID

ITEMS = 20
QUIET, COMPUTING = "nothing", "computing"


@contextmanager
def disturbed(kind: str, port: int) -> Iterator[None]:
    """The second user does this."""
    if kind == QUIET:
        yield
    elif kind == COMPUTING:
        process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            yield
        finally:
            process.kill()
            process.wait()
    else:
        with flooding(kind, port):
            yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each takes its turn")
    parser.add_argument("--seconds", type=int, default=6, help="how long a turn is")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sk-"))
    folder.chmod(0o755)
    port = free_port()
    sidecar = EmbeddedSidecar(folder, ["--listen", f"127.0.0.1:{port}", "--allow", f"uid:{UID}:operate"])
    application = Application("application", sidecar, folder, {"sharding_total_count": ITEMS, "cron": EACH_SECOND})
    lateness: dict[str, list[float]] = defaultdict(list)
    memory: dict[str, float] = defaultdict(float)
    try:
        eventually("a fire", lambda: application.events("start"))
        for _ in range(arguments.rounds):
            for kind in (QUIET, COMPUTING, *KINDS):
                with disturbed(kind, port):
                    began, before = time.time(), len(application.events("start"))
                    time.sleep(arguments.seconds)
                    memory[kind] = max(memory[kind], resident(sidecar.popen.pid))
                    events = application.events("start")[before:]
                late = [1000 * (event["time"] - event["scheduled"]) for event in events if event["scheduled"] > began]
                lateness[kind] += late
                time.sleep(1)
    finally:
        application.kill()
        sidecar.kill()
    print("| the other user | executions | p50, ms | p99, ms | p99 beside nothing | sidecar's memory, MB |")
    print("|---|---|---|---|---|---|")
    quiet = percentile(lateness[QUIET], 99)
    for kind, late in lateness.items():
        p50, p99 = percentile(late, 50), percentile(late, 99)
        print(f"| {kind} | {len(late)} | {p50:.1f} | {p99:.1f} | {p99 / quiet:.2f} | {memory[kind]:.0f} |")


if __name__ == "__main__":
    main()
