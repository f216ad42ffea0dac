"""Processes that a test starts and ends, and the one way in which a test waits: `eventually`."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Callable, TypeVar

ROOT = Path(__file__).resolve().parents[2]

#: The time limit of every wait of a test, unless the test sets another one; seconds.
PATIENCE = 20.0

#: The pause between two looks of a wait, in seconds.
LOOK_INTERVAL = 0.02

T = TypeVar("T")


def eventually(what: str, look: Callable[[], T], timeout: float = PATIENCE) -> T:
    """Calls `look` until it returns something true, and returns that. Fails the test after `timeout` seconds."""
    end = time.monotonic() + timeout
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what}; last seen: {seen!r}")
        time.sleep(LOOK_INTERVAL)


#: Systems do not give these ports to outgoing connections. `tests/support/zookeeper.rs` has the next ones.
PORTS = range(10_000, 30_000)


class Reservations:
    """The ports that this process has given to its servers. It locks one byte of a file for each of them.

    A port is reserved until the process ends, because a server listens late (a JVM after seconds, a follower's port for
    its own followers when it leads) and leaves its port while it is stopped.
    """

    def __init__(self) -> None:
        self._reserved: set[int] = set()
        self._mutex = threading.Lock()
        # The locks end with the first descriptor of the file that this process closes: it has one only.
        self._file = (Path(tempfile.gettempdir()) / f"sidekeeper-ports-{os.getuid()}").open("w")

    def reserve(self, port: int) -> bool:
        """Whether the port is now reserved for the caller. False: a process of the tests has it."""
        with self._mutex:
            if port in self._reserved:
                return False
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            except OSError:
                return False
            self._reserved.add(port)
            return True


reservations = Reservations()


def free_port() -> int:
    """A port that a server can take, leave, and take again. No process of the tests gets it while this one lives."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as taken, suppress(OSError):
            taken.bind(("127.0.0.1", port))
            if reservations.reserve(port):
                return port


def sidekeeper_binary() -> Path:
    """The sidecar under test."""
    return Path(os.environ.get("SIDEKEEPER_BINARY", ROOT / "target" / "debug" / "sidekeeper"))


def environment_with_client(**variables: str) -> dict[str, str]:
    """The environment of a process that imports the Python client from this repository."""
    path = os.pathsep.join(filter(None, [str(ROOT / "clients" / "python"), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **variables}


@contextmanager
def once_in_a_run(folder: Path, name: str) -> Iterator[bool]:
    """Gives True to the first worker of a test run that comes here, and False to the others, after the first has left."""
    done = folder / f"{name}.done"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not done.exists()
        done.touch()


class Process:
    """A process that a test has started. Its log is in a file."""

    def __init__(self, name: str, arguments: Sequence[str], folder: Path, environment: dict[str, str], pipe: bool):
        self.name = name
        #: Whether SIGSTOP has stopped it.
        self.frozen = False
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                arguments,
                env=environment,
                stdin=subprocess.PIPE if pipe else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipe else log,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kills the process; harmless when it has ended."""
        self.popen.kill()
        self.popen.wait()

    def terminate(self) -> None:
        """Asks the process to end, and expects it to end well."""
        self.popen.send_signal(signal.SIGTERM)
        assert self.popen.wait(PATIENCE) == 0, f"{self.name} ended with status {self.popen.returncode}"

    def freeze(self) -> None:
        """Stops the process with SIGSTOP, until `thaw`. Returns when all its threads stand."""
        self.frozen = True
        self.popen.send_signal(signal.SIGSTOP)
        # On a busy machine some threads go on for a while after the signal.
        os.waitid(os.P_PID, self.popen.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """Continues the stopped process."""
        self.frozen = False
        self.popen.send_signal(signal.SIGCONT)


class CommandedProcess(Process):
    """A process that takes commands on standard input, and reports events on standard output, a JSON object a line."""

    def __init__(self, name: str, arguments: Sequence[str], folder: Path, environment: dict[str, str]):
        super().__init__(name, arguments, folder, environment, pipe=True)
        self._events: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if not line.endswith("\n"):
                return  # the process was killed while it wrote this line
            with self._changed:
                self._events.append(json.loads(line))
                self._changed.notify_all()

    def kill(self) -> None:
        super().kill()
        self._reader.join()

    def terminate(self) -> None:
        super().terminate()
        self._reader.join()

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """The events of these kinds that it has reported so far."""
        with self._changed:
            return [event for event in self._events if event["event"] in kinds]

    def wait(self, what: str, look: Callable[[list[dict[str, Any]]], T], timeout: float = PATIENCE) -> T:
        """Waits until `look` finds something true in the events, and returns it."""
        with self._changed:
            seen = self._changed.wait_for(lambda: look(self._events), timeout)
            assert seen, f"{self.name}, not within {timeout} s: {what}; last events: {self._events[-5:]}"
            return seen

    def say(self, line: str) -> None:
        """Writes a line to its standard input."""
        assert self.popen.stdin is not None
        print(line, file=self.popen.stdin, flush=True)

    def command(self, command: str) -> None:
        """Writes a command, and waits until the process has taken it."""
        name = command.split()[0]
        before = len(self.events(name))
        self.say(command)
        self.wait(command, lambda events: sum(event["event"] == name for event in events) > before)


def executing(events: Iterable[dict[str, Any]]) -> set[int]:
    """The items that an application executes, by the events that it has reported."""
    items: set[int] = set()
    for event in events:
        if event["event"] == "start":
            items.add(event["item"])
        elif event["event"] in ("end", "failed", "interrupted", "cancelled", "refused"):
            items.discard(event["item"])
    return items


class InstanceProcess(CommandedProcess):
    """An application that is an instance of the job, and reports its assignments."""

    @property
    def instance(self) -> str:
        """Its instance id, by its last assignment; waits for the first one."""
        reported = self.wait("an assignment", lambda events: [one for one in events if one["event"] == "assignment"])
        return str(reported[-1]["instance"])

    def owned(self) -> list[int]:
        """The items of its last assignment."""
        reported = self.events("assignment")
        return list(reported[-1]["items"]) if reported else []

    def executing(self) -> set[int]:
        """The items that it executes, by the events that it has reported."""
        return executing(self.events("start", "end", "failed", "interrupted", "cancelled", "refused"))
