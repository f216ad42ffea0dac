"""ZooKeeper servers, each in a JVM of its own."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler

from support.processes import PATIENCE, ROOT, Process, eventually, free_port

#: The servers' tick, in milliseconds. A server checks sessions once a tick.
TICK = 500


def ask(port: int, word: str) -> str:
    """The answer of the server at this port to a four-letter word. Empty: the server does not answer."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    except OSError:
        return ""


def is_serving(port: int) -> bool:
    """Whether the server at this port says that it serves."""
    return "Mode: " in ask(port, "srvr")


class OnlyServing(SequentialThreadingHandler):
    """Connects a client only with a server that says that it serves.

    A server that is starting accepts a connection, and may leave its handshake without an answer (12 of 100 restarts on
    a busy machine). A client waits for this answer as long as its session lasts, and then has lost its session.
    """

    def create_connection(self, address: tuple[str, int], *arguments: Any, **options: Any) -> Any:
        if not is_serving(address[1]):
            raise ConnectionRefusedError(f"no server serves at port {address[1]}: its client tries again")
        return super().create_connection(address, *arguments, **options)


class ServerProcess(Process):
    """A JVM with a ZooKeeper server: its configuration, its command, and its four-letter words."""

    def __init__(self, name: str, folder: Path, data: Path, settings: Mapping[str, object], java: Sequence[str]):
        library = Path(os.environ.get("SIDEKEEPER_ZOOKEEPER_LIB", ROOT / ".tools" / "zookeeper"))
        if not list(library.glob("zookeeper-*.jar")):
            raise RuntimeError(f"no ZooKeeper in {library}: run tests/support/zookeeper/install.sh")
        self.port = free_port()
        #: The folder of its snapshots and transaction logs.
        self.data = data
        self.configuration = folder / f"{name}.cfg"
        settings = {
            "dataDir": data,
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "tickTime": TICK,
            "minSessionTimeout": 1000,
            "maxSessionTimeout": 60000,
            "maxClientCnxns": 0,
            "preAllocSize": 64,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            **settings,
        }
        self.configuration.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        java = [
            *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
            # A test kills processes, not machines: the kernel keeps what a server has written.
            *("-Dzookeeper.forceSync=no", "-Dzookeeper.extendedTypesEnabled=true"),
            *java,
        ]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self._arguments = ["java", *java, "-cp", f"{library}/*", main, str(self.configuration)]
        self._folder = folder
        self._name = name
        self.start()

    def start(self) -> None:
        """Starts the server, and does not wait for it."""
        super().__init__(self._name, self._arguments, self._folder, dict(os.environ), pipe=False)

    def serves(self) -> bool:
        """Whether the server answers as one that serves. Fails the test if its process has ended."""
        status = self.popen.poll()
        end = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:]) if status is not None else ""
        assert status is None, f"{self.name} ended with status {status}; its log ends with:\n{end}"
        return is_serving(self.port)

    def ask(self, word: str) -> str:
        """The answer to one of the server's four-letter words. Empty: the server does not answer."""
        return ask(self.port, word)

    def packets_received(self) -> int:
        """How many packets clients have sent to it since its start."""
        for line in self.ask("mntr").splitlines():
            name, _, value = line.partition("\t")
            if name == "zk_packets_received":
                return int(float(value))
        raise RuntimeError(f"{self.name} does not report zk_packets_received")


class ZooKeeperServer(ServerProcess):
    """A server that stands alone."""

    def __init__(self, folder: Path, java: Sequence[str] = (), settings: Mapping[str, object] | None = None):
        super().__init__("zookeeper", folder, folder / "data", settings or {}, ["-Xmx256m", *java])
        self.address = f"127.0.0.1:{self.port}"
        self.wait_serving()

    def wait_serving(self) -> None:
        """Waits until the server serves."""
        eventually("ZooKeeper serves", self.serves, timeout=3 * PATIENCE)

    def restart(self, away: float = 0.0) -> None:
        """Kills the server, and starts it `away` seconds later on the same data and port; returns when it serves."""
        self.kill()
        time.sleep(away)
        self.start()
        self.wait_serving()

    def client(self, auth: Sequence[tuple[str, str]] = ()) -> KazooClient:
        """A client that connects again after a restart of the server, with these schemes and identities."""
        retry = {"max_tries": -1, "delay": 0.1, "max_delay": 0.5}
        # The port without TLS, which each server has for tests. The session is longer than a test freezes or stops the server.
        here = f"127.0.0.1:{self.port}"
        client = KazooClient(here, timeout=60, handler=OnlyServing(), connection_retry=retry, auth_data=list(auth))
        client.start(timeout=PATIENCE)
        return client
