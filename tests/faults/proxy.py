"""A network that can fail: a TCP proxy between one sidecar and the servers of the ensemble.

It runs on a thread of its own. What a hole holds back is delivered when it is closed, as TCP does by repeating what
was lost, unless the connections are reset then.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

#: How many bytes of one direction may wait; beyond it nothing is read.
WAITING_MAX = 256

CHUNK = 65536

#: How long a server may take to accept a connection, in seconds.
CONNECT_LIMIT = 5.0

DIRECTIONS = ("up", "down")


class Network:
    """The loop that all links share."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def link(self, ports: Sequence[int]) -> Link:
        """A link to these ports of this machine, each under a port of its own."""
        link = Link(self)
        self.run(link._open(ports))
        return link

    def run(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()

    def end(self) -> None:
        self.run(self._cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Link:
    """How one sidecar reaches the ensemble. Everything is open at first."""

    def __init__(self, network: Network):
        self._network = network
        self._doors: list[_Door] = []
        self._pipes: set[_Pipe] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._delay = 0.0
        self._held: frozenset[str] = frozenset()
        self._open_again = asyncio.Event()
        #: Connections that were accepted so far.
        self.accepted = 0

    @property
    def address(self) -> str:
        """What the sidecar is told to connect to."""
        return ",".join(f"127.0.0.1:{door.port}" for door in self._doors)

    def cut(self) -> None:
        """Resets all connections, and refuses new ones."""
        self._network.run(self._cut())

    def reset(self) -> None:
        """Resets all connections; new ones are welcome."""
        self._network.run(self._reset())

    def hole(self, *directions: str) -> None:
        """Lets nothing through any more in these directions, `up` to the servers and `down` to the sidecar."""
        assert set(directions) <= set(DIRECTIONS), directions
        self._network.run(self._hold(frozenset(directions)))

    def delay(self, seconds: float) -> None:
        """Lets everything through so much later."""
        self._network.run(self._set_delay(seconds))

    def heal(self, reset: bool = False) -> None:
        """Lets everything through again, and what was held back first; or resets what there is."""
        self._network.run(self._heal(reset))

    async def _open(self, ports: Sequence[int]) -> None:
        for port in ports:
            door = _Door(self, port)
            await door.open()
            self._doors.append(door)

    async def _reset(self) -> None:
        for pipe in list(self._pipes):
            pipe.reset()

    async def _cut(self) -> None:
        for door in self._doors:
            door.close()
        await self._reset()

    async def _hold(self, directions: frozenset[str]) -> None:
        self._held = directions

    async def _set_delay(self, seconds: float) -> None:
        self._delay = seconds

    async def _heal(self, reset: bool) -> None:
        if reset:
            await self._reset()
        self._delay = 0.0
        self._held = frozenset()
        self._open_again.set()
        self._open_again = asyncio.Event()
        for door in self._doors:
            await door.open()

    async def _pass(self, direction: str) -> None:
        """Waits until a direction is open."""
        while direction in self._held:
            await self._open_again.wait()

    def _spawn(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Door:
    """A port that stands for one server's."""

    def __init__(self, link: Link, target: int):
        self._link = link
        self._target = target
        self._server: asyncio.AbstractServer | None = None
        self.port = 0

    async def open(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._link.accepted += 1
        if self._server is None:
            writer.transport.abort()
            return
        pipe = _Pipe(writer)
        self._link._pipes.add(pipe)
        try:
            theirs = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", self._target), CONNECT_LIMIT)
        except (OSError, asyncio.TimeoutError):
            pipe.reset()
            self._link._pipes.discard(pipe)
            return
        pipe.add(theirs[1])
        self._link._spawn(self._pump(pipe, "up", reader, theirs[1]))
        self._link._spawn(self._pump(pipe, "down", theirs[0], writer))

    async def _pump(
        self, pipe: _Pipe, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carries one direction; what is read is due some time later, in its order."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WAITING_MAX)

        async def carry() -> None:
            while True:
                due, data = await waiting.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                await self._link._pass(direction)
                if not data:
                    break
                writer.write(data)
                await writer.drain()

        carrying = loop.create_task(carry())
        try:
            with suppress(OSError):
                data = b"-"
                while data:
                    data = await reader.read(CHUNK)
                    await waiting.put((loop.time() + self._link._delay, data))
                await carrying
        finally:
            carrying.cancel()
            pipe.reset()
            self._link._pipes.discard(pipe)


class _Pipe:
    """Both ends of a connection."""

    def __init__(self, writer: asyncio.StreamWriter):
        self._writers = [writer]
        self._over = False

    def add(self, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if self._over:
            self.reset()

    def reset(self) -> None:
        self._over = True
        for writer in self._writers:
            writer.transport.abort()
