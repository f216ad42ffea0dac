"""The means of the scenarios: languages, sidecars, test applications, and the nodes in ZooKeeper."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import grpc
from sidekeeper._proto.v1 import assignment_service_pb2 as watch_pb2
from sidekeeper._proto.v1 import election_service_pb2, job_service_pb2, lock_service_pb2, sidecar_service_pb2
from sidekeeper._proto.v1.assignment_service_pb2_grpc import AssignmentServiceStub
from sidekeeper._proto.v1.election_service_pb2_grpc import ElectionServiceStub
from sidekeeper._proto.v1.job_service_pb2_grpc import JobServiceStub
from sidekeeper._proto.v1.lock_service_pb2_grpc import LockServiceStub
from sidekeeper._proto.v1.sidecar_service_pb2_grpc import SidecarServiceStub

from support.job_nodes import Tree
from support.processes import PATIENCE, ROOT, CommandedProcess, Process, eventually, once_in_a_run, sidekeeper_binary
from support.zookeeper import ZooKeeperServer

HERE = Path(__file__).resolve().parent

#: The job of most scenarios.
JOB = "orderSync"

#: The levels of the client contract, each of which includes those before it.
LEVELS = ("minimal", "robust", "complete")

#: For how long what must not happen is watched for, in seconds.
QUIET = 0.3

Event = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """One client library in one flavour."""

    language: str
    flavour: str
    start: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.language}-{self.flavour}" if self.flavour else self.language


def languages() -> dict[str, Any]:
    """The languages by name, as ``languages.json`` has them."""
    told: dict[str, Any] = json.loads((HERE / "languages.json").read_text())
    wanted = os.environ.get("CONFORMANCE_LANGUAGES", "").split()
    unknown = set(wanted) - told.keys()
    if unknown:
        raise ValueError(f"CONFORMANCE_LANGUAGES: {', '.join(sorted(unknown))}; there are {', '.join(told)}")
    return {name: one for name, one in told.items() if not wanted or name in wanted}


def highest_level() -> str:
    """The highest level whose scenarios are run."""
    wanted = os.environ.get("CONFORMANCE_LEVEL") or LEVELS[-1]
    if wanted not in LEVELS:
        raise ValueError(f"CONFORMANCE_LEVEL: {wanted}; there are {', '.join(LEVELS)}")
    return wanted


def belongs(level: str, language: str | None) -> bool:
    """Whether a scenario of this level is to be run with this language's library, which has a level, too."""
    highest = [highest_level(), *([languages()[language]["level"]] if language else [])]
    return all(LEVELS.index(level) <= LEVELS.index(one) for one in highest)


def subjects() -> list[tuple[str, str]]:
    """All languages in all their flavours."""
    return [(name, flavour) for name, one in languages().items() for flavour in one.get("flavours", [""])]


def prepare(language: str, flavour: str, folder: Path) -> Subject:
    """Builds a language's test application, if it is to be built."""
    told = languages()[language]

    def filled(words: Sequence[str]) -> tuple[str, ...]:
        return tuple(word.replace("{python}", sys.executable).replace("{build}", str(folder)) for word in words)

    if "build" in told:
        with once_in_a_run(folder, language) as first:
            if first:
                subprocess.run(filled(told["build"]), cwd=HERE, check=True)
    return Subject(language, flavour, filled(told["start"]))


