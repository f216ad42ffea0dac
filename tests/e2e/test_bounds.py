"""A sidecar that serves several users bounds the share of each."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from support import stranger
from support.application import Application
from support.fleet import Fleet
from support.flooder import KINDS, flooding
from support.job_nodes import EACH_SECOND
from support.measures import resident
from support.processes import eventually, free_port
from support.sidecar import Sidecar
from support.squatter import UID

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can call as another user, with setpriv"
)

LOCKS = "sidekeeper.v1.LockService/ListLocks"
TRIGGER = "sidekeeper.v1.JobService/TriggerJob"
#: How many instants of the job pass while the other user floods.
FIRES = 4
ITEMS = 6
#: The most resident memory of the sidecar, in MB. docs/security.md has it.
MEMORY = 512
#: More calls of an operator than are served at once and in the next seconds.
OPERATIONS = 2_000


class Shared:
    """A sidecar that serves another user, too, and an application of its own user."""

    def __init__(self, fleet: Fleet):
        self.fleet, self.port = fleet, free_port()
        self.sidecar: Sidecar = fleet.sidecar(
            1, session_timeout="30s", options=["--listen", f"127.0.0.1:{self.port}", "--allow", f"uid:{UID}:operate"]
        )

    def application(self) -> Application:
        application = self.fleet.application(self.sidecar, cron=EACH_SECOND)
        self.fleet.settle(application)
        return application

    def calls(self, path: str) -> str:
        """The code of a call without fields by the sidecar's own user."""
        return stranger.calls(f"unix:{self.sidecar.socket}", wanted=[(path, False)])[path][0]


@pytest.fixture
def shared(fleet: Fleet) -> Shared:
    return Shared(fleet)


def executed(application: Application, since: float) -> dict[float, int]:
    """How many items have begun at each instant from then on."""
    begun: dict[float, int] = {}
    for event in application.events("start"):
        if event["scheduled"] > since:
            begun[event["scheduled"]] = begun.get(event["scheduled"], 0) + 1
    return begun


@pytest.mark.parametrize("kind", KINDS)
def test_se_11_while_another_user_floods_all_items_run_and_calls_are_answered(shared: Shared, kind: str) -> None:
    application = shared.application()
    application.wait("a fire", lambda events: any(event["event"] == "start" for event in events))
    since = max(event["scheduled"] for event in application.events("start"))
    with flooding(kind, shared.port) as told:
        eventually("fires", lambda: len(executed(application, since)) > FIRES)
        assert shared.calls(LOCKS) == "OK"
        memory = resident(shared.sidecar.popen.pid)
    begun = executed(application, since)
    complete = sorted(begun)[:FIRES]
    assert [begun[fire] for fire in complete] == [ITEMS] * FIRES, begun
    assert [after - before for before, after in zip(complete, complete[1:], strict=False)] == [1.0] * (FIRES - 1)
    assert memory < MEMORY, (memory, told)
    assert told["connections"] > 0


def test_se_11_another_user_has_no_more_than_half_of_the_connections(shared: Shared) -> None:
    application = shared.application()
    log: Path = shared.sidecar.log
    with flooding("connections", shared.port):
        eventually("its bound is reached", lambda: "the limit of connections is reached" in log.read_text())
        assert '"for_each_caller":512' in log.read_text()
        assert shared.calls(LOCKS) == "OK"
        assert application.popen.poll() is None


def test_se_11_an_operator_that_calls_without_a_pause_is_told_to_wait(shared: Shared) -> None:
    eventually("it serves", lambda: shared.sidecar.socket.exists() and shared.calls(stranger.HEALTH) == "OK")

    def trigger(channel: grpc.Channel) -> str:
        try:
            channel.unary_unary(f"/{TRIGGER}")(b"\n\x01x", timeout=stranger.LIMIT)
            return "OK"
        except grpc.RpcError as error:
            return str(error.code().name)

    with grpc.insecure_channel(f"127.0.0.1:{shared.port}") as channel, ThreadPoolExecutor(16) as pool:
        codes = list(pool.map(lambda _: trigger(channel), range(OPERATIONS)))
    assert "RESOURCE_EXHAUSTED" in codes, set(codes)
    assert codes.count("RESOURCE_EXHAUSTED") < OPERATIONS - 200
    eventually("it may operate again", lambda: shared.calls(TRIGGER) != "RESOURCE_EXHAUSTED")
