"""What the tests start: a ZooKeeper server, sidecars, applications; and how they look at ZooKeeper from outside."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Callable, TypeVar

import yaml
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent

#: How long anything may take unless a test says otherwise, in seconds.
PATIENCE = 20.0

#: How often ZooKeeper is asked again while something is waited for, in seconds.
LOOK_INTERVAL = 0.01

JOB = "orderSync"

#: A schedule that never fires while a test runs.
NEVER = "0 0 0 1 1 ? 2099"
EACH_SECOND = "* * * * * ?"

T = TypeVar("T")


def eventually(what: str, look: Callable[[], T], timeout: float = PATIENCE) -> T:
    """Looks until something true is seen, and returns it."""
    end = time.monotonic() + timeout
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what}; last seen: {seen!r}")
        time.sleep(LOOK_INTERVAL)


#: Ports that systems do not give to outgoing connections: one that is free stays free while nobody listens there.
PORTS = range(10_000, 30_000)


def free_port() -> int:
    """A port that a server can take, leave, and take again."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as taken, suppress(OSError):
            taken.bind(("127.0.0.1", port))
            return port


def sidekeeper_binary() -> Path:
    return Path(os.environ.get("SIDEKEEPER_BINARY", ROOT / "target" / "debug" / "sidekeeper"))


class Process:
    """A process of the test, whose log is in a file."""

    def __init__(self, name: str, arguments: Sequence[str], folder: Path, environment: dict[str, str], pipe: bool):
        self.name = name
        #: Whether it is stopped where it is.
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
        """Stops the process where it is, until it is thawed."""
        self.frozen = True
        self.popen.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets the process go on."""
        self.frozen = False
        self.popen.send_signal(signal.SIGCONT)


class ZooKeeperServer(Process):
    """A ZooKeeper server in a JVM of its own."""

    def __init__(self, folder: Path, java_options: Sequence[str] = ()):
        library = Path(os.environ.get("SIDEKEEPER_ZOOKEEPER_LIB", ROOT / ".tools" / "zookeeper"))
        if not list(library.glob("zookeeper-*.jar")):
            raise RuntimeError(f"no ZooKeeper in {library}: run tests/support/zookeeper/install.sh")
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        #: Where its snapshots and transaction logs are.
        self.data = folder / "data"
        configuration = folder / "zoo.cfg"
        settings = {
            "dataDir": self.data,
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "tickTime": 500,
            "minSessionTimeout": 1000,
            "maxSessionTimeout": 60000,
            "maxClientCnxns": 0,
            "preAllocSize": 64,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
        }
        configuration.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        java = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.extendedTypesEnabled=true"]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self._arguments = ["java", *java, *java_options, "-cp", f"{library}/*", main, str(configuration)]
        self._folder = folder
        self._start()

    def _start(self) -> None:
        super().__init__("zookeeper", self._arguments, self._folder, dict(os.environ), pipe=False)
        eventually("ZooKeeper serves", lambda: "Mode:" in self.ask("srvr"), timeout=3 * PATIENCE)

    def restart(self, away: float = 0.0) -> None:
        """Kills the server, and starts it that many seconds later on the same data and port; returns when it serves."""
        self.kill()
        time.sleep(away)
        self._start()

    def ask(self, word: str) -> str:
        """Asks the server with one of its four-letter words. Empty: it does not answer."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(word.encode())
                return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        except OSError:
            return ""

    def client(self) -> KazooClient:
        retry = {"max_tries": -1, "delay": 0.1, "max_delay": 0.5}  # after a restart of the server, too
        client = KazooClient(self.address, timeout=10, connection_retry=retry)
        client.start(timeout=PATIENCE)
        return client


