"""How long to wait before the next attempt."""

from __future__ import annotations

import random

__all__ = ["BASE_SECONDS", "CAP_SECONDS", "Backoff"]

#: The first wait, in seconds: a sidecar that restarts is back within a second.
BASE_SECONDS = 0.1

#: The longest wait, in seconds: a sidecar that is back is found within this time.
CAP_SECONDS = 5.0


class Backoff:
    """Waits that double from the base to the cap, each shortened by up to half at random.

    The randomness keeps the workers of a machine from coming back in step.
    """

    def __init__(self, base: float = BASE_SECONDS, cap: float = CAP_SECONDS) -> None:
        self._base = base
        self._cap = cap
        self._next = base

    def next(self) -> float:
        """Returns the next wait in seconds, and doubles the one after it."""
        wait = self._next
        self._next = min(self._cap, wait * 2)
        return wait * random.uniform(0.5, 1.0)  # noqa: S311 - nothing secret about it

    def reset(self) -> None:
        """Begins at the base again."""
        self._next = self._base
