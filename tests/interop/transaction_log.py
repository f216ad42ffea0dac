"""What a ZooKeeper server has written to its transaction log: every change of every node, by its own clock.

A watch tells that something has changed, and not what was in between; the log has it all, in order. It is that of
ZooKeeper 3.6 and newer (`FileTxnLog`, jute): a header of 16 bytes, then for each transaction a checksum, a length, the
transaction and an end mark. A server fills its log with zeros ahead of what it writes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"ZKLG"
_FILE_HEADER = 16

_CREATE, _DELETE, _SET, _MULTI, _CREATE_2 = 1, 2, 5, 14, 15
_CREATE_CONTAINER, _DELETE_CONTAINER, _CREATE_TTL, _CLOSE_SESSION = 19, 20, 21, -11


@dataclass(frozen=True)
class Change:
    """A node was written, or deleted."""

    zxid: int
    #: When, in seconds since the epoch.
    time: float
    path: str
    #: Its content after the change. None: it was deleted.
    data: str | None
    #: Whether it was created as a container.
    container: bool = False
    #: The session that has asked for it.
    session: int = 0


class _Reader:
    """Reads jute's primitives, one after another."""

    def __init__(self, data: bytes):
        self._data = data
        self._at = 0

    def number(self) -> int:
        return self._unpack(">i", 4)

    def long(self) -> int:
        return self._unpack(">q", 8)

    def flag(self) -> bool:
        return bool(self._unpack(">b", 1))

    def buffer(self) -> bytes:
        length = max(self.number(), 0)
        self._at += length
        return self._data[self._at - length : self._at]

    def text(self) -> str:
        return self.buffer().decode(errors="replace")

    def skip_acl(self) -> None:
        for _ in range(max(self.number(), 0)):
            self.number(), self.buffer(), self.buffer()

    def is_at_end(self) -> bool:
        return self._at >= len(self._data)

    def _unpack(self, form: str, size: int) -> int:
        (number,) = struct.unpack_from(form, self._data, self._at)
        self._at += size
        return int(number)


def changes(folder: Path, below: str) -> list[Change]:
    """All changes of nodes below a path that are in the logs of a server's data directory, in order."""
    logs = sorted(folder.glob("version-2/log.*"), key=lambda log: int(log.suffix[1:], 16))
    ephemerals: dict[int, set[str]] = {}
    found = [change for log in logs for entry in _entries(log.read_bytes()) for change in _of(entry, ephemerals)]
    return [change for change in found if change.path.startswith(f"{below}/")]


def _entries(log: bytes) -> Iterator[bytes]:
    assert log[:4] == _MAGIC, "no transaction log"
    at = _FILE_HEADER
    while at + 12 <= len(log):
        _, length = struct.unpack_from(">qi", log, at)
        if length <= 0:
            return
        yield log[at + 12 : at + 12 + length]
        at += 12 + length + 1


def _of(entry: bytes, ephemerals: dict[int, set[str]]) -> Iterator[Change]:
    reader = _Reader(entry)
    session, _, zxid, milliseconds, kind = reader.long(), reader.number(), reader.long(), reader.long(), reader.number()

    def step(kind: int, reader: _Reader) -> Iterator[tuple[str, str | None, bool]]:
        if kind in (_CREATE, _CREATE_2, _CREATE_CONTAINER, _CREATE_TTL):
            path, data = reader.text(), reader.text()
            reader.skip_acl()
            if kind in (_CREATE, _CREATE_2) and reader.flag():
                ephemerals.setdefault(session, set()).add(path)
            yield path, data, kind == _CREATE_CONTAINER
        elif kind in (_DELETE, _DELETE_CONTAINER):
            yield gone(reader.text()), None, False
        elif kind == _SET:
            yield reader.text(), reader.text(), False
        elif kind == _MULTI:
            for _ in range(reader.number()):
                step_kind = reader.number()
                yield from step(step_kind, _Reader(reader.buffer()))
        elif kind == _CLOSE_SESSION:
            named: set[str] = set() if reader.is_at_end() else {reader.text() for _ in range(max(reader.number(), 0))}
            for path in sorted(named | ephemerals.pop(session, set())):
                yield gone(path), None, False

    def gone(path: str) -> str:
        for paths in ephemerals.values():
            paths.discard(path)
        return path

    for path, data, container in step(kind, reader):
        yield Change(zxid, milliseconds / 1000, path, data, container, session)
