"""Plain functions beside an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections import deque
from typing import Callable, Generic, TypeVar

__all__ = ["Threads", "run_in_thread"]

T = TypeVar("T")


class _Call(Generic[T]):
    """A function that is called on a thread, and what became of it."""

    def __init__(self, name: str, function: Callable[[], T], future: asyncio.Future[T]) -> None:
        self.name = name
        self.function = function
        self.future = future
        self.context = contextvars.copy_context()
        self.result: T | None = None
        self.error: BaseException | None = None

    def make(self) -> None:
        """Calls it, on its thread."""
        try:
            self.result = self.context.run(self.function)
        except BaseException as raised:  # nothing else can report it
            self.error = raised

    def settle(self) -> None:
        """Tells what became of it, on the loop."""
        if self.future.done():
            return  # nothing waits for it any more
        if self.error is None:
            self.future.set_result(self.result)  # type: ignore[arg-type]  # T, as there is no error
        elif isinstance(self.error, StopIteration):
            self.future.set_exception(RuntimeError("StopIteration raised"))  # a future refuses it as it is
        else:
            self.future.set_exception(self.error)


class _Thread:
    """A thread that makes one call after the other."""

    def __init__(self, made: Callable[[_Thread, _Call[object]], None]) -> None:
        self.calls: queue.SimpleQueue[_Call[object] | None] = queue.SimpleQueue()
        self._made = made
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            call = self.calls.get()
            if call is None:
                return
            self._thread.name = call.name
            call.make()
            self._made(self, call)
            del call  # what it refers to is not kept while the thread waits


class Threads:
    """Threads on which functions run at the same time, each in a copy of its caller's context. Used on one loop.

    Not a pool of the standard library: the interpreter waits at its exit for such a pool's threads, and a handler that
    does not stop when it is told to must not keep a process alive that was told to end at once. There are as many
    threads as functions were running at once; those that are idle wait for the next one, because starting a thread
    takes longer than most of what a client does for an execution.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: list[_Thread] = []
        self._ended: deque[tuple[_Thread, _Call[object]]] = deque()
        self._waking = False
        self._closed = False

    def run(self, name: str, function: Callable[[], T]) -> asyncio.Future[T]:
        """Runs a function on a thread that has this name meanwhile; the future is of the running loop."""
        self._loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = self._loop.create_future()
        thread = self._idle.pop() if self._idle else _Thread(self._made)
        thread.calls.put(_Call(name, function, future))  # type: ignore[arg-type]  # whatever it returns
        return future

    def close(self) -> None:
        """Lets the threads end that are idle, and the others when they are."""
        self._closed = True
        for thread in self._idle:
            thread.calls.put(None)
        self._idle.clear()

    def _made(self, thread: _Thread, call: _Call[object]) -> None:
        """A call has been made; on its thread. The loop is woken once for all that end before it looks."""
        self._ended.append((thread, call))
        if not self._waking and self._loop is not None:
            self._waking = True
            with contextlib.suppress(RuntimeError):  # it is closed: the application has stopped without waiting
                self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._waking = False  # before looking: who ends after that wakes the loop again
        while self._ended:
            thread, call = self._ended.popleft()
            if self._closed:
                thread.calls.put(None)
            else:
                self._idle.append(thread)
            call.settle()


def run_in_thread(name: str, function: Callable[[], T]) -> asyncio.Future[T]:
    """Runs a function on a thread of its own, in a copy of the caller's context; its future is of the running loop."""
    threads = Threads()
    future = threads.run(name, function)
    threads.close()  # the thread ends with the call
    return future
