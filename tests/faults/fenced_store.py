"""A fenced store: it keeps the highest token it saw for each item, and refuses writers with a lower one.

It is asked over a Unix socket, a JSON object a line, so that a writer that is stopped in the middle blocks no other.
Execution begins with a claim and ends with a commit:

- a claim is accepted if its token is higher than all before it;
- a commit is accepted if the last claim was of the same token.

Everything is logged with its time, in the transaction that decides.
"""

from __future__ import annotations

import json
import socketserver
import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path

from faults.ensemble import now


@dataclass(frozen=True)
class Write:
    """A write that an application has asked for."""

    number: int
    time: float
    kind: str
    item: int
    token: int
    writer: str
    accepted: bool


class Store:
    """The store, served on a thread of its own."""

    def __init__(self, folder: Path):
        self.socket = folder / "store.sock"
        self._database = sqlite3.connect(folder / "store.sqlite", check_same_thread=False, isolation_level=None)
        self._lock = threading.Lock()
        self._database.executescript(
            """
            PRAGMA synchronous = OFF;
            CREATE TABLE item (item INTEGER PRIMARY KEY, fence INTEGER NOT NULL, commits INTEGER NOT NULL);
            CREATE TABLE log (
                number INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, kind TEXT NOT NULL,
                item INTEGER NOT NULL, token INTEGER NOT NULL, writer TEXT NOT NULL, accepted INTEGER NOT NULL
            );
            """
        )
        store = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for line in self.rfile:
                    answer = {"accepted": store.write(**json.loads(line))}
                    self.wfile.write(json.dumps(answer).encode() + b"\n")

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: object, client_address: object) -> None:
                """The writer was killed."""

        self._server = Server(str(self.socket), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="store", daemon=True)
        self._thread.start()

    def write(self, kind: str, item: int, token: int, writer: str) -> bool:
        """Makes a write, or refuses it; returns whether it was accepted."""
        change = {
            "claim": "UPDATE item SET fence = :token WHERE item = :item AND fence < :token",
            "commit": "UPDATE item SET commits = commits + 1 WHERE item = :item AND fence = :token",
        }[kind]
        values = {"kind": kind, "item": item, "token": token, "writer": writer}
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute("INSERT OR IGNORE INTO item VALUES (:item, 0, 0)", values)
            accepted = self._database.execute(change, values).rowcount == 1
            self._database.execute(
                "INSERT INTO log (time, kind, item, token, writer, accepted)"
                " VALUES (:time, :kind, :item, :token, :writer, :accepted)",
                {**values, "time": now(), "accepted": accepted},
            )
            self._database.execute("COMMIT")
        return accepted

    def log(self) -> list[Write]:
        """All writes, in the order in which they were decided."""
        with self._lock:
            rows = self._database.execute("SELECT * FROM log ORDER BY number").fetchall()
        return [Write(n, at, kind, item, token, who, bool(ok)) for n, at, kind, item, token, who, ok in rows]

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        with self._lock:
            self._database.close()
