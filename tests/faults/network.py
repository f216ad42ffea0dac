"""A network that can fail: a TCP proxy between one sidecar and the servers of the ensemble, or between two servers.

It runs on a thread of its own. What a hole holds back is delivered when it is closed, as TCP does by repeating what
was lost, unless the connections are reset then.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Callable, TypeVar

from support.processes import free_port

T = TypeVar("T")

#: How many bytes of one direction may wait; beyond it nothing is read.
WAITING_MAX = 256

CHUNK = 65536

#: How long a server may take to accept a connection, in seconds.
CONNECT_LIMIT = 5.0

#: What a link that tears does to what comes together: how many pieces it lets through one by one before the rest, how
#: many bytes a piece has (a ZooKeeper event has about a hundred), and the pause after each, in
#: seconds.
TORN_PIECES = 4
TORN_BYTES = (60, 200)
TORN_PAUSE = 0.002
#: The pause before a server that refuses a connection is asked again, in seconds.
ASK_AGAIN = 0.02

DIRECTIONS = ("up", "down")


class Network:
    """The loop that all links share."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def link(self, ports: Sequence[int], greeting: Callable[[bytes], bytes] = bytes, patience: float = 0.0) -> Link:
        """A link to these ports of this machine, each under a port of its own. `greeting` may change what the first
        packet of a connection says to the server. A server that refuses a connection is asked again for as long as
        `patience` says, in seconds."""
        link = Link(self, greeting, patience)
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

    def __init__(self, network: Network, greeting: Callable[[bytes], bytes], patience: float):
        self._network = network
        self._greeting = greeting
        self._patience = patience
        self._doors: list[_Door] = []
        self._pipes: set[_Pipe] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._delay = 0.0
        #: Whether what comes together is let through in pieces.
        self._tears = False
        self._held: frozenset[str] = frozenset()
        self._is_cut = False
        self._open_again = asyncio.Event()
        #: Connections that were accepted so far.
        self.accepted = 0

    @property
    def address(self) -> str:
        """The address that the sidecar connects to."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def ports(self) -> list[int]:
        """The ports that stand for the servers', in their order."""
        return [door.port for door in self._doors]

    @property
    def is_held(self) -> bool:
        """Whether a direction lets nothing through."""
        return bool(self._held)

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

    def drop_near(self) -> None:
        """Resets all connections at the side that made them. The servers do not notice while there is a hole."""
        self._network.run(self._drop_near())

    def delay(self, seconds: float) -> None:
        """Lets everything through so much later."""
        self._network.run(self._set_delay(seconds))

    def tear(self) -> None:
        """Lets what comes together through in pieces, one after the other."""
        self._network.run(self._set_tears())

    def heal(self, reset: bool = False) -> None:
        """Lets everything through again, and what was held back first; or resets what there is. What `only` bars stays
        so."""
        self._network.run(self._heal(reset))

    def only(self, target: int) -> None:
        """Bars the way to all servers but one, by its port, and resets the connections to them."""
        self._network.run(self._bar([door for door in self._doors if door.target != target]))

    def all_again(self) -> None:
        """Bars no server any more."""
        self._network.run(self._bar([]))

    def reaches(self, target: int) -> bool:
        """Whether there is a connection to a server, by its port."""
        return any(pipe.target == target and not pipe.over for pipe in list(self._pipes))

    async def _bar(self, barred: list[_Door]) -> None:
        for door in self._doors:
            door.barred = door in barred
            if door.barred:
                door.close()
            elif not self._is_cut:
                await door.open()
        for pipe in list(self._pipes):
            if any(pipe.target == door.target for door in barred):
                pipe.reset()

    async def _open(self, ports: Sequence[int]) -> None:
        for port in ports:
            door = _Door(self, port)
            await door.open()
            self._doors.append(door)

    async def _reset(self) -> None:
        for pipe in list(self._pipes):
            pipe.reset()

    async def _drop_near(self) -> None:
        for pipe in self._pipes:
            pipe.drop_near()

    async def _cut(self) -> None:
        self._is_cut = True
        for door in self._doors:
            door.close()
        await self._reset()

    async def _hold(self, directions: frozenset[str]) -> None:
        self._held = directions

    async def _set_delay(self, seconds: float) -> None:
        self._delay = seconds

    async def _set_tears(self) -> None:
        self._tears = True

    async def _heal(self, reset: bool) -> None:
        if reset:
            await self._reset()
        self._delay = 0.0
        self._tears = False
        self._held = frozenset()
        self._is_cut = False
        self._open_again.set()
        self._open_again = asyncio.Event()
        for door in self._doors:
            if not door.barred:
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
        self.target = target
        #: Whether it refuses connections.
        self.barred = False
        self._server: asyncio.AbstractServer | None = None
        self.port = 0

    async def open(self) -> None:
        if self._server is None:
            self.port = self.port or free_port()
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._link.accepted += 1
        if self._server is None:
            writer.transport.abort()
            return
        pipe = _Pipe(writer, self.target)
        self._link._pipes.add(pipe)
        # A hole lets no connection through either: the server does not hear of one that says nothing.
        await self._link._pass("up")
        try:
            theirs = await asyncio.wait_for(self._connect(), CONNECT_LIMIT)
        except (OSError, asyncio.TimeoutError):
            pipe.reset()
            self._link._pipes.discard(pipe)
            return
        pipe.add(theirs[1])
        self._link._spawn(self._pump(pipe, "up", reader, theirs[1]))
        self._link._spawn(self._pump(pipe, "down", theirs[0], writer))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._link._patience
        while True:
            try:
                return await asyncio.open_connection("127.0.0.1", self.target)
            except ConnectionRefusedError:
                if loop.time() >= until:
                    raise
            await asyncio.sleep(ASK_AGAIN)

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
                for _ in range(TORN_PIECES if self._link._tears else 0):
                    size = random.randint(*TORN_BYTES)
                    writer.write(data[:size])
                    data = data[size:]
                    await writer.drain()
                    await asyncio.sleep(TORN_PAUSE if data else 0)
                writer.write(data)
                await writer.drain()

        carrying = loop.create_task(carry())
        greets = direction == "up"
        try:
            with suppress(OSError):
                data = b"-"
                while data:
                    data = await reader.read(CHUNK)
                    data, greets = (self._link._greeting(data) if greets else data), False
                    await waiting.put((loop.time() + self._link._delay, data))
                await carrying
        finally:
            carrying.cancel()
            pipe.reset()
            self._link._pipes.discard(pipe)


class _Pipe:
    """Both ends of a connection."""

    def __init__(self, writer: asyncio.StreamWriter, target: int):
        self._writers = [writer]
        #: The server's port.
        self.target = target
        self.over = False

    def add(self, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if self.over:
            self.reset()

    def drop_near(self) -> None:
        self._writers[0].transport.abort()

    def reset(self) -> None:
        self.over = True
        for writer in self._writers:
            writer.transport.abort()
