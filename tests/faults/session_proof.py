"""Measures how much an answer from ZooKeeper proves about a session. Run by `make session-proof`; prints a table.

A client is connected to one server of an ensemble of three, and has an ephemeral node. The server is cut off from the
others while its client still reaches it: a follower from its leader, or the leader from both followers, which either
hear nothing any more, or lose their connections at once. The client goes on to ask, every 50 ms: it
reads, or asks for a `sync`, or for a transaction that only checks the root. Measured is when the last request was sent
that was answered, and when the others have removed the ephemeral node. A client that counts its lease from that sending
must not use more of it than lies between the two.

Times are in seconds from the cut, on the clock of the machine on which all of them run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from faults.ensemble import Ensemble, Server, now
from faults.fleet import AWAY
from support.processes import eventually

#: The session timeout, in seconds.
SESSION = 6.0

#: For how many ticks of half a second a server that is cut off may not notice it.
SYNC_LIMIT = 6

#: The pause between two requests, in seconds.
PAUSE = 0.05

#: How long the client asks before the cut, in seconds: some ticks.
BEFORE = 2.0

#: How long the ephemeral node may stay after the cut, in seconds: a session of a leader that has just been elected, and
#: the election.
LIMIT = 2 * SESSION + 10.0


@dataclass
class Seen:
    """What one round has shown, in seconds from the cut."""

    sent: float
    deleted: float

    @property
    def left(self) -> float:
        return self.deleted - self.sent


def read(client: KazooClient) -> Any:
    return client.get_async("/")


def sync(client: KazooClient) -> Any:
    return client.sync_async("/")


def check(client: KazooClient) -> Any:
    transaction = client.transaction()
    transaction.check("/", -1)
    return transaction.commit_async()


PROOFS: dict[str, Callable[[KazooClient], Any]] = {"read": read, "sync": sync, "check": check}


class Asking:
    """A client that asks its server the same thing again and again, and notes which of the requests were answered."""

    def __init__(self, server: Server, ask: Callable[[KazooClient], Any], node: str):
        self._ask = ask
        self._over = threading.Event()
        #: When the last request was sent that was answered.
        self.sent = 0.0
        once = {"max_tries": 0}
        again = {"max_tries": -1, "delay": 0.1, "max_delay": 0.5}
        address = f"127.0.0.1:{server.port}"
        self.client = KazooClient(address, timeout=SESSION, connection_retry=again, command_retry=once)
        self.client.start(timeout=20)
        self.client.create(node, ephemeral=True)
        self._thread = threading.Thread(target=self._go, daemon=True)
        self._thread.start()

    def _go(self) -> None:
        while not self._over.wait(PAUSE):
            sent = now()
            self._ask(self.client).rawlink(lambda result, sent=sent: self._answered(result, sent))

    def _answered(self, result: Any, sent: float) -> None:
        if result.successful() and not any(isinstance(one, Exception) for one in result.value or ()):
            self.sent = max(self.sent, sent)

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        self.client.stop()
        self.client.close()


FOLLOWER = "a follower, cut off from its leader"
LEADER = "the leader, cut off from both followers"
LEADER_NOTICED = "the leader, cut off from both followers, which notice at once"


def measure(ensemble: Ensemble, where: str, ask: Callable[[KazooClient], Any]) -> Seen:
    """One round: cuts a server off, and sees what its client is answered."""
    at_leader = where != FOLLOWER
    server = ensemble.leader() if at_leader else ensemble.follower()
    others = [other for other in ensemble.servers if other is not server]
    addresses = ",".join(f"127.0.0.1:{other.port}" for other in others)
    again = {"max_tries": -1, "delay": 0.02, "max_delay": 0.05}
    outside = KazooClient(addresses, timeout=20, connection_retry=again, command_retry={"max_tries": 0})
    outside.start(timeout=20)
    node = f"/proof-{uuid.uuid4().hex}"
    asking = Asking(server, ask, node)
    try:
        time.sleep(BEFORE)
        cut = now()
        if at_leader:
            ensemble.cut_off(server, noticed=where == LEADER_NOTICED)
        else:
            ensemble.cut(server, ensemble.leader())

        def gone() -> bool:
            try:
                return outside.exists(node) is None
            except AWAY:
                return False

        eventually("the ephemeral node is removed", gone, LIMIT)
        return Seen(asking.sent - cut, now() - cut)
    finally:
        ensemble.heal()
        asking.end()
        outside.stop()
        outside.close()
        ensemble.wait_serving()


def row(where: str, what: str, rounds: list[Seen]) -> str:
    def span(values: list[float]) -> str:
        return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"

    sent, deleted, left = ([getattr(one, name) for one in rounds] for name in ("sent", "deleted", "left"))
    return f"| {where} | {what} | {len(rounds)} | {span(sent)} | {span(deleted)} | {span(left)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of each kind")
    parser.add_argument("--proofs", default=",".join(PROOFS), help="what to ask for: read,sync,check")
    arguments = parser.parse_args()
    print(
        f"session {SESSION:.0f} s, tick 0.5 s, syncLimit {SYNC_LIMIT}; median (least to most), in seconds from the cut"
    )
    print("| client at | asks for | rounds | last answered request sent | ephemeral node removed | between |")
    print("|---|---|---:|---:|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory(prefix="sk-zk-") as folder:
        ensemble = Ensemble(Path(folder), syncLimit=SYNC_LIMIT)
        try:
            for where in (FOLLOWER, LEADER, LEADER_NOTICED):
                for what in arguments.proofs.split(","):
                    rounds = [measure(ensemble, where, PROOFS[what]) for _ in range(arguments.rounds)]
                    print(row(where, what, rounds), flush=True)
        finally:
            ensemble.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
