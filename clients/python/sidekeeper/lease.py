"""Until when the sidecar's session is surely alive, as far as it has said.

A sidecar that is itself stopped, or gets no time to run, cannot say that its session is lost. Therefore it says now and
then how long the session may be acted on, and an application that hears nothing newer stops by itself when that is
over.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Callable

__all__ = ["Lease"]

#: The longest time between two looks at the clock, in seconds: timers stand still while the machine sleeps.
LOOK_INTERVAL = 1.0


class Lease:
    """The lease of one attachment; ``ended`` is called on the loop when it is over without newer word."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._until: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def told(self, remaining: timedelta | None) -> None:
        """Takes what the sidecar has just said; None: that no end is known."""
        self.close()
        if remaining is not None:
            self._until = _now() + remaining.total_seconds()
            self._look()

    def left(self) -> float | None:
        """How long it lasts without newer word, in seconds. None: no end is known."""
        return None if self._until is None else max(0.0, self._until - _now())

    def close(self) -> None:
        """Forgets what the sidecar has said."""
        self._until = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if self._until is None:
            return
        left = self._until - _now()
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(min(left, LOOK_INTERVAL), self._look)
        else:
            self.close()
            self._ended()


def _now() -> float:
    """Returns seconds on a clock that goes on while the machine sleeps, where there is one."""
    boottime: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)
