"""The application of the comparison in Python: reports the start and the end of each execution, a JSON object a line.

Lines on its standard input are commands: after `hold` executions do not end until `release`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time

import sidekeeper

JOB = os.environ["COMPARE_JOB"]
CONFIGURATION = json.loads(os.environ["COMPARE_CONFIGURATION"])

app = sidekeeper.Application()
held = threading.Event()


def report(event: str, **fields: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


@app.job(JOB, job_class=os.environ["COMPARE_CLASS"], concurrency=CONFIGURATION["sharding_total_count"], **CONFIGURATION)
async def handler(execution: sidekeeper.Execution) -> None:
    report("start", item=execution.item, scheduled=execution.scheduled_time.timestamp(), time=time.time())
    while held.is_set():  # noqa: ASYNC110 - a thread sets it
        await asyncio.sleep(0.02)
    report("end", item=execution.item, time=time.time())


@app.on_assignment(JOB)
def on_assignment(assignment: sidekeeper.Assignment) -> None:
    report("assignment", instance=assignment.instance_id, items=[item.item for item in assignment.items])


def obey() -> None:
    for line in sys.stdin:
        command = line.strip()
        held.set() if command == "hold" else held.clear()
        report(command)


threading.Thread(target=obey, daemon=True).start()
app.run()