class Sidecar(Process):
    """A sidecar with a Unix socket."""

    def __init__(
        self,
        number: int,
        folder: Path,
        zookeeper: str,
        namespace: str,
        session_timeout: str,
        options: Sequence[str],
        binary: Path | None = None,
    ):
        self.address = f"10.0.0.{number}"
        self.socket = folder / f"{number}.sock"
        arguments = [str(binary or sidekeeper_binary()), "serve"]
        arguments += ["--listen", f"unix:{self.socket}", "--zookeeper", zookeeper, "--namespace", namespace]
        arguments += ["--instance-ip", self.address, "--session-timeout", session_timeout, *options]
        super().__init__(f"sidecar-{number}", arguments, folder, dict(os.environ), pipe=False)


class Steered(Process):
    """A process that takes commands on its standard input, and what it has told on its standard output."""

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
                return  # killed while it told this
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
        """What it has told of some kinds, so far."""
        with self._changed:
            return [event for event in self._events if event["event"] in kinds]

    def wait(self, what: str, look: Callable[[list[dict[str, Any]]], T], timeout: float = PATIENCE) -> T:
        """Waits until something true is seen in what it has told, and returns it."""
        with self._changed:
            seen = self._changed.wait_for(lambda: look(self._events), timeout)
            assert seen, f"{self.name}, not within {timeout} s: {what}; told: {self._events[-5:]}"
            return seen

    def say(self, line: str) -> None:
        """Writes a line to its standard input."""
        assert self.popen.stdin is not None
        print(line, file=self.popen.stdin, flush=True)

    def command(self, command: str) -> None:
        """Gives it a command, and waits until it has taken it."""
        name = command.split()[0]
        before = len(self.events(name))
        self.say(command)
        self.wait(command, lambda events: sum(event["event"] == name for event in events) > before)


class Application(Steered):
    """An application of ours beside a sidecar, and what it has told."""

    def __init__(self, name: str, sidecar: Sidecar, folder: Path, configuration: dict[str, Any]):
        environment = {
            **os.environ,
            "SIDEKEEPER_ENDPOINT": f"unix://{sidecar.socket}",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "clients/python"), os.environ.get("PYTHONPATH")])),
            "E2E_JOB": JOB,
            "E2E_CONFIGURATION": json.dumps(configuration),
        }
        super().__init__(name, [sys.executable, str(HERE / "application.py")], folder, environment)
        self.sidecar = sidecar

    @property
    def instance(self) -> str:
        """Its instance id."""
        told = self.wait("an assignment", lambda events: [one for one in events if one["event"] == "assignment"])
        return str(told[-1]["instance"])

    def owned(self) -> list[int]:
        """The items it was told last."""
        told = self.events("assignment")
        return list(told[-1]["items"]) if told else []


