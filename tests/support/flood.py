"""A program that takes as much of a sidecar as it can: `KIND PORT`, until its input ends. Prints the counts of its actions as JSON.

`connections` holds as many as it gets. `streams` begins calls that stay open, on several connections. `resets` begins calls and
takes them back at once. `large` sends the largest messages. `slow` asks for answers and reads none. It speaks HTTP/2 itself
(RFC 9113), because a library would keep to its rules.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable

#: The beginning of a connection (RFC 9113, 3.4).
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS = 0, 1, 3, 4
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
INITIAL_WINDOW_SIZE = 4
#: More than one of several callers may have.
CONNECTIONS = 600
STREAM_CONNECTIONS = 4
#: The calls that the program sends at once.
BATCH = 50
#: The largest message that a sidecar takes, in bytes; and how much of it is sent before the sidecar says that it may be more.
LARGE = 4 * 1024 * 1024
AT_FIRST = 60_000

WATCH = "sidekeeper.v1.AssignmentService/WatchAssignments"
REPORT = "sidekeeper.v1.ParticipantService/ReportCompletion"
LIST = "sidekeeper.v1.LockService/ListLocks"
HEALTH_WATCH = "grpc.health.v1.Health/Watch"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def headers(path: str, stream: int, flags: int = END_HEADERS) -> bytes:
    """The head of a call. Its fields are literals without an index (RFC 7541, 6.2.2)."""
    fields = {":method": "POST", ":scheme": "http", ":path": f"/{path}", ":authority": "localhost"}
    fields |= {"content-type": "application/grpc", "te": "trailers"}
    text = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )
    return frame(HEADERS, flags, stream, text)


def call(path: str, stream: int, message: bytes = b"") -> bytes:
    """A whole call."""
    return headers(path, stream) + frame(DATA, END_STREAM, stream, struct.pack(">BI", 0, len(message)) + message)


class Connection:
    """A connection that reads what comes, or nothing."""

    def __init__(self, port: int, window: int | None = None):
        settings = b"" if window is None else struct.pack(">HI", INITIAL_WINDOW_SIZE, window)
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, settings) + frame(SETTINGS, ACK, 0))
        self.socket.setblocking(False)
        self.stream = 1
        self.waiting = b""

    def send(self, data: bytes) -> bool:
        """Sends waiting bytes as far as possible, and reads all that have come. Returns whether the connection lasts."""
        self.waiting += data
        try:
            with contextlib.suppress(BlockingIOError):
                while self.socket.recv(1 << 16):
                    pass
                return False
            with contextlib.suppress(BlockingIOError):
                self.waiting = self.waiting[self.socket.send(self.waiting) :]
        except OSError:
            return False
        return True

    def begin(self, bytes_of: Callable[[int], bytes]) -> bool:
        """Sends a batch of calls, unless the last one has not left yet."""
        if self.waiting:
            return self.send(b"")
        batch = b"".join(bytes_of(self.stream + 2 * number) for number in range(BATCH))
        self.stream += 2 * BATCH
        return self.send(batch)


def flood(kind: str, port: int) -> Counter[str]:
    """Floods until standard input ends."""
    done: Counter[str] = Counter()
    makers: dict[str, Callable[[int], bytes]] = {
        "connections": lambda stream: call(HEALTH_WATCH, stream) if stream == 1 else b"",
        "streams": lambda stream: call((WATCH, HEALTH_WATCH)[stream // 2 % 2], stream, b"\n\x01x"),
        "resets": lambda stream: call(WATCH, stream, b"\n\x01x") + frame(RST_STREAM, 0, stream, struct.pack(">I", 8)),
        "large": lambda stream: (
            headers(REPORT, stream) + frame(DATA, 0, stream, struct.pack(">BI", 0, LARGE) + bytes(AT_FIRST // BATCH))
        ),
        "slow": lambda stream: call(LIST, stream),
    }
    window = 0 if kind == "slow" else None
    wanted = CONNECTIONS if kind == "connections" else STREAM_CONNECTIONS
    connections: list[Connection] = []
    while not select.select([sys.stdin], [], [], 0 if len(connections) < wanted else 0.001)[0]:
        while len(connections) < wanted and done["refused"] < 100 * (done["rounds"] + 1):
            try:
                connections.append(Connection(port, window))
                done["connections"] += 1
            except OSError:
                done["refused"] += 1
        lasting = []
        for connection in connections:
            if kind == "connections" and connection.stream > 1:
                lasting += [connection] if connection.send(b"") else []
            elif connection.begin(makers[kind]):
                done["batches"] += 1
                lasting.append(connection)
        connections = lasting
        done["rounds"] += 1
    return done


if __name__ == "__main__":
    print("flooding", flush=True)
    print(json.dumps(flood(sys.argv[1], int(sys.argv[2]))))
