"""A sidecar for unit tests: in memory, without a process, a port or a clock; everything happens when the test says so.

    from sidekeeper.testing import FakeSidecar

    def test_sync() -> None:
        with FakeSidecar(app) as sidecar:
            sidecar.assign("orderSync", {0: "Beijing"})
            assert sidecar.execute("orderSync", item=0).succeeded

The application is the real one, with its real handlers and callbacks; only what it is connected to is not. It runs on a
thread with an event loop of its own, so tests are plain functions whatever the handlers are. On a test's own loop,
``async with FakeSidecar(app)`` runs it there, and the methods that end in ``_async`` are to be awaited.

There is no schedule and no registry: nothing fires, is tried again or changes hands by itself.

While it runs, ``sidekeeper.lock`` holds its locks here, on any thread and any loop of the process, and so have
``sidekeeper.leader`` and ``sidekeeper.observe_leader`` their elections here. Each lock and each election has a fair
queue, and only the time limits of holds need a clock. ``FakeSidecar()`` is for programs without jobs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc.aio

from sidekeeper._proto.v1 import attach_pb2, election_service_pb2, execution_pb2, lock_service_pb2
from sidekeeper.application import Application
from sidekeeper.connection import in_memory
from sidekeeper.election import Leader
from sidekeeper.events import AssignmentReason, SessionState
from sidekeeper.execution import CancelReason, ExecutionSource
from sidekeeper.fake import FakeStream, FakeStub, Outcome, Result
from sidekeeper.fake_call import LockLoss
from sidekeeper.fake_elections import ElectionState, FakeCandidate
from sidekeeper.fake_locks import LockContender, LockState
from sidekeeper.fake_services import FakeServices
from sidekeeper.lock import LockMode

if TYPE_CHECKING:
    from sidekeeper._proto.v1.participant_service_pb2_grpc import ParticipantServiceAsyncStub

__all__ = [
    "ElectionState",
    "FakeCandidate",
    "FakeExecution",
    "FakeSidecar",
    "LockContender",
    "LockLoss",
    "LockState",
    "Outcome",
    "Result",
]

#: How long a test waits for the application, in seconds.
PATIENCE = 10.0

T = TypeVar("T")


class FakeExecution:
    """An execution that was sent to the application."""

    def __init__(self, sidecar: FakeSidecar, stream: FakeStream, message: execution_pb2.Execute) -> None:
        self._sidecar = sidecar
        self._stream = stream
        #: Names it.
        self.execution_id = message.execution_id
        #: Its item.
        self.item = message.item
        #: Its fencing token.
        self.fencing_token = message.fencing_token

    @property
    def checkpoints(self) -> list[bytes]:
        """What its handler has written down so far, in order."""
        reports = self._stream.progress.get(self.execution_id, ())
        return [report.checkpoint for report in reports if report.HasField("checkpoint")]

    @property
    def progress_count(self) -> int:
        """How often its handler has reported progress, with a checkpoint or without."""
        return len(self._stream.progress.get(self.execution_id, ()))

    def cancel(self, reason: CancelReason = CancelReason.OPERATOR) -> None:
        """Tells it to stop, and does not wait until it has."""
        value = cast("execution_pb2.CancelReason.ValueType", reason.value)
        message = execution_pb2.Cancel(execution_id=self.execution_id, item=self.item, reason=value)
        self._sidecar._soon(self._stream.send, attach_pb2.AttachResponse(cancel=message))

    def result(self, timeout: float = PATIENCE) -> Result:
        """Waits until its result was reported.

        Raises:
            TimeoutError: It was not, in so many seconds.
        """
        return self._sidecar._wait(self.result_async(timeout), timeout)

    async def result_async(self, timeout: float = PATIENCE) -> Result:
        """As ``result``, on a test's own loop."""
        what = f"the result of execution {self.execution_id} of item {self.item}"
        return await _within(self._stream.result(self.execution_id), what, timeout)


