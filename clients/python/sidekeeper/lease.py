"""The lease: until when the sidecar's session is surely alive.

A suspended sidecar cannot report that its session is lost. Therefore it sends a lease regularly, and an application
that reads no newer lease stops by itself when the lease ends. A suspended application reads messages late, and would
count from then: therefore the sidecar also sends the end of the lease on a clock that both read. An application that
shares no clock with the sidecar asks for the lease, and counts from its request (see ``renewer``). ``docs/lease.md``
has the whole.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Callable

from google.protobuf.duration_pb2 import Duration

from sidekeeper._proto.v1 import lease_pb2, lock_service_pb2

__all__ = ["Lease", "boottime_clock", "now", "remaining_lease", "seconds", "shares_clock"]

#: The longest time between two looks at the clock, in seconds: timers stand still while the machine sleeps.
LOOK_INTERVAL = 1.0

#: A clock that continues while the machine sleeps. None: there is none, or only that of ``time.monotonic``.
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Lease:
    """The lease of one attachment; ``ended`` is called on the loop when it ends without a newer one."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._until: float | None = None
        self._over = False
        self._proven = False
        self._timer: asyncio.TimerHandle | None = None

    def told(self, remaining: timedelta | None, *, sure: bool) -> bool:
        """Takes a lease of the stream; None: no end is known. Returns whether the lease lasts.

        Args:
            remaining: How long it lasts from now on.
            sure: Whether that holds even if the message has waited to be read. If it does not, an answer (``proven``)
                is better.
        """
        if self._over and remaining is not None and remaining <= timedelta(0):
            return False  # an old message, like the one before
        if self._proven and not sure and remaining is not None:
            return not self.look()
        self.close()
        if remaining is not None:
            self._until = now() + remaining.total_seconds()
            self._wait()
        return not self._over

    def proven(self, remaining: float | None, sent: float) -> bool:
        """Takes the answer to a request. Returns whether the lease lasts.

        Args:
            remaining: How long the lease lasts from then on, in seconds; zero: it has ended, None: no end is known.
            sent: When the request was sent, by ``now``.
        """
        self.look()
        if remaining is None:
            self.close()
            return True
        until = sent + remaining
        if remaining <= 0:
            if self._until is None:
                return False  # it has ended already, or the stream has reported a lost session
            until = now()
        elif self._proven and self._until is not None:
            until = max(until, self._until)  # a later answer does not shorten a proven lease
        if self._over and until <= now():
            return False  # it was read late
        self.close()
        self._proven = True
        self._until = until
        self._wait()
        return not self._over

    @property
    def is_proven(self) -> bool:
        """Whether the lease is that of an answer, rather than of the stream."""
        return self._proven

    def look(self) -> bool:
        """Checks the clock, because timers may be late. Returns whether the lease has ended without a newer one."""
        if self._until is not None and now() >= self._until:
            proven = self._proven
            self.close()
            self._over, self._proven = True, proven
            self._ended()
        return self._over

    @property
    def over(self) -> bool:
        """Whether it had ended without a newer one at the last check."""
        return self._over

    def left(self) -> float | None:
        """How long it lasts, in seconds. None: no end is known, or its end was reported already."""
        return None if self._until is None else max(0.0, self._until - now())

    def close(self) -> None:
        """Forgets the lease."""
        self._until = None
        self._over = False
        self._proven = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        if not self.look() and self._until is not None:
            left = max(0.0, self._until - now())
            self._timer = asyncio.get_running_loop().call_later(min(left, LOOK_INTERVAL), self._wait)


def remaining_lease(message: lease_pb2.SessionChanged | lock_service_pb2.LockLease) -> timedelta | None:
    """Returns how long the lease of a message lasts from now on; None: no end is known.

    It is the message's remaining lease, or the rest of it by the clock that both processes read, if that is less.
    """
    if not message.HasField("remaining_lease"):
        return None
    remaining = message.remaining_lease.ToTimedelta()
    if _BOOTTIME is not None and shares_clock(message):
        left = message.lease_end_boottime_ns - time.clock_gettime_ns(_BOOTTIME)
        remaining = min(remaining, timedelta(microseconds=left // 1000))
    return max(timedelta(0), remaining)


def shares_clock(message: lease_pb2.SessionChanged | lock_service_pb2.LockLease) -> bool:
    """Returns whether a message has the end of the lease on a clock that this process reads, too."""
    known = _BOOTTIME is not None and message.lease_end_boottime_ns > 0
    return known and message.boottime_clock == boottime_clock()


def seconds(duration: Duration) -> float:
    """Returns a duration in seconds; one that is absent or negative is none."""
    return max(0.0, duration.seconds + duration.nanos / 1e9)


@functools.cache
def boottime_clock() -> str | None:
    """Returns the name of this process's CLOCK_BOOTTIME: kernel and time namespace. None: unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{_time_namespace()}" if boot else None
    except (OSError, UnicodeError):
        return None


def _time_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/time")
    except FileNotFoundError:
        return ""  # the kernel has none


def now() -> float:
    """Returns seconds on a clock that continues while the machine sleeps, where there is one."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)
