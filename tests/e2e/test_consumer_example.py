"""The example of a continuous owner: consumers come and go, each message is handled once and in order."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import groupby
from pathlib import Path

from queue_db import PARTITIONS, Queue

from support.fleet import Fleet
from support.processes import ROOT, eventually

EXAMPLE = ROOT / "examples" / "consumer"

#: To each partition, at each stage.
MESSAGES = 40


def test_partitions_are_handed_over_without_a_message_lost_or_handled_twice(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    queue = Queue(path)
    endpoints = [f"unix://{fleet.sidecar(number).socket}" for number in (1, 2, 3)]
    library = os.pathsep.join(filter(None, [str(ROOT / "clients" / "python"), os.environ.get("PYTHONPATH")]))

    def start(endpoint: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(EXAMPLE / "consumer.py"), str(path)]
        environment = {**os.environ, "PYTHONPATH": library, "SIDEKEEPER_ENDPOINT": endpoint}
        return subprocess.Popen(command, env=environment)

    def handle(owners: int) -> None:
        """Has some messages of each partition handled while so many consumers have partitions."""
        eventually(f"{owners} owners", lambda: len(set(fleet.tree.owners().values())) == owners)
        for partition in range(PARTITIONS):
            queue.publish(partition, MESSAGES)
        published.append(MESSAGES)
        eventually("the messages", lambda: len(queue.all_handled()) >= PARTITIONS * sum(published) // 2)

    published: list[int] = []
    consumers = [start(endpoints[0])]
    try:
        handle(1)
        for endpoint in endpoints[1:]:
            # It joins while the others are busy.
            consumers.append(start(endpoint))
            handle(len(consumers))
        consumers[0].terminate()
        handle(2)
        consumers[1].kill()
        handle(1)
        eventually("all messages", lambda: len(queue.all_handled()) == PARTITIONS * sum(published))
    finally:
        for consumer in consumers:
            consumer.kill()
            consumer.wait()
    handled = queue.all_handled()
    by_partition = groupby(sorted(handled), key=lambda row: row[0])
    assert {part: [row[1] for row in rows] for part, rows in by_partition} == {
        part: list(range(1, sum(published) + 1)) for part in range(PARTITIONS)
    }
    assert len({consumer for _, _, consumer in handled}) == 3
