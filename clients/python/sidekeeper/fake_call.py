"""What the locks and the elections of ``sidekeeper.testing`` have in common: a stream in memory, and refusals."""

from __future__ import annotations

import asyncio
import enum
import re
import threading
import unicodedata
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import grpc
import grpc.aio

from sidekeeper._proto.v1.lock_service_pb2 import LockId, LockLease
from sidekeeper.reason import details_of

__all__ = [
    "LEASE",
    "QUEUE_MAX",
    "WHY_LOST",
    "FakeCall",
    "LockLoss",
    "check_application_id",
    "has_control",
    "invalid",
    "lease_of",
    "path_of",
    "refusal",
    "wrong",
]

#: Longer than any test. The fake renews no lease.
LEASE = timedelta(hours=1)

#: The limits of a sidecar.
QUEUE_MAX = 1_000
NAME_BYTES_MAX = 200
GIVEN_CHARACTERS_MAX = 80

_APPLICATION_ID = re.compile(r"[A-Za-z0-9_.-]{0,64}")


class LockLoss(enum.Enum):
    """Why a lock or a leadership is lost. The values are those of the protocol."""

    #: The session with the registry could not be proven alive in time, or has ended.
    LEASE_LOST = 1
    #: Somebody has deleted the node of the hold, or of the candidate.
    REVOKED = 2
    #: ``hold_timeout`` was over. Never of a leadership.
    HOLD_TIMEOUT = 3
    #: The sidecar stops.
    DRAINING = 4


WHY_LOST = {
    LockLoss.LEASE_LOST: "the session with the registry could not be proven alive in time, or has ended",
    LockLoss.REVOKED: "its node was deleted",
    LockLoss.HOLD_TIMEOUT: "hold_timeout was over",
    LockLoss.DRAINING: "the sidecar is stopping",
}


def refusal(code: grpc.StatusCode, reason: str, text: str) -> grpc.aio.AioRpcError:
    """A status with its reason; empty: it has none."""
    trailing = grpc.aio.Metadata(details_of(reason)) if reason else grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, text)


def invalid(errors: list[str]) -> grpc.aio.AioRpcError:
    """The status for wrong fields."""
    return refusal(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", "; ".join(errors))


def wrong(field: str, given: str, allowed: str) -> str:
    """A wrong field, in words."""
    more = "..." if len(given) > GIVEN_CHARACTERS_MAX else ""
    return f"{field}: given `{given[:GIVEN_CHARACTERS_MAX]}{more}`; allowed: {allowed}"


def has_control(text: str) -> bool:
    """Whether a text has control characters."""
    return any(unicodedata.category(character) == "Cc" for character in text)


def check_application_id(given: str, errors: list[str]) -> None:
    """Refuses an application id as a sidecar does."""
    if not _APPLICATION_ID.fullmatch(given):
        errors.append(wrong("application_id", given, "at most 64 characters of [A-Za-z0-9_.-]"))


def _is_node_name(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and not has_control(name)


def path_of(field: str, given: LockId, root: str, errors: list[str]) -> str:
    """The path of a request's lock or election, as a sidecar reads it. Those with names are below ``root``."""
    kind = given.WhichOneof("id")
    if kind == "name":
        if not _is_node_name(given.name) or given.name.startswith("@-@") or len(given.name.encode()) > NAME_BYTES_MAX:
            allowed = (
                "1 to 200 bytes without `/` and control characters, not `.` or `..`, and not `@-@` at the beginning"
            )
            errors.append(wrong(f"{field}.name", given.name, allowed))
        return f"{root}/{given.name}"
    if kind == "path":
        first, *names = given.path.split("/")
        fits = not first and names and all(_is_node_name(name) and not name.endswith("-sidekeeper") for name in names)
        if not fits:
            allowed = (
                "a path like `/locks/bill`, not `/`, not in the namespace of the jobs, and not in a sidecar's own root "
                f"(for a node below `{root}` give `{field}.name`)"
            )
            errors.append(wrong(f"{field}.path", given.path, allowed))
        return given.path
    errors.append(wrong(field, "", f"`{field}.name` or `{field}.path`"))
    return ""


def lease_of(remaining: timedelta) -> LockLease:
    """A lease that begins now."""
    lease = LockLease()
    lease.remaining_lease.FromTimedelta(remaining)
    return lease


class FakeCall:
    """A call whose answer is a stream, as the client has it: an iterator on threads, ``read`` on loops."""

    def __init__(self) -> None:
        #: The path of the lock or the election.
        self.path = ""
        self._mutex = threading.Lock()
        self._events: deque[Any] = deque()
        self._readers: deque[Future[Any]] = deque()
        self._over = False
        self._error: grpc.RpcError | None = None

    # The service's side.

    def send(self, event: Any) -> None:
        """Tells an event."""
        with self._mutex:
            self._events.append(event)
            self._serve()

    def end(self, error: grpc.RpcError | None) -> None:
        """Ends the stream, behind the events; None: without an error."""
        with self._mutex:
            if not self._over:
                self._over, self._error = True, error
                self._serve()

    def left(self) -> None:
        """The application has ended the stream."""

    def _serve(self) -> None:
        while self._readers and (self._events or self._over):
            reader = self._readers.popleft()
            if not reader.set_running_or_notify_cancel():
                continue
            if self._events:
                reader.set_result(self._events.popleft())
            elif self._error is not None:
                reader.set_exception(self._error)
            else:
                reader.set_result(None)

    # The client's side.

    def _next(self) -> Future[Any]:
        reader: Future[Any] = Future()
        with self._mutex:
            self._readers.append(reader)
            self._serve()
        return reader

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        event = self._next().result()
        if event is None:
            raise StopIteration
        return event

    async def __aiter__(self) -> AsyncIterator[Any]:
        while True:
            event = await self.read()
            if event is None:
                return
            yield event

    async def read(self) -> Any:
        """Returns the next event; None: the stream has ended well."""
        return await asyncio.wrap_future(self._next())

    def cancel(self) -> bool:
        """The application ends the stream."""
        self.end(refusal(grpc.StatusCode.CANCELLED, "", "the application has ended the stream"))
        self.left()
        return True
