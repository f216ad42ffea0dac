from __future__ import annotations

import asyncio
import io
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import sidekeeper
from sidekeeper.testing import FakeSidecar

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"

log = logging.getLogger("an.application")


def make(*, on_loop: bool) -> sidekeeper.Application:
    app = sidekeeper.Application()
    decorate = app.job("orderSync", sharding_total_count=4)

    def work(execution: sidekeeper.Execution) -> None:
        log.info("working")
        current = sidekeeper.current_execution()
        assert current is execution
        if execution.item == 1:
            raise RuntimeError("no luck")

    async def handle_on_loop(execution: sidekeeper.Execution) -> None:
        await asyncio.gather(asyncio.to_thread(log.info, "helping"), asyncio.sleep(0))
        work(execution)

    def handle_on_thread(execution: sidekeeper.Execution) -> None:
        log.info("helping")
        work(execution)

    decorate(handle_on_loop if on_loop else handle_on_thread)
    return app


@pytest.mark.parametrize("on_loop", [True, False])
def test_all_records_of_a_handler_say_what_it_executes(on_loop: bool) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s %(job)s %(item)s %(execution_id)s"))
    handler.addFilter(sidekeeper.LogFilter())
    root = logging.getLogger()
    root.addHandler(handler)
    before = root.level
    root.setLevel(logging.INFO)
    try:
        with FakeSidecar(make(on_loop=on_loop)) as sidecar:
            result = sidecar.execute("orderSync", 2)
            assert result.succeeded, result.message
            sidecar.execute("orderSync", 1)
        log.info("outside")
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
    lines = stream.getvalue().splitlines()
    assert f"working orderSync 2 {result.execution_id}" in lines
    assert f"helping orderSync 2 {result.execution_id}" in lines
    assert "outside None None None" in lines
    # The library's own records are about an execution without being made in it.
    assert any(line.endswith(f" orderSync 1 {sidecar.results[1].execution_id}") for line in lines)
    assert sidekeeper.current_execution() is None


@pytest.fixture(scope="session")
def provider() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(provider: InMemorySpanExporter) -> Iterator[InMemorySpanExporter]:
    provider.clear()
    yield provider
    provider.clear()


@pytest.mark.parametrize("on_loop", [True, False])
def test_the_sidecars_span_is_the_parent_of_the_handlers(spans: InMemorySpanExporter, on_loop: bool) -> None:
    with FakeSidecar(make(on_loop=on_loop)) as sidecar:
        result = sidecar.execute("orderSync", 2, traceparent=f"00-{TRACE}-{SPAN}-01")
        sidecar.execute("orderSync", 1, traceparent=f"00-{TRACE}-{SPAN}-01")
        sidecar.execute("orderSync", 3)
    good, bad, alone = spans.get_finished_spans()
    assert good.name == "execute orderSync"
    assert good.context is not None
    assert f"{good.context.trace_id:032x}" == TRACE
    assert good.parent is not None
    assert f"{good.parent.span_id:016x}" == SPAN
    assert good.attributes is not None
    assert (good.attributes["item"], good.attributes["execution.id"]) == (2, result.execution_id)
    assert good.status.is_ok or good.status.is_unset
    assert bad.status.status_code is trace.StatusCode.ERROR
    assert [event.name for event in bad.events] == ["exception"]
    assert alone.parent is None


def test_without_opentelemetry_nothing_is_missing() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
import sidekeeper
from sidekeeper import tracing
from sidekeeper.testing import FakeSidecar
assert not tracing.INSTALLED
app = sidekeeper.Application()
@app.job("orderSync", sharding_total_count=1)
def handler(execution: sidekeeper.Execution) -> None: ...
with FakeSidecar(app) as sidecar:
    assert sidecar.execute("orderSync").succeeded
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
