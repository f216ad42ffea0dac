"""A partitioned queue in a SQLite file, which refuses late consumers: the stand-in for whatever you have."""

from __future__ import annotations

import sqlite3
from pathlib import Path

__all__ = ["PARTITIONS", "Queue"]

PARTITIONS = 8

SCHEMA = """
CREATE TABLE IF NOT EXISTS message (part INTEGER, id INTEGER, PRIMARY KEY (part, id));
CREATE TABLE IF NOT EXISTS progress (part INTEGER PRIMARY KEY, id INTEGER NOT NULL, fence INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS handled (part INTEGER, id INTEGER, consumer INTEGER);
"""


class Queue:
    """Messages by partition, how far each has been handled, and by whom."""

    def __init__(self, path: Path):
        self._db = sqlite3.connect(path, timeout=10.0, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.executescript(SCHEMA)
        self._db.executemany("INSERT OR IGNORE INTO progress VALUES (?, 0, 0)", [(p,) for p in range(PARTITIONS)])

    def publish(self, partition: int, count: int) -> None:
        """Appends messages to a partition."""
        self._db.execute("BEGIN IMMEDIATE")
        (last,) = self._db.execute("SELECT coalesce(max(id), 0) FROM message WHERE part = ?", (partition,)).fetchone()
        rows = [(partition, last + number) for number in range(1, count + 1)]
        self._db.executemany("INSERT INTO message VALUES (?, ?)", rows)
        self._db.execute("COMMIT")

    def next(self, partition: int) -> int | None:
        """Returns the first message of a partition that was not handled."""
        row = self._db.execute(
            "SELECT message.id FROM message JOIN progress USING (part) "
            "WHERE part = ? AND message.id > progress.id ORDER BY message.id LIMIT 1",
            (partition,),
        ).fetchone()
        return None if row is None else int(row[0])

    def handled(self, partition: int, message: int, token: int, consumer: int) -> bool:
        """Notes that a message was handled, unless a later owner of the partition has been here; returns whether."""
        self._db.execute("BEGIN IMMEDIATE")
        updated = self._db.execute(
            "UPDATE progress SET id = ?, fence = ? WHERE part = ? AND fence <= ? AND id = ?",
            (message, token, partition, token, message - 1),
        ).rowcount
        if updated:
            self._db.execute("INSERT INTO handled VALUES (?, ?, ?)", (partition, message, consumer))
        self._db.execute("COMMIT")
        return bool(updated)

    def all_handled(self) -> list[tuple[int, int, int]]:
        """Returns what was handled, in order: partition, message, consumer."""
        return list(self._db.execute("SELECT part, id, consumer FROM handled ORDER BY rowid"))
