"""How soon sidecars are back when ZooKeeper serves again. Run by `make return-time`; prints a table.

A server that stands alone is killed and started again, with some sidecars on it whose sessions outlive that. Measured
is the time from the moment when the server says that it serves (asked every 10 ms) to the moment when a sidecar's
log says that it is connected again, by the clock of the machine on which all of them run.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from support.measures import percentile
from support.processes import eventually, sidekeeper_binary
from support.sidecar import Sidecar
from support.zookeeper import ZooKeeperServer

#: How long ZooKeeper waits for word from a sidecar: longer than the server is away.
SESSION = "20s"

#: How long the server is away at least, in seconds.
AWAY = 0.5

#: How soon a single sidecar is to be back in 99 of 100 restarts, and how much later each further
#: one; milliseconds.
GOAL = 500.0
SPREAD = 5.0

#: How a sidecar logs that it is connected again, or has another session because the server took too long.
BACK = re.compile(r"^(\S+)Z  ?INFO .*(?:connected with ZooKeeper again|session opened)", re.MULTILINE)


def times_back(sidecar: Sidecar) -> list[float]:
    """When a sidecar was connected again, wall clock."""
    found = BACK.findall(sidecar.log.read_text(errors="replace"))
    return [datetime.fromisoformat(one[:26]).replace(tzinfo=timezone.utc).timestamp() for one in found]


def restart(server: ZooKeeperServer, sidecars: Sequence[Sidecar]) -> list[float]:
    """Restarts the server; returns after how many milliseconds each sidecar was back."""
    counts = [len(times_back(sidecar)) for sidecar in sidecars]
    server.kill()
    time.sleep(AWAY)
    server.start()
    server.wait_serving()
    serves = time.time()
    late = []
    for sidecar, count in zip(sidecars, counts):
        eventually("back", lambda sidecar=sidecar, count=count: len(times_back(sidecar)) > count, 30)
        late.append(1000 * (times_back(sidecar)[count] - serves))
    return late


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restarts", type=int, default=100)
    parser.add_argument("--sidecars", type=int, default=1)
    arguments = parser.parse_args()
    # The path is short because that of a Unix socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="sk-") as name:
        folder = Path(name)
        server = ZooKeeperServer(folder)
        options = ["--log-format", "text"]
        address = f"127.0.0.1:{server.port}"
        sidecars = [
            Sidecar(number + 1, folder, address, "return", SESSION, options) for number in range(arguments.sidecars)
        ]
        try:
            for sidecar in sidecars:
                eventually("a session", lambda sidecar=sidecar: "session opened" in sidecar.log.read_text(), 30)
            rounds = [restart(server, sidecars) for _ in range(arguments.restarts)]
        finally:
            for sidecar in sidecars:
                sidecar.kill()
            server.kill()
    last = [max(one) for one in rounds]
    limit = GOAL + SPREAD * (arguments.sidecars - 1)
    print(f"{arguments.restarts} restarts, {arguments.sidecars} sidecars; {sidekeeper_binary()}")
    print("| | p50 ms | p99 | max |")
    print("|---|---:|---:|---:|")
    for what, values in (("each", [one for round_ in rounds for one in round_]), ("the last of them", last)):
        print(f"| {what} | {statistics.median(values):.0f} | {percentile(values, 99):.0f} | {max(values):.0f} |")
    reached = percentile(last, 99) <= limit
    print(f"goal: p99 of the last at most {limit:.0f} ms: {'reached' if reached else 'missed'}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
