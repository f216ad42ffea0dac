"""How locks, campaigns and observations get to their sidecar: all of a process share one connection to it.

An event loop has a connection of its own, because a channel belongs to its loop. A connection without users is kept,
and gRPC closes its socket after some seconds. One that has failed gets no further users. While a test has a sidecar
in memory, everything goes there.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from typing import TYPE_CHECKING, Any

import grpc

from sidekeeper.channel import authorized, open_blocking_channel, open_channel
from sidekeeper.reason import reason_of
from sidekeeper.trust import located

if TYPE_CHECKING:
    from sidekeeper.fake_services import FakeServices

__all__ = ["Connection", "blocking_connection", "in_memory", "loop_connection", "service"]

#: When gRPC closes the socket of a connection without calls. The next call opens it again.
IDLE_MS = 10_000

#: How many connections without users are kept, each to another sidecar.
IDLE_MAX = 16

#: The sidecars in memory, in place of real ones: ``sidekeeper.testing`` adds and removes them. The last one counts.
in_memory: list[FakeServices] = []


class _Shared:
    """A channel and its users."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.users = 0
        #: Whether further users get it.
        self.kept = True
        #: Whether a sidecar has answered on it.
        self.answered = False


_Key = tuple[str, "asyncio.AbstractEventLoop | None"]


class _Pool:
    """The connections of a process: by endpoint, and by event loop; None: those for calls that block."""

    def __init__(self) -> None:
        # The collection of an observation that was abandoned may close its part while this thread has the lock.
        self._lock = threading.RLock()
        self._all: dict[_Key, _Shared] = {}

    def use(self, endpoint: str, loop: asyncio.AbstractEventLoop | None) -> Connection:
        """Adds a user to a connection."""
        key = (endpoint, loop)
        with self._lock:
            self._drop_closed_loops()
            shared = self._all.get(key)
            if shared is None:
                options = (("grpc.client_idle_timeout_ms", IDLE_MS),)
                opened = open_blocking_channel(endpoint, options) if loop is None else open_channel(endpoint, options)
                _watch_forks()
                self._drop_idle(loop, IDLE_MAX - 1)
                shared = self._all[key] = _Shared(opened)
            shared.users += 1
            return Connection(shared.channel, self, key, shared)

    def leave(self, shared: _Shared) -> bool:
        """Takes a user away. Returns whether the channel is to be closed."""
        with self._lock:
            shared.users -= 1
            return shared.users == 0 and not shared.kept

    def discard(self, key: _Key, shared: _Shared) -> None:
        """Gives the connection to no further user."""
        with self._lock:
            shared.kept = False
            if self._all.get(key) is shared:
                del self._all[key]

    def before_fork(self) -> None:
        """Closes what has no user: a child cannot use it. No other thread has the lock at the fork."""
        self._lock.acquire()
        self._drop_idle(None, 0)

    def after_fork(self) -> None:
        """Goes on."""
        self._lock.release()

    def _drop_idle(self, loop: asyncio.AbstractEventLoop | None, most: int) -> None:
        """Leaves so many connections without users, the newest ones."""
        idle = [key for key, shared in self._all.items() if key[1] is loop and shared.users == 0]
        for key in idle[: max(0, len(idle) - most)]:
            channel = self._all.pop(key).channel
            if loop is None:
                channel.close()
            # The channel of a loop is closed when it is collected.

    def _drop_closed_loops(self) -> None:
        for key in [key for key in self._all if key[1] is not None and key[1].is_closed()]:
            self._all.pop(key).kept = False


class Connection:
    """A user's part in a connection.

    Attributes:
        channel: The channel, or the services of a sidecar in memory.
    """

    def __init__(
        self, channel: Any, pool: _Pool | None = None, key: _Key = ("", None), shared: _Shared | None = None
    ) -> None:
        self.channel = channel
        self._pool = pool
        self._key = key
        self._shared = shared
        self._answered_before = shared is not None and shared.answered

    def answers(self) -> None:
        """A sidecar has answered."""
        if self._shared is not None:
            self._shared.answered = True

    def failed(self, error: grpc.RpcError) -> bool:
        """A call has failed. Returns whether a new connection may do better: a sidecar had answered on this one."""
        broken = error.code() is grpc.StatusCode.UNAVAILABLE and not reason_of(error)
        if broken:
            self.discard()
        return broken and self._answered_before

    def discard(self) -> None:
        """No further user gets the connection."""
        if self._pool is not None and self._shared is not None:
            self._pool.discard(self._key, self._shared)

    def close(self) -> None:
        """The user has ended its calls."""
        if self._leave():
            self.channel.close()

    async def close_async(self) -> None:
        """The same for the connection of an event loop."""
        if self._leave():
            await self.channel.close()

    def _leave(self) -> bool:
        shared, self._shared = self._shared, None
        return self._pool is not None and shared is not None and self._pool.leave(shared)


_pool = _Pool()

#: The pools of the parents of this process. gRPC must not close their channels here.
_of_parents: list[_Pool] = []


def _before_fork() -> None:
    _pool.before_fork()


def _after_fork_in_parent() -> None:
    _pool.after_fork()


def _after_fork_in_child() -> None:
    global _pool
    _pool.after_fork()
    _of_parents.append(_pool)
    _pool = _Pool()  # the child's own


@functools.cache
def _watch_forks() -> None:
    """Has the hooks called at each fork. Hooks that come later are called first at a fork.

    gRPC adds its own ones with its first channel, and no channel can be closed after they were called.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
        )


def blocking_connection(endpoint: str | None, token: str) -> Connection:
    """Returns a part in the connection for calls that block.

    Args:
        endpoint: The sidecar's endpoint. None: it is found.
        token: What calls will have, if anything.

    Raises:
        UntrustedError: Another user is in the sidecar's place.
    """
    if in_memory:
        return Connection(in_memory[-1].blocking_stub)
    return _pool.use(located(endpoint, token), None)


def loop_connection(endpoint: str | None, token: str) -> Connection:
    """Returns a part in the connection of the running event loop; as ``blocking_connection``."""
    if in_memory:
        return Connection(in_memory[-1].loop_stub)
    return _pool.use(located(endpoint, token), asyncio.get_running_loop())


def service(stub: type[Any], channel: Any, token: str) -> Any:
    """Returns the methods of a service. A sidecar in memory has them itself."""
    return channel if hasattr(channel, "Hold") else authorized(stub(channel), token)
