"""A worker of the demo: an application that synchronises the orders of six cities, a city an item.

The first half is what an application needs. The second half is for the demo: it writes what happens to the file that
the environment names, a JSON object a line, and the driver reads it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import datetime, timezone

import sidekeeper

CITIES = {0: "Beijing", 1: "Shanghai", 2: "Guangzhou", 3: "Shenzhen", 4: "Chengdu", 5: "Hangzhou"}

app = sidekeeper.Application()


@app.job("orderSync", sharding_total_count=6, cron="0/2 * * * * ?", sharding_item_parameters=CITIES)
def sync(execution: sidekeeper.Execution) -> None:
    """Synchronises the orders of one city; takes 0.3 s."""
    tell_execution("start", execution)
    time.sleep(0.3)
    tell_execution("end", execution)


@app.on_assignment("orderSync")
def tell_assignment(assignment: sidekeeper.Assignment) -> None:
    """Tells which items this worker has."""
    tell(
        "assignment",
        items=[item.item for item in assignment.items],
        generation=assignment.generation,
        reason=assignment.reason.name,
        leader=assignment.leader,
    )


def tell_execution(event: str, execution: sidekeeper.Execution) -> None:
    """Tells that an execution starts or ends."""
    tell(
        event,
        item=execution.item,
        parameter=execution.item_parameter,
        fire=execution.scheduled_time.isoformat(),
        source=execution.source.name,
        execution_id=execution.execution_id,
        fencing_token=execution.fencing_token,
    )


lock = threading.Lock()
journal = open(os.environ["DEMO_JOURNAL"], "a", encoding="utf-8")  # noqa: SIM115 - as long as the process lives


def tell(event: str, **fields: object) -> None:
    """Writes one line, whole, before anything else happens: the process may be killed at any time."""
    at = datetime.now(timezone.utc).isoformat()
    line = json.dumps({"worker": os.environ["DEMO_WORKER"], "pid": os.getpid(), "event": event, "at": at, **fields})
    with lock:
        journal.write(line + "\n")
        journal.flush()


if __name__ == "__main__":
    app.run()
