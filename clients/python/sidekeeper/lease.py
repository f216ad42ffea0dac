"""Until when the sidecar's session is surely alive, as far as it has said.

A sidecar that is itself stopped, or gets no time to run, cannot say that its session is lost. Therefore it says now and
then how long the session may be acted on, and an application that hears nothing newer stops by itself when that is
over. An application that is itself stopped reads late what it was told, and would count from then: therefore the
sidecar says also when that is, on a clock that both read. An application that shares no clock with it asks, and counts
from when it has asked (see ``renewer``).
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

from sidekeeper._proto.v1 import participant_service_pb2 as service_pb2

__all__ = ["Lease", "boottime_clock", "now", "remaining_lease", "seconds", "shares_clock"]

#: The longest time between two looks at the clock, in seconds: timers stand still while the machine sleeps.
LOOK_INTERVAL = 1.0

#: A clock that goes on while the machine sleeps. None: there is none, or only that of ``time.monotonic``.
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Lease:
    """The lease of one attachment; ``ended`` is called on the loop when it is over without newer word."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._until: float | None = None
        self._over = False
        self._proven = False
        self._timer: asyncio.TimerHandle | None = None

    def told(self, remaining: timedelta | None, *, sure: bool) -> bool:
        """Takes what the stream says; None: that no end is known. Returns whether the lease lasts.

        Args:
            remaining: How long it lasts from now on.
            sure: Whether that is so however long the word has waited to be read. If it is not, an answer (``proven``)
                says more.
        """
        if self._over and remaining is not None and remaining <= timedelta(0):
            return False  # old, like the word before
        if self._proven and not sure and remaining is not None:
            return not self.look()
        self.close()
        if remaining is not None:
            self._until = now() + remaining.total_seconds()
            self._wait()
        return not self._over

    def proven(self, remaining: float | None, sent: float) -> bool:
        """Takes an answer to what was sent at a time of ``now``. Returns whether the lease lasts.

        Args:
            remaining: How long the lease lasts from then on, in seconds; zero: it is over now, None: no end is known.
            sent: When the request was sent.
        """
        self.look()
        if remaining is None:
            self.close()
            return True
        until = sent + remaining
        if remaining <= 0:
            if self._until is None:
                return False  # it is over already, or the stream has said that the session is lost
            until = now()
        elif self._proven and self._until is not None:
            until = max(until, self._until)  # what an answer has proven another one does not take back
        if self._over and until <= now():
            return False  # it was read late
        self.close()
        self._proven = True
        self._until = until
        self._wait()
        return not self._over

    @property
    def is_proven(self) -> bool:
        """Whether an answer has said how long it lasts, or lasted, rather than the stream."""
        return self._proven

    def look(self) -> bool:
        """Looks at the clock, which timers may be late for. Returns whether the lease is over without newer word."""
        if self._until is not None and now() >= self._until:
            proven = self._proven
            self.close()
            self._over, self._proven = True, proven
            self._ended()
        return self._over

    @property
    def over(self) -> bool:
        """Whether it has ended without newer word, as far as was looked."""
        return self._over

    def left(self) -> float | None:
        """How long it lasts without newer word, in seconds. None: no end is known, or it has been told already."""
        return None if self._until is None else max(0.0, self._until - now())

    def close(self) -> None:
        """Forgets what the sidecar has said."""
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


def remaining_lease(message: service_pb2.SessionChanged) -> timedelta | None:
    """Returns how long the lease lasts that a message tells, from now on; None: no end is known.

    It is what remained when it was told, or what remains of it by the clock that both processes read, if that is less.
    """
    if not message.HasField("remaining_lease"):
        return None
    remaining = message.remaining_lease.ToTimedelta()
    if _BOOTTIME is not None and shares_clock(message):
        left = message.lease_end_boottime_ns - time.clock_gettime_ns(_BOOTTIME)
        remaining = min(remaining, timedelta(microseconds=left // 1000))
    return max(timedelta(0), remaining)


def shares_clock(message: service_pb2.SessionChanged) -> bool:
    """Returns whether a message tells the lease's end on a clock that this process reads, too."""
    known = _BOOTTIME is not None and message.lease_end_boottime_ns > 0
    return known and message.boottime_clock == boottime_clock()


def seconds(duration: Duration) -> float:
    """Returns a duration in seconds; one that is absent or negative is none."""
    return max(0.0, duration.seconds + duration.nanos / 1e9)


@functools.cache
def boottime_clock() -> str | None:
    """Returns which clock CLOCK_BOOTTIME is here, by kernel and time namespace, as the sidecar does. None: unknown."""
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
    """Returns seconds on a clock that goes on while the machine sleeps, where there is one."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)
