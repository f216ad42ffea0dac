"""Redis that refuses a late writer: compare and set in a Lua script, which Redis runs as one step.

With ``REDIS_URL`` and the package ``redis`` it runs on a real server. Without, it plays the scene on a stand-in inside
this process that decides as the script does, and says so.
"""

from __future__ import annotations

import importlib
import os
import threading
from typing import Protocol

# One hash for the value and its fence, so one key: it works in a cluster as well. Numbers in Lua are doubles, which are
# exact up to 2^53 only; a token has 63 bits. So tokens travel as texts of one length, whose order is that of the numbers.
SCRIPT = """
local highest = redis.call('HGET', KEYS[1], 'fence')
if highest and highest > ARGV[1] then
    return 0
end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
return 1
"""


def as_text(token: int) -> str:
    """A token as a text of 19 digits, as many as the largest one has."""
    return f"{token:019d}"


class Stale(Exception):
    """Another execution, with a higher token, has been here."""


class Store(Protocol):
    """What the example uses of a Redis client."""

    def eval(self, script: str, numkeys: int, key: str, fence: str, value: str) -> int: ...

    def hget(self, key: str, field: str) -> str | None: ...

    def delete(self, key: str) -> object: ...


class StandIn:
    """Decides as the script does, one call at a time as Redis does. It does not run Lua."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hashes: dict[str, dict[str, str]] = {}

    def eval(self, script: str, numkeys: int, key: str, fence: str, value: str) -> int:
        assert script == SCRIPT and numkeys == 1
        with self._lock:
            highest = self._hashes.get(key, {}).get("fence")
            if highest is not None and highest > fence:
                return 0
            self._hashes[key] = {"fence": fence, "value": value}
            return 1

    def hget(self, key: str, field: str) -> str | None:
        return self._hashes.get(key, {}).get(field)

    def delete(self, key: str) -> object:
        return self._hashes.pop(key, None)


def write(store: Store, key: str, value: str, token: int) -> None:
    """Sets a value unless it was set with a higher token.

    Raises:
        Stale: It was.
    """
    if store.eval(SCRIPT, 1, key, as_text(token), value) == 0:
        raise Stale(f"{key} has been written with a higher token than {token}")


def connect() -> Store:
    url = os.environ.get("REDIS_URL")
    if not url:
        print("REDIS_URL is not set: on a stand-in in this process, which decides as the script does")
        return StandIn()
    try:
        redis = importlib.import_module("redis")
    except ImportError:
        raise SystemExit("REDIS_URL is set, but the package `redis` is not installed: pip install redis") from None
    print(f"on {url}")
    client: Store = redis.Redis.from_url(url, decode_responses=True)
    return client


def main() -> None:
    store = connect()
    key = f"sidekeeper-fencing-example-{os.getpid()}"
    # Beyond 2^53, where doubles cannot tell one token from the next.
    late, current = 2**60 + 7, 2**60 + 8
    try:
        print(f"the execution with token {late} stalls, the one with token {current} writes twice")
        write(store, key, "first of the new owner", current)
        write(store, key, "second of the new owner", current)
        try:
            write(store, key, "of the old owner", late)
        except Stale as refusal:
            print(f"  refused: {refusal}")
        else:
            raise SystemExit("the late writer was let in")
        assert store.hget(key, "value") == "second of the new owner"
        print("the store is right")
    finally:
        store.delete(key)


if __name__ == "__main__":
    main()
