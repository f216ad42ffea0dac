"""An application that holds a lock again and again, and changes a register meanwhile (`register.py`): it reads, works for a
while, and writes. A holder sends its fencing token with each operation.

Its argument is a JSON object of settings. The journal has a line when an operation begins, and one when its answer comes.
The line `end` on standard input ends the program. With `steps` it writes only after a line `write`. Between the lines `cling`
and `let go`, an application that does not obey often waits until it has lost the lock, and writes some time after that.
"""

from __future__ import annotations

import json
import queue
import random
import socket
import sys
import threading
import time
from typing import Any

import sidekeeper

SETTINGS: dict[str, Any] = json.loads(sys.argv[1])

#: How long the application waits for the register, in seconds. After that the outcome of its operation is unknown.
ANSWER = 0.4
#: How long a holder works between a read and a write, in seconds; now and then for longer.
WORK = (0.0, 0.02)
LONG_WORK = (0.2, 1.0)
LONG_OFTEN = 0.05
#: How long an application that clings keeps a lock that nobody takes from it, in seconds, how often it does, and how long
#: after the loss it writes.
CLINGS = 3.0
CLINGS_OFTEN = 0.3
AFTER_LOSS = (0.0, 2.0)
#: How long a holder may take to hear that it has lost the lock, once its operation was refused, in seconds.
TO_HEAR = 5.0
ASK_AGAIN = 0.05

lines: queue.Queue[str] = queue.Queue()
over = threading.Event()
clings = threading.Event()
dice = random.Random(SETTINGS["seed"])
journal = open(SETTINGS["journal"], "a", buffering=1)  # noqa: SIM115 - until the process ends


def tell(event: str) -> None:
    print(json.dumps({"event": event}), flush=True)


def note(**fields: Any) -> None:
    journal.write(json.dumps(fields) + "\n")


class Operations:
    """The operations of this process on the register, one after another."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self, op: str, token: int, value: str = "", read: str = "") -> tuple[str, str]:
        """Asks the register; returns the outcome and the value."""
        self._number += 1
        request = {"op": op, "token": token, "value": value}
        note(number=self._number, call=time.monotonic_ns(), read=read, **request)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER)
            try:
                connection.connect(SETTINGS["store"])
                connection.sendall(json.dumps(request).encode() + b"\n")
                answer = connection.makefile().readline()
            except OSError:
                answer = ""
        if not answer:
            return "unknown", ""
        told: dict[str, str] = json.loads(answer)
        note(number=self._number, returned=time.monotonic_ns(), **told)
        return told["outcome"], told["value"]


ask = Operations()


def work(lock: sidekeeper.Lock) -> None:
    """Does what takes a holder's time between its read and its write."""
    if SETTINGS["steps"]:
        tell("read")
        while not over.is_set() and lines.get() != "write":
            pass
    elif clings.is_set() and dice.random() < CLINGS_OFTEN:
        if lock.wait_lost(CLINGS):
            time.sleep(dice.uniform(*AFTER_LOSS))
    else:
        time.sleep(dice.uniform(*(LONG_WORK if dice.random() < LONG_OFTEN else WORK)))


def hold(lock: sidekeeper.Lock) -> None:
    for _ in range(dice.randint(1, 5)):
        outcome, read = ask("read", lock.fencing_token)
        if outcome == "accepted":
            if SETTINGS["obeys"] and lock.lost:
                return
            # The lock may be lost now. Then the application learns it only after its write.
            work(lock)
            value = f"{SETTINGS['name']}-{time.monotonic_ns()}"
            outcome, _ = ask("write", lock.fencing_token, value, read)
        if outcome == "refused":
            tell("refused" if lock.wait_lost(TO_HEAR) else "refused without a loss")
        if outcome != "accepted":
            return
        tell("wrote")
        if over.is_set():
            return


def listen() -> None:
    for line in sys.stdin:
        command = line.strip()
        if command == "end":
            over.set()
        if command in ("cling", "let go"):
            clings.set() if command == "cling" else clings.clear()
        lines.put(command)


threading.Thread(target=listen, daemon=True).start()
while not over.is_set():
    try:
        with sidekeeper.lock(path=SETTINGS["path"], holder=SETTINGS["name"], endpoint=SETTINGS["endpoint"]) as lock:
            hold(lock)
    except sidekeeper.LockError:
        time.sleep(ASK_AGAIN)
