"""The callbacks of an application: a decorator for each."""

from __future__ import annotations

from typing import Callable, TypeVar

from sidekeeper.events import Assignment, ItemsChange, JobChange, Leadership, Round, SessionChange
from sidekeeper.job import Callbacks

__all__ = ["CallbackRegistry"]

A = TypeVar("A", bound=Callable[[Assignment], object])
C = TypeVar("C", bound=Callable[[ItemsChange], object])
L = TypeVar("L", bound=Callable[[Leadership], object])
S = TypeVar("S", bound=Callable[[SessionChange], object])
J = TypeVar("J", bound=Callable[[JobChange], object])
R = TypeVar("R", bound=Callable[[Round], object])


class CallbackRegistry:
    """The callbacks by job; a part of ``Application``."""

    def __init__(self) -> None:
        self._callbacks: dict[str, Callbacks] = {}

    def on_assignment(self, job_name: str) -> Callable[[A], A]:
        """Registers a function that is called with each assignment of a job: the whole state, after each change.

        Use it to follow the whole state. For changes of single items use ``on_assigned``, ``on_revoked`` and
        ``on_lost``, which are called before it for the same change. The assignment is acknowledged when all of them
        have returned, and no execution of an item outside the assignment is open. Executions of a new item begin after
        that. When the stream to the sidecar ends, or the application is about to leave, it is called with an empty
        assignment whose reason is ``DETACHED``.
        """

        def register(callback: A) -> A:
            self._callbacks.setdefault(job_name, Callbacks()).assignment.append(callback)
            return callback

        return register

    def on_assigned(self, job_name: str) -> Callable[[C], C]:
        """Registers a function that is called with items that this instance owns from now on.

        Also with items that it owned before, if their token, their parameter or their status has changed, or if they
        were ``on_lost`` because the sidecar was silent, and it still has them. Executions of them begin after the
        callback has returned.
        """

        def register(callback: C) -> C:
            self._callbacks.setdefault(job_name, Callbacks()).assigned.append(callback)
            return callback

        return register

    def on_revoked(self, job_name: str) -> Callable[[C], C]:
        """Registers a function that is called with items that the sidecar takes away in good order.

        Stop work on them. Their next owner may be waiting: the assignment is acknowledged when the callback has
        returned and no execution of these items is open. When the application stops, the callback is called with all
        items, before the stream is closed.
        """

        def register(callback: C) -> C:
            self._callbacks.setdefault(job_name, Callbacks()).revoked.append(callback)
            return callback

        return register

    def on_lost(self, job_name: str) -> Callable[[C], C]:
        """Registers a function that is called with items that are lost at once.

        The session was lost, the stream has broken (and no ``sidekeeper.grace`` keeps the instance, or it has ended),
        or the sidecar has not renewed the lease in time. Other instances may own them already, and nothing waits for
        the callback.
        """

        def register(callback: C) -> C:
            self._callbacks.setdefault(job_name, Callbacks()).lost.append(callback)
            return callback

        return register

    def on_leadership(self, job_name: str) -> Callable[[L], L]:
        """Registers a function that is called when this instance begins or ceases to lead a job."""

        def register(callback: L) -> L:
            self._callbacks.setdefault(job_name, Callbacks()).leadership.append(callback)
            return callback

        return register

    def on_session(self, job_name: str) -> Callable[[S], S]:
        """Registers a function that is called when the sidecar's session with the registry changes.

        Also with the state ``SILENT``, when the sidecar has not renewed the lease in time.
        """

        def register(callback: S) -> S:
            self._callbacks.setdefault(job_name, Callbacks()).session.append(callback)
            return callback

        return register

    def on_job_changed(self, job_name: str) -> Callable[[J], J]:
        """Registers a function that is called when a job's configuration or its problems change."""

        def register(callback: J) -> J:
            self._callbacks.setdefault(job_name, Callbacks()).job_changed.append(callback)
            return callback

        return register

    def on_before_first(self, job_name: str) -> Callable[[R], R]:
        """Registers a function that acts once for the whole job before the first item of a fire is executed.

        It is called in one instance, and all of them wait for it, if the job's ``props`` have
        ``sidekeeper.once-listener`` set to ``true``. If it raises, or has not returned by the deadline, this
        instance executes nothing of that fire; the others do. It may be called again, in another instance, if this
        one dies meanwhile.
        """

        def register(callback: R) -> R:
            self._callbacks.setdefault(job_name, Callbacks()).before_first.append(callback)
            return callback

        return register

    def on_after_last(self, job_name: str) -> Callable[[R], R]:
        """Registers a function that acts once for the whole job after the last item of a fire was executed.

        It is called in one instance, not always the one of ``on_before_first``, under the same conditions.
        """

        def register(callback: R) -> R:
            self._callbacks.setdefault(job_name, Callbacks()).after_last.append(callback)
            return callback

        return register
