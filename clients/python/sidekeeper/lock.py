"""Locks: one program at a time, of any language, on any machine.

``docs/locks.md`` says what a lock promises and what it cannot. An application that loses a lock stops what the lock
protects; the store refuses its late writes by the fencing token.
"""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration

from sidekeeper._proto.v1 import lock_service_pb2 as pb
from sidekeeper._proto.v1.lock_service_pb2_grpc import LockServiceStub
from sidekeeper.channel import authorized, open_blocking_channel, open_channel, resolve_endpoint, resolve_token
from sidekeeper.errors import LockError
from sidekeeper.lease import LOOK_INTERVAL, now, remaining_lease
from sidekeeper.presence import no_sidecar
from sidekeeper.reason import reason_of

if TYPE_CHECKING:
    from sidekeeper.fake_locks import FakeLocks, FakeLockStub, FakeLoopStub

__all__ = ["Lock", "LockMode", "lock"]

#: How long the sidecar may take to delete the lock's node, in seconds.
RELEASE_TIMEOUT = 30.0


#: Where locks are held in place of sidecars: ``sidekeeper.testing`` adds and removes them. The last one counts.
in_memory: list[FakeLocks] = []


class LockMode(enum.Enum):
    """How a lock is held. The values are those of the protocol."""

    #: One holder.
    MUTEX = 1
    #: Any number of readers, and no writer.
    READ = 2
    #: One writer, and no reader.
    WRITE = 3


