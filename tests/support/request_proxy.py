"""A proxy before a ZooKeeper server that understands requests: it loses the reply to one of them, or holds one back.

A connection that has lost a reply cannot go on, because ZooKeeper answers in order: the proxy ends it.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field

from support.processes import PATIENCE

#: ZooKeeper's numbers of operations, by what they do. A transaction counts as its first operation.
_KINDS = {1: "create", 15: "create", 2: "delete", 8: "children", 12: "children", 106: "watch"}
_GET_DATA, _MULTI = 4, 14


@dataclass
class Marked:
    """A request that the proxy waits for: its kind (create, delete, children, watch), and the path in it."""

    kind: str
    path: bytes
    #: Set when its reply was lost, or when it is held back.
    done: threading.Event = field(default_factory=threading.Event)
    #: Lets a request go on that is held back.
    go_on: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> None:
        """Waits until it is done."""
        assert self.done.wait(PATIENCE), f"no request of the kind {self.kind} for {self.path!r}"

    def fits(self, operation: int, body: bytes) -> bool:
        if operation == _MULTI:
            (operation,) = struct.unpack_from(">i", body)
        watches = operation == _GET_DATA and body[-1] == 1
        return ("watch" if watches else _KINDS.get(operation)) == self.kind and self.path in body


class RequestProxy:
    """The proxy, on a port of its own until `end`."""

    def __init__(self, target: int):
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._refuses = False
        self._to_lose: tuple[Marked, bool] | None = None
        self._to_hold: Marked | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_reply(self, kind: str, path: str, refuse: bool = False) -> Marked:
        """Loses the reply to the next request of this kind, and ends its connection. `refuse`: refuses new ones, until
        `welcome`."""
        marked = Marked(kind, path.encode())
        with self._lock:
            self._to_lose = marked, refuse
        return marked

    def hold_back(self, kind: str, path: str) -> Marked:
        """Holds back the next request of this kind, and all behind it, until its `go_on` is set."""
        marked = Marked(kind, path.encode())
        with self._lock:
            self._to_hold = marked
        return marked

    def cut(self) -> None:
        """Ends all connections. New ones are accepted."""
        self._reset()

    def welcome(self) -> None:
        """Accepts connections again."""
        self._refuses = False

    def end(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._reset()

    def _reset(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                ours, _ = self._listener.accept()
                if self._refuses:
                    ours.close()
                    continue
                theirs = socket.create_connection(("127.0.0.1", self._target))
                for one in (ours, theirs):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._sockets += [ours, theirs]
                threading.Thread(target=self._serve, args=(ours, theirs), daemon=True).start()

    def _serve(self, ours: socket.socket, theirs: socket.socket) -> None:
        with suppress(OSError):
            if ours.recv(4, socket.MSG_WAITALL | socket.MSG_PEEK).isalpha():
                # A four-letter word: its answer has no frames.
                theirs.sendall(ours.recv(4))
                while data := theirs.recv(65536):
                    ours.sendall(data)
                _shut(ours, theirs)
                return
        losing: dict[int, tuple[Marked, bool]] = {}
        threading.Thread(target=self._down, args=(theirs, ours, losing), daemon=True).start()
        self._up(ours, theirs, losing)

    def _up(self, ours: socket.socket, theirs: socket.socket, losing: dict[int, tuple[Marked, bool]]) -> None:
        with suppress(OSError):
            frame = _frame(ours)  # the greeting
            while frame:
                theirs.sendall(frame)
                frame = _frame(ours)
                if len(frame) > 12:
                    number, operation = struct.unpack_from(">ii", frame, 4)
                    self._look(number, operation, frame[12:], losing)
        _shut(ours, theirs)

    def _look(self, number: int, operation: int, body: bytes, losing: dict[int, tuple[Marked, bool]]) -> None:
        with self._lock:
            if self._to_lose and self._to_lose[0].fits(operation, body):
                losing[number], self._to_lose = self._to_lose, None
            held = self._to_hold if self._to_hold and self._to_hold.fits(operation, body) else None
            if held:
                self._to_hold = None
        if held:
            held.done.set()
            held.go_on.wait(PATIENCE)

    def _down(self, theirs: socket.socket, ours: socket.socket, losing: dict[int, tuple[Marked, bool]]) -> None:
        with suppress(OSError):
            frame = _frame(theirs)
            while frame:
                ours.sendall(frame)
                frame = _frame(theirs)
                if len(frame) >= 8 and (lost := losing.pop(struct.unpack_from(">i", frame, 4)[0], None)):
                    marked, refuse = lost
                    self._refuses = refuse
                    self._reset()
                    marked.done.set()
                    return
        _shut(ours, theirs)


def _frame(source: socket.socket) -> bytes:
    """One frame with its length. Empty: the connection has ended."""
    head = source.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        return b""
    (length,) = struct.unpack(">i", head)
    body = source.recv(length, socket.MSG_WAITALL)
    return head + body if len(body) == length else b""


def _shut(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
