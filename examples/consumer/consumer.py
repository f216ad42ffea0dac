"""A consumer of a partitioned queue: it owns partitions as long as they are assigned to it, and gets no ``Execute``.

    python consumer.py QUEUE.db

The queue is a SQLite file (see ``queue_db.py``). Start as many consumers as you like; they share the partitions.
When consumers join and leave, partitions move one by one: the owner stops its work on one before the next owner begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

from queue_db import PARTITIONS, Queue

import sidekeeper

#: How long handling a message takes, in seconds.
WORK = 0.005
#: How long to wait when a partition is empty, in seconds.
IDLE = 0.02

JOB = "orderSync"

queue = Queue(Path(sys.argv[1]))
app = sidekeeper.Application()
consumers: dict[int, asyncio.Task[None]] = {}


async def consume(partition: int, token: int) -> None:
    """Handles the messages of one partition in order, until it is cancelled."""
    while True:
        message = queue.next(partition)
        if message is None:
            await asyncio.sleep(IDLE)
            continue
        await asyncio.sleep(WORK)
        # The token goes into the store: it refuses a consumer that has lost the partition without knowing it.
        if not queue.handled(partition, message, token, os.getpid()):
            return


@app.job(
    JOB,
    sharding_total_count=PARTITIONS,
    props={"sidekeeper.ownership": "continuous", "sidekeeper.handoff-deadline": "10s"},
)
def never_called(execution: sidekeeper.Execution) -> None:
    """Who owns items all the time is not told to execute them."""


@app.on_assigned(JOB)
async def begin(change: sidekeeper.ItemsChange) -> None:
    """Begins with what is ours from now on."""
    for item in change.items:
        if item.item in consumers:  # it was ours before, with another token
            await stop(consumers.pop(item.item))
        consumers[item.item] = asyncio.create_task(consume(item.item, item.fencing_token))
    print(f"{os.getpid()} owns {sorted(consumers)}: {change.reason.name}", flush=True)


@app.on_revoked(JOB)
@app.on_lost(JOB)
async def end(change: sidekeeper.ItemsChange) -> None:
    """Stops work on lost partitions. When this returns, revoked ones may have other owners; lost ones already do."""
    for item in change.items:
        if item.item in consumers:  # a consumer that was refused has ended, but is still there
            await stop(consumers.pop(item.item))
    print(f"{os.getpid()} owns {sorted(consumers)}: {change.reason.name}", flush=True)


async def stop(task: asyncio.Task[None]) -> None:
    """Waits until a task has ended: what it is doing with its message is done, or was never begun."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


if __name__ == "__main__":
    app.run()
