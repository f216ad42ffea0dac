"""An application for the fault tests: an instance of one job that journals all its events.

A line is a JSON object with the wall clock and CLOCK_MONOTONIC, which is the same for all processes of a machine. It
goes to the journal first, which outlives the process, then to standard output. Each execution claims its item at the
fenced store when it begins, and commits when it ends. It writes a checkpoint as soon as it has begun, and again every
`CHECKPOINT_INTERVAL`; the checkpoint says for which item and instant it was written. The journal has it when the
sidecar has answered that it is recorded.

The lines on its standard input are commands: `hold` keeps executions open until `release`, `duration MILLISECONDS`
says how long executions take. With `FAULTS_IGNORE` the application ignores a Cancel: the execution goes on.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import socket
import sys
import threading
import time

import sidekeeper

JOB = os.environ["FAULTS_JOB"]
NAME = os.environ["FAULTS_NAME"]
STORE = os.environ["FAULTS_STORE"]
OBEYS = not os.environ.get("FAULTS_IGNORE")

#: How long executions of certain items take, in seconds.
DURATIONS: dict[int, float] = {int(item): took for item, took in json.loads(os.environ["FAULTS_DURATIONS"]).items()}

#: How often an execution that is held open looks whether it still is, in seconds.
LOOK_INTERVAL = 0.02

#: How often an execution writes a checkpoint, in seconds. Zero: executions write none.
CHECKPOINT_INTERVAL = float(os.environ["FAULTS_CHECKPOINTS"])

journal = os.open(os.environ["FAULTS_JOURNAL"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
app = sidekeeper.Application()
lock = threading.Lock()


class Orders:
    """What the test has asked for."""

    holding = False
    duration = float(os.environ["FAULTS_DURATION"])


def report(event: str, **fields: object) -> None:
    clocks = {"wall": time.time(), "time": time.clock_gettime(time.CLOCK_MONOTONIC)}
    line = json.dumps({"event": event, **clocks, **fields}) + "\n"
    with lock:
        os.write(journal, line.encode())
        sys.stdout.write(line)
        sys.stdout.flush()


def write(kind: str, item: int, token: int) -> bool:
    """Writes to the store; returns whether it was accepted."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(STORE)
        wanted = {"kind": kind, "item": item, "token": token, "writer": NAME}
        connection.sendall(json.dumps(wanted).encode() + b"\n")
        with connection.makefile() as answers:
            return bool(json.loads(answers.readline())["accepted"])


def write_checkpoints(execution: sidekeeper.Execution, fields: dict[str, object], over: threading.Event) -> None:
    """Writes checkpoints until the execution is over; on a thread of its own, because it waits for the registry."""
    for number in itertools.count(1):
        written = {**fields, "scheduled": execution.scheduled_time.timestamp(), "number": number}
        try:
            progress = execution.progress(json.dumps(written).encode())
        except (sidekeeper.ProgressError, RuntimeError):
            return  # the execution is over, or its lease is lost
        if not progress.superseded:
            report("checkpoint", **written)
        if over.wait(CHECKPOINT_INTERVAL):
            return


@app.job(JOB, **json.loads(os.environ["FAULTS_CONFIGURATION"]))
def handler(execution: sidekeeper.Execution) -> None:
    fields: dict[str, object] = {
        "item": execution.item,
        "token": execution.fencing_token,
        "execution": execution.execution_id,
    }
    report(
        "start",
        **fields,
        source=execution.source.name,
        scheduled=execution.scheduled_time.timestamp(),
        fired=execution.fire_time.timestamp(),
        checkpoint=None if execution.checkpoint is None else json.loads(execution.checkpoint),
    )
    over = threading.Event()
    if CHECKPOINT_INTERVAL:
        threading.Thread(target=write_checkpoints, args=(execution, fields, over), daemon=True).start()
    try:
        execute(execution, fields)
    finally:
        over.set()


def execute(execution: sidekeeper.Execution, fields: dict[str, object]) -> None:
    """Claims, takes its time, and commits."""
    began = time.monotonic()
    if not write("claim", execution.item, execution.fencing_token):
        report("refused", **fields, write="claim")
        raise RuntimeError("the store has seen a higher token")
    ignored = False
    while (left := began + DURATIONS.get(execution.item, Orders.duration) - time.monotonic()) > 0 or Orders.holding:
        pause = LOOK_INTERVAL if Orders.holding else left
        if ignored:
            time.sleep(min(pause, LOOK_INTERVAL))
        elif execution.cancelled.wait(pause):
            reason = getattr(execution.cancelled.reason, "name", None)
            report("cancelled" if OBEYS else "ignored", **fields, reason=reason)
            ignored = not OBEYS
            if OBEYS:
                execution.raise_if_cancelled()
    if not write("commit", execution.item, execution.fencing_token):
        report("refused", **fields, write="commit")
        raise RuntimeError("the store has seen a higher token")
    report("end", **fields)


@app.on_assignment(JOB)
def on_assignment(assignment: sidekeeper.Assignment) -> None:
    report(
        "assignment",
        instance=assignment.instance_id,
        generation=assignment.generation,
        items=[item.item for item in assignment.items],
        leader=assignment.leader,
        reason=assignment.reason.name,
    )


@app.on_session(JOB)
def on_session(change: sidekeeper.SessionChange) -> None:
    lease = change.remaining_lease
    report("session", state=change.state.name, lease=None if lease is None else lease.total_seconds())


def read_commands() -> None:
    for line in sys.stdin:
        command, *arguments = line.split()
        if command in ("hold", "release"):
            Orders.holding = command == "hold"
        elif command == "duration":
            Orders.duration = int(arguments[0]) / 1000
        else:
            raise ValueError(f"no such command: {command}")
        report(command)


report("begin", pid=os.getpid(), obeys=OBEYS)
threading.Thread(target=read_commands, daemon=True).start()
app.run()
