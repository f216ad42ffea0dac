"""Runs the handler of one job: how many at once, in which order, and how they end.

It outlives the job's attachments, because handlers do: a function that does not stop when its stream ends keeps its
place among the job's concurrent executions, and its item is not executed a second time before it has ended.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from typing import Callable

from sidekeeper.context import CURRENT
from sidekeeper.execution import CancelReason, Execution
from sidekeeper.log import fields, logger
from sidekeeper.outcome import SUCCESS, Outcome, failed, interrupted, of_exception, rejected
from sidekeeper.threads import Threads
from sidekeeper.tracing import span_of

__all__ = ["Executor", "Handler", "OpenExecution"]

#: A job's handler: a function, which runs on a thread, or a coroutine function, which runs on the loop.
Handler = Callable[[Execution], object]

#: The reasons that say nothing of the execution itself: another instance may own its item.
INTERRUPTIONS = frozenset({CancelReason.LEASE_LOST, CancelReason.DETACHED})


class OpenExecution:
    """An execution that has not been answered yet."""

    def __init__(self, execution: Execution, answer: Callable[[OpenExecution, Outcome | None], None]) -> None:
        self.execution = execution
        #: Called on the loop when it is over; with None before that if it is left.
        self.answer = answer
        #: The handler's run. None: it has not begun.
        self.run: asyncio.Future[Outcome] | None = None
        #: Whether this application never begins it, and gives no answer: the next instance executes the item.
        self.left = False


class Executor:
    """Runs the handler of one job, at most ``concurrency`` times at once, and in the order asked for."""

    def __init__(self, job_name: str, handler: Handler, concurrency: int) -> None:
        self._job_name = job_name
        self._handler = handler
        self._on_loop = is_coroutine_function(handler)
        self._concurrency = concurrency
        # Bounded by the total of items: an item has at most one open execution in each attachment.
        self._waiting: deque[OpenExecution] = deque()
        self._running: dict[int, OpenExecution] = {}
        #: Whether nothing begins for now.
        self.paused = False
        self._closed = False
        self._threads = Threads()
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, opened: OpenExecution) -> None:
        """Begins an execution as soon as there is room, and no other one of its item is running."""
        reason = opened.execution.cancel_reason
        if reason is not None:
            opened.answer(opened, _never_began(reason))
        elif self._closed:
            self._leave(opened)
        else:
            self._waiting.append(opened)
            self._idle.clear()
            self._start_waiting()

    def cancel(self, opened: OpenExecution, reason: CancelReason) -> None:
        """Cancels an execution; one that has not begun is answered at once."""
        if not opened.execution.cancelled._cancel(reason):
            return  # cancelled before; a coroutine that is cleaning up is not to be interrupted again
        if opened.run is not None:
            if self._on_loop:
                opened.run.cancel()
        elif opened in self._waiting:
            self._waiting.remove(opened)
            opened.answer(opened, _never_began(reason))
            self._settle()
        elif opened.left:
            opened.answer(opened, _never_began(reason))

    def pause(self) -> None:
        """Begins no execution for now: further ones wait. Running ones continue."""
        self.paused = True

    def go_on(self) -> None:
        """Begins the executions that have waited."""
        self.paused = False
        self._start_waiting()

    def close(self) -> None:
        """Begins no execution any more: waiting and further ones are left. Running ones continue."""
        self._closed = True
        while self._waiting:
            self._leave(self._waiting.popleft())
        self._settle()

    def cancel_all(self, reason: CancelReason) -> None:
        """Cancels all executions."""
        for opened in [*self._waiting, *self._running.values()]:
            self.cancel(opened, reason)

    def end(self) -> None:
        """Releases the threads; no execution may be submitted any more."""
        self._threads.close()

    async def wait_idle(self) -> None:
        """Waits until no execution runs or waits."""
        await self._idle.wait()

    def running(self) -> list[Execution]:
        """The running executions."""
        return [opened.execution for opened in self._running.values()]

    def _leave(self, opened: OpenExecution) -> None:
        opened.left = True
        logger.debug("execution is left to the next instance", extra=fields(self._job_name, opened.execution))
        opened.answer(opened, None)

    def _start_waiting(self) -> None:
        while not self.paused and len(self._running) < self._concurrency:
            ready = next((one for one in self._waiting if one.execution.item not in self._running), None)
            if ready is None:
                return
            self._waiting.remove(ready)
            self._start(ready)

    def _start(self, opened: OpenExecution) -> None:
        execution = opened.execution
        logger.debug("execution begins", extra=fields(self._job_name, execution))
        if self._on_loop:
            opened.run = asyncio.get_running_loop().create_task(self._await_handler(execution))
        else:
            name = f"sidekeeper-{self._job_name}-{execution.item}"
            opened.run = self._threads.run(name, lambda: self._call_handler(execution))
        self._running[execution.item] = opened
        opened.run.add_done_callback(lambda run: self._ended(opened, run))

    async def _await_handler(self, execution: Execution) -> Outcome:
        CURRENT.set(execution)  # in the task's own context
        try:
            with span_of(execution):
                await self._handler(execution)  # type: ignore[misc]  # a coroutine function
        except asyncio.CancelledError:
            return _stopped(execution)
        except Exception as error:
            return of_exception(error)
        return SUCCESS

    def _call_handler(self, execution: Execution) -> Outcome:
        CURRENT.set(execution)  # in the thread's copy of the context
        try:
            with span_of(execution):
                result = self._handler(execution)
        except BaseException as error:  # also SystemExit: it would end the thread only, and silently
            return of_exception(error)
        if inspect.isawaitable(result):
            # An asynchronous function behind a wrapper that hides it; nothing has been executed.
            if inspect.iscoroutine(result):
                result.close()
            return failed("the handler returned an awaitable: it is asynchronous, but does not look like it")
        return SUCCESS

    def _ended(self, opened: OpenExecution, run: asyncio.Future[Outcome]) -> None:
        execution = opened.execution
        del self._running[execution.item]
        if run.cancelled():
            outcome = _stopped(execution)  # before its first step
        else:
            error = run.exception()
            outcome = run.result() if error is None else of_exception(error)
        if outcome.is_failure and execution.cancel_reason in INTERRUPTIONS:
            outcome = interrupted(outcome.message)
        if outcome is SUCCESS:
            logger.debug("execution ended", extra=fields(self._job_name, execution))
        else:
            logger.warning("execution did not succeed: %s", outcome.message, extra=fields(self._job_name, execution))
        opened.answer(opened, outcome)
        self._start_waiting()
        self._settle()

    def _settle(self) -> None:
        if not self._running and not self._waiting:
            self._idle.set()


def is_coroutine_function(function: Callable[..., object]) -> bool:
    """Whether calling a function, or an object with ``__call__``, gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _never_began(reason: CancelReason) -> Outcome:
    message = f"cancelled before it began: {reason.name}"
    return interrupted(message) if reason in INTERRUPTIONS else rejected(message)


def _stopped(execution: Execution) -> Outcome:
    reason = execution.cancel_reason
    return failed(f"cancelled: {reason.name}" if reason else "cancelled by the application itself")
