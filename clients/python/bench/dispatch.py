"""Measures the dispatch round trip of the Python client beside a bare gRPC echo: one JSON line for each mode.

    python bench/dispatch.py --sidekeeper target/release/sidekeeper [--mode asyncio] [--executions 1000000]

The round trip is from the moment when the sidecar starts an execution (``fire_time``), over the handler, which does
nothing, to the moment when the client has the answer that its completion is recorded; one execution at a time. The rate
is that of a job of many items that is triggered again as soon as it is done. Both are with a real sidecar on its
embedded registry. The echo is a unary call of the size of a report, from this process to a Python server in another
one, with as many calls at once as the job executes items; in the threads' mode from as many threads.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Callable

# Starting a process can fork, and gRPC's handlers for that can stop its pollers; read when it is loaded.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import grpc
import grpc.aio

import sidekeeper
from sidekeeper._proto.v1 import job_service_pb2
from sidekeeper._proto.v1.job_service_pb2_grpc import JobServiceStub
from sidekeeper.channel import open_channel
from sidekeeper.reporter import Reporter

MODES = ("asyncio", "threads")

#: Items executed at once, and echo calls at once.
CONCURRENCY = 32
#: Items of the job whose rate is measured: how often it is triggered hardly counts then.
ITEMS = 2000
#: Round trips that are timed one by one.
ROUND_TRIPS = 1000
#: For how long echo calls are made, in seconds.
ECHO_SECONDS = 3.0
#: Bytes of an echo: about those of a report and its answer.
ECHO_BYTES = 64
#: The part of the executions after which memory is looked at first.
WARM_UP = 0.1

ECHO = "/echo.Echo/Echo"


class Count:
    """What was recorded, as seen by the client."""

    def __init__(self) -> None:
        self.recorded = 0
        self.changed = asyncio.Event()
        self.round_trips: list[float] | None = None

    def attach(self) -> None:
        """Has the client's reporter tell each answer."""
        before = Reporter._recorded

        def recorded(reporter: Reporter, batch: Any, response: Any) -> None:
            now = time.time()
            before(reporter, batch, response)
            if self.round_trips is not None:
                self.round_trips += [now - result.execution.fire_time.timestamp() for result in batch]
            self.recorded += len(batch)
            self.changed.set()

        Reporter._recorded = recorded  # type: ignore[method-assign, assignment]

    async def reach(self, number: int) -> None:
        """Waits until so many were recorded."""
        while self.recorded < number:
            self.changed.clear()
            await self.changed.wait()


def percentile(values: list[float], part: float) -> float:
    """Returns a percentile of unsorted values."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def memory_kib() -> int:
    """How much memory of this process is resident now, in KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def nothing(_: sidekeeper.Execution) -> None:
    """The handler on the loop."""


def nothing_on_thread(_: sidekeeper.Execution) -> None:
    """The handler on threads."""


