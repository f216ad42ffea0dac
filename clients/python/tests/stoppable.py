"""An application for test_stop.py: one item at a time, each ends when a line comes."""

from __future__ import annotations

import logging
import sys

import sidekeeper

app = sidekeeper.Application()


@app.job("orderSync", sharding_total_count=6, concurrency=1)
def handler(execution: sidekeeper.Execution) -> None:
    print("begun", execution.item, flush=True)
    sys.stdin.readline()


logging.basicConfig(format="%(message)s", stream=sys.stdout)
logging.getLogger("sidekeeper").addFilter(lambda record: "stopping" in record.getMessage())
logging.getLogger("sidekeeper").setLevel(logging.INFO)
app.run()
print("returned", flush=True)
