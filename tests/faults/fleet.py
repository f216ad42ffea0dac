"""Sidecars and applications on an ensemble, each behind a network of its own, and a record of each fault."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, TypeVar

from kazoo.exceptions import ConnectionLoss, OperationTimeoutError, SessionExpiredError

from faults.counters import Sidecar as CountedSidecar
from faults.ensemble import Ensemble, Server, now
from faults.fenced_store import Store
from faults.judge import Execution, Judge, Record, Session
from faults.network import Link, Network
from support.fleet import Fleet
from support.job_nodes import JOB, NEVER
from support.processes import PATIENCE, InstanceProcess, Process, environment_with_client, eventually, free_port
from support.sidecar import Sidecar

PROGRAM = Path(__file__).with_name("application_program.py")

#: The session timeout, in seconds.
SESSION = 4.0

#: The errors of a client of ZooKeeper while servers fail and return.
AWAY = (ConnectionLoss, OperationTimeoutError, SessionExpiredError)

#: How a sidecar logs that it has a new session.
OPENED = re.compile(r"^(\S+)Z  ?INFO .*: session opened session=(0x[0-9a-f]+) ", re.MULTILINE)

#: How long a sidecar may take to connect to another server, in seconds.
TO_CONNECT = 2.0

T = TypeVar("T")


class Application(InstanceProcess):
    """A process of an application, its journal, and when it was stopped."""

    def __init__(
        self,
        name: str,
        slot: int,
        sidecar_socket: Path,
        fleet: FaultFleet,
        configuration: dict[str, Any],
        obeys: bool,
        duration: float,
        durations: dict[int, float],
        previous: bool = False,
    ):
        self.slot = slot
        #: Whether its sidecar is of the previous release.
        self.previous = previous
        self.obeys = obeys
        self.journal = fleet.folder / f"{name}.jsonl"
        #: When it was killed, or ended in peace.
        self.died: float | None = None
        #: When it was asked to end in peace.
        self.left: float | None = None
        #: When it was stopped, and when it was let go on.
        self.stops: list[tuple[float, float]] = []
        self._stopped_at: float | None = None
        environment = environment_with_client(
            SIDEKEEPER_ENDPOINT=f"unix://{sidecar_socket}",
            FAULTS_JOB=JOB,
            FAULTS_NAME=name,
            FAULTS_JOURNAL=str(self.journal),
            FAULTS_STORE=str(fleet.store.socket),
            FAULTS_CONFIGURATION=json.dumps(configuration),
            FAULTS_DURATION=str(duration),
            FAULTS_DURATIONS=json.dumps(durations),
            FAULTS_IGNORE="" if obeys else "1",
            FAULTS_CHECKPOINTS=str(fleet.checkpoints),
        )
        super().__init__(name, [sys.executable, str(PROGRAM)], fleet.folder, environment)

    def last_instance(self) -> str | None:
        """Its instance id by its last assignment, if it has one."""
        told = self.events("assignment")
        return str(told[-1]["instance"]) if told else None

    def entries(self) -> list[dict[str, Any]]:
        """Its journal, as it is in the file. What it was writing when it was killed is not in it."""
        if not self.journal.exists():
            return []
        return [json.loads(line) for line in self.journal.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def record(self) -> Record:
        return Record(self.name, self.slot, self.obeys, self.died, self.stops, self.entries(), self.left, self.previous)

    def freeze(self) -> None:
        super().freeze()
        self._stopped_at = now()

    def thaw(self) -> None:
        if self._stopped_at is not None:
            self.stops.append((self._stopped_at, now()))
            self._stopped_at = None
        super().thaw()

    def kill(self) -> None:
        if self.died is None:
            self.died = now()
        super().kill()

    def terminate(self) -> None:
        self.left = now()
        super().terminate()
        self.died = now()


class StoppableSidecar(Sidecar):
    """A sidecar, and when it was stopped."""

    def __init__(self, *arguments: Any):
        #: When it was stopped, and when it was let go on, wall clock.
        self.stops: list[tuple[float, float]] = []
        self._stopped_at: float | None = None
        #: When it was started, monotonic.
        self.started = now()
        super().__init__(*arguments)

    def freeze(self) -> None:
        self._stopped_at = time.time()
        super().freeze()

    def thaw(self) -> None:
        super().thaw()
        if self._stopped_at is not None:
            self.stops.append((self._stopped_at, time.time()))
            self._stopped_at = None


class Slot:
    """A place for one sidecar and its application, as a machine or a pod."""

    def __init__(
        self,
        fleet: FaultFleet,
        number: int,
        session: float,
        obeys: bool,
        job: dict[str, Any],
        options: Sequence[str] = (),
        previous: Path | None = None,
    ):
        #: Where it answers scrapers. None: the previous release may not.
        self.http = free_port() if previous is None else None
        self.options = [*options, *(["--http-listen", str(self.http)] if self.http else [])]
        #: The previous release's sidecar, if that runs here.
        self.previous = previous
        self.fleet = fleet
        self.number = number
        self.obeys = obeys
        self.job = job
        self.duration = 0.2
        self.durations: dict[int, float] = {}
        self.session = session
        self.link: Link = fleet.network.link(fleet.ensemble.ports)
        self.sidecar: StoppableSidecar
        self.application: Application
        #: The sidecars that were here, one after the other; they share a log.
        self.sidecars: list[StoppableSidecar] = []
        self.start_sidecar()

    def start_sidecar(self) -> None:
        options = ["--connection-timeout", "1s", "--request-timeout", "5s", "--log-format", "text"]
        options += self.options
        self.sidecar = StoppableSidecar(
            self.number,
            self.fleet.folder,
            self.link.address,
            self.fleet.namespace,
            f"{int(self.session * 1000)}ms",
            options,
            self.previous,
        )
        self.sidecars.append(self.sidecar)
        self.fleet.processes.append(self.sidecar)

    def sessions(self) -> list[Session]:
        """The sessions with ZooKeeper that were opened here, by the sidecars' log; and when ZooKeeper ended them."""
        log = self.sidecar.log.read_text(errors="replace")
        expiries = {session: at for at, session in self.fleet.ensemble.expiries()}
        stops = [stop for sidecar in self.sidecars for stop in sidecar.stops]
        return [
            Session(self.number, session, _wall(opened), expiries.get(session), stops)
            for opened, session in OPENED.findall(log)
        ]

    def journalled(self, executions: Sequence[Execution]) -> CountedSidecar:
        """What its applications have journalled, to be compared with the counters of its sidecar."""
        records = [one.record() for one in self.fleet.applications if one.slot == self.number]
        # The stops are wall clock, as the sidecar's log is.
        monotonic = now() - time.time()
        stops = [(stopped + monotonic, woken + monotonic) for stopped, woken in self.sidecar.stops]
        mine = [one for one in executions if one.application.slot == self.number]
        return CountedSidecar(self.sidecar.name, self.sidecar.started, stops, records, mine)

    def start_application(self) -> None:
        name = f"application-{self.number}-{len(self.fleet.applications)}"
        application = Application(
            name,
            self.number,
            self.sidecar.socket,
            self.fleet,
            self.job,
            self.obeys,
            self.duration,
            self.durations,
            self.previous is not None,
        )
        self.application = application
        self.fleet.applications.append(application)
        self.fleet.processes.append(application)

    def kill_sidecar(self) -> None:
        self.sidecar.kill()
        self.fleet.ended.append(self.sidecar)

    def is_disturbed(self) -> bool:
        """Whether a process of the slot has ended, or is stopped."""
        return any(one.frozen or one.popen.poll() is not None for one in (self.sidecar, self.application))

    def stop_in_peace(self) -> None:
        """Ends both, as a deployment does: the application leaves, then its sidecar."""
        self.application.terminate()
        self.sidecar.terminate()
        self.fleet.ended += [self.sidecar, self.application]

    def start_again(self) -> None:
        self.start_sidecar()
        self.start_application()

    def die(self) -> None:
        """Kills the sidecar and its application in the same moment, as a machine that loses its power does."""
        self.kill_sidecar()
        self.kill_application()

    def kill_application(self) -> None:
        self.application.kill()
        self.fleet.ended.append(self.application)


