"""Many streams, many watchers, large configurations and a registry full of junk: their cost for a sidecar.

The budgets are the processor time and the largest memory of a sidecar's process, as Linux counts them, and the bytes
that it writes; how long a test takes decides nothing. They are twice what the debug build was measured to need beside
other tests, and ten times for the processor time, because machines differ: 0.2 s and 29 MiB for the streams, 33 MiB for the
watchers, 36 MiB for the configurations, 14 kB of log for the junk. With `SIDEKEEPER_LOAD=large` the sizes are those that
users may come to, for a release build on a machine that does nothing else; `pytest -s` prints the figures. The budgets of
the streams hold then too, the others are not compared.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import grpc
import pytest
from kazoo.client import KazooClient
from sidekeeper._proto.v1 import assignment_service_pb2 as watch_pb2
from sidekeeper._proto.v1 import attach_pb2, completion_pb2, job_pb2
from sidekeeper._proto.v1.assignment_service_pb2_grpc import AssignmentServiceStub
from sidekeeper._proto.v1.participant_service_pb2_grpc import ParticipantServiceStub
from sidekeeper.reason import reason_of

from support.fleet import Fleet
from support.job_nodes import JOB, NEVER
from support.measures import processor_time
from support.processes import PATIENCE, Process, sidekeeper_binary
from support.sidecar import Sidecar

KIB = 1024
MIB = 1024 * KIB

#: Whether the sizes are those that users may come to, instead of those for each run of the tests.
LARGE = os.environ.get("SIDEKEEPER_LOAD") == "large"

#: Instances of one job at one sidecar, an item each; and what they may cost: processor time in seconds, and memory.
STREAMS = 1000 if LARGE else 200
STREAMS_SECONDS = 2.0
STREAMS_MEMORY = (100 if LARGE else 60) * MIB

#: Watchers of one job, the items of that job, and the memory that they may cost.
WATCHERS = 1000 if LARGE else 200
WATCHED_ITEMS = 1000
WATCHERS_MEMORY = 64 * MIB

#: Watchers that a sidecar takes.
WATCHERS_MAX = 1000

#: Streams whose configuration is about as large as a node of the registry may be, its bytes, and the memory.
WIDE_STREAMS = 250 if LARGE else 20
DESCRIPTION = (459 if LARGE else 400) * 1000
WIDE_MEMORY = 100 * MIB

#: Nodes that mean nothing in the folder of a job's items, how many of them a transaction creates, and the job's items.
JUNK = 22_000 if LARGE else 2_000
JUNK_AT_ONCE = 500
ITEMS_AMID_JUNK = 6

#: What any message of the sidecar's may have, and what junk may add to its log.
MESSAGE_MAX = 2 * MIB
LOG_MAX = 200_000

#: How long anything may take, in seconds.
LOAD_PATIENCE = PATIENCE * (20 if LARGE else 3)


@dataclass
class Cost:
    """What a process has cost so far."""

    #: Processor time, in seconds.
    seconds: float
    #: The most memory that it had, in bytes.
    memory: int

    @staticmethod
    def of(process: Process) -> Cost:
        proc = Path("/proc") / str(process.popen.pid)
        peak = next(line for line in (proc / "status").read_text().splitlines() if line.startswith("VmHWM:"))
        return Cost(processor_time(process.popen.pid), int(peak.split()[1]) * KIB)


def show(what: str, process: Process, **more: object) -> Cost:
    """Prints what a process has cost, and returns it."""
    cost = Cost.of(process)
    figures = "".join(f", {name} {value}" for name, value in more.items())
    print(f"{what}: {cost.seconds:.2f} s of processor time, {cost.memory / MIB:.0f} MiB at most{figures}")
    return cost


class Alone(Process):
    """A sidecar with the registry that is embedded in it."""

    def __init__(self, folder: Path):
        self.socket = folder / "1.sock"
        arguments = [str(sidekeeper_binary()), "serve", "--listen", f"unix:{self.socket}"]
        super().__init__("sidecar", arguments, folder, dict(os.environ), pipe=False)


@pytest.fixture
def sidecar(binary: Path) -> Iterator[Alone]:
    with tempfile.TemporaryDirectory(prefix="sk-") as folder:
        sidecar = Alone(Path(folder))
        yield sidecar
        sidecar.kill()
        log = sidecar.log.read_text(errors="replace")
        assert "panicked at" not in log, log


def channel(socket: Path) -> grpc.aio.Channel:
    options = [("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", -1)]
    return grpc.aio.insecure_channel(f"unix:{socket}", options=options)


class Streams:
    """The calls of one test, each read by a task of its own. The end of one of them fails the test."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Condition()

    def read(self, call: Any, take: Callable[[Any], Awaitable[None] | None]) -> None:
        """Has each message of a call taken."""

        async def read() -> None:
            async for message in call:
                taken = take(message)
                if taken is not None:
                    await taken
                async with self._changed:
                    self._changed.notify_all()
            raise AssertionError("a stream has ended")

        self._tasks.append(asyncio.create_task(read()))

    async def until(self, what: str, look: Callable[[], object]) -> None:
        """Waits until the messages have made something true."""

        async def wait() -> None:
            async with self._changed:
                await self._changed.wait_for(look)

        waiting = asyncio.create_task(wait())
        done, _ = await asyncio.wait(
            [waiting, *self._tasks], timeout=LOAD_PATIENCE, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            task.result()
        assert waiting.done(), f"not within {LOAD_PATIENCE} s: {what}"

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def attach_request(**configuration: Any) -> attach_pb2.AttachRequest:
    message = job_pb2.JobConfiguration(**configuration)
    return attach_pb2.AttachRequest(job_name=JOB, configuration=message, client="test/1")


class Instances:
    """Instances of one job, and the items of each by its last assignment."""

    def __init__(self, streams: Streams, calls: grpc.aio.Channel):
        self.owned: dict[int, list[int]] = {}
        self._streams = streams
        self._stub = ParticipantServiceStub(calls)

    def attach(self, count: int, **configuration: Any) -> None:
        request = attach_request(**configuration)
        for number in range(count):
            call = self._stub.Attach(request, wait_for_ready=True)
            self._streams.read(call, lambda event, number=number: self._take(number, event))

    def _take(self, number: int, event: attach_pb2.AttachResponse) -> None:
        if event.WhichOneof("event") == "assignment_changed":
            self.owned[number] = [item.item for item in event.assignment_changed.assignment.items]

    def own(self, count: int, total: int) -> bool:
        """Whether so many streams have an assignment, and own all items together, each once."""
        return len(self.owned) == count and sorted(chain.from_iterable(self.owned.values())) == list(range(total))


def test_many_instances_of_one_job_at_one_sidecar(sidecar: Alone) -> None:
    async def run() -> None:
        streams = Streams()
        async with channel(sidecar.socket) as calls:
            instances = Instances(streams, calls)
            instances.attach(STREAMS, sharding_total_count=STREAMS, cron=NEVER)
            # Items go from one to the other until each has its part.
            await streams.until(
                "an item each",
                lambda: instances.own(STREAMS, STREAMS) and all(len(items) == 1 for items in instances.owned.values()),
            )
            cost = show(f"{STREAMS} streams", sidecar)
            assert cost.seconds < STREAMS_SECONDS
            assert cost.memory < STREAMS_MEMORY
            await streams.end()

    asyncio.run(run())


async def watch(streams: Streams, calls: grpc.aio.Channel, count: int, items: int) -> None:
    """Opens watchers of the job, and waits until each has the owners of all items."""
    stub, told = AssignmentServiceStub(calls), set()

    def take(number: int, state: watch_pb2.WatchAssignmentsResponse) -> None:
        if sum(1 for item in state.items if item.instance_id) == items:
            told.add(number)

    for number in range(count):
        call = stub.WatchAssignments(watch_pb2.WatchAssignmentsRequest(job_name=JOB))
        streams.read(call, lambda state, number=number: take(number, state))
    await streams.until("all watchers have the state", lambda: len(told) == count)


def test_many_watchers_of_a_job_with_many_items(sidecar: Alone) -> None:
    async def run() -> None:
        streams = Streams()
        async with channel(sidecar.socket) as calls:
            instances = Instances(streams, calls)
            instances.attach(1, sharding_total_count=WATCHED_ITEMS, cron=NEVER)
            await streams.until("all items owned", lambda: instances.own(1, WATCHED_ITEMS))
            await watch(streams, calls, WATCHERS, WATCHED_ITEMS)
            cost = show(f"{WATCHERS} watchers of {WATCHED_ITEMS} items", sidecar)
            if not LARGE:
                assert cost.memory < WATCHERS_MEMORY
            await streams.end()

    asyncio.run(run())


def test_a_watcher_too_many_is_refused_with_the_reason(sidecar: Alone) -> None:
    async def run() -> None:
        streams = Streams()
        async with channel(sidecar.socket) as calls:
            instances = Instances(streams, calls)
            instances.attach(1, sharding_total_count=1, cron=NEVER)
            await streams.until("the item owned", lambda: instances.own(1, 1))
            await watch(streams, calls, WATCHERS_MAX, 1)
            call = AssignmentServiceStub(calls).WatchAssignments(
                watch_pb2.WatchAssignmentsRequest(job_name=JOB), timeout=PATIENCE
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, caught.value
            assert reason_of(caught.value) == "TOO_MANY"
            await streams.end()

    asyncio.run(run())


def test_many_instances_with_a_large_configuration(sidecar: Alone) -> None:
    async def run() -> None:
        streams = Streams()
        async with channel(sidecar.socket) as calls:
            instances = Instances(streams, calls)
            description = "x" * DESCRIPTION
            instances.attach(WIDE_STREAMS, sharding_total_count=WIDE_STREAMS, cron=NEVER, description=description)
            await streams.until("all items owned", lambda: instances.own(WIDE_STREAMS, WIDE_STREAMS))
            cost = show(f"{WIDE_STREAMS} streams with {DESCRIPTION} bytes of description", sidecar)
            if not LARGE:
                assert cost.memory < WIDE_MEMORY
            await streams.end()

    asyncio.run(run())


def put_junk(client: KazooClient, folder: str) -> None:
    """Fills a folder with nodes that mean nothing there."""
    for first in range(0, JUNK, JUNK_AT_ONCE):
        transaction = client.transaction()
        for number in range(first, min(first + JUNK_AT_ONCE, JUNK)):
            transaction.create(f"{folder}/junk-{number:05}-{uuid.uuid4().hex}", b"nothing")
        results = transaction.commit()
        assert all(isinstance(result, str) for result in results), results[:3]


def test_a_job_amid_nodes_that_mean_nothing_is_executed(fleet: Fleet) -> None:
    sidecar: Sidecar = fleet.sidecar(1)

    async def run() -> None:
        streams = Streams()
        sizes: list[int] = []
        wrong: list[int] = []
        executed: dict[int, int] = {}
        attachment = ""

        def measured(data: bytes) -> watch_pb2.WatchAssignmentsResponse:
            sizes.append(len(data))
            return watch_pb2.WatchAssignmentsResponse.FromString(data)

        async with channel(sidecar.socket) as calls:
            stub = ParticipantServiceStub(calls)

            async def take(event: attach_pb2.AttachResponse) -> None:
                nonlocal attachment
                kind = event.WhichOneof("event")
                if kind == "attached":
                    attachment = event.attached.attachment_id
                elif kind == "assignment_changed":
                    owned[0] = [item.item for item in event.assignment_changed.assignment.items]
                elif kind == "execute":
                    result = completion_pb2.ExecutionResult(
                        execution_id=event.execute.execution_id, outcome=completion_pb2.EXECUTION_OUTCOME_SUCCESS
                    )
                    await stub.ReportCompletion(
                        completion_pb2.ReportCompletionRequest(attachment_id=attachment, results=[result])
                    )
                    executed[event.execute.item] = executed.get(event.execute.item, 0) + 1

            owned: dict[int, list[int]] = {}
            request = attach_request(sharding_total_count=ITEMS_AMID_JUNK, cron=NEVER)
            streams.read(stub.Attach(request, wait_for_ready=True), take)
            await streams.until("all items owned", lambda: owned.get(0) == list(range(ITEMS_AMID_JUNK)))
            watching = calls.unary_stream(
                "/sidekeeper.v1.AssignmentService/WatchAssignments",
                request_serializer=watch_pb2.WatchAssignmentsRequest.SerializeToString,
                response_deserializer=measured,
            )(watch_pb2.WatchAssignmentsRequest(job_name=JOB))
            streams.read(watching, lambda state: wrong.append(len(state.problems)))
            log_before = sidecar.log.stat().st_size
            await asyncio.to_thread(put_junk, fleet.tree.client, fleet.tree.path("sharding"))
            await streams.until("the junk is a problem", lambda: wrong and wrong[-1] > 1)
            await asyncio.to_thread(fleet.tree.fire_once)
            await streams.until("each item executed", lambda: len(executed) == ITEMS_AMID_JUNK)
            assert executed == dict.fromkeys(range(ITEMS_AMID_JUNK), 1)
            log_grown = sidecar.log.stat().st_size - log_before
            show(f"{JUNK} junk nodes", sidecar, messages=len(sizes), largest=max(sizes), log=log_grown)
            assert max(sizes) <= MESSAGE_MAX
            assert log_grown < LOG_MAX
            await streams.end()

    asyncio.run(run())