class Sidecar(Process):
    """A real sidecar at a Unix socket; ``options`` are those of ``sidekeeper serve``."""

    def __init__(self, name: str, folder: Path, socket: Path, options: Sequence[str]):
        self.socket = socket
        self.endpoint = f"unix://{socket}"
        self.token = ""
        arguments = [str(sidekeeper_binary()), "serve", "--listen", f"unix:{socket}", *options]
        super().__init__(name, arguments, folder, dict(os.environ), pipe=False)

    def ready(self) -> Sidecar:
        """Waits until it serves."""
        eventually(f"{self.name} serves", self.socket.exists)
        return self

    @contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        """A channel to it."""
        with grpc.insecure_channel(f"unix:{self.socket}", options=[("grpc.default_authority", "localhost")]) as channel:
            yield channel

    def status(self, job: str = JOB) -> watch_pb2.WatchAssignmentsResponse:
        """The job's state, as the registry has it."""
        with self.channel() as channel:
            request = watch_pb2.WatchAssignmentsRequest(job_name=job, wait_for_job=True)
            call = AssignmentServiceStub(channel).WatchAssignments(request, timeout=PATIENCE, wait_for_ready=True)
            state: watch_pb2.WatchAssignmentsResponse = next(iter(call))
            call.cancel()
            return state

    def running(self, job: str = JOB) -> list[int]:
        """The items that the registry has as being executed."""
        return [item.item for item in self.status(job).items if item.running]

    def instances(self, job: str = JOB) -> list[str]:
        """The instances that are online."""
        return [one.instance_id for one in self.status(job).instances]

    def trigger(self, job: str = JOB) -> None:
        """Triggers the job."""
        with self.channel() as channel:
            request = job_service_pb2.TriggerJobRequest(job_name=job)
            JobServiceStub(channel).TriggerJob(request, timeout=PATIENCE)

    def cancel(self, *items: int, job: str = JOB) -> None:
        """Cancels executions as an operator."""
        with self.channel() as channel:
            request = job_service_pb2.CancelExecutionsRequest(job_name=job, items=items)
            JobServiceStub(channel).CancelExecutions(request, timeout=PATIENCE)

    def knows_locks(self) -> bool:
        """Whether it can read locks: whether it has a session."""
        with self.channel() as channel:
            try:
                LockServiceStub(channel).ListLocks(lock_service_pb2.ListLocksRequest(), timeout=PATIENCE)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                return False
            return True

    def lock(self, name: str) -> lock_service_pb2.Lock:
        """The holders of a lock, and its queue."""
        with self.channel() as channel:
            request = lock_service_pb2.GetLockRequest(lock=lock_service_pb2.LockId(name=name))
            return LockServiceStub(channel).GetLock(request, timeout=PATIENCE).lock

    def break_lock(self, name: str, token: int | None = None) -> None:
        """Takes a lock from its holder, as an operator; of several holders from the one with this token."""
        (holder,) = (one for one in self.lock(name).holders if token in (None, one.fencing_token))
        with self.channel() as channel:
            request = lock_service_pb2.BreakLockRequest(
                lock=lock_service_pb2.LockId(name=name), node_name=holder.node_name
            )
            LockServiceStub(channel).BreakLock(request, timeout=PATIENCE)

    def request_revocation(self, name: str) -> None:
        """Asks the holder of a lock to give it back."""
        with self.channel() as channel:
            request = lock_service_pb2.RequestRevocationRequest(lock=lock_service_pb2.LockId(name=name))
            LockServiceStub(channel).RequestRevocation(request, timeout=PATIENCE)

    def election(self, name: str) -> election_service_pb2.ObserveResponse:
        """The leader of an election, and the candidates that wait; by the name, or by the path, which begins with /."""
        which = lock_service_pb2.LockId(**{"path" if name.startswith("/") else "name": name})
        with self.channel() as channel:
            request = election_service_pb2.ObserveRequest(election=which)
            call = ElectionServiceStub(channel).Observe(request, timeout=PATIENCE)
            state: election_service_pb2.ObserveResponse = next(iter(call))
            call.cancel()
            return state

    def delete_leader(self, path: str) -> None:
        """Deletes the node of the leader, as an operator; by the election's path."""
        which = lock_service_pb2.LockId(path=path)
        with self.channel() as channel:
            request = election_service_pb2.ObserveRequest(election=which)
            call = ElectionServiceStub(channel).Observe(request, timeout=PATIENCE)
            leader = next(state.leader for state in call if state.HasField("leader"))
            call.cancel()
            broken = lock_service_pb2.BreakLockRequest(lock=which, node_name=leader.node_name)
            LockServiceStub(channel).BreakLock(broken, timeout=PATIENCE)

    def drain(self, timeout: float) -> None:
        """Has all instances leave."""
        with self.channel() as channel:
            request = sidecar_service_pb2.DrainRequest()
            request.timeout.FromMilliseconds(int(timeout * 1000))
            SidecarServiceStub(channel).Drain(request, timeout=PATIENCE + timeout)


