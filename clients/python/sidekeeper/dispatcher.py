"""Calls a job's callbacks, one after the other, and lets executions begin in their turn.

Callbacks and executions share one queue, so that an execution begins after the callback for the assignment that gave
it its item has returned. A callback that does not return therefore holds up its job, and in the end its stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Callable, TypeVar

from sidekeeper.executor import is_coroutine_function
from sidekeeper.log import fields, logger
from sidekeeper.threads import run_in_thread

__all__ = ["Dispatcher"]

#: The most events that wait; beyond it the stream is not read, until the sidecar detaches the slow reader.
MAX_WAITING = 1_024

E = TypeVar("E")


def _nothing() -> None:
    pass


class Dispatcher:
    """The queue of one job. ``run`` is to be a task for as long as the job lasts."""

    def __init__(self, job_name: str) -> None:
        self._job_name = job_name
        self._queue: asyncio.Queue[_Step] = asyncio.Queue()  # bounded by its users, who wait for room
        self._room = asyncio.Event()
        self._room.set()

    def call(self, callbacks: Sequence[Callable[[E], object]], event: E) -> None:
        """Calls the callbacks with an event in its turn."""
        self.call_all([(callback, event) for callback in callbacks])

    def call_all(
        self, calls: Sequence[tuple[Callable[..., object], object]], then: Callable[[], None] = _nothing
    ) -> None:
        """Makes several calls in one turn; each is made whatever the others did, ``then`` only if none raised."""

        async def step() -> None:
            failed: Exception | None = None
            for callback, event in calls:
                try:
                    await self._call(callback, event)
                except Exception as error:
                    if failed is not None:
                        logger.error("a callback failed", exc_info=failed, extra=fields(self._job_name))
                    failed = error
            if failed is not None:
                raise failed
            then()

        self._put(step)

    def call_and_answer(
        self, callbacks: Sequence[Callable[[E], object]], event: E, answer: Callable[[BaseException | None], None]
    ) -> None:
        """Calls the callbacks with an event in its turn, and ``answer`` with what one of them raised."""

        async def step() -> None:
            try:
                for callback in callbacks:
                    await self._call(callback, event)
            except Exception as error:
                answer(error)
                raise
            answer(None)

        self._put(step)

    def begin(self, begin: Callable[[], None]) -> None:
        """Calls ``begin``, which must not block, in its turn."""

        async def step() -> None:
            begin()

        self._put(step)

    async def wait_room(self) -> None:
        """Waits until another event may be put in the queue."""
        await self._room.wait()

    async def wait_empty(self) -> None:
        """Waits until everything so far has had its turn."""
        await self._queue.join()

    async def run(self) -> None:
        """Takes the turns, until it is cancelled."""
        while True:
            step = await self._queue.get()
            if self._queue.qsize() < MAX_WAITING:
                self._room.set()
            try:
                await step()
            except Exception:
                logger.exception("a callback failed", extra=fields(self._job_name))
            finally:
                self._queue.task_done()

    def _put(self, step: _Step) -> None:
        self._queue.put_nowait(step)
        if self._queue.qsize() >= MAX_WAITING:
            self._room.clear()

    async def _call(self, callback: Callable[[E], object], event: E) -> None:
        if is_coroutine_function(callback):
            await callback(event)  # type: ignore[misc]  # a coroutine function
        else:
            await run_in_thread(f"sidekeeper-{self._job_name}-callback", lambda: callback(event))


_Step = Callable[[], Coroutine[None, None, None]]
