"""Three ZooKeeper servers on loopback, whose processes and links a test can stop, kill and cut.

Each server reaches each other one through a proxy of its own (`network.py`), so the link between any two of them can be
cut while clients reach both. A server that has been connected to, and has the larger number, connects back by itself,
to the address that the other one says it has; so the proxy replaces that address.
"""

from __future__ import annotations

import logging
import re
import struct
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Callable

from kazoo.client import KazooClient

from faults.network import Link, Network
from support.processes import PATIENCE, eventually, free_port
from support.zookeeper import TICK, OnlyServing, ServerProcess

SERVERS = 3

# The client logs every attempt to connect, and there are many here.
logging.getLogger("kazoo").setLevel(logging.CRITICAL)

#: For how many ticks a server that is cut off from the others, or its leader, may not notice.
SYNC_LIMIT = 6

#: How a server logs that it ends a session.
EXPIRY = re.compile(r"^(\S+) .* - Expiring session (0x[0-9a-f]+),", re.MULTILINE)

#: How long a server that has slept may believe that it still leads, in seconds: its `syncLimit`.
TO_COME_TO = SYNC_LIMIT * TICK / 1000

#: How long a server that has just been elected may take until it accepts its followers, in seconds. They ask again when
#: they are refused; but the proxy has accepted them already.
TO_ACCEPT = 1.0

#: What a server says first to another one at an election: the protocol's version, its number, and how many bytes of its
#: address follow.
GREETING = struct.Struct(">qqi")


class Server(ServerProcess):
    """One server of the ensemble."""

    def __init__(self, number: int, folder: Path, peers: Mapping[int, str], settings: Mapping[str, object]):
        self.number = number
        self.stopped = False
        #: When it was let go on, wall clock.
        self.woken: list[float] = []
        #: When it was cut off from all others, wall clock; until when, if that is over.
        self.cut_off: list[tuple[float, float | None]] = []
        data = folder / f"data-{number}"
        data.mkdir()
        (data / "myid").write_text(str(number))
        settings = {
            "initLimit": 20,
            "syncLimit": SYNC_LIMIT,
            "standaloneEnabled": "false",
            "quorumListenOnAllIPs": "false",
            **settings,
            **{f"server.{peer}": address for peer, address in peers.items()},
        }
        java = [
            "-Xmx128m",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ",
        ]
        super().__init__(f"zookeeper-{number}", folder, data, settings, java)

    def start(self) -> None:
        self.stopped = False
        super().start()

    def stop(self) -> None:
        """Stops the process with SIGSTOP, until `go_on`."""
        self.stopped = True
        self.freeze()

    def go_on(self) -> None:
        self.stopped = False
        self.woken.append(time.time())
        self.thaw()

    def ask(self, word: str) -> str:
        return "" if self.stopped or self.popen.poll() is not None else super().ask(word)

    @property
    def mode(self) -> str:
        """leader or follower. Empty: it does not serve."""
        lines = (line.partition(": ") for line in self.ask("srvr").splitlines())
        return next((value for key, _, value in lines if key == "Mode"), "")