class Application(CommandedProcess):
    """A test application in some language."""

    def __init__(
        self, name: str, subject: Subject, folder: Path, environment: dict[str, str], before: Sequence[str] = ()
    ):
        self.subject = subject
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("SIDEKEEPER_")}
        library = os.pathsep.join(filter(None, [str(ROOT / "clients" / "python"), os.environ.get("PYTHONPATH")]))
        environment = {
            **inherited,
            "PYTHONPATH": library,
            "CONFORMANCE_FLAVOUR": subject.flavour,
            **environment,
        }
        working, here = HERE, Path.cwd()
        os.chdir(working)  # where the commands of languages.json are relative to
        try:
            super().__init__(name, [*before, *subject.start], folder, environment)
        finally:
            os.chdir(here)

    # Commands.

    def order(self, command: str, **fields: Any) -> None:
        """Gives it a command, and waits until it has taken it."""

        def taken() -> int:
            return sum(event["command"] == command for event in self.events("done"))

        before = taken()
        self.say(json.dumps({"command": command, **fields}))
        eventually(f"{self.name} takes {command}", lambda: taken() > before)

    def run(self, *jobs: Event, **fields: Any) -> Application:
        """Lets it run jobs; by default the one job, which only a trigger fires."""
        jobs = jobs or (job(),)
        self.say(json.dumps({"command": "run", "jobs": jobs, **fields}))
        self.told("running")
        return self

    def behave(self, behaviour: str, *items: int, **fields: Any) -> None:
        """Sets the behaviour of executions; no items: all."""
        self.order("behave", behaviour=behaviour, **({"items": list(items)} if items else {}), **fields)

    def release(self, *items: int) -> None:
        """Ends the waiting of executions; no items: all."""
        self.order("release", **({"items": list(items)} if items else {}))

    def trigger(self, name: str = JOB) -> Event:
        """Triggers the job through the client."""
        before = len(self.events("triggered", "trigger_failed"))
        self.order("trigger", job=name)
        return self.told("triggered", after=before)

    def lock(self, name: str, **fields: Any) -> None:
        """Has it ask for a lock, and work under it until ``unlock``."""
        self.order("lock", name=name, **fields)

    def unlock(self, name: str) -> None:
        """Ends its work under a lock."""
        self.order("unlock", name=name)

    def stand(self, name: str, **fields: Any) -> None:
        """Has it stand for election, and work as the leader until ``resign``."""
        self.order("stand", name=name, **fields)

    def resign(self, name: str, **fields: Any) -> None:
        """Has it resign."""
        self.order("resign", name=name, **fields)

    def observe(self, name: str) -> None:
        """Has it observe an election."""
        self.order("observe", name=name)

    def stop(self, **fields: Any) -> None:
        """Has the client stop."""
        self.say(json.dumps({"command": "stop", **fields}))

    # Events.

    def told(self, *kinds: str, after: int = 0, timeout: float = PATIENCE, **wanted: Any) -> Event:
        """Waits for an event of one of these kinds with these fields; ``after`` so many of them."""

        def seen(events: list[Event]) -> list[Event]:
            return [
                event
                for event in events
                if event["event"] in kinds and all(event.get(key) == value for key, value in wanted.items())
            ][after:]

        found: list[Event] = self.wait(f"{'/'.join(kinds)} {wanted}", seen, timeout)
        return found[0]

    def all(self, *kinds: str, **wanted: Any) -> list[Event]:
        """The events of these kinds with these fields, so far."""
        return [event for event in self.events(*kinds) if all(event.get(key) == value for key, value in wanted.items())]

    def attached(self, items: Sequence[int] | None = None, **wanted: Any) -> Event:
        """Waits until the last assignment of the job has (exactly these) items, and returns it."""
        wanted.setdefault("job", JOB)

        def seen(events: list[Event]) -> Event | None:
            told = [event for event in events if event["event"] == "assignment"]
            told = [one for one in told if all(one.get(key) == value for key, value in wanted.items())]
            fits = told and (items_of(told[-1]) == list(items) if items is not None else told[-1]["items"])
            return told[-1] if fits else None

        found: Event = self.wait(f"an assignment of {items or 'some items'}", seen)
        return found

    def owned(self) -> list[int]:
        """The items of the job's last assignment."""
        told = self.all("assignment", job=JOB)
        return items_of(told[-1]) if told else []

    def exit_status(self, timeout: float = PATIENCE) -> int:
        """Waits until it has ended."""
        status = self.popen.wait(timeout)
        self._reader.join()
        return status

    def records(self) -> list[Event]:
        """The records of its log, so far."""
        records = []
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and "message" in record:
                records.append(record)
        return records