async def measure_dispatch(mode: str, endpoint: str, executions: int) -> dict[str, Any]:
    """Runs an application beside the sidecar, and triggers its jobs."""
    count = Count()
    count.attach()
    app = sidekeeper.Application(endpoint)
    handler = nothing if mode == "asyncio" else nothing_on_thread
    for name, items in (("one", 1), ("many", ITEMS)):
        app.job(name, sharding_total_count=items, concurrency=CONCURRENCY)(handler)
    owned = {"one": 0, "many": 0}
    assigned = asyncio.Event()

    for name in owned:

        @app.on_assignment(name)
        async def note(assignment: sidekeeper.Assignment) -> None:
            owned[assignment.job_name] = len(assignment.items)
            assigned.set()

    serving = asyncio.get_running_loop().create_task(app.serve())
    async with open_channel(endpoint) as channel:
        trigger = JobServiceStub(channel).TriggerJob
        while owned != {"one": 1, "many": ITEMS}:
            assigned.clear()
            await assigned.wait()

        async def fire(name: str, items: int) -> None:
            number = count.recorded + items
            await trigger(job_service_pb2.TriggerJobRequest(job_name=name), timeout=60)
            await count.reach(number)

        for _ in range(50):
            await fire("one", 1)
        count.round_trips = []
        for _ in range(ROUND_TRIPS):
            await fire("one", 1)
        round_trips, count.round_trips = count.round_trips, None
        await fire("many", ITEMS)
        rounds = max(1, executions // ITEMS)
        first = max(1, int(rounds * WARM_UP))
        memory = 0
        began = time.monotonic()
        for number in range(rounds):
            if number == first:
                memory = memory_kib()
            await fire("many", ITEMS)
        took = time.monotonic() - began
    after = memory_kib()
    app.stop()
    await serving
    return {
        "p50_us": round(statistics.median(round_trips) * 1e6),
        "p99_us": round(percentile(round_trips, 0.99) * 1e6),
        "per_second": round(rounds * ITEMS / took),
        "executions": rounds * ITEMS,
        "memory_kib": after,
        "memory_growth": round(after / memory - 1, 3) if memory else None,
    }


def serve_echo(socket: str) -> None:
    """The echo server; a process of its own."""

    async def echo(request: bytes, _: Any) -> bytes:
        return request

    async def serve() -> None:
        server = grpc.aio.server()
        handlers: Any = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo.Echo", handlers),))
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        await server.wait_for_termination()

    asyncio.run(serve())


async def echo_on_loop(socket: str) -> tuple[float, list[float]]:
    """Echo calls from the loop: how many a second, and how long one takes alone."""
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        call: Any = channel.unary_unary(ECHO)
        await call(b"", wait_for_ready=True)
        message, alone = bytes(ECHO_BYTES), []
        for _ in range(ROUND_TRIPS):
            began = time.monotonic()
            await call(message)
            alone.append(time.monotonic() - began)
        until = time.monotonic() + ECHO_SECONDS

        async def keep_calling() -> int:
            made = 0
            while time.monotonic() < until:
                await call(message)
                made += 1
            return made

        return sum(await asyncio.gather(*(keep_calling() for _ in range(CONCURRENCY)))) / ECHO_SECONDS, alone


async def echo_on_threads(socket: str) -> tuple[float, list[float]]:
    """Echo calls from threads, which block."""
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        call: Any = channel.unary_unary(ECHO)
        call(b"", wait_for_ready=True)
        message, alone = bytes(ECHO_BYTES), []
        for _ in range(ROUND_TRIPS):
            began = time.monotonic()
            call(message)
            alone.append(time.monotonic() - began)
        until = time.monotonic() + ECHO_SECONDS
        made: list[int] = []

        def keep_calling() -> None:
            number = 0
            while time.monotonic() < until:
                call(message)
                number += 1
            made.append(number)

        threads = [threading.Thread(target=keep_calling) for _ in range(CONCURRENCY)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(made) / ECHO_SECONDS, alone


@contextlib.contextmanager
def echo_server(folder: str) -> Iterator[str]:
    """The echo server's socket, while it runs."""
    socket = f"{folder}/echo.sock"
    process = multiprocessing.get_context("spawn").Process(target=serve_echo, args=(socket,), daemon=True)
    process.start()
    try:
        yield socket
    finally:
        process.kill()
        process.join()


@contextlib.contextmanager
def sidecar(binary: str, folder: str) -> Iterator[str]:
    """A sidecar's endpoint, while it runs."""
    socket = Path(folder, "sidecar.sock")
    command = [binary, "serve", "--listen", f"unix:{socket}", "--log-level", "warn"]
    process = subprocess.Popen(command)
    try:
        while not socket.exists():
            if process.poll() is not None:
                raise RuntimeError(f"the sidecar has ended with status {process.returncode}")
            time.sleep(0.01)
        yield f"unix://{socket}"
    finally:
        process.terminate()
        process.wait()


def measure(mode: str, binary: str, executions: int) -> dict[str, Any]:
    """Measures one mode, the echo before and after it."""
    echo: Callable[[str], Coroutine[Any, Any, tuple[float, list[float]]]]
    echo = echo_on_loop if mode == "asyncio" else echo_on_threads
    with tempfile.TemporaryDirectory(prefix="sk-") as folder:
        with echo_server(folder) as socket:
            before, alone = asyncio.run(echo(socket))
        with sidecar(binary, folder) as endpoint:
            dispatch = asyncio.run(measure_dispatch(mode, endpoint, executions))
    with tempfile.TemporaryDirectory(prefix="sk-") as folder, echo_server(folder) as socket:
        after, _ = asyncio.run(echo(socket))
    rate = (before + after) / 2
    return {
        "language": "python",
        "mode": mode,
        **dispatch,
        "echo_p50_us": round(statistics.median(alone) * 1e6),
        "echo_per_second": round(rate),
        "ratio": round(dispatch["per_second"] / rate, 2),
    }


def main() -> None:
    """Measures each mode in a process of its own, so that they do not disturb each other."""
    parser = argparse.ArgumentParser(description="Measures the dispatch round trip beside a bare gRPC echo.")
    parser.add_argument("--sidekeeper", required=True, help="the sidecar's program; a release build")
    parser.add_argument("--mode", choices=MODES, help="only this one")
    parser.add_argument("--executions", type=int, default=40_000, help="how many are executed for the rate")
    given = parser.parse_args()
    if given.mode:
        print(json.dumps(measure(given.mode, given.sidekeeper, given.executions)), flush=True)
        return
    for mode in MODES:
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--mode", mode], check=True)


if __name__ == "__main__":
    main()
