"""An application for the end-to-end tests: reports its events on standard output, a JSON object a line.

The lines on its standard input are commands; items are numbers with spaces between them, and none means all:
`hold ITEMS` holds executions open until `release ITEMS`, `fail ITEMS` lets these items fail from now on and no others,
`duration MILLISECONDS` says how long executions take. With `E2E_CHECKPOINT` in the environment each execution records this text as its checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

import sidekeeper

JOB = os.environ["E2E_JOB"]
CHECKPOINT = os.environ.get("E2E_CHECKPOINT")

if collector := os.environ.get("E2E_COLLECTOR"):
    import span_exporter

    span_exporter.export_to(collector)

app = sidekeeper.Application()
lock = threading.Lock()


class Orders:
    """What the test has asked for."""

    held: frozenset[int] = frozenset()
    holding_all = False
    failing: frozenset[int] = frozenset()
    duration = 0.0


def apply(command: str, items: frozenset[int]) -> None:
    if command == "hold":
        Orders.held |= items
        Orders.holding_all |= not items
    elif command == "release":
        Orders.held = Orders.held - items if items else frozenset()
        Orders.holding_all = Orders.holding_all and bool(items)
    elif command == "fail":
        Orders.failing = items
    elif command == "duration":
        Orders.duration = max(items) / 1000
    else:
        raise ValueError(f"no such command: {command}")


def report(event: str, **fields: object) -> None:
    with lock:
        print(json.dumps({"event": event, **fields, "time": time.time()}), flush=True)


@app.job(JOB, **json.loads(os.environ["E2E_CONFIGURATION"]))
def handler(execution: sidekeeper.Execution) -> None:
    fields = {
        "item": execution.item,
        "parameter": execution.item_parameter,
        "job_parameter": execution.job_parameter,
        "total": execution.sharding_total_count,
        "task_id": execution.task_id,
        "source": execution.source.name,
        "scheduled": execution.scheduled_time.timestamp(),
        "fencing_token": execution.fencing_token,
        "lock_token": execution.lock_token,
        "execution_id": execution.execution_id,
        "traceparent": execution.traceparent,
    }
    report("start", **fields)
    if CHECKPOINT:
        execution.progress(CHECKPOINT.encode())
        report("checkpoint")
    end = time.monotonic() + Orders.duration
    while Orders.holding_all or execution.item in Orders.held or time.monotonic() < end:
        if execution.cancelled.wait(0.01):
            report("cancelled", **fields, reason=getattr(execution.cancelled.reason, "name", None))
            execution.raise_if_cancelled()
    if execution.item in Orders.failing:
        report("failed", **fields)
        raise RuntimeError("the test wants it to fail")
    report("end", **fields)


@app.on_assignment(JOB)
def on_assignment(assignment: sidekeeper.Assignment) -> None:
    report(
        "assignment",
        instance=assignment.instance_id,
        generation=assignment.generation,
        items=[item.item for item in assignment.items],
        disabled=[item.item for item in assignment.items if item.disabled],
        tokens={item.item: item.fencing_token for item in assignment.items},
        leader=assignment.leader,
        reason=assignment.reason.name,
    )


@app.on_before_first(JOB)
def before_first(_: object) -> None:
    report("once_before")


@app.on_after_last(JOB)
def after_last(_: object) -> None:
    report("once_after")


def read_commands() -> None:
    for line in sys.stdin:
        command, *items = line.split()
        apply(command, frozenset(map(int, items)))
        report(command)


threading.Thread(target=read_commands, daemon=True).start()
app.run()
