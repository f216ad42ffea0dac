"""A database that refuses a late writer. Runs on SQLite; what differs in PostgreSQL is said where it does.

There are two places for the token. Both remember the highest one and refuse lower ones; an execution may write several
times, so an equal one is welcome.

- A row for each item of each job (`fences`), looked at first in each transaction. It protects all that the transaction
  writes, also rows that the new owner has not touched yet. This is the one to use if in doubt.
- A column of each row (``accounts.fence``). One statement, no other table; it protects only rows that the new owner has
  written already.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

SCHEMA = """
CREATE TABLE fences (
    job TEXT NOT NULL,
    item INTEGER NOT NULL,
    token BIGINT NOT NULL,            -- 64 bits: a ZooKeeper transaction id
    PRIMARY KEY (job, item)
);
CREATE TABLE accounts (
    id TEXT PRIMARY KEY,
    balance INTEGER NOT NULL,
    fence BIGINT NOT NULL DEFAULT 0
);
"""

# PostgreSQL takes the same statement, with %s for each ?. It holds the row's lock until the end of the transaction, so a
# transaction that comes between is either before this one, or sees its token.
CLAIM = """
INSERT INTO fences (job, item, token) VALUES (?, ?, ?)
ON CONFLICT (job, item) DO UPDATE SET token = excluded.token WHERE fences.token <= excluded.token
"""

# PostgreSQL takes the same statement, with %s for each ?.
WRITE = "UPDATE accounts SET balance = ?, fence = ? WHERE id = ? AND fence <= ?"


class Stale(Exception):
    """Another execution, with a higher token, has been here."""


@contextmanager
def fenced(database: sqlite3.Connection, job: str, item: int, token: int) -> Iterator[None]:
    """A transaction that writes only if no higher token has been seen for the item.

    Raises:
        Stale: A higher one has been; nothing was written.
    """
    # SQLite lets one writer in at a time. In PostgreSQL: `with connection.transaction():`, any isolation level.
    database.execute("BEGIN IMMEDIATE")
    try:
        if database.execute(CLAIM, (job, item, token)).rowcount == 0:
            raise Stale(f"item {item} of {job} has been written with a higher token than {token}")
        yield
        database.execute("COMMIT")
    except BaseException:
        database.execute("ROLLBACK")
        raise


def write_row(database: sqlite3.Connection, account: str, balance: int, token: int) -> None:
    """Writes one row unless it was written with a higher token.

    Raises:
        Stale: It was.
    """
    if database.execute(WRITE, (balance, token, account, token)).rowcount == 0:
        raise Stale(f"account {account} has been written with a higher token than {token}")


def balances(database: sqlite3.Connection) -> dict[str, int]:
    return dict(database.execute("SELECT id, balance FROM accounts"))


def main() -> None:
    database = sqlite3.connect(":memory:", isolation_level=None)  # transactions begin and end where we say so
    database.executescript(SCHEMA)
    database.executemany("INSERT INTO accounts (id, balance) VALUES (?, ?)", [("alice", 100), ("bob", 100)])
    late, current = 7, 9

    print(f"a fence for each item: the execution with token {late} stalls, the one with token {current} writes twice")
    for _ in range(2):
        with fenced(database, "settle", 0, current):
            database.execute("UPDATE accounts SET balance = balance + 10 WHERE id = 'alice'")
    try:
        with fenced(database, "settle", 0, late):
            database.execute("UPDATE accounts SET balance = 0 WHERE id = 'bob'")  # a row that nobody else wrote
    except Stale as refusal:
        print(f"  refused: {refusal}")
    else:
        raise SystemExit("the late writer was let in")
    assert balances(database) == {"alice": 120, "bob": 100}, balances(database)

    print("a fence in each row: the same, in one statement")
    write_row(database, "alice", 130, current)
    try:
        write_row(database, "alice", 0, late)
    except Stale as refusal:
        print(f"  refused: {refusal}")
    else:
        raise SystemExit("the late writer was let in")
    assert balances(database) == {"alice": 130, "bob": 100}, balances(database)
    print("the store is right")


if __name__ == "__main__":
    main()