class Ensemble:
    """The servers."""

    def __init__(self, folder: Path, **settings: object):
        """`settings` are the servers' own, in place of those above."""
        self.folder = folder
        #: Where each server hears the others: its port for followers, and the one for elections.
        ports = {number: (free_port(), free_port()) for number in range(1, SERVERS + 1)}
        self._network = Network()
        #: How one server reaches another.
        self._links: dict[tuple[int, int], Link] = {}
        for one in ports:
            for other in ports:
                if one != other:
                    greeting = self._greeting(one, other)
                    self._links[one, other] = self._network.link(ports[other], greeting, TO_ACCEPT)
        self.servers = []
        for number, own in ports.items():
            reached = {peer: own if peer == number else self._links[number, peer].ports for peer in ports}
            peers = {peer: f"127.0.0.1:{quorum}:{election}" for peer, (quorum, election) in reached.items()}
            self.servers.append(Server(number, folder, peers, settings))
        self.wait_serving()

    def _greeting(self, one: int, other: int) -> Callable[[bytes], bytes]:
        """Has a server that introduces itself to another one say an address that is behind the proxy, too."""

        def edited(data: bytes) -> bytes:
            if len(data) < GREETING.size:
                return data
            version, number, length = GREETING.unpack_from(data)
            if version >= 0 or number != one or len(data) != GREETING.size + length:
                return data
            back = f"127.0.0.1:{self._links[other, one].ports[1]}".encode()
            return GREETING.pack(version, number, len(back)) + back

        return edited

    def cut(self, one: Server, other: Server) -> None:
        """Lets nothing through any more between two servers, in either direction. Clients reach both."""
        for pair in ((one.number, other.number), (other.number, one.number)):
            self._links[pair].hole("up", "down")

    def cut_off(self, server: Server, noticed: bool = False) -> None:
        """Cuts a server off from all the others. `noticed`: the connections of its followers are reset at once, as when a
        router refuses them, and they elect another leader; the server itself notices nothing."""
        server.cut_off.append((time.time(), None))
        for other in self.servers:
            if other is not server:
                self.cut(server, other)
                if noticed:
                    self._links[other.number, server.number].drop_near()

    def heal(self) -> None:
        """Lets everything through again between all servers. Links that had been cut connect anew."""
        for link in self._links.values():
            link.heal(reset=link.is_held)
        for server in self.servers:
            server.cut_off = [(since, until or time.time()) for since, until in server.cut_off]

    @property
    def address(self) -> str:
        return ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    @property
    def ports(self) -> list[int]:
        return [server.port for server in self.servers]

    def leader(self) -> Server:
        """The server that leads; waits until there is one."""
        return self._in_mode("leader")

    def follower(self) -> Server:
        """A server that follows."""
        return self._in_mode("follower")

    def _in_mode(self, mode: str) -> Server:
        found = eventually(
            f"a {mode}", lambda: [server for server in self.servers if server.mode == mode], timeout=3 * PATIENCE
        )
        return found[0]

    def wait_serving(self) -> None:
        """Waits until all servers serve. Fails the test at once if the process of one has ended."""
        eventually("all servers serve", lambda: all(server.serves() for server in self.servers), timeout=3 * PATIENCE)

    def repair(self) -> None:
        """Has all servers serve again."""
        self.heal()
        for server in self.servers:
            if server.popen.poll() is not None:
                server.start()
            elif server.stopped:
                server.go_on()
        self.wait_serving()

    def packets_received(self) -> int:
        return sum(server.packets_received() for server in self.servers)

    def expiries(self) -> list[tuple[float, str]]:
        """When the servers ended sessions for silence, wall clock, by the servers' own logs.

        A server that has slept believes many to be over when it wakes; it may lead no more, so that does not count. Nor
        does what one believes that is cut off from all others.
        """
        found = []
        for server in self.servers:
            for at, session in EXPIRY.findall(server.log.read_text(errors="replace")):
                seconds = datetime.strptime(at, "%Y-%m-%dT%H:%M:%S.%f%z").timestamp()
                slept = any(0 <= seconds - woken < TO_COME_TO for woken in server.woken)
                alone = any(since <= seconds and (until is None or seconds < until) for since, until in server.cut_off)
                if not slept and not alone:
                    found.append((seconds, session))
        return sorted(found)

    def wait_expired(self, sessions: set[str], timeout: float) -> float:
        """Waits until one of these sessions is ended; gives when it was, wall clock."""

        def found() -> list[float]:
            return [at for at, session in self.expiries() if session in sessions]

        return eventually("the session is ended", found, timeout)[0]

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def start(self) -> None:
        for server in self.servers:
            server.start()

    def client(self) -> KazooClient:
        """A client of its own, not through any proxy."""
        retry = {"max_tries": -1, "delay": 0.05, "max_delay": 0.5}
        client = KazooClient(
            self.address, timeout=20, handler=OnlyServing(), connection_retry=retry, command_retry=dict(retry)
        )
        client.start(timeout=3 * PATIENCE)
        return client


def now() -> float:
    """The clock of all journals: CLOCK_MONOTONIC, the same for all processes of a machine."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)
