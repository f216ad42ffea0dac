"""An application for the end-to-end tests: tells what happens on its standard output, a JSON object a line.

It holds executions open between the lines `hold` and `release` on its standard input.
"""

from __future__ import annotations

import json
import os
import sys
import threading

import sidekeeper

JOB = os.environ["E2E_JOB"]

app = sidekeeper.Application()
released = threading.Event()
released.set()
lock = threading.Lock()


def tell(event: str, **fields: object) -> None:
    with lock:
        print(json.dumps({"event": event, **fields}), flush=True)


@app.job(JOB, **json.loads(os.environ["E2E_CONFIGURATION"]))
def handler(execution: sidekeeper.Execution) -> None:
    told = {
        "item": execution.item,
        "parameter": execution.item_parameter,
        "job_parameter": execution.job_parameter,
        "total": execution.sharding_total_count,
        "task_id": execution.task_id,
        "source": execution.source.name,
        "scheduled": execution.scheduled_time.timestamp(),
        "fencing_token": execution.fencing_token,
        "execution_id": execution.execution_id,
    }
    tell("start", **told)
    while not released.wait(0.01):
        execution.raise_if_cancelled()
    tell("end", **told)


@app.on_assignment(JOB)
def on_assignment(assignment: sidekeeper.Assignment) -> None:
    tell(
        "assignment",
        instance=assignment.instance_id,
        generation=assignment.generation,
        items=[item.item for item in assignment.items],
        disabled=[item.item for item in assignment.items if item.disabled],
        tokens={item.item: item.fencing_token for item in assignment.items},
        leader=assignment.leader,
        reason=assignment.reason.name,
    )


def read_commands() -> None:
    for line in sys.stdin:
        if line.strip() == "hold":
            released.clear()
        else:
            released.set()
        tell(line.strip())


threading.Thread(target=read_commands, daemon=True).start()
app.run()
