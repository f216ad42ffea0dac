"""Locks: one program at a time, of any language, on any machine.

``docs/locks.md`` says what a lock promises and what it cannot. An application that loses a lock stops what the lock
protects; the store refuses its late writes by the fencing token.
"""

from __future__ import annotations

import enum
from typing import Any, cast

from google.protobuf.duration_pb2 import Duration

from sidekeeper._proto.v1 import lock_service_pb2 as pb
from sidekeeper._proto.v1.lock_service_pb2_grpc import LockServiceStub
from sidekeeper.connection import service
from sidekeeper.contender import RELEASE_TIMEOUT, Contender, lock_id
from sidekeeper.errors import LockError

__all__ = ["Lock", "LockMode", "lock"]


class LockMode(enum.Enum):
    """How a lock is held. The values are those of the protocol."""

    #: One holder.
    MUTEX = 1
    #: Any number of readers, and no writer.
    READ = 2
    #: One writer, and no reader.
    WRITE = 3
    #: As many holders as permits: ``lock(..., permits=3)``.
    SEMAPHORE = 4


class Lock(Contender):
    """A lock that is held in a ``with`` or ``async with`` block. Made by ``lock``; each object holds once.

    Attributes:
        fencing_token: Greater than that of each earlier holder. 0: the lock was never held.
        node_path: The node that proves the hold, for a check in a ZooKeeper transaction.
        suspended: Whether the registry does not answer. The lock is held until its lease ends.
        revocation_requested: Whether another program has asked for the lock. Nothing forces this one.
    """

    _turn = "lock"
    _maker = "lock"

    def __init__(self, request: pb.HoldRequest, endpoint: str | None, token: str | None) -> None:
        super().__init__(request.lock, endpoint, token)
        self._request = request
        self.fencing_token = 0
        self.revocation_requested = False

    def _open(self, channel: Any) -> Any:
        return service(LockServiceStub, channel, self._token).Hold(self._request)

    def _leave(self, channel: Any) -> Any:
        request = pb.ReleaseRequest(hold_id=self._id)
        return service(LockServiceStub, channel, self._token).Release(request, timeout=RELEASE_TIMEOUT)

    def _hear(self, event: pb.HoldResponse) -> bool:
        kind = event.WhichOneof("event")
        if kind == "started":
            self._id = event.started.hold_id
        elif kind == "acquired":
            self.fencing_token, self.node_path = event.acquired.fencing_token, event.acquired.node_path
            self._renew(event.acquired.lease)
        elif kind == "revocation_requested":
            self.revocation_requested = True
        return kind == "acquired"

    def _error(self, code: str, details: str, reason: str) -> LockError:
        return LockError(self._what, code, details, reason)


def lock(
    name: str = "",
    *,
    path: str = "",
    mode: LockMode | None = None,
    permits: int = 0,
    wait_timeout: float | None = None,
    hold_timeout: float | None = None,
    lock_delay: float | None = None,
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
        path: The path of a lock that other programs use, for example Curator's ``InterProcessMutex`` or
            ``InterProcessSemaphoreV2``.
        mode: How it is to be held. Default: as a mutex, or with ``permits`` as a semaphore.
        permits: The most holders at once, of a semaphore: 1 to 1000. All programs have to give the same number, because
            each counts with its own. The fencing token of such a lock fences one permit only.
        wait_timeout: How long to wait, in seconds; 0: not at all. Default: without a limit.
        hold_timeout: How long it may be held, in seconds; then it is lost. Default: without a limit.
        lock_delay: For how long nobody may hold, in seconds, if this process loses the lock without giving it back: it
            is killed, or the lease is over. At most 600. For a lock with a name, alone or as a writer. Default: 0.
        holder: Whom others see as the holder. Default: the sidecar's address.
        application_id: A second hold of the same lock by the same id is refused, because it would wait for itself.
        endpoint: The sidecar. Default: as for ``Application``.
        token: The sidecar's token. Default: as for ``Application``.

    Raises:
        ValueError: Neither a name nor a path is given, or both; the permits are no number that fits into 32 bits; the
            endpoint or the token cannot be read.
    """
    which = lock_id("lock", name, path)
    if mode is None:
        mode = LockMode.SEMAPHORE if permits else LockMode.MUTEX
    value = cast("pb.LockMode.ValueType", mode.value)
    request = pb.HoldRequest(lock=which, mode=value, holder=holder, application_id=application_id, permits=permits)
    limits = {"wait_timeout": wait_timeout, "hold_timeout": hold_timeout, "lock_delay": lock_delay}
    for field, limit in limits.items():
        if limit is not None:
            duration = Duration()
            duration.FromNanoseconds(int(limit * 1e9))
            getattr(request, field).CopyFrom(duration)
    return Lock(request, endpoint, token)
