"""The lock service of ``sidekeeper.testing``: locks in memory, for threads and event loops alike."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import grpc
from google.protobuf.duration_pb2 import Duration

from sidekeeper._proto.v1 import lock_service_pb2 as pb
from sidekeeper.fake_call import (
    LEASE,
    QUEUE_MAX,
    WHY_LOST,
    FakeCall,
    LockLoss,
    check_application_id,
    has_control,
    invalid,
    lease_of,
    path_of,
    refusal,
    wrong,
)
from sidekeeper.lock import LockMode

__all__ = ["FakeLocks", "LockContender", "LockState"]

#: Where the locks with names are.
LOCK_ROOT = "/fake-sidekeeper/@-@locks/queues"

#: The limits of a sidecar.
HOLDER_BYTES_MAX = 255
LIMIT_MAX_NS = 365 * 24 * 3600 * 10**9
HOLD_MIN_NS = 10**6
LOCK_DELAY_MAX_NS = 600 * 10**9
PAGE_DEFAULT, PAGE_MAX = 100, 1_000

PERMITS_MAX = 1_000

_MARKS = {LockMode.MUTEX: "lock-", LockMode.READ: "__READ__", LockMode.WRITE: "__WRIT__", LockMode.SEMAPHORE: "lock-"}

#: Modes of one kind exclude each other.
_KINDS = {LockMode.MUTEX: 0, LockMode.READ: 1, LockMode.WRITE: 1, LockMode.SEMAPHORE: 2}


@dataclass(frozen=True)
class LockContender:
    """A program that holds a lock or waits for it."""

    #: Whom other programs see.
    holder: str
    #: How it holds the lock, or asks for it.
    mode: LockMode
    #: Its fencing token, if it holds the lock or comes to hold it.
    fencing_token: int
    #: The name of its node.
    node_name: str


@dataclass(frozen=True)
class LockState:
    """A lock at one moment."""

    #: The contenders that hold the lock.
    holders: tuple[LockContender, ...]
    #: The contenders that wait, in their order.
    waiting: tuple[LockContender, ...]


def _limit(field: str, given: Duration, least: int, errors: list[str]) -> None:
    if not least <= given.ToNanoseconds() <= LIMIT_MAX_NS:
        allowed = "1 ms to 365 days" if least else "0s to 365 days"
        errors.append(wrong(field, f"{given.seconds}s", allowed))


class FakeHold(FakeCall):
    """A hold."""

    def __init__(self, locks: FakeLocks, request: pb.HoldRequest) -> None:
        super().__init__()
        #: Names it in ``Release``.
        self.hold_id = uuid.uuid4().hex
        self.request = pb.HoldRequest()
        self.request.CopyFrom(request)
        self.node_name = ""
        self.fencing_token = 0
        self.holds = False
        #: Its place and the first contender, as it has heard of them.
        self.told_place: tuple[int, str] | None = None
        #: Those of its time limits.
        self.timers: list[threading.Timer] = []
        self._locks = locks

    @property
    def mode(self) -> LockMode:
        """How it is to be held."""
        return LockMode(self.request.mode or LockMode.MUTEX.value)

    def left(self) -> None:
        """The application has ended the stream, which gives the lock back."""
        self._locks.leave(self)


class FakeLocks:
    """All locks. Its methods may be called on any thread; those with the service's names raise ``grpc.RpcError``."""

    def __init__(self) -> None:
        #: The lease of locks that are acquired or resumed from now on.
        self.lease = LEASE
        self._changed = threading.Condition(threading.RLock())
        #: Contenders of all locks, in their order.
        self._contenders: list[FakeHold] = []
        self._count = 0
        self._suspended = False
        self._closed = False

    # The service.

    def Hold(self, request: pb.HoldRequest) -> FakeHold:  # noqa: N802 - the service's names
        """Asks for a lock."""
        hold = FakeHold(self, request)
        with self._changed:
            try:
                self._enter(hold)
            except grpc.RpcError as error:
                hold.end(error)
        return hold

    def Release(self, request: pb.ReleaseRequest) -> pb.ReleaseResponse:  # noqa: N802
        """Gives a lock back."""
        with self._changed:
            for hold in self._contenders:
                if hold.hold_id == request.hold_id:
                    hold.send(pb.HoldResponse(released=pb.LockReleased()))
                    self._end(hold, None)
                    return pb.ReleaseResponse()
        text = f"this sidecar has no hold `{request.hold_id}`: it has ended, or another sidecar has it"
        raise refusal(grpc.StatusCode.NOT_FOUND, "HOLD_UNKNOWN", text)

    def GetLock(self, request: pb.GetLockRequest) -> pb.GetLockResponse:  # noqa: N802
        """Returns a lock's holders and its queue."""
        path = self._read(request.lock)
        with self._changed:
            queue = self._queue(path)
            lock = pb.Lock(
                path=path,
                holders=[self._message(one) for one in queue if one.holds],
                waiting=[self._message(one) for one in queue if not one.holds],
            )
        return pb.GetLockResponse(lock=lock)

    def ListLocks(self, request: pb.ListLocksRequest) -> pb.ListLocksResponse:  # noqa: N802
        """Returns the names of the locks that somebody holds or waits for."""
        if request.page_size > PAGE_MAX:
            raise invalid([wrong("page_size", str(request.page_size), "0 to 1000")])
        size = request.page_size or PAGE_DEFAULT
        with self._changed:
            names = {one.request.lock.name for one in self._contenders if one.request.lock.HasField("name")}
        rest = sorted(name for name in names if name > request.page_token)
        return pb.ListLocksResponse(names=rest[:size], next_page_token=rest[size - 1] if len(rest) > size else "")

    def RequestRevocation(  # noqa: N802
        self, request: pb.RequestRevocationRequest
    ) -> pb.RequestRevocationResponse:
        """Asks the holder to give the lock back."""
        with self._changed:
            holder = self._holders(request.lock)[0]
            holder.send(pb.HoldResponse(revocation_requested=pb.RevocationRequested()))
            return pb.RequestRevocationResponse(holder=self._message(holder))

    # The test's side.

    def lose(self, lock: pb.LockId, loss: LockLoss) -> None:
        """Takes a lock from its holders."""
        with self._changed:
            for holder in self._holders(lock):
                self._lose(holder, loss)

    def suspend(self) -> None:
        """The registry does not answer any more."""
        with self._changed:
            self._suspended = True
            for hold in self._contenders:
                if hold.holds:
                    hold.send(pb.HoldResponse(suspended=self._lease()))

    def resume(self) -> None:
        """The registry answers again."""
        with self._changed:
            self._suspended = False
            for hold in self._contenders:
                if hold.holds:
                    hold.send(pb.HoldResponse(resumed=self._lease()))
            for path in {hold.path for hold in self._contenders}:
                self._settle(path)

    def wait_until(self, fits: Callable[[], bool], timeout: float) -> bool:
        """Waits until something holds of the locks; returns whether it does."""
        with self._changed:
            return self._changed.wait_for(fits, timeout)

    def close(self) -> None:
        """Ends all holds, as a sidecar does that stops."""
        with self._changed:
            self._closed = True
            for hold in list(self._contenders):
                self._end(hold, refusal(grpc.StatusCode.UNAVAILABLE, "", "the fake sidecar has ended"))

    def leave(self, hold: FakeHold) -> None:
        """The application has ended its stream."""
        with self._changed:
            if hold in self._contenders:
                self._end(hold, None)

    # All of the following is called with the mutex.

    def _enter(self, hold: FakeHold) -> None:
        request = hold.request
        hold.path = self._check(request)
        if self._closed:
            raise refusal(grpc.StatusCode.UNAVAILABLE, "SIDECAR_STOPPING", "the fake sidecar has ended")
        queue = self._queue(hold.path)
        if request.application_id and any(one.request.application_id == request.application_id for one in queue):
            text = (
                f"this application holds the lock {hold.path} already, or waits for it: it would wait for itself; "
                "release that hold first"
            )
            raise refusal(grpc.StatusCode.FAILED_PRECONDITION, "LOCK_HELD_ALREADY", text)
        for one in queue:
            if _KINDS[one.mode] != _KINDS[hold.mode]:
                text = (
                    f"the lock {hold.path} is in use by contenders of another kind (`{one.node_name}`), which this one "
                    "would not exclude; use the same `mode`, or another lock"
                )
                raise refusal(grpc.StatusCode.FAILED_PRECONDITION, "LOCK_OF_OTHER_KIND", text)
        if len(queue) >= QUEUE_MAX:
            text = (
                f"the lock {hold.path} has {len(queue)} contenders, which is the most; try later, or use several locks"
            )
            raise refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY", text)
        self._count += 1
        hold.fencing_token = self._count
        hold.node_name = f"_c_{uuid.uuid4()}-{_MARKS[hold.mode]}{self._count:010}"
        if hold.mode is LockMode.SEMAPHORE:
            hold.node_name = f"locks/{hold.node_name}"
        request.holder = request.holder or f"127.0.0.1@-@fake-{self._count}"
        self._contenders.append(hold)
        hold.send(pb.HoldResponse(started=pb.HoldStarted(hold_id=hold.hold_id, path=hold.path)))
        self._settle(hold.path)
        if hold.holds or not request.HasField("wait_timeout"):
            return
        wait = request.wait_timeout.ToNanoseconds() / 1e9
        if wait:
            self._after(hold, wait, self._give_up)
        else:
            self._give_up(hold)

    def _check(self, request: pb.HoldRequest) -> str:
        """Refuses what a sidecar refuses. Returns the lock's path."""
        errors: list[str] = []
        if request.mode not in pb.LockMode.values():
            errors.append(wrong("mode", str(request.mode), "MUTEX, READ, WRITE or SEMAPHORE"))
        if request.mode == pb.LOCK_MODE_SEMAPHORE and not 1 <= request.permits <= PERMITS_MAX:
            errors.append(wrong("permits", str(request.permits), "1 to 1000"))
        elif request.mode != pb.LOCK_MODE_SEMAPHORE and request.permits:
            errors.append(wrong("permits", str(request.permits), "0: only a semaphore has permits"))
        path = path_of("lock", request.lock, LOCK_ROOT, errors)
        if request.HasField("wait_timeout"):
            _limit("wait_timeout", request.wait_timeout, 0, errors)
        if request.HasField("hold_timeout"):
            _limit("hold_timeout", request.hold_timeout, HOLD_MIN_NS, errors)
        delay = request.lock_delay.ToNanoseconds()
        may_delay = request.lock.HasField("name") and request.mode not in (pb.LOCK_MODE_READ, pb.LOCK_MODE_SEMAPHORE)
        if not 0 <= delay <= (LOCK_DELAY_MAX_NS if may_delay else 0):
            allowed = "0s to 600s, for MUTEX and WRITE, of a lock with `lock.name`"
            errors.append(wrong("lock_delay", f"{delay / 1e9:g}s", allowed))
        if len(request.holder.encode()) > HOLDER_BYTES_MAX or has_control(request.holder):
            errors.append(wrong("holder", request.holder, "at most 255 bytes without control characters"))
        check_application_id(request.application_id, errors)
        if errors:
            raise invalid(errors)
        return path

    @staticmethod
    def _read(lock: pb.LockId) -> str:
        errors: list[str] = []
        path = path_of("lock", lock, LOCK_ROOT, errors)
        if errors:
            raise invalid(errors)
        return path

    def _queue(self, path: str) -> list[FakeHold]:
        return [one for one in self._contenders if one.path == path]

    def _holders(self, lock: pb.LockId) -> list[FakeHold]:
        path = self._read(lock)
        holders = [one for one in self._queue(path) if one.holds]
        if not holders:
            raise refusal(grpc.StatusCode.NOT_FOUND, "LOCK_FREE", f"nobody holds the lock {path}")
        return holders

    def _settle(self, path: str) -> None:
        """Gives the lock to the contenders whose turn it is, and tells the others their places."""
        queue = [] if self._suspended else self._queue(path)
        for one in [contender for contender in queue if not contender.holds]:
            ahead = self._ahead(one)
            if one.mode is LockMode.SEMAPHORE:
                # Behind those that wait; the first of them waits for a permit.
                blocked = len(ahead) >= one.request.permits or any(not other.holds for other in ahead)
                position = sum(not other.holds for other in ahead)
            else:
                blocked = any(one.mode is not LockMode.READ or other.mode is not LockMode.READ for other in ahead)
                position = len(ahead)
            if blocked and one.told_place != (position, ahead[0].node_name):
                one.told_place = (position, ahead[0].node_name)
                waiting = pb.LockWaiting(position=position, first=self._message(ahead[0]))
                waiting.first.ClearField("fencing_token")
                one.send(pb.HoldResponse(waiting=waiting))
            elif not blocked:
                self._acquire(one)
        self._changed.notify_all()

    def _ahead(self, hold: FakeHold) -> list[FakeHold]:
        """The contenders that it waits for, the first of them first."""
        queue = self._queue(hold.path)
        ahead = queue[: queue.index(hold)]
        if hold.mode is not LockMode.SEMAPHORE:
            return ahead
        return [one for one in ahead if not one.holds] or [one for one in queue if one.holds]

    def _acquire(self, hold: FakeHold) -> None:
        hold.holds = True
        self._stop_timers(hold)
        if hold.mode is LockMode.SEMAPHORE:
            # The permit has a node of its own.
            self._count += 1
            hold.fencing_token = self._count
            hold.node_name = f"leases/_c_{uuid.uuid4()}-lease-{self._count:010}"
        acquired = pb.LockAcquired(
            fencing_token=hold.fencing_token, node_path=f"{hold.path}/{hold.node_name}", lease=self._lease()
        )
        hold.send(pb.HoldResponse(acquired=acquired))
        if hold.request.HasField("hold_timeout"):
            limit = hold.request.hold_timeout.ToNanoseconds() / 1e9
            self._after(hold, limit, lambda late: self._lose(late, LockLoss.HOLD_TIMEOUT))

    def _give_up(self, hold: FakeHold) -> None:
        """The time is over for which it wanted to wait."""
        if hold.holds:
            return
        ahead = self._ahead(hold)
        text = f"the lock {hold.path} was not free within wait_timeout"
        if not ahead:
            text += ", or the registry did not answer"
        else:
            text += f"; `{ahead[0].node_name}` of `{ahead[0].request.holder}` is first"
        self._end(hold, refusal(grpc.StatusCode.DEADLINE_EXCEEDED, "LOCK_NOT_FREE", text))

    def _lose(self, hold: FakeHold, loss: LockLoss) -> None:
        reason = pb.LockLossReason.Value(f"LOCK_LOSS_REASON_{loss.name}")
        hold.send(pb.HoldResponse(lost=pb.LockLost(reason=reason)))
        text = f"the lock {hold.path} is lost: {WHY_LOST[loss]}"
        self._end(hold, refusal(grpc.StatusCode.ABORTED, "LOCK_LOST", text))

    def _end(self, hold: FakeHold, error: grpc.RpcError | None) -> None:
        self._contenders.remove(hold)
        self._stop_timers(hold)
        hold.end(error)
        self._settle(hold.path)

    def _after(self, hold: FakeHold, seconds: float, call: Callable[[FakeHold], None]) -> None:
        def late() -> None:
            with self._changed:
                if hold in self._contenders:
                    call(hold)

        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), late)
        timer.daemon = True
        hold.timers.append(timer)
        timer.start()

    @staticmethod
    def _stop_timers(hold: FakeHold) -> None:
        for timer in hold.timers:
            timer.cancel()
        hold.timers.clear()

    def _lease(self) -> pb.LockLease:
        return lease_of(self.lease)

    @staticmethod
    def _message(hold: FakeHold) -> pb.Contender:
        mode = pb.LockMode.Value(f"LOCK_MODE_{hold.mode.name}")
        return pb.Contender(
            node_name=hold.node_name, holder=hold.request.holder, mode=mode, fencing_token=hold.fencing_token
        )
