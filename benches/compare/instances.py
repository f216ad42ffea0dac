"""An instance of each kind: a JVM with ElasticJob, or a sidecar and an application beside it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interop.members import JOB_CLASS, Java
from support.fleet import Fleet
from support.job_nodes import JOB
from support.processes import PATIENCE, InstanceProcess, environment_with_client

FOLDER = Path(__file__).resolve().parent


class ElasticJob(Java):
    """An instance of ElasticJob on a JVM with its default settings."""

    JVM = ()

    def parts(self) -> dict[str, int]:
        """The ids of its processes."""
        return {"instance": self.popen.pid}

    def wait_registered(self) -> str:
        """Waits until it is registered, which takes a JVM long on a busy machine; returns its instance id."""
        self.wait("ready", lambda events: any(event["event"] == "ready" for event in events), timeout=3 * PATIENCE)
        return self.instance


class Sidecared(InstanceProcess):
    """An application beside a sidecar of its own."""

    def __init__(
        self, command: Sequence[str], number: int, name: str, fleet: Fleet, session: float, job: dict[str, Any]
    ):
        self.sidecar = fleet.sidecar(number, f"{int(session * 1000)}ms")
        environment = environment_with_client(
            SIDEKEEPER_ENDPOINT=f"unix://{self.sidecar.socket}",
            COMPARE_JOB=JOB,
            COMPARE_CLASS=JOB_CLASS,
            COMPARE_CONFIGURATION=json.dumps(job),
        )
        super().__init__(name, command, fleet.folder, environment)

    def parts(self) -> dict[str, int]:
        return {"sidecar": self.sidecar.popen.pid, "application": self.popen.pid}

    def wait_registered(self) -> str:
        return self.instance

    def die(self) -> None:
        """Kills both processes, as when a machine dies."""
        self.sidecar.kill()
        self.kill()

    def leave(self) -> None:
        """Ends the application, then the sidecar, as a deployment does."""
        self.terminate()
        self.sidecar.terminate()


@dataclass(frozen=True)
class Kind:
    """A kind of instance."""

    name: str
    #: Its heading in the tables.
    heading: str
    start: Callable[..., ElasticJob | Sidecared]

    @property
    def is_java(self) -> bool:
        return self.start is ElasticJob


def _sidecared(*command: str) -> Callable[..., Sidecared]:
    return lambda *arguments: Sidecared(command, *arguments)


#: Each kind by its name. The programs of Go and Rust are built by the Makefile.
KINDS = {
    kind.name: kind
    for kind in (
        Kind("java", "ElasticJob", ElasticJob),
        Kind("python", "sidecar, Python", _sidecared(sys.executable, str(FOLDER / "application.py"))),
        Kind("go", "sidecar, Go", _sidecared(os.environ.get("COMPARE_GO", ""))),
        Kind("rust", "sidecar, bare protos", _sidecared(os.environ.get("COMPARE_RUST", ""))),
    )
}


class CompareFleet(Fleet):
    """Instances of one kind, of one job that fires every few seconds."""

    def __init__(self, *arguments: Any, kind: Kind, session: float, job: dict[str, Any], period: int):
        super().__init__(*arguments)
        self.kind = kind
        self.session = session
        self.job = {"failover": True, "misfire": True, **job, "cron": f"0/{period} * * * * ?"}
        self.period = period
        self.members: list[ElasticJob | Sidecared] = []

    @property
    def items(self) -> int:
        return int(self.job["sharding_total_count"])

    def launch(self, number: int) -> ElasticJob | Sidecared:
        """Starts an instance, and does not wait for it."""
        name = f"{self.kind.name}-{number}-{len(self.processes)}"
        member = self.kind.start(number, name, self, self.session, self.job)
        self.processes.append(member)
        self.members.append(member)
        return member

    def living(self) -> list[ElasticJob | Sidecared]:
        return [member for member in self.members if member.popen.poll() is None]

    def starts(self) -> list[Start]:
        """All executions so far."""
        return [
            Start(event["item"], self._fire(event), event["time"], member.name)
            for member in self.members
            for event in member.events("start")
        ]

    def _fire(self, event: dict[str, Any]) -> float:
        """The instant that an execution is for. Java does not tell it: the last fire of the schedule before its start."""
        return float(event.get("scheduled") or event["time"] // self.period * self.period)

    def is_even(self, members: Sequence[ElasticJob | Sidecared]) -> bool:
        """Whether these instances own the items evenly, by ZooKeeper."""
        return self.are_even(self.tree.owners(), [member.instance for member in members], self.items)


@dataclass(frozen=True)
class Start:
    """The start of an execution in an application."""

    item: int
    fire: float
    time: float
    member: str

    @property
    def delay(self) -> float:
        """From the scheduled instant, in seconds."""
        return self.time - self.fire
