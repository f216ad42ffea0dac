"""What locks and elections have in common: a place in a queue, for as long as a block lasts.

The stream of the call is the place. The lease and the sidecar's word say whether the contender's turn lasts.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Callable, TypeVar, cast

import grpc
import grpc.aio

from sidekeeper._proto.v1 import lock_service_pb2 as pb
from sidekeeper._proto.v1.election_service_pb2 import CampaignResponse
from sidekeeper._proto.v1.lock_service_pb2 import HoldResponse
from sidekeeper.channel import given_endpoint, resolve_token
from sidekeeper.connection import Connection, blocking_connection, loop_connection
from sidekeeper.errors import SidekeeperError
from sidekeeper.lease import LOOK_INTERVAL, now, remaining_lease
from sidekeeper.presence import no_sidecar
from sidekeeper.reason import reason_of
from sidekeeper.tls import NotCalledError

__all__ = ["RELEASE_TIMEOUT", "Contender", "lock_id", "refusal"]

#: How long the sidecar may take to delete the contender's node, in seconds.
RELEASE_TIMEOUT = 30.0

_EVENTS = (HoldResponse, CampaignResponse)

C = TypeVar("C", bound="Contender")


class Contender(ABC):
    """A contender whose turn lasts for a ``with`` or an ``async with`` block. Each object is used once.

    Attributes:
        node_path: The node that proves the contender's turn, for a check in a ZooKeeper transaction.
        suspended: Whether the registry does not answer. The contender's turn lasts until its lease ends.
    """

    def __init__(self, which: pb.LockId, endpoint: str | None, token: str | None) -> None:
        self._what = which.name or which.path
        self._endpoint = given_endpoint(endpoint)
        self._token = resolve_token(token)
        self._id = ""
        self._until: float | None = None
        self._why: SidekeeperError | None = None
        self._lost = threading.Event()
        self._entered = False
        self._given_back = False
        self._stream: Any = None
        self._connection: Any = None
        # In a `with` block.
        self._channel: Any = None
        self._reader: threading.Thread | None = None
        # In an `async with` block.
        self._aio_channel: Any = None
        self._reading: asyncio.Task[None] | None = None
        self._body: asyncio.Task[Any] | None = None
        self._interrupted = False
        self.node_path = ""
        self.suspended = False

    # The difference between a lock and an election.

    #: The name for the contender's turn in errors, and the function that makes the object.
    _turn = ""
    _maker = ""

    @abstractmethod
    def _open(self, channel: Any) -> Any:
        """Opens the stream."""

    @abstractmethod
    def _leave(self, channel: Any) -> Any:
        """Calls the method that ends the stream, and is answered when the node is deleted."""

    @abstractmethod
    def _hear(self, event: Any) -> bool:
        """Takes an event that is not the same for all. Returns whether the contender's turn has begun."""

    @abstractmethod
    def _error(self, code: str, details: str, reason: str) -> SidekeeperError:
        """Makes the error."""

    # For the block.

    @property
    def lost(self) -> bool:
        """Whether it was lost: by the sidecar's word, or by the clock."""
        until = self._until
        if not self._lost.is_set() and until is not None and now() >= until:
            self._connection.discard()
            self._lose("DEADLINE_EXCEEDED", f"the lease of the {self._turn} is over, and the sidecar is silent")
        return self._lost.is_set()

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Waits until it is lost or given back; at most so many seconds. Returns whether it is lost."""
        end = None if timeout is None else now() + timeout
        while not self.lost:
            left = LOOK_INTERVAL if end is None else min(LOOK_INTERVAL, end - now())
            until = self._until
            if until is not None:
                left = min(left, until - now())
            if self._given_back or (end is not None and now() >= end):
                return False
            self._lost.wait(max(0.0, left))
        return True

    def raise_if_lost(self) -> None:
        """Raises the error of the loss if it is lost."""
        if self.lost and self._why is not None:
            raise self._why

    # In threads.

    def __enter__(self: C) -> C:
        self._begin()
        while True:
            connection = self._connection = connected(blocking_connection, self._endpoint, self._token, self._failure)
            try:
                self._stream = self._open(connection.channel)
                while not self._take(next(self._stream, None)):
                    self.raise_if_lost()
                break
            except grpc.RpcError as error:
                again = connection.failed(error) and not self._id
                connection.close()
                if not again:
                    raise self._failure(error) from None
            except BaseException:
                if self._stream is not None:
                    self._stream.cancel()
                connection.close()
                raise
        self._channel = connection.channel
        self._reader = threading.Thread(target=self._read, name=f"sidekeeper-{self._maker}", daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        channel = self._channel
        if channel is None:
            return
        was_lost, leaves = self._finish()
        try:
            if leaves:
                with suppress(grpc.RpcError):  # the end of the stream gives it back, too
                    self._leave(channel)
        finally:
            self._stream.cancel()
            if self._reader is not None:
                self._reader.join()
            self._connection.close()
        if was_lost and kind is None:
            self.raise_if_lost()

    def _read(self) -> None:
        try:
            for event in cast("Iterator[Any]", self._stream):
                self._take(event)
            self._take(None)
        except grpc.RpcError as error:
            self._ended(error)

    # On an event loop.

    async def __aenter__(self: C) -> C:
        self._begin()
        while True:
            connection = self._connection = connected(loop_connection, self._endpoint, self._token, self._failure)
            try:
                self._stream = self._open(connection.channel)
                while not self._take(await self._stream.read()):
                    self.raise_if_lost()
                break
            except grpc.RpcError as error:
                again = connection.failed(error) and not self._id
                await connection.close_async()
                if not again:
                    raise self._failure(error) from None
            except BaseException:
                if self._stream is not None:
                    self._stream.cancel()
                await connection.close_async()
                raise
        self._aio_channel = connection.channel
        self._body = asyncio.current_task()
        self._reading = asyncio.get_running_loop().create_task(self._follow())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        channel, reading = self._aio_channel, self._reading
        if channel is None or reading is None:
            return
        was_lost, leaves = self._finish()
        try:
            if leaves:
                with suppress(grpc.RpcError):
                    await self._leave(channel)
        finally:
            # Not before: a cancelled read ends the stream, and a lock whose stream ends first was not given back.
            reading.cancel()
            self._stream.cancel()
            await self._connection.close_async()
        if self._interrupted and self._body is not None and hasattr(self._body, "uncancel"):
            self._body.uncancel()
        if was_lost and (kind is None or (self._interrupted and kind is asyncio.CancelledError)):
            self.raise_if_lost()

    async def _follow(self) -> None:
        """Reads the stream, and cancels the block's task when the contender's turn is lost."""
        reading = asyncio.ensure_future(self._stream.read())
        try:
            while not self.lost:
                left = None if self._until is None else min(LOOK_INTERVAL, max(0.0, self._until - now()))
                done, _ = await asyncio.wait([reading], timeout=left)
                if done:
                    self._take(reading.result())
                    if self._given_back:
                        break
                    reading = asyncio.ensure_future(self._stream.read())
        except grpc.RpcError as error:
            self._ended(error)
        finally:
            reading.cancel()
        if self.lost and self._body is not None:
            self._stream.cancel()
            self._interrupted = True
            self._body.cancel()

    # In both.

    def _begin(self) -> None:
        if self._entered:
            raise RuntimeError(
                f"{self._maker} {self._what!r}: this object was used before; call sidekeeper.{self._maker} again"
            )
        self._entered = True

    def _finish(self) -> tuple[bool, bool]:
        """The block ends. Returns whether the turn was lost, and whether it is still to be given back."""
        was_lost = self.lost
        leaves = not was_lost and not self._given_back
        self._give_back()
        return was_lost, leaves

    def _give_back(self) -> None:
        """From now on nothing can be lost."""
        self._given_back = True
        self._until = None

    def _take(self, event: Any) -> bool:
        """Takes an event. Returns whether the contender's turn has begun."""
        if self._given_back or self._lost.is_set():
            return False
        if not isinstance(event, _EVENTS):  # the end of the stream
            self._lose("ABORTED", f"the sidecar has ended the stream of the {self._turn}")
            return False
        self._connection.answers()
        kind = event.WhichOneof("event")
        if kind == "lease_renewed":
            self._renew(event.lease_renewed)
        elif kind == "suspended":
            self.suspended = True
        elif kind == "resumed":
            self.suspended = False
            self._renew(event.resumed)
        elif kind == "lost":
            reason = pb.LockLossReason.Name(event.lost.reason).removeprefix("LOCK_LOSS_REASON_")
            self._lose("ABORTED", f"the sidecar has reported the loss: {reason}")
        else:
            return self._hear(event)
        return False

    def _renew(self, lease: pb.LockLease) -> None:
        remaining = remaining_lease(lease)
        if remaining is not None:
            until = now() + remaining.total_seconds()
            self._until = until if self._until is None else max(self._until, until)

    def _ended(self, error: grpc.RpcError) -> None:
        """The stream has ended with an error."""
        if error.code() is not grpc.StatusCode.CANCELLED:
            # Without a word of the sidecar: it is gone, and the contender with the stream.
            self._connection.failed(error)
            self._lose(error.code().name, error.details() or "", reason_of(error) or "LOCK_LOST")

    def _lose(self, code: str, details: str, reason: str = "LOCK_LOST") -> None:
        if self._given_back:
            return
        if self._why is None:
            self._why = self._error(code, details, reason)
        self._lost.set()
        if self._reader is not None:
            # If only the clock says so, or the sidecar does not know `ends_when_lost`, the candidate stands on.
            self._stream.cancel()

    def _failure(self, error: grpc.RpcError) -> SidekeeperError:
        return self._error(*refusal(error, self._endpoint))


def lock_id(function: str, name: str, path: str) -> pb.LockId:
    """Returns the name of a lock or an election in the protocol.

    Raises:
        ValueError: Neither a name nor a path is given, or both.
    """
    if bool(name) == bool(path):
        raise ValueError(f"{function}: give either a name or a path")
    return pb.LockId(name=name) if name else pb.LockId(path=path)


def connected(
    connect: Callable[[str | None, str], Connection],
    endpoint: str | None,
    token: str,
    failure: Callable[[grpc.RpcError], SidekeeperError],
) -> Connection:
    """Returns a part in a connection, or raises the failure: another user is in the sidecar's place."""
    try:
        return connect(endpoint, token)
    except NotCalledError as error:
        raise failure(error) from None


def refusal(error: grpc.RpcError, endpoint: str | None) -> tuple[str, str, str]:
    """Returns the status, the text and the reason of a call that has failed."""
    code, details, reason = error.code(), error.details() or "", reason_of(error)
    if code is grpc.StatusCode.UNAVAILABLE and not reason:
        details = f"{no_sidecar(endpoint)} ({details})"
    return code.name, details, reason
