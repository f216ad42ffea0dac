"""The example of orders: several instances own the cities, one of them is killed, and each order arrives once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from itertools import groupby
from pathlib import Path

from databases import Shop, Warehouse

from support.fleet import Fleet
from support.processes import ROOT, eventually

EXAMPLE = ROOT / "examples" / "order-sync"

CITIES = ("Beijing", "Shanghai", "Guangzhou", "Shenzhen", "Chengdu", "Hangzhou")

#: In each city, each time.
ORDERS = 70


def test_each_order_arrives_once_and_in_order(fleet: Fleet, tmp_path: Path) -> None:
    files = [str(tmp_path / "shop.db"), str(tmp_path / "warehouse.db")]
    with Shop(Path(files[0])) as shop, Warehouse(Path(files[1])) as warehouse:
        endpoints = [f"unix://{fleet.sidecar(number, '3s').socket}" for number in (1, 2, 3)]
        library = os.pathsep.join(filter(None, [str(ROOT / "clients" / "python"), os.environ.get("PYTHONPATH")]))
        instances: list[subprocess.Popen[bytes]] = []

        def start(endpoint: str) -> None:
            command = [sys.executable, str(EXAMPLE / "order_sync.py"), *files]
            environment = {**os.environ, "PYTHONPATH": library, "SIDEKEEPER_ENDPOINT": endpoint}
            instances.append(subprocess.Popen(command, env=environment))

        def order(times: int) -> None:
            for city in CITIES:
                for _ in range(ORDERS):
                    shop.order(city, "tea")
            eventually("all orders", lambda: len(warehouse.received()) >= times * ORDERS * len(CITIES))

        def owners(count: int) -> None:
            wanted = [len(CITIES) // count] * count
            eventually(f"{count} share", lambda: sorted(Counter(fleet.tree.owners().values()).values()) == wanted)

        try:
            start(endpoints[0])
            owners(1)
            order(1)
            for endpoint in endpoints[1:]:
                start(endpoint)
            owners(3)
            order(2)
            instances[0].kill()
            order(3)
            owners(2)
            order(4)
        finally:
            for instance in instances:
                instance.kill()
                instance.wait()
        received = warehouse.received()
        assert len(received) == 4 * ORDERS * len(CITIES)
        for city, rows in groupby(sorted(received, key=lambda row: row[0]), key=lambda row: row[0]):
            numbers = [number for _, number in rows]
            assert numbers == sorted(set(numbers)), f"twice or not in order: {city}"
