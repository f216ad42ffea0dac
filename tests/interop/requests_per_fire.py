"""What a fire costs: requests to ZooKeeper by the whole fleet, for sidecars and for Java instances in the same run.

Counts with ZooKeeper's own counter of received packets, less what comes in the same time when nothing happens. Run by
`make interop-requests`; prints a table.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path

from interop.members import MixedFleet, elasticjob_version
from support.processes import eventually
from support.zookeeper import ZooKeeperServer

ITEMS = 50

#: How long packets are counted for, in seconds. The fire is in the middle.
WINDOW = 5.0

#: So long that pings are rare, in seconds.
SESSION = 30.0


def count(fleet: MixedFleet) -> int:
    before = fleet.server.packets_received()
    time.sleep(WINDOW)
    return fleet.server.packets_received() - before


def measure(server: ZooKeeperServer, kind: str, instances: int, failover: bool, fires: int) -> list[int]:
    """Returns the requests of each of some fires."""
    client = server.client()
    folder = Path(tempfile.mkdtemp(prefix="sk-"))
    fleet = MixedFleet(folder, server, client, f"requests-{uuid.uuid4().hex[:8]}")
    job = {"sharding_total_count": ITEMS, "failover": failover}
    if kind == "ours":
        job["concurrency"] = ITEMS
    try:
        members = [fleet.member(kind, number + 1, SESSION, **job) for number in range(instances)]
        fleet.divide(*members, total=ITEMS)
        for member in members:
            # All items end together; Java has fewer threads than items, and they end as they do.
            member.command(f"duration {300 if kind == 'ours' else 1}")
        idle = count(fleet)
        costs = []
        for _ in range(fires):
            fire = fleet.tree.fire_once(ahead=3.5)
            fleet.fires.append(fire)
            time.sleep(max(0.0, fire - time.time() - WINDOW / 4))  # the change of the schedule is over
            costs.append(count(fleet) - idle)
            eventually("all executed", lambda: fleet.executed(fire) == set(range(ITEMS)))
        return costs
    finally:
        fleet.end()
        fleet.remove_files()
        client.stop()
        client.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, nargs="+", default=[3, 6])
    parser.add_argument("--fires", type=int, default=3)
    arguments = parser.parse_args()
    version = ".".join(map(str, elasticjob_version()))
    print(f"requests to ZooKeeper per fire, {ITEMS} items, median of {arguments.fires} fires; ElasticJob {version}")
    print(f"{'instances':>9} {'failover':>8} {'sidecars':>9} {'goal':>5} {'java':>6}   (each fire)")
    missed = False
    with tempfile.TemporaryDirectory(prefix="sk-zk-") as folder:
        server = ZooKeeperServer(Path(folder))
        try:
            for instances in arguments.instances:
                for failover in (False, True):
                    ours = measure(server, "ours", instances, failover, arguments.fires)
                    java = measure(server, "java", instances, failover, arguments.fires)
                    goal = 4 * instances + 10
                    cost = statistics.median(ours)
                    missed |= cost > goal
                    told = f"{instances:>9} {'on' if failover else 'off':>8} {cost:>9} {goal:>5}"
                    print(f"{told} {statistics.median(java):>6}   {ours} {java}", flush=True)
        finally:
            server.kill()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
