"""The open executions of a detached job, which its next stream may resume (``sidekeeper.grace``).

The sidecar keeps the instance for the reattach grace. Until then handlers continue. When a stream reattaches in time,
the sidecar lists the executions that are still this application's, and they are reported there. All others are
cancelled: then, or when the grace ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Callable

from sidekeeper._proto.v1 import attach_pb2
from sidekeeper.execution import CancelReason, Execution, ExecutionSource
from sidekeeper.executor import Executor, OpenExecution
from sidekeeper.log import fields, logger
from sidekeeper.outcome import Outcome

__all__ = ["Kept"]

#: The rest of the grace when handlers are cancelled, so that they have stopped when their items move: a part of the
#: grace, and this many seconds at most.
_MARGIN_PART = 0.2
_MARGIN_MAX = 2.0

#: The reasons after which another instance may execute the item.
_GIVEN_UP = frozenset({CancelReason.LEASE_LOST, CancelReason.DETACHED, CancelReason.STOPPED})


class Kept:
    """The executions of one job between two streams; used on the loop only."""

    def __init__(self, job_name: str, executor: Executor) -> None:
        self._job_name = job_name
        self._executor = executor
        self._open: dict[str, OpenExecution] = {}
        self._results: dict[str, tuple[Execution, Outcome]] = {}
        self._lapse: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def keep(
        self, opened: Sequence[OpenExecution], seconds: float, lease: float | None, lapse: Callable[[], None]
    ) -> None:
        """Lets executions continue for a grace of so many seconds, less a margin; then calls ``lapse``, and they stop.

        They stop in any case when the lease ends, in ``lease`` seconds: the sidecar may have crashed, and its session
        may end. None: the lease has no end.
        """
        seconds -= min(seconds * _MARGIN_PART, _MARGIN_MAX)
        if lease is not None:
            seconds = min(seconds, lease)
        for one in opened:
            one.answer = self._ended
            self._open[one.execution.execution_id] = one
        self._lapse = lapse
        self._timer = asyncio.get_running_loop().call_later(seconds, self.lapse)
        if opened:
            logger.info("%d executions continue for %.3f s without a stream", len(opened), seconds, extra=self._extra)

    def keep_result(self, execution: Execution, outcome: Outcome) -> None:
        """Keeps a result that could not be reported any more."""
        self._results[execution.execution_id] = (execution, outcome)

    def open_executions(self) -> list[attach_pb2.OpenExecution]:
        """The executions to resume, for a sidecar that was restarted; none whose item may have another owner."""
        executions = [opened.execution for opened in self._open.values()]
        executions += [execution for execution, _ in self._results.values()]
        return [
            execution.to_proto()
            for execution in executions
            if execution.cancel_reason not in _GIVEN_UP
            # This client cannot repeat the source of a newer sidecar's execution if it does not know that source.
            and execution.source is not ExecutionSource.UNSPECIFIED
        ]

    def lapse(self) -> None:
        """The grace has ended: all executions are cancelled. One that is still resumed is reported with its result."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lapse, self._lapse = self._lapse, None
        if lapse is not None:
            lapse()
        for opened in list(self._open.values()):
            self._executor.cancel(opened, CancelReason.DETACHED)

    def attached(self, resumed: Collection[str]) -> None:
        """A stream has these executions again. All others are cancelled, and their results dropped."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._lapse = None
        for execution_id in [one for one in self._open if one not in resumed]:
            self._executor.cancel(self._open[execution_id], CancelReason.DETACHED)
            self._open.pop(execution_id, None)
        for execution_id in [one for one in self._results if one not in resumed]:
            execution, _ = self._results.pop(execution_id)
            logger.info("result not reported: its attachment has ended", extra=fields(self._job_name, execution))

    def take(self, execution_id: str) -> OpenExecution | tuple[Execution, Outcome] | None:
        """Removes and returns an execution, or its result if it has ended. None: it is unknown."""
        return self._open.pop(execution_id, None) or self._results.pop(execution_id, None)

    def _ended(self, opened: OpenExecution, outcome: Outcome | None) -> None:
        execution = opened.execution
        kept = self._open.pop(execution.execution_id, None) is not None
        # One that has not begun has no result: if a stream has it again, it is executed.
        if kept and outcome is not None and opened.run is not None:
            self.keep_result(execution, outcome)
        else:
            logger.info("result not reported: its attachment has ended", extra=fields(self._job_name, execution))

    @property
    def _extra(self) -> dict[str, object]:
        return fields(self._job_name)