class Lock:
    """A lock that is held in a ``with`` or ``async with`` block. Made by ``lock``; each object holds once.

    Attributes:
        fencing_token: Greater than that of each earlier holder. 0: the lock was never held.
        node_path: The node that proves the hold, for a check in a ZooKeeper transaction.
        suspended: Whether the registry does not answer. The lock is held until its lease ends.
        revocation_requested: Whether another program has asked for the lock. Nothing forces this one.
    """

    def __init__(self, request: pb.HoldRequest, endpoint: str | None, token: str | None) -> None:
        self._request = request
        self._what = request.lock.name or request.lock.path
        self._endpoint = resolve_endpoint(endpoint)
        self._token = resolve_token(token)
        self._hold_id = ""
        self._until: float | None = None
        self._why: LockError | None = None
        self._lost = threading.Event()
        self._entered = False
        # In a `with` block.
        self._channel: grpc.Channel | FakeLockStub | None = None
        self._stub: Any = None
        self._stream: Any = None
        self._reader: threading.Thread | None = None
        # In an `async with` block.
        self._aio_channel: grpc.aio.Channel | FakeLoopStub | None = None
        self._reading: asyncio.Task[None] | None = None
        self._body: asyncio.Task[Any] | None = None
        self._interrupted = False
        self.fencing_token = 0
        self.node_path = ""
        self.suspended = False
        self.revocation_requested = False

    @property
    def lost(self) -> bool:
        """Whether the lock was lost: by the sidecar's word, or by the clock."""
        if not self._lost.is_set() and self._until is not None and now() >= self._until:
            self._lose("DEADLINE_EXCEEDED", "the lease of the lock is over, and the sidecar is silent", "LOCK_LOST")
        return self._lost.is_set()

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Waits until the lock is lost; at most so many seconds. Returns whether it is."""
        end = None if timeout is None else now() + timeout
        while not self.lost:
            left = LOOK_INTERVAL if end is None else min(LOOK_INTERVAL, end - now())
            if self._until is not None:
                left = min(left, self._until - now())
            if end is not None and now() >= end:
                return False
            self._lost.wait(max(0.0, left))
        return True

    def raise_if_lost(self) -> None:
        """Raises ``LockError`` if the lock is lost."""
        if self.lost and self._why is not None:
            raise self._why

    # In threads.

    def __enter__(self) -> Lock:
        self._begin()
        if in_memory:
            self._channel = self._stub = in_memory[-1].blocking_stub
        else:
            self._channel = open_blocking_channel(self._endpoint)
            self._stub = authorized(LockServiceStub(self._channel), self._token)
        try:
            self._stream = self._stub.Hold(self._request)
            while not self._take(next(self._stream, None)):
                self.raise_if_lost()
        except grpc.RpcError as error:
            self._channel.close()
            raise self._failure(error) from None
        except BaseException:
            self._stream.cancel()
            self._channel.close()
            raise
        self._reader = threading.Thread(target=self._read, name="sidekeeper-lock", daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        channel = self._channel
        if channel is None:
            return
        was_lost = self.lost
        try:
            if not was_lost:
                with suppress(grpc.RpcError):  # the end of the stream gives the lock back, too
                    self._stub.Release(pb.ReleaseRequest(hold_id=self._hold_id), timeout=RELEASE_TIMEOUT)
        finally:
            self._stream.cancel()
            channel.close()
            if self._reader is not None:
                self._reader.join()
        if was_lost and kind is None:
            self.raise_if_lost()

    def _read(self) -> None:
        try:
            for event in cast("Iterator[pb.HoldResponse]", self._stream):
                self._take(event)
        except grpc.RpcError as error:
            self._ended(error)

    # On an event loop.

    async def __aenter__(self) -> Lock:
        self._begin()
        if in_memory:
            self._aio_channel = self._stub = in_memory[-1].loop_stub
        else:
            self._aio_channel = open_channel(self._endpoint)
            self._stub = authorized(LockServiceStub(self._aio_channel), self._token)
        try:
            self._stream = self._stub.Hold(self._request)
            while not self._take(await self._stream.read()):
                self.raise_if_lost()
        except grpc.RpcError as error:
            await self._aio_channel.close()
            raise self._failure(error) from None
        except BaseException:
            self._stream.cancel()
            await self._aio_channel.close()
            raise
        self._body = asyncio.current_task()
        self._reading = asyncio.get_running_loop().create_task(self._follow())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        channel, reading = self._aio_channel, self._reading
        if channel is None or reading is None:
            return
        was_lost = self.lost
        reading.cancel()
        try:
            if not was_lost:
                with suppress(grpc.RpcError):
                    await self._stub.Release(pb.ReleaseRequest(hold_id=self._hold_id), timeout=RELEASE_TIMEOUT)
        finally:
            self._stream.cancel()
            await channel.close()
        if self._interrupted and self._body is not None and hasattr(self._body, "uncancel"):
            self._body.uncancel()
        if was_lost and (kind is None or (self._interrupted and kind is asyncio.CancelledError)):
            self.raise_if_lost()

    async def _follow(self) -> None:
        """Reads the stream, and cancels the block's task when the lock is lost."""
        reading = asyncio.ensure_future(self._stream.read())
        try:
            while not self.lost:
                left = None if self._until is None else min(LOOK_INTERVAL, max(0.0, self._until - now()))
                done, _ = await asyncio.wait([reading], timeout=left)
                if done:
                    self._take(reading.result())
                    reading = asyncio.ensure_future(self._stream.read())
        except grpc.RpcError as error:
            self._ended(error)
        finally:
            reading.cancel()
        if self.lost and self._body is not None:
            self._interrupted = True
            self._body.cancel()

    # In both.

    def _begin(self) -> None:
        if self._entered:
            raise RuntimeError(f"lock {self._what!r}: this object was used before; call sidekeeper.lock again")
        self._entered = True

    def _take(self, event: object) -> bool:
        """Takes an event. Returns whether it is the one that says that the lock is held."""
        if not isinstance(event, pb.HoldResponse):  # the end of the stream
            self._lose("ABORTED", "the sidecar has ended the stream of the lock", "LOCK_LOST")
            return False
        kind = event.WhichOneof("event")
        if kind == "started":
            self._hold_id = event.started.hold_id
        elif kind == "acquired":
            self.fencing_token, self.node_path = event.acquired.fencing_token, event.acquired.node_path
            self._renew(event.acquired.lease)
        elif kind == "lease_renewed":
            self._renew(event.lease_renewed)
        elif kind == "suspended":
            self.suspended = True
        elif kind == "resumed":
            self.suspended = False
            self._renew(event.resumed)
        elif kind == "revocation_requested":
            self.revocation_requested = True
        elif kind == "lost":
            reason = pb.LockLossReason.Name(event.lost.reason).removeprefix("LOCK_LOSS_REASON_")
            self._lose("ABORTED", f"the sidecar has reported the loss: {reason}", "LOCK_LOST")
        return kind == "acquired"

    def _renew(self, lease: pb.LockLease) -> None:
        remaining = remaining_lease(lease)
        if remaining is not None:
            until = now() + remaining.total_seconds()
            self._until = until if self._until is None else max(self._until, until)

    def _ended(self, error: grpc.RpcError) -> None:
        """The stream has ended with an error."""
        if error.code() is not grpc.StatusCode.CANCELLED:
            # Without a word of the sidecar: it is gone, and the lock with the stream.
            self._lose(error.code().name, error.details() or "", reason_of(error) or "LOCK_LOST")

    def _lose(self, code: str, details: str, reason: str) -> None:
        if self._why is None:
            self._why = LockError(self._what, code, details, reason)
        self._lost.set()

    def _failure(self, error: grpc.RpcError) -> LockError:
        code, details, reason = error.code(), error.details() or "", reason_of(error)
        if code is grpc.StatusCode.UNAVAILABLE and not reason:
            details = f"{no_sidecar(self._endpoint)} ({details})"
        return LockError(self._what, code.name, details, reason)


