"""Plain functions beside an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from typing import Callable, TypeVar

__all__ = ["run_in_thread"]

T = TypeVar("T")


def run_in_thread(name: str, function: Callable[[], T]) -> asyncio.Future[T]:
    """Runs a function on a thread of its own, in a copy of the caller's context; its future is of the running loop.

    A daemon thread, not a pool's: the interpreter waits at its exit for a pool's threads, and a handler that does
    not stop when it is told to must not keep a process alive that was told to end at once.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return  # nobody waits for it any more
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]  # T, as there is no error
        elif isinstance(error, StopIteration):
            future.set_exception(RuntimeError("StopIteration raised"))  # a future refuses it as it is
        else:
            future.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as raised:  # the thread has nobody else to tell
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: the application has stopped without waiting
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
