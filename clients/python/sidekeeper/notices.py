"""Lines that a job logs once rather than each time: the reasons of a wait, and problems."""

from __future__ import annotations

from collections.abc import Iterable

from sidekeeper.configuration import Problem
from sidekeeper.log import fields, logger

__all__ = ["Notices"]

#: How many reasons are remembered at most, so that reasons that always differ do not fill the memory.
REASONS_MAX = 64


class Notices:
    """The lines that one job has logged. It outlives the job's attachments."""

    def __init__(self, job_name: str) -> None:
        self._job_name = job_name
        self._reasons: set[str] = set()
        self._problems: frozenset[Problem] = frozenset()

    def waiting(self, reason: str) -> None:
        """The instance is not registered yet."""
        if reason in self._reasons:
            return
        if len(self._reasons) >= REASONS_MAX:
            self._reasons.clear()
        self._reasons.add(reason)
        logger.warning("not attached to job %s yet: %s", self._job_name, reason, extra=fields(self._job_name))

    def attached(self) -> None:
        """The instance is registered. The reasons of a later wait are logged again."""
        self._reasons.clear()

    def problems(self, problems: Iterable[Problem]) -> None:
        """The problems now. A problem that was solved and returns is logged again."""
        now = dict.fromkeys(problems)
        for problem in now:
            if problem not in self._problems:
                path = problem.path or "registry"
                code = f" ({problem.code})" if problem.code else ""
                logger.warning("%s: %s%s", path, problem.message, code, extra=fields(self._job_name))
        self._problems = frozenset(now)