def lock(
    name: str = "",
    *,
    path: str = "",
    mode: LockMode = LockMode.MUTEX,
    wait_timeout: float | None = None,
    hold_timeout: float | None = None,
    holder: str = "",
    application_id: str = "",
    endpoint: str | None = None,
    token: str | None = None,
) -> Lock:
    """A lock to hold in a ``with`` or an ``async with`` block.

        with sidekeeper.lock("nightly-report") as lock:
            write_report(token=lock.fencing_token)

    The block begins when the lock is held. In a ``with`` block check ``lock.lost`` (or ``raise_if_lost``) between two
    steps: a thread cannot be stopped from outside. An ``async with`` block is cancelled when the lock is lost. Both
    raise ``LockError`` at their end if the lock was lost in between.

    Args:
        name: The lock's name, below the sidecar's lock root. This or ``path`` is required.
        path: The path of a lock that other programs use, for example Curator's ``InterProcessMutex``.
        mode: How it is to be held.
        wait_timeout: How long to wait, in seconds; 0: not at all. Default: without a limit.
        hold_timeout: How long it may be held, in seconds; then it is lost. Default: without a limit.
        holder: Whom others see as the holder. Default: the sidecar's address.
        application_id: A second hold of the same lock by the same id is refused, because it would wait for itself.
        endpoint: The sidecar. Default: as for ``Application``.
        token: The sidecar's token. Default: as for ``Application``.

    Raises:
        ValueError: Neither a name nor a path is given, or both; the endpoint or the token cannot be read.
    """
    if bool(name) == bool(path):
        raise ValueError("lock: give either a name or a path")
    which = pb.LockId(name=name) if name else pb.LockId(path=path)
    value = cast("pb.LockMode.ValueType", mode.value)
    request = pb.HoldRequest(lock=which, mode=value, holder=holder, application_id=application_id)
    for field, limit in (("wait_timeout", wait_timeout), ("hold_timeout", hold_timeout)):
        if limit is not None:
            duration = Duration()
            duration.FromNanoseconds(int(limit * 1e9))
            getattr(request, field).CopyFrom(duration)
    return Lock(request, endpoint, token)
