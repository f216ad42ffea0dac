"""Whether a sidecar answers at all; said once rather than with each try."""

from __future__ import annotations

from sidekeeper.channel import DEFAULT_ENDPOINT
from sidekeeper.log import fields, logger

__all__ = ["Presence", "no_sidecar"]


def no_sidecar(endpoint: str | None) -> str:
    """Returns the message for a person if no sidecar answers at the endpoint. None: in the usual places."""
    return f"no sidecar answers at {endpoint or DEFAULT_ENDPOINT}: is `sidekeeper serve` running there?"


class Presence:
    """Whether a sidecar answers; the same for all jobs of an application, and used on the loop only."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._missing = False

    def missing(self, job_name: str, why: str) -> None:
        """Nobody has answered."""
        if self._missing:
            logger.debug("still no sidecar at %s: %s; trying again", self._endpoint, why, extra=fields(job_name))
        else:
            self._missing = True
            logger.warning("%s (%s)", no_sidecar(self._endpoint), why, extra=fields(job_name))

    def answers(self, job_name: str) -> None:
        """A sidecar has answered."""
        if self._missing:
            self._missing = False
            logger.info("a sidecar answers at %s", self._endpoint, extra=fields(job_name))