class FakeSidecar:
    """Runs an application beside a sidecar that the test controls. A context manager, of both kinds.

    Args:
        application: The application. It can be run in one test after the other. None: only locks and elections
            are needed.

    Attributes:
        results: All results that were reported, in order.
        lock_lease: The lease of a lock that is acquired or resumed from now on. The fake does not renew it: with a
            short one a test sees how the application acts beside a silent sidecar.
        election_lease: The same for leaderships.
    """

    def __init__(self, application: Application | None = None) -> None:
        self._application = application
        self._stub = FakeStub()
        self._services = FakeServices()
        self._locks, self._elections = self._services.locks, self._services.elections
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._serving: asyncio.Task[None] | None = None
        self.results: list[Result] = self._stub.results

    # Running the application.

    def __enter__(self) -> FakeSidecar:
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="sidekeeper-testing", daemon=True)
        self._thread.start()
        self._loop = loop
        try:
            self._wait(self.__aenter__())
        except BaseException:
            self._end_thread()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._wait(self.__aexit__(kind, error, trace))
        finally:
            self._end_thread()

    async def __aenter__(self) -> FakeSidecar:
        self._loop = asyncio.get_running_loop()
        in_memory.append(self._services)
        try:
            if self._application is not None:
                await self._serve(self._loop, self._application)
        except BaseException:
            in_memory.remove(self._services)
            raise
        return self

    async def _serve(self, loop: asyncio.AbstractEventLoop, application: Application) -> None:
        application._connector = self._connect
        self._serving = loop.create_task(application.serve())
        attached = loop.create_task(self._stub.wait_attached(application._jobs))
        await asyncio.wait({attached, self._serving}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            attached.cancel()
            self._serving.result()  # says why
        elif not attached.done():
            raise TimeoutError("the application has not attached")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        serving, self._serving = self._serving, None
        if self._application is not None:
            self._application.stop(immediately=True)
            self._application._connector = None
        self._services.close()
        try:
            if serving is not None:
                await asyncio.wait({serving}, timeout=PATIENCE)
                if serving.done() and not serving.cancelled():
                    serving.result()
        finally:
            in_memory.remove(self._services)

    def stop(self, *, wait: bool = True) -> None:
        """Stops the application as SIGTERM does: running executions may end, further ones get no answer.

        Args:
            wait: Whether to wait until it has left.
        """
        self._soon(self._running().stop)
        if wait:
            self._wait(self._left())

    async def stop_async(self, *, wait: bool = True) -> None:
        """As ``stop``, on a test's own loop."""
        self._running().stop()
        if wait:
            await self._left()

    def _running(self) -> Application:
        if self._application is None:
            raise RuntimeError("there is no application: use `with FakeSidecar(app)`")
        return self._application

    async def _left(self) -> None:
        if self._serving is not None:
            await asyncio.wait({self._serving}, timeout=PATIENCE)
            if not self._serving.done():
                raise TimeoutError(f"not within {PATIENCE:g} s: the application has left")

    # Assignments.

    def assign(
        self,
        job_name: str,
        items: Mapping[int, str | None] | Iterable[int],
        *,
        leader: bool = False,
        reason: AssignmentReason = AssignmentReason.RESHARDED,
    ) -> int:
        """Tells the job's whole assignment, and waits until the application has acknowledged it.

        That is when its callbacks have returned and no execution of a revoked item is open.

        Args:
            job_name: The job.
            items: The items, with their parameters or without.
            leader: Whether the instance leads the job.
            reason: Why it changes.

        Returns:
            The assignment's generation.

        Raises:
            TimeoutError: A callback has raised or does not return, or an execution does not end.
        """
        return self._wait(self.assign_async(job_name, items, leader=leader, reason=reason))

    async def assign_async(
        self,
        job_name: str,
        items: Mapping[int, str | None] | Iterable[int],
        *,
        leader: bool = False,
        reason: AssignmentReason = AssignmentReason.RESHARDED,
    ) -> int:
        """As ``assign``, on a test's own loop."""
        stream = self._stub.stream(job_name)
        parameters = dict(items) if isinstance(items, Mapping) else dict.fromkeys(items)
        generation = stream.assign(parameters, leader=leader, reason=reason)
        acknowledged = stream.wait_acknowledged(generation)
        await _within(acknowledged, f"the acknowledgement of the assignment of job {job_name!r}", PATIENCE)
        return generation

    def lose_session(self, job_name: str) -> None:
        """The session with the registry is lost: executions are cancelled, and all items are lost."""
        self._wait(self.lose_session_async(job_name))

    async def lose_session_async(self, job_name: str) -> None:
        """As ``lose_session``, on a test's own loop."""
        stream = self._stub.stream(job_name)
        for execution_id in stream.open:
            lost = execution_pb2.CANCEL_REASON_LEASE_LOST
            stream.send(attach_pb2.AttachResponse(cancel=execution_pb2.Cancel(execution_id=execution_id, reason=lost)))
        stream.send_session(SessionState.LOST)
        await self.assign_async(job_name, (), reason=AssignmentReason.SESSION_LOST)
        stream.send_session(SessionState.CONNECTED)

    def disconnect(self, job_name: str) -> None:
        """Breaks the job's stream, as if the sidecar were killed; waits until the application is attached again."""
        self._wait(self.disconnect_async(job_name))

    async def disconnect_async(self, job_name: str) -> None:
        """As ``disconnect``, on a test's own loop."""
        self._stub.disconnect(job_name)
        await _within(self._stub.wait_attached([job_name]), f"job {job_name!r} to attach again", PATIENCE)

    # Executions.

    def start(
        self,
        job_name: str,
        item: int = 0,
        *,
        job_parameter: str | None = None,
        source: ExecutionSource = ExecutionSource.SCHEDULE,
        scheduled_time: datetime | None = None,
        time_left: timedelta | None = None,
        attempt: int = 1,
        checkpoint: bytes | None = None,
        traceparent: str = "",
    ) -> FakeExecution:
        """Tells an item to be executed, and does not wait. An item that the application does not own is assigned first.

        Args:
            job_name: The job.
            item: The item.
            job_parameter: Default: that of the job's configuration.
            source: What makes it start.
            scheduled_time: For which instant. Default: 2026-01-01T00:00:00Z, a second later with each one of the job.
            time_left: How long it may take until its deadline, which the fake does not watch. Default: no deadline.
            attempt: Which attempt it is.
            checkpoint: What an earlier attempt has written down.
            traceparent: W3C trace context of the sidecar's span.
        """
        return self._wait(
            self.start_async(
                job_name,
                item,
                job_parameter=job_parameter,
                source=source,
                scheduled_time=scheduled_time,
                time_left=time_left,
                attempt=attempt,
                checkpoint=checkpoint,
                traceparent=traceparent,
            )
        )

    async def start_async(
        self,
        job_name: str,
        item: int = 0,
        *,
        job_parameter: str | None = None,
        source: ExecutionSource = ExecutionSource.SCHEDULE,
        scheduled_time: datetime | None = None,
        time_left: timedelta | None = None,
        attempt: int = 1,
        checkpoint: bytes | None = None,
        traceparent: str = "",
    ) -> FakeExecution:
        """As ``start``, on a test's own loop."""
        stream = self._stub.stream(job_name)
        if item not in stream.items:
            await self.assign_async(job_name, {**stream.items, item: stream.parameter(item)})
        message = stream.execute(item, source, scheduled_time)
        message.attempt = attempt
        message.traceparent = traceparent
        if job_parameter is not None:
            message.job_parameter = job_parameter
        if checkpoint is not None:
            message.checkpoint = checkpoint
        if time_left is not None:
            message.deadline.FromDatetime(datetime.now(timezone.utc) + time_left)
        stream.send(attach_pb2.AttachResponse(execute=message))
        return FakeExecution(self, stream, message)

    def execute(self, job_name: str, item: int = 0, *, timeout: float = PATIENCE, **fields: Any) -> Result:
        """As ``start``, with the same arguments, and waits for the result.

        Raises:
            TimeoutError: There was none, in so many seconds.
        """
        return self.start(job_name, item, **fields).result(timeout)

    async def execute_async(self, job_name: str, item: int = 0, *, timeout: float = PATIENCE, **fields: Any) -> Result:
        """As ``execute``, on a test's own loop."""
        return await (await self.start_async(job_name, item, **fields)).result_async(timeout)

    def fire(self, job_name: str, *, timeout: float = PATIENCE) -> dict[int, Result]:
        """Has all items that the application owns be executed for the same instant; waits for the results, by item."""
        return self._wait(self.fire_async(job_name, timeout=timeout), timeout)

    async def fire_async(self, job_name: str, *, timeout: float = PATIENCE) -> dict[int, Result]:
        """As ``fire``, on a test's own loop."""
        stream = self._stub.stream(job_name)
        instant = stream.next_instant()
        started = [await self.start_async(job_name, item, scheduled_time=instant) for item in sorted(stream.items)]
        return {one.item: await one.result_async(timeout) for one in started}

    # Locks: these methods may be called on any thread. `lock` is a name, or a path, which begins with `/`.

    @property
    def lock_lease(self) -> timedelta:
        """The lease of a lock that is acquired or resumed."""
        return self._locks.lease

    @lock_lease.setter
    def lock_lease(self, lease: timedelta) -> None:
        self._locks.lease = lease

    def lock_names(self) -> list[str]:
        """The names of the locks that somebody holds or waits for."""
        names: list[str] = []
        token = ""
        while True:
            page = self._locks.ListLocks(lock_service_pb2.ListLocksRequest(page_token=token))
            names += page.names
            token = page.next_page_token
            if not token:
                return names

    def lock_state(self, lock: str) -> LockState:
        """Who holds a lock, and who waits for it.

        Raises:
            ValueError: The lock cannot have this name.
        """
        request = lock_service_pb2.GetLockRequest(lock=_lock_id(lock))
        found = _told(self._locks.GetLock, request).lock
        return LockState(tuple(map(_contender, found.holders)), tuple(map(_contender, found.waiting)))

    def wait_lock(
        self, lock: str, *, holders: int | None = None, waiting: int | None = None, timeout: float = PATIENCE
    ) -> LockState:
        """Waits until so many contenders hold a lock, and so many wait for it; None: any number.

        Raises:
            TimeoutError: It was not so, in so many seconds.
        """

        def fits() -> bool:
            state = self.lock_state(lock)
            return holders in (None, len(state.holders)) and waiting in (None, len(state.waiting))

        if not self._locks.wait_until(fits, timeout):
            raise TimeoutError(f"not within {timeout:g} s: lock {lock!r}: holders {holders}, waiting {waiting}")
        return self.lock_state(lock)

    async def wait_lock_async(
        self, lock: str, *, holders: int | None = None, waiting: int | None = None, timeout: float = PATIENCE
    ) -> LockState:
        """As ``wait_lock``, on a test's own loop."""
        return await asyncio.to_thread(self.wait_lock, lock, holders=holders, waiting=waiting, timeout=timeout)

    def lose_lock(self, lock: str, loss: LockLoss = LockLoss.REVOKED) -> None:
        """Takes a lock from its holders, who are told so. The next contender holds it.

        Raises:
            ValueError: Nobody holds it.
        """
        _told(self._locks.lose, _lock_id(lock), loss)

    def request_revocation(self, lock: str) -> None:
        """Asks the holder to give a lock back, as another program does. Nothing forces it.

        Raises:
            ValueError: Nobody holds it.
        """
        _told(self._locks.RequestRevocation, lock_service_pb2.RequestRevocationRequest(lock=_lock_id(lock)))

    def suspend_locks(self) -> None:
        """The registry does not answer: holders are told so, and nobody gets a lock until ``resume_locks``."""
        self._locks.suspend()

    def resume_locks(self) -> None:
        """The registry answers again: holders are told so, with a new lease."""
        self._locks.resume()

    # Elections: these methods may be called on any thread. `election` is a name, or a path, which begins with `/`.

    @property
    def election_lease(self) -> timedelta:
        """The lease of a leadership that begins or is resumed."""
        return self._elections.lease

    @election_lease.setter
    def election_lease(self, lease: timedelta) -> None:
        self._elections.lease = lease

    def election_state(self, election: str) -> ElectionState:
        """Which candidate leads, and which wait.

        Raises:
            ValueError: The election cannot have this name.
        """
        found = _told(self._elections.state, _lock_id(election))
        leader = _candidate(found.leader) if found.HasField("leader") else None
        return ElectionState(leader, tuple(map(_candidate, found.candidates)))

    def wait_election(
        self, election: str, *, leaders: int | None = None, waiting: int | None = None, timeout: float = PATIENCE
    ) -> ElectionState:
        """Waits until so many candidates lead (0 or 1), and so many wait; None: any number.

        Raises:
            TimeoutError: It was not so, in so many seconds.
        """

        def fits() -> bool:
            state = self.election_state(election)
            leading = 0 if state.leader is None else 1
            return leaders in (None, leading) and waiting in (None, len(state.waiting))

        if not self._elections.wait_until(fits, timeout):
            raise TimeoutError(f"not within {timeout:g} s: election {election!r}: leaders {leaders}, waiting {waiting}")
        return self.election_state(election)

    async def wait_election_async(
        self, election: str, *, leaders: int | None = None, waiting: int | None = None, timeout: float = PATIENCE
    ) -> ElectionState:
        """As ``wait_election``, on a test's own loop."""
        return await asyncio.to_thread(self.wait_election, election, leaders=leaders, waiting=waiting, timeout=timeout)

    def lose_leadership(self, election: str, loss: LockLoss = LockLoss.REVOKED) -> None:
        """Takes the leadership from the leader, which is told so. The next candidate leads.

        Raises:
            ValueError: Nobody leads, or a leadership cannot be lost in this way.
        """
        _told(self._elections.lose, _lock_id(election), loss)

    def add_candidate(self, election: str, value: str = "") -> FakeCandidate:
        """Has another program stand, at the end of the queue. It leads at once if nobody else stands.

        Raises:
            ValueError: The election cannot have this name, or the candidate this value.
        """
        return _told(self._elections.stand, _lock_id(election), value)

    def suspend_elections(self) -> None:
        """The registry does not answer: leaders are told so, and nobody comes to lead until ``resume_elections``."""
        self._elections.suspend()

    def resume_elections(self) -> None:
        """The registry answers again: leaders are told so, with a new lease."""
        self._elections.resume()

    # How calls get to the loop.

    def _connect(self) -> ParticipantServiceAsyncStub:
        return cast("ParticipantServiceAsyncStub", self._stub)

    def _soon(self, call: Any, *arguments: Any) -> None:
        if self._loop is None:
            raise RuntimeError("the application is not running: use `with FakeSidecar(app)`")
        self._loop.call_soon_threadsafe(call, *arguments)

    def _wait(self, coroutine: Coroutine[Any, Any, T], timeout: float = PATIENCE) -> T:
        if self._thread is None or self._loop is None:
            coroutine.close()
            raise RuntimeError("on a test's own loop, or outside of `with`: use the methods that end in `_async`")
        waiting = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return waiting.result(timeout + 2 * PATIENCE)  # the coroutine has a bound of its own
        except concurrent.futures.TimeoutError as error:  # before Python 3.11 not the same as TimeoutError
            raise TimeoutError(str(error)) from None

    def _end_thread(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(PATIENCE)
            if not thread.is_alive():
                loop.close()


def _lock_id(lock: str) -> lock_service_pb2.LockId:
    return lock_service_pb2.LockId(path=lock) if lock.startswith("/") else lock_service_pb2.LockId(name=lock)


def _contender(one: lock_service_pb2.Contender) -> LockContender:
    return LockContender(one.holder, LockMode(int(one.mode)), one.fencing_token, one.node_name)


def _candidate(one: election_service_pb2.ElectionLeader) -> Leader:
    return Leader(one.value, one.term, one.node_name)


def _told(call: Callable[..., T], *arguments: object) -> T:
    """Calls a service in memory. A refusal is the test's mistake."""
    try:
        return call(*arguments)
    except grpc.aio.AioRpcError as error:
        raise ValueError(error.details()) from None


async def _within(coroutine: Coroutine[Any, Any, T], what: str, timeout: float) -> T:
    task = asyncio.get_running_loop().create_task(coroutine)
    await asyncio.wait({task}, timeout=timeout)
    if not task.done():
        task.cancel()
        raise TimeoutError(f"not within {timeout:g} s: {what}")
    return task.result()
