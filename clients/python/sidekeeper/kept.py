"""What a job still executes when its stream has broken, and the next stream may take over (``sidekeeper.grace``).

The sidecar lets the instance stay for the job's grace. Until then handlers go on; a stream that comes back in time says
which executions are still this application's, and they are reported there. All others are told to stop: then, or when
the grace is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Callable

from sidekeeper._proto.v1 import participant_service_pb2 as service_pb2
from sidekeeper.execution import CancelReason, Execution, ExecutionSource
from sidekeeper.executor import Executor, OpenExecution
from sidekeeper.log import fields, logger
from sidekeeper.outcome import Outcome

__all__ = ["Kept"]

#: What is left of the grace when handlers are told to stop, so that they have stopped when the sidecar gives their
#: items away: a part of it, and this many seconds at most.
_MARGIN_PART = 0.2
_MARGIN_MAX = 2.0

#: Why executions are stopped that are nobody's any more: another instance may execute their items.
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
        """Lets executions go on in a grace of so many seconds, a margin less; then calls ``lapse``, and they stop.

        They stop when the lease is over in any case, so many seconds from now: the sidecar may be gone, and its
        session with it. None: that has no end.
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
            logger.info("%d executions go on for %.3f s without a stream", len(opened), seconds, extra=self._extra)

    def keep_result(self, execution: Execution, outcome: Outcome) -> None:
        """Keeps a result that could not be reported any more."""
        self._results[execution.execution_id] = (execution, outcome)

    def open_executions(self) -> list[service_pb2.OpenExecution]:
        """What is still to be taken over, for a sidecar that has forgotten it; nothing that was to stop without it."""
        executions = [opened.execution for opened in self._open.values()]
        executions += [execution for execution, _ in self._results.values()]
        return [
            execution.to_proto()
            for execution in executions
            if execution.cancel_reason not in _GIVEN_UP
            # What a newer sidecar has started for a reason that this client does not know it cannot repeat.
            and execution.source is not ExecutionSource.UNSPECIFIED
        ]

    def lapse(self) -> None:
        """It is over: everything is to stop. What is taken over all the same is reported as what it became."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lapse, self._lapse = self._lapse, None
        if lapse is not None:
            lapse()
        for opened in list(self._open.values()):
            self._executor.cancel(opened, CancelReason.DETACHED)

    def attached(self, resumed: Collection[str]) -> None:
        """There is a stream that these executions belong to. All others are told to stop, and their results dropped."""
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
        """Gives an execution away, or its result if it has ended. None: it is not known here."""
        return self._open.pop(execution_id, None) or self._results.pop(execution_id, None)

    def _ended(self, opened: OpenExecution, outcome: Outcome) -> None:
        execution = opened.execution
        if self._open.pop(execution.execution_id, None) is not None:
            self.keep_result(execution, outcome)
        else:
            logger.info("result not reported: its attachment has ended", extra=fields(self._job_name, execution))

    @property
    def _extra(self) -> dict[str, object]:
        return fields(self._job_name)