def job(name: str = JOB, total: int = 2, cron: str = "", **fields: Any) -> Event:
    """A job for ``run``; properties and other settings of the configuration go into ``configuration``."""
    given = fields.pop("configuration", {})
    configuration = {"sharding_total_count": total, **({"cron": cron} if cron else {}), **given}
    return {"name": name, "configuration": configuration, **fields}


def items_of(event: Event) -> list[int]:
    """The numbers of the items in an event."""
    return [item["item"] for item in event["items"]]


class World:
    """All that one scenario starts."""

    def __init__(
        self, subject: Subject, server: Callable[[], ZooKeeperServer], client: Callable[[], Any], namespace: str
    ):
        self.subject = subject
        # The path is short because that of a Unix socket has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="sk-"))
        self.namespace = namespace
        self.processes: list[Process] = []
        #: The functions to call at the end, when the applications have ended.
        self.closing: list[Callable[[], None]] = []
        self._server = server
        self._client = client

    @property
    def server(self) -> ZooKeeperServer:
        """The ZooKeeper server, started when it is first needed."""
        return self._server()

    def tree(self, name: str = JOB) -> Tree:
        """The nodes of the job in ZooKeeper."""
        assert name == JOB
        return Tree(self._client(), self.namespace)

    def sidecar(
        self, number: int = 1, *, zookeeper: bool = False, session: str = "6s", options: Sequence[str] = ()
    ) -> Sidecar:
        """Starts the sidecar of this number, with an embedded registry or on ZooKeeper."""
        registry = ["--zookeeper", self.server.address, "--session-timeout", session] if zookeeper else []
        common = ["--namespace", self.namespace, "--instance-ip", f"10.0.0.{number}", "--log-format", "text"]
        name = f"sidecar-{number}"
        one = Sidecar(name, self.folder, self.folder / f"{number}.sock", [*common, *registry, *options])
        self.processes.append(one)
        return one

    def application(self, sidecar: Sidecar | str | None = None, **environment: str) -> Application:
        """Starts a test application beside a sidecar, or at an endpoint."""
        endpoint = sidecar if isinstance(sidecar, str) else (sidecar or self.sidecar()).endpoint
        name = f"application-{len(self.processes)}"
        one = Application(name, self.subject, self.folder, {"SIDEKEEPER_ENDPOINT": endpoint, **environment})
        self.processes.append(one)
        return one

    def wanderer(self, before: Sequence[str], **environment: str) -> Application:
        """Starts a test application that has to find its sidecar, with these words before its command."""
        name = f"application-{len(self.processes)}"
        one = Application(name, self.subject, self.folder, environment, before)
        self.processes.append(one)
        return one

    def end(self) -> None:
        """Kills what still runs: applications, then relays and sidecars."""
        for process in self.processes:
            if isinstance(process, Application):
                process.kill()
        for close in self.closing:
            close()
        for process in reversed(self.processes):
            process.kill()

    def panics(self) -> list[str]:
        """What sidecars have said when they panicked."""
        logs = [one.log.read_text(errors="replace") for one in self.processes if isinstance(one, Sidecar)]
        return [text[text.index("panicked at") :][:4000] for text in logs if "panicked at" in text]

    def logs(self) -> str:
        """The ends of all logs, and the last events of the applications."""
        parts = []
        for process in self.processes:
            parts += [f"--- {process.name}", *process.log.read_text(errors="replace").splitlines()[-40:]]
            if isinstance(process, Application):
                parts += [json.dumps(event) for event in process._events[-40:]]
        return "\n".join(parts)


def quiet(what: str, look: Callable[[], Any], seconds: float = QUIET) -> None:
    """Watches for something that must not happen."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        seen = look()
        assert not seen, f"{what}: {seen}"
        time.sleep(0.01)