class Tree:
    """One job's nodes in ZooKeeper, from outside."""

    def __init__(self, client: KazooClient, namespace: str):
        self.client = client
        self.namespace = f"/{namespace}"
        self.root = f"{self.namespace}/{JOB}"

    def path(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def get(self, path: str) -> str | None:
        """A node's data; None: there is no such node."""
        try:
            return self.client.get(self.path(path))[0].decode()
        except NoNodeError:
            return None

    def version(self, path: str) -> int:
        """How often a node has been set since its creation."""
        return int(self.client.get(self.path(path))[1].version)

    def children(self, path: str) -> list[str]:
        try:
            return sorted(self.client.get_children(self.path(path)))
        except NoNodeError:
            return []

    def create(self, path: str, data: str = "") -> None:
        self.client.create(self.path(path), data.encode(), makepath=True)

    def set(self, path: str, data: str) -> None:
        self.client.set(self.path(path), data.encode())

    def delete(self, path: str) -> None:
        self.client.delete(self.path(path))

    def configure(self, **settings: Any) -> None:
        """Changes settings of the job's configuration, under their names in YAML, as ElasticJob's console would."""
        configuration = yaml.safe_load(self.get("config") or "")
        self.set("config", yaml.safe_dump({**configuration, **settings}))

    def fire_once(self, ahead: float = 2.0) -> float:
        """Has the job fire once, soon: gives it another schedule. Returns the time of the fire.

        It is as many seconds ahead, or up to one less, so that all instances have seen the change by then. The schedule
        has a second fire far away, because a Java peer forgets a schedule that has come to its end, and takes no other.
        """
        at = (datetime.now(timezone.utc) + timedelta(seconds=ahead)).replace(microsecond=0)
        self.configure(cron=f"{at.second} {at.minute} {at.hour} {at.day} {at.month} ? {at.year},2099")
        return at.timestamp()

    def owners(self) -> dict[int, str]:
        """The instance that each item belongs to."""
        owners = {item: self.get(f"sharding/{item}/instance") for item in map(int, self.children("sharding"))}
        return {item: owner for item, owner in owners.items() if owner is not None}

    def is_handing_over(self) -> bool:
        """Whether items of sidecars are still to go to others. Numbers may be even before that: the item that one of
        them has beyond an equal part goes to the one that ranks first."""
        return self.client.exists(f"{self.namespace}-sidekeeper/{JOB}/fleet/handoff") is not None

    def nodes(self) -> dict[str, tuple[str, int]]:
        """All nodes of the job: path below the job's root to data and ephemeral owner (0: persistent)."""
        nodes: dict[str, tuple[str, int]] = {}

        def walk(path: str) -> None:
            try:
                data, stat = self.client.get(self.path(path))
                nodes[path] = (data.decode(), stat.ephemeralOwner)
                children = self.client.get_children(self.path(path))
            except NoNodeError:
                return
            for child in children:
                walk(f"{path}/{child}" if path else child)

        walk("")
        return nodes


class Fleet:
    """All that one test starts, and a namespace of its own."""

    def __init__(self, folder: Path, server: ZooKeeperServer, client: KazooClient, namespace: str):
        self.folder = folder
        self.server = server
        self.namespace = namespace
        self.tree = Tree(client, namespace)
        self.processes: list[Process] = []

    def sidecar(self, number: int, session_timeout: str = "6s", options: Sequence[str] = ()) -> Sidecar:
        sidecar = Sidecar(number, self.folder, self.server.address, self.namespace, session_timeout, options)
        self.processes.append(sidecar)
        return sidecar

    def application(self, sidecar: Sidecar, **configuration: Any) -> Application:
        name = f"application-{len(self.processes)}"
        application = Application(name, sidecar, self.folder, {"sharding_total_count": 6, **configuration})
        self.processes.append(application)
        return application

    def three(self, session_timeout: str = "6s", **configuration: Any) -> list[Application]:
        """Three sidecars with one application each, two items each."""
        applications = [
            self.application(self.sidecar(number, session_timeout), **configuration) for number in (1, 2, 3)
        ]
        self.settle(*applications)
        return applications

    def settle(self, *applications: Application, total: int = 6, timeout: float = PATIENCE) -> None:
        """Waits until the items are evenly divided among these applications, in ZooKeeper and as they know it."""
        instances = [application.instance for application in applications]

        def divided() -> bool:
            owners = self.tree.owners()
            counts = sorted(list(owners.values()).count(instance) for instance in instances)
            return (
                len(owners) == total
                and not self.tree.is_handing_over()
                and set(owners.values()) == set(instances)
                and counts[-1] - counts[0] <= 1
                and all(
                    application.owned() == sorted(item for item, owner in owners.items() if owner == instance)
                    for application, instance in zip(applications, instances)
                )
            )

        eventually(f"items divided among {instances}; ZooKeeper has {self.tree.owners()}", divided, timeout)

    def end(self) -> None:
        """Kills what still runs: applications, then sidecars."""
        for process in reversed(self.processes):
            process.kill()

    def panics(self) -> list[str]:
        """What sidecars have said when they panicked: there is no state in which they may."""
        return [
            f"{process.name}: {text[text.index('panicked at') :][:4000]}"
            for process in self.processes
            if "panicked at" in (text := process.log.read_text(errors="replace"))
        ]

    def logs(self) -> str:
        """Returns the ends of all logs."""
        return "\n".join(
            "\n".join([f"--- {process.name}", *process.log.read_text(errors="replace").splitlines()[-40:]])
            for process in self.processes
        )

    def remove_files(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
