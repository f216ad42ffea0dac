"""Disturbances of a sidecar: servers with small limits, servers that do not answer, applications that do not read."""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path

from support.application import Application
from support.fleet import Fleet
from support.job_nodes import NEVER
from support.processes import eventually
from support.sidecar import Sidecar
from support.zookeeper import ZooKeeperServer

#: What the servers of one test take in a request, in bytes.
SMALL = 100_000


def lines(sidecar: Sidecar, text: str) -> list[str]:
    return [line for line in sidecar.log.read_text(errors="replace").splitlines() if text in line]


def test_servers_that_take_small_requests_only_get_small_ones(binary: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sk-zk-") as folder:
        server = ZooKeeperServer(Path(folder), [f"-Djute.maxbuffer={SMALL}"])
        client = server.client()
        fleet = Fleet(Path(tempfile.mkdtemp(prefix="sk-")), server, client, f"e2e-{uuid.uuid4().hex[:8]}")
        try:
            sidecar = fleet.sidecar(1)
            application = fleet.application(sidecar, sharding_total_count=1000, cron=NEVER)
            application.wait("1000 items", lambda events: any(len(event.get("items", [])) == 1000 for event in events))
            fleet.tree.fire_once()
            application.wait(
                "1000 executions",
                lambda events: len({event["item"] for event in events if event["event"] == "end"}) == 1000,
            )
            assert lines(sidecar, "jute.maxbuffer"), fleet.logs()
            # It has learned: the connection breaks no more.
            assert len(lines(sidecar, "Suspended")) <= 4, fleet.logs()
            # It is a problem that names the limit, for the application too.
            problem = "raise `jute.maxbuffer` of the servers (REGISTRY_REQUESTS_SMALL)"
            eventually("the problem", lambda: problem in application.log.read_text(errors="replace"))
        finally:
            fleet.end()
            panics = fleet.panics()
            fleet.remove_files()
            client.stop()
            client.close()
            server.kill()
        assert not panics, panics


def test_an_application_that_does_not_read_is_disconnected_and_the_log_names_it(fleet: Fleet) -> None:
    patient = ["--silent-application-timeout", "2s"]
    first = fleet.application(fleet.sidecar(1, options=patient), cron=NEVER)
    sidecar = fleet.sidecar(2, options=patient)
    second = fleet.application(sidecar, cron=NEVER)
    fleet.settle(first, second)
    second.freeze()
    fleet.settle(first)
    assert lines(sidecar, "the application did not answer"), fleet.logs()
    second.thaw()
    second.wait("another attachment", lambda events: [event.get("reason") for event in events].count("ATTACHED") == 2)
    fleet.settle(first, second)


def test_an_application_is_notified_that_the_registry_does_not_answer(fleet: Fleet) -> None:
    sidecar = Sidecar(9, fleet.folder, "127.0.0.1:1", fleet.namespace, "6s", [])
    fleet.processes.append(sidecar)
    application: Application = fleet.application(sidecar, cron=NEVER)
    said = "no session with the registry"
    eventually("the reason", lambda: said in application.log.read_text(errors="replace"))
    assert "127.0.0.1:1" in application.log.read_text(errors="replace")
