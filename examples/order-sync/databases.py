"""The shop's orders and the warehouse's copy of them, in SQLite files: the stand-in for whatever you have."""

from __future__ import annotations

import sqlite3
from pathlib import Path

__all__ = ["Refused", "Shop", "Warehouse"]

Order = tuple[int, str]


class Refused(Exception):
    """A later owner of the city has been here."""


class _Database:
    def __init__(self, path: Path, schema: str) -> None:
        self._db = sqlite3.connect(path, timeout=10.0, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.executescript(schema)

    def __enter__(self):  # type: ignore[no-untyped-def]  # of whatever class it is
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()


class Shop(_Database):
    """Where orders come from."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, city TEXT, goods TEXT);")

    def order(self, city: str, goods: str) -> None:
        """Adds an order."""
        self._db.execute("INSERT INTO orders (city, goods) VALUES (?, ?)", (city, goods))

    def orders_after(self, city: str, last: int, limit: int) -> list[Order]:
        """Returns orders of a city that are newer than one, oldest first."""
        rows = self._db.execute(
            "SELECT id, goods FROM orders WHERE city = ? AND id > ? ORDER BY id LIMIT ?", (city, last, limit)
        )
        return list(rows)


class Warehouse(_Database):
    """Where orders go to."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path,
            "CREATE TABLE IF NOT EXISTS received (seq INTEGER PRIMARY KEY, id INTEGER, city TEXT, goods TEXT);"
            "CREATE TABLE IF NOT EXISTS city (name TEXT PRIMARY KEY, last INTEGER NOT NULL, fence INTEGER NOT NULL);",
        )

    def last_order(self, city: str) -> int:
        """Returns the newest order of a city that is here; 0: none is."""
        row = self._db.execute("SELECT last FROM city WHERE name = ?", (city,)).fetchone()
        return 0 if row is None else int(row[0])

    def store(self, city: str, orders: list[Order], token: int) -> None:
        """Stores orders that follow the newest one here, all or none.

        Raises:
            Refused: Somebody with a higher token has stored orders of the city, or these are here already.
        """
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.execute("INSERT OR IGNORE INTO city VALUES (?, 0, 0)", (city,))
            updated = self._db.execute(
                "UPDATE city SET last = ?, fence = ? WHERE name = ? AND fence <= ? AND last < ?",
                (orders[-1][0], token, city, token, orders[0][0]),
            )
            if not updated.rowcount:
                raise Refused(f"orders of {city} with the token {token}")
            rows = [(number, city, goods) for number, goods in orders]
            self._db.executemany("INSERT INTO received (id, city, goods) VALUES (?, ?, ?)", rows)
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def received(self) -> list[tuple[str, int]]:
        """Returns all orders in the order in which they came: city and id."""
        return list(self._db.execute("SELECT city, id FROM received ORDER BY seq"))