class FaultFleet(Fleet):
    """All that one test starts on the ensemble, in a namespace of its own."""

    #: How often each execution writes a checkpoint, in seconds; the first one at its begin. Zero: none.
    checkpoints = 0.0

    def __init__(self, folder: Path, ensemble: Ensemble, network: Network, client: Any, namespace: str):
        super().__init__(folder, ensemble, client, namespace)  # type: ignore[arg-type]  # any server will do
        self.ensemble = ensemble
        self.network = network
        self.store = Store(folder)
        self.slots: list[Slot] = []
        #: Items whose entry in the ledger an operator has deleted: no sidecar knows their last start.
        self.unledgered: set[int] = set()
        self.applications: list[Application] = []
        #: Processes that were ended on purpose.
        self.ended: list[Process] = []
        #: Processes that had ended by themselves before `end`.
        self.ended_alone: list[str] = []

    def slot(
        self,
        session: float = SESSION,
        obeys: bool = True,
        duration: float = 0.2,
        durations: dict[int, float] | None = None,
        options: Sequence[str] = (),
        named: bool = False,
        previous: Path | None = None,
        **job: Any,
    ) -> Slot:
        """Starts a sidecar and its application; the sidecar is the previous release's if that is named."""
        number = len(self.slots) + 1
        name = {"instance_name": f"worker-{number}"} if named else {}
        job = {"sharding_total_count": 6, "cron": NEVER, "failover": True, "concurrency": 100, **name, **job}
        slot = Slot(self, number, session, obeys, job, options, previous)
        slot.duration = duration
        slot.durations = durations or {}
        slot.start_application()
        self.slots.append(slot)
        return slot

    def start(self, count: int, **options: Any) -> list[Slot]:
        """Starts some slots that are alike, and waits until they own the items evenly."""
        slots = [self.slot(**options) for _ in range(count)]
        for slot in slots:
            assert slot.application.instance
        # A busy machine needs a while for two thousand items.
        self.divide(slots, timeout=4 * PATIENCE)
        return slots

    def look(self, what: str, look: Callable[[], T], timeout: float = PATIENCE) -> T:
        """Calls `look` until it returns something true; an error of a server that fails meanwhile is ignored."""

        def bearing() -> Any:
            try:
                return look()
            except AWAY:
                return None

        return eventually(what, bearing, timeout)

    def part(self, slot: Slot, server: Server) -> None:
        """Has a sidecar reach one server only, and waits until it does, if it can."""
        slot.link.only(server.port)
        with suppress(AssertionError):
            eventually("connected", lambda: slot.link.reaches(server.port), TO_CONNECT)

    def divide(self, slots: Sequence[Slot] | None = None, timeout: float = PATIENCE) -> None:
        """Waits until the applications of these slots own the items evenly, by ZooKeeper and by their assignments."""
        slots = self.slots if slots is None else slots
        total = slots[0].job["sharding_total_count"]

        applications = [slot.application for slot in slots]

        def divided() -> bool:
            # Before all nodes are read, each by a request of its own.
            if sum(len(one.owned()) for one in applications) != total:
                return False
            owners = self.tree.owners()
            return self.are_even(owners, [one.instance for one in applications], total) and all(
                one.owned() == sorted(item for item, owner in owners.items() if owner == one.instance)
                for one in applications
            )

        try:
            self.look("items divided", divided, timeout)
        except AssertionError:
            told = {slot.application.name: (slot.application.instance, slot.application.owned()) for slot in slots}
            raise AssertionError(
                f"not divided within {timeout} s\nZooKeeper: {self.tree.owners()}\ntold: {told}\n"
                f"instances: {self.tree.children('instances')}\nleader: {self.tree.get('leader/election/instance')}\n"
                f"flag: {self.tree.get('leader/sharding/necessary')}, running: {self.running()}"
            ) from None

    def executing(self) -> set[int]:
        """The items that the present applications of all slots execute, by the events that they have reported."""
        return {item for slot in self.slots for item in slot.application.executing()}

    def look_executing(self, slots: Sequence[Slot]) -> None:
        """Waits until the applications of these slots execute all their items."""
        applications = [slot.application for slot in slots]
        self.look("all execute what they own", lambda: all(one.executing() == set(one.owned()) for one in applications))

    def running(self) -> dict[int, str]:
        """The running nodes: item to instance."""
        nodes = {item: self.tree.get(f"sharding/{item}/running") for item in map(int, self.tree.children("sharding"))}
        return {item: owner for item, owner in nodes.items() if owner is not None}

    def fire(self, ahead: float = 3.0) -> float:
        """Has the job fire once, soon. Returns the time of the fire, wall clock."""
        return self.tree.fire_once(ahead)

    def sessions(self) -> list[Session]:
        return [session for slot in self.slots for session in slot.sessions()]

    def judge(
        self,
        reigns_of_previous: Sequence[tuple[float, float]] = (),
        dropped_flags: Sequence[tuple[int, float]] = (),
    ) -> Judge:
        """A judge over all that has happened so far."""
        records = [application.record() for application in self.applications]
        sessions = self.sessions()
        return Judge(records, self.store.log(), sessions, self.unledgered, reigns_of_previous, dropped_flags)

    def ended_by_themselves(self) -> list[str]:
        """Processes that have ended, and that no test has ended."""
        return [
            f"{process.name} ended by itself with status {process.popen.returncode}"
            for process in self.processes
            if process not in self.ended and process.popen.poll() is not None
        ]

    def problems(self) -> list[str]:
        return [*super().problems(), *self.ended_alone, *map(str, self.judge().always())]

    def release(self) -> None:
        self.store.end()
        super().release()

    def end(self) -> None:
        """Kills all processes. Journals and store can still be judged."""
        self.ended_alone = self.ended_by_themselves()
        for slot in self.slots:
            slot.link.all_again()
            slot.link.heal()
        for process in self.processes:
            if process.popen.poll() is None:
                process.thaw()
        super().end()


def _wall(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp[:26]).replace(tzinfo=timezone.utc).timestamp()


def sleep_until(moment: float) -> None:
    """Waits until a moment of the monotonic clock."""
    time.sleep(max(0.0, moment - now()))


@contextmanager
def own_fleet() -> Iterator[FaultFleet]:
    """A fleet on an ensemble and a network of its own. Its files stay."""
    network = Network()
    folder = Path(tempfile.mkdtemp(prefix="sk-"))
    # The transaction logs of the servers say in which order everything was.
    servers = folder / "servers"
    servers.mkdir()
    ensemble = Ensemble(servers)
    client = ensemble.client()
    fleet = FaultFleet(folder, ensemble, network, client, f"faults-{uuid.uuid4().hex[:8]}")
    try:
        yield fleet
    finally:
        fleet.end()
        fleet.store.end()
        client.stop()
        client.close()
        ensemble.kill()
        network.end()
