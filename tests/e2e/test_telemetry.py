"""Traces: a real collector receives them, and bad collectors, scrapers and disks harm neither fires nor probes."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Callable

import pytest
import sidekeeper
import yaml

from support.collector import Collector
from support.fleet import Fleet
from support.job_nodes import EACH_SECOND, JOB, NEVER
from support.metrics import Metrics, get
from support.processes import PATIENCE, eventually, free_port, sidekeeper_binary
from support.sidecar import EmbeddedSidecar

#: How long the export of the last spans may hold up the exit of a sidecar, and how long the rest of an exit takes; seconds.
EXPORT, EXIT = 2.0, 2.0


def test_op_15_a_collector_gets_a_fire_of_two_sidecars_as_one_trace_with_the_application_s_spans(fleet: Fleet) -> None:
    collector = Collector(fleet.folder)
    fleet.processes.append(collector)
    options = ["--otlp-endpoint", collector.endpoint]
    sidecars = [fleet.sidecar(number, options=options) for number in (1, 2)]
    applications = [fleet.application(one, collector.http, cron=EACH_SECOND) for one in sidecars]
    fleet.settle(*applications)

    def whole_fires() -> list[str]:
        """The traces of the fires for which each of the two has executed three items."""
        ended = [[event["traceparent"].split("-")[1] for event in one.events("end")] for one in applications]
        return [trace for trace in ended[0] if ended[0].count(trace) == ended[1].count(trace) == 3]

    eventually("a fire of both", whole_fires)
    # Their ends send what is left.
    for process in (*applications, *sidecars):
        process.terminate()
    [trace, *_] = whole_fires()
    eventually("the spans of the fire", lambda: sum(span.trace == trace for span in collector.spans()) >= 14)
    spans = [span for span in collector.spans() if span.trace == trace]
    roots, executions, handlers = (
        {span.span: span for span in spans if span.name == name} for name in ("fire", "execution", f"execute {JOB}")
    )
    assert sorted(span.attributes["host.ip"] for span in roots.values()) == [one.address for one in sidecars]
    # The parent of both parts is computed, and no instance has it.
    [fire] = {span.parent for span in roots.values()}
    assert fire not in {span.span for span in spans}
    parents = [roots[span.parent].attributes["host.ip"] for span in executions.values()]
    assert parents == [span.attributes["host.ip"] for span in executions.values()]
    assert {span.attributes["service.name"] for span in executions.values()} == {"sidekeeper"}
    # The span of the application's handler is inside the execution.
    assert {span.parent for span in handlers.values()} == set(executions)
    assert {span.attributes["service.name"] for span in handlers.values()} == {"orders"}
    assert (len(roots), len(executions), len(handlers), len(spans)) == (2, 6, 6, 14)


def test_op_15_a_retry_and_a_failover_link_to_the_executions_that_they_go_on_from(fleet: Fleet) -> None:
    collector = Collector(fleet.folder)
    fleet.processes.append(collector)
    options = ["--otlp-endpoint", collector.endpoint]
    sidecars = [fleet.sidecar(number, "2s", options) for number in (1, 2)]
    retries = {"sidekeeper.retry-max-attempts": "2", "sidekeeper.retry-backoff": "10ms"}
    applications = [fleet.application(one, cron=EACH_SECOND, failover=True, props=retries) for one in sidecars]
    fleet.settle(*applications)
    failing, stuck = applications[0].owned()[0], applications[1].owned()[0]
    applications[0].command(f"fail {failing}")
    applications[1].command(f"hold {stuck}")
    eventually("an execution that does not end", lambda: stuck in applications[1].executing())
    eventually("failures", lambda: len(applications[0].events("failed")) > 3)
    applications[0].command("fail")
    [crashed] = [event for event in applications[1].events("start") if event["item"] == stuck][-1:]
    # They tell nobody that they end, and export nothing.
    sidecars[1].kill()
    applications[1].kill()

    def failovers() -> list[dict[str, Any]]:
        ended = applications[0].events("end")
        return [event for event in ended if event["source"] == "FAILOVER" and event["item"] == stuck]

    [taken, *_] = eventually("the failover", failovers)
    applications[0].terminate()
    sidecars[0].terminate()
    _, trace, span, _ = crashed["traceparent"].split("-")
    _, same, takers, _ = taken["traceparent"].split("-")
    assert same == trace
    eventually("its span", lambda: takers in {one.span for one in collector.spans()})
    executions = [one for one in collector.spans() if one.name == "execution"]
    [taker] = [one for one in executions if one.span == takers]
    assert taker.links == (span,)
    attempts = {(one.trace, one.attributes["item"], one.attributes["attempt"]): one for one in executions}
    again = [one for one in executions if one.attributes["attempt"] == "2"]
    assert again
    for retry in again:
        assert retry.links == (attempts[retry.trace, retry.attributes["item"], "1"].span,)
    assert {one.links for one in executions if one not in again and one.attributes["source"] == "Schedule"} == {()}


def test_the_span_of_a_fire_ends_with_its_executions_and_does_not_wait_for_the_next_fire(fleet: Fleet) -> None:
    collector = Collector(fleet.folder)
    fleet.processes.append(collector)
    sidecar = fleet.sidecar(1, options=["--otlp-endpoint", collector.endpoint])
    application = fleet.application(sidecar, cron=NEVER)
    fleet.settle(application)
    sidekeeper.trigger(JOB, endpoint=f"unix://{sidecar.socket}")
    spans = eventually("its span", lambda: [span for span in collector.spans() if span.name == "fire"])
    assert [span.trace for span in spans] == [application.events("end")[0]["traceparent"].split("-")[1]]


class BadCollector:
    """A collector that accepts connections, and reads a byte of each of them in each of these intervals; or nothing."""

    def __init__(self, interval: float | None):
        self._interval = interval
        self._ended = threading.Event()
        self._listener = socket.socket()
        # So that a client soon has to wait.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.port = self._listener.getsockname()[1]
        self.connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections.append(connection)
                if self._interval is not None:
                    threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while not self._ended.wait(self._interval) and connection.recv(1):
                pass

    def end(self) -> None:
        self._ended.set()
        for one in (self._listener, *self.connections):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextmanager
def repeated(act: Callable[[], object]) -> Iterator[list[object]]:
    """Does something again and again until the block ends; gives what came of it."""
    ended, results = threading.Event(), []

    def repeat() -> None:
        while not ended.wait(0.01):
            results.append(act())

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield results
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("kind", ["refuses", "hangs", "reads a byte a second"])
def test_op_8_a_bad_collector_and_a_scrape_in_a_loop_delay_no_fire_and_no_exit(fleet: Fleet, kind: str) -> None:
    collector = {"hangs": BadCollector(None), "reads a byte a second": BadCollector(1.0)}.get(kind)
    address = f"http://127.0.0.1:{collector.port if collector else free_port()}"
    port = free_port()
    sidecar = fleet.sidecar(1, options=["--otlp-endpoint", address, "--http-listen", str(port)])
    application = fleet.application(sidecar, cron=EACH_SECOND)
    fleet.settle(application)
    with repeated(lambda: Metrics(port).total("executions_total")) as scrapes:
        first = int(time.time()) + 1
        # Longer than the interval in which spans are exported.
        eventually(
            "eight fires", lambda: sum(event["scheduled"] >= first for event in application.events("end")) >= 8 * 6
        )
    assert len(scrapes) > 50
    if collector is not None:
        assert collector.connections
    begun = [event for event in application.events("start") if first <= event["scheduled"] < first + 8]
    fires = sorted((event["scheduled"], event["item"]) for event in begun)
    assert fires == [(float(first + second), item) for second in range(8) for item in range(6)]
    assert max(event["time"] - event["scheduled"] for event in begun) < 1.0
    application.terminate()
    since = time.monotonic()
    sidecar.terminate()
    assert time.monotonic() - since < EXPORT + EXIT
    if collector is not None:
        collector.end()


def test_op_10_without_zookeeper_and_collector_a_sidecar_is_live(fleet: Fleet) -> None:
    collector, port = BadCollector(None), free_port()
    options = ["--otlp-endpoint", f"http://127.0.0.1:{collector.port}", "--http-listen", str(port)]
    sidecar = fleet.sidecar(1, "2s", options)
    application = fleet.application(sidecar, cron=EACH_SECOND)
    fleet.settle(application)
    eventually("spans are sent", lambda: collector.connections)
    with repeated(lambda: get(port, "/livez").status) as live:
        collector.end()
        fleet.server.freeze()
        try:
            eventually("the session is over", lambda: get(port, "/readyz/session").status == 503)
            asked = len(live)
            eventually("it is asked on", lambda: len(live) > asked + 100)
        finally:
            fleet.server.thaw()
        eventually("it is ready again", lambda: get(port, "/readyz").status == 200)
    assert set(live) == {200}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of four megabytes."""
    if os.getuid() != 0:
        pytest.fail("only root mounts a disk: run the suite as root", pytrace=False)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def add_job(sidecar: EmbeddedSidecar, number: int) -> None:
    """Has the registry keep a large configuration. It may fail."""
    file = sidecar.socket.with_name(f"job-{number}.yaml")
    configuration = {"jobName": f"large-{number}", "shardingTotalCount": 1, "jobParameter": "x" * 60_000}
    file.write_text(yaml.safe_dump(configuration))
    call = [str(sidekeeper_binary()), "apply", "-f", str(file), "--yes", "--endpoint", f"unix://{sidecar.socket}"]
    subprocess.run(call, capture_output=True, timeout=PATIENCE, check=False)


def test_op_10_with_a_full_disk_a_sidecar_is_live_and_not_ready(fleet: Fleet, small_disk: Path) -> None:
    port = free_port()
    options = ["--data-dir", str(small_disk / "data"), "--http-listen", str(port)]
    sidecar = EmbeddedSidecar(fleet.folder, options)
    fleet.processes.append(sidecar)
    application = fleet.application(sidecar, cron=NEVER)
    eventually("its items", lambda: len(application.owned()) == 6)
    assert get(port, "/readyz").status == 200
    fill = small_disk / "fill"
    with repeated(lambda: get(port, "/livez").status) as live:
        with suppress(OSError), fill.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        numbers = itertools.count()

        def is_full() -> bool:
            add_job(sidecar, next(numbers))
            return get(port, "/readyz/registry").status == 503

        eventually("it is not ready", is_full)
        asked = len(live)
        eventually("it is asked on", lambda: len(live) > asked + 100)
        fill.unlink()
        eventually("it is ready again", lambda: get(port, "/readyz").status == 200)
    assert set(live) == {200}
