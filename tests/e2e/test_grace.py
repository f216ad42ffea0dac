"""Streams that break between an application and its sidecar, in a job that has a grace."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from support.application import Application
from support.fleet import Fleet
from support.job_nodes import NEVER
from support.processes import eventually
from support.sidecar import Sidecar


class Relay:
    """A socket beside a sidecar's, for an application whose connections are to break."""

    def __init__(self, sidecar: Sidecar, folder: Path):
        self.sidecar = sidecar
        self.socket = folder / f"relay-{sidecar.address}.sock"
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._is_open = True
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.socket))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Breaks all connections; those that are made from now on break at once."""
        with self._lock:
            self._is_open = False
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._connections.clear()

    def mend(self) -> None:
        with self._lock:
            self._is_open = True

    def _accept(self) -> None:
        while True:
            inner, _ = self._listener.accept()
            with self._lock:
                if not self._is_open:
                    inner.close()
                    continue
                outer = socket.socket(socket.AF_UNIX)
                outer.connect(str(self.sidecar.socket))
                self._connections += [inner, outer]
            for one, other in ((inner, outer), (outer, inner)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            for data in iter(lambda: one.recv(65536), b""):
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def interrupted(relay: Relay, application: Application) -> Iterator[None]:
    """Breaks the application's connections for as long as the body takes, and until it has noticed."""
    relay.cut()
    eventually("it has noticed", lambda: "the stream has ended" in application.log.read_text())
    yield
    relay.mend()


def wait_for_return(application: Application) -> None:
    application.wait("its return", lambda events: sum(event.get("reason") == "ATTACHED" for event in events) == 2)


def fleet_with_relay(fleet: Fleet, grace: str) -> tuple[Application, Application, Relay]:
    """Two applications of three items each; the second is behind the relay, and executes its items until the test releases them."""
    props = {"sidekeeper.grace": grace}
    first = fleet.application(fleet.sidecar(1), cron=NEVER, props=props)
    sidecar = fleet.sidecar(2)
    eventually("the sidecar's socket", sidecar.socket.exists)
    relay = Relay(sidecar, fleet.folder)
    second = fleet.application(relay, cron=NEVER, props=props)  # type: ignore[arg-type]  # as far as it looks
    fleet.settle(first, second)
    second.command("hold")
    fleet.tree.fire_once()
    second.wait("executions", lambda events: sum(event["event"] == "start" for event in events) == 3)
    return first, second, relay


def test_what_runs_survives_a_broken_stream_and_is_executed_once(fleet: Fleet) -> None:
    first, second, relay = fleet_with_relay(fleet, "30s")
    first.wait("executions", lambda events: sum(event["event"] == "end" for event in events) == 3)
    instance, items, owners = second.instance, second.owned(), fleet.tree.owners()
    tokens = {item: fleet.tree.client.exists(fleet.tree.path(f"sharding/{item}/running")).czxid for item in items}
    told = {event["item"]: event["fencing_token"] for event in second.events("start")}
    assert told == tokens
    with interrupted(relay, second):
        second.command("release 99")  # it goes on by itself
        assert fleet.tree.get(f"instances/{instance}") is not None
        assert fleet.tree.owners() == owners
        second.command(f"release {items[0]}")
    wait_for_return(second)
    assert second.instance == instance
    second.command("release")
    eventually("nothing runs", lambda: all(fleet.tree.get(f"sharding/{item}/running") is None for item in items))
    assert sorted(event["item"] for event in second.events("start")) == items
    assert sorted(event["item"] for event in second.events("end")) == items
    assert second.events("cancelled") == []
    assert not set(items) & {event["item"] for event in first.events("start")}
    assert fleet.tree.owners() == owners


def test_an_application_that_does_not_reattach_in_time_stops_and_leaves(fleet: Fleet) -> None:
    first, second, relay = fleet_with_relay(fleet, "2s")
    instance = second.instance
    with interrupted(relay, second):
        assert fleet.tree.get(f"instances/{instance}") is not None
        second.wait("cancels", lambda events: sum(event["event"] == "cancelled" for event in events) == 3)
        assert {event["reason"] for event in second.events("cancelled")} == {"DETACHED"}
        fleet.settle(first)
        nodes = fleet.tree.nodes().items()
        assert not any(instance in path or instance in data for path, (data, _) in nodes)
    wait_for_return(second)
    assert second.instance != instance
    fleet.settle(first, second)


def test_a_stopped_application_gets_no_grace(fleet: Fleet) -> None:
    first, second, _relay = fleet_with_relay(fleet, "1h")
    instance = second.instance
    second.popen.terminate()
    second.command("release")
    assert second.popen.wait(20) == 0
    fleet.settle(first)
    assert fleet.tree.get(f"instances/{instance}") is None
