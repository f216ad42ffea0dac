"""A register that a lock guards: a value, and the highest fencing token that it has seen. It refuses lower tokens, of readers
too, because what a holder reads decides what it writes.

It is asked over a Unix socket, a JSON object a connection. Its network can be bad: some requests arrive late, when their
application does not wait any more, and some answers are lost.
"""

from __future__ import annotations

import json
import random
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from faults.fleet import FaultFleet, Slot
from support.processes import PATIENCE, ROOT, CommandedProcess, environment_with_client, eventually

PROGRAM = Path(__file__).with_name("register_program.py")
CHECKER = ROOT / ".tools" / "bin" / "linearizable"

#: How late a late request arrives, in seconds.
LATE = (0.5, 2.5)


class Register:
    """The register, served until `end`. Without `checks` it accepts every token."""

    def __init__(self, folder: Path, seed: int, checks: bool = True):
        self.socket = folder / "register.sock"
        self._checks = checks
        self._dice = random.Random(seed)
        self._lock = threading.Lock()
        self._value, self._token = "", 0
        #: How many of the requests arrive late, and of the answers are lost: from 0 to 1.
        self.late = self.lost = 0.0
        register = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                register._handle(self.rfile.readline(), self.wfile)

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True

        self._server = Server(str(self.socket), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handle(self, line: bytes, answers: Any) -> None:
        if not line.endswith(b"\n"):
            return  # the application was killed while it sent this
        with self._lock:
            is_late, is_lost = self._dice.random() < self.late, self._dice.random() < self.lost
            delay = self._dice.uniform(*LATE)
        if is_late:
            time.sleep(delay)
        answer = self._execute(json.loads(line))
        if not is_lost:
            with suppress(OSError):  # the application does not wait any more
                answers.write(json.dumps(answer).encode() + b"\n")

    def _execute(self, request: dict[str, Any]) -> dict[str, str]:
        with self._lock:
            if self._checks and request["token"] < self._token:
                return {"outcome": "refused", "value": ""}
            self._token = request["token"]
            if request["op"] == "write":
                self._value = request["value"]
            return {"outcome": "accepted", "value": self._value}


class Writer(CommandedProcess):
    """An application that changes the register while it holds the lock."""

    def __init__(
        self, fleet: FaultFleet, slot: Slot, register: Register, seed: int, obeys: bool = True, steps: bool = False
    ):
        self.slot = slot
        self.obeys = obeys
        self._fleet = fleet
        name = f"writer-{len(fleet.processes)}"
        self.journal = fleet.folder / f"{name}.jsonl"
        settings = {
            "name": name,
            "endpoint": f"unix://{slot.sidecar.socket}",
            "path": lock_path(fleet),
            "store": str(register.socket),
            "journal": str(self.journal),
            "seed": f"{seed} {name}",
            "obeys": obeys,
            "steps": steps,
        }
        command = [sys.executable, str(PROGRAM), json.dumps(settings)]
        super().__init__(name, command, fleet.folder, environment_with_client())
        fleet.processes.append(self)

    def wrote(self) -> int:
        """How many writes the register has accepted from it, as it knows."""
        return len(self.events("wrote"))

    def die(self) -> None:
        """Kills it, as a crash does."""
        self.kill()
        self._fleet.ended.append(self)

    def leave(self) -> None:
        """Ends it in peace."""
        self.say("end")
        self._fleet.ended.append(self)
        assert self.popen.wait(2 * PATIENCE) == 0, f"{self.name} ended with status {self.popen.returncode}"
        self._reader.join()

    def operations(self, client: int) -> list[dict[str, Any]]:
        """What it has asked of the register, by its journal, as lines of a history."""
        begun: dict[int, dict[str, Any]] = {}
        lines = self.journal.read_text().splitlines(keepends=True) if self.journal.exists() else []
        for line in lines:
            if not line.endswith("\n"):
                break  # it was killed while it wrote this
            entry = json.loads(line)
            if "call" in entry:
                begun[entry["number"]] = {
                    "client": client,
                    "call": entry["call"],
                    "return": None,
                    "op": entry["op"],
                    "token": entry["token"],
                    "value": entry["value"],
                    "from": entry["read"],
                    "outcome": "unknown",
                }
            else:
                one = begun[entry["number"]]
                one.update({"return": entry["returned"], "outcome": entry["outcome"]})
                if one["op"] == "read":
                    one["value"] = entry["value"]
        return list(begun.values())


def lock_path(fleet: FaultFleet) -> str:
    """The lock that guards the register."""
    return f"/{fleet.namespace}-locks/register"


def check(writers: Sequence[Writer], history: Path) -> tuple[int, str]:
    """Has the checker judge what these applications have done; returns its status, and what it says. Status 0: linearizable;
    1: not."""
    if not CHECKER.is_file():
        raise RuntimeError(f"no {CHECKER}: run make fault-tools")
    operations = [one for client, writer in enumerate(writers) for one in writer.operations(client)]
    history.write_text("".join(json.dumps(one) + "\n" for one in operations))
    told = subprocess.run([CHECKER, history], capture_output=True, text=True, timeout=6 * PATIENCE, check=False)
    return told.returncode, told.stdout + told.stderr


def all_write_again(writers: Sequence[Writer]) -> None:
    """Waits until the register has accepted one more write of each of these applications."""
    before = {writer: writer.wrote() for writer in writers}
    eventually(
        "each application writes", lambda: all(writer.wrote() > before[writer] for writer in writers), 4 * PATIENCE
    )
