"""An object store that refuses a late writer: conditional puts.

An object store compares nothing but its own version of an object: S3 an ETag, GCS a generation. So the token is kept in
the object's metadata, and a write is three steps: read the version and the token; give up if the token is higher than
ours; put on the condition that the version is still the same. If it is not, look again.

``Files`` is a store in a folder with that contract. The two calls are elsewhere:

    S3 (boto3)                                       GCS (google-cloud-storage)
    head = s3.head_object(Bucket=b, Key=k)           blob = bucket.get_blob(k)          # None: there is none
    version = head["ETag"]                           version = blob.generation
    fence = int(head["Metadata"]["fence"])           fence = int(blob.metadata["fence"])
    s3.put_object(Bucket=b, Key=k, Body=data,        blob = bucket.blob(k); blob.metadata = {"fence": str(token)}
        Metadata={"fence": str(token)},              blob.upload_from_string(data,
        IfMatch=version)   # new: IfNoneMatch="*"        if_generation_match=version)   # new: 0
    refused: ClientError, 412 or 409                 refused: PreconditionFailed, 412
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

#: How often a write that met another one looks again. Each time another write has succeeded, so this many writers at once
#: are far more than an item has owners.
ATTEMPTS = 10


class Stale(Exception):
    """Another execution, with a higher token, has been here."""


class PreconditionFailed(Exception):
    """The object is not the one that was read any more."""


@dataclass(frozen=True)
class Head:
    """What is known of an object without reading it."""

    version: int
    fence: int


class Files:
    """Objects as files in a folder. A put is one step, for all processes that use the folder."""

    def __init__(self, folder: Path):
        self._folder = folder

    def head(self, key: str) -> Head | None:
        """An object's version and fence. None: there is no such object."""
        stored = self._read(key)
        return None if stored is None else Head(stored["version"], stored["fence"])

    def get(self, key: str) -> str | None:
        stored = self._read(key)
        return None if stored is None else str(stored["data"])

    def put(self, key: str, data: str, fence: int, expected: int | None) -> None:
        """Writes an object if it has the version ``expected``, or does not exist if that is None.

        Raises:
            PreconditionFailed: It has another one.
        """
        with (self._folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            stored = self._read(key)
            version = None if stored is None else stored["version"]
            if version != expected:
                raise PreconditionFailed(f"{key} has version {version}, not {expected}")
            new = {"version": (version or 0) + 1, "fence": fence, "data": data}
            temporary = self._folder / f".{key}.new"
            temporary.write_text(json.dumps(new))
            os.replace(temporary, self._folder / key)

    def _read(self, key: str) -> dict[str, Any] | None:
        try:
            stored: dict[str, Any] = json.loads((self._folder / key).read_text())
        except FileNotFoundError:
            return None
        return stored


def write(store: Files, key: str, data: str, token: int, before_put: Callable[[], None] = lambda: None) -> None:
    """Writes an object unless it was written with a higher token. ``before_put`` is where the example lets it stall.

    Raises:
        Stale: It was.
        PreconditionFailed: Others wrote it all the time.
    """
    for attempt in range(1, ATTEMPTS + 1):
        head = store.head(key)
        if head is not None and head.fence > token:
            raise Stale(f"{key} has been written with token {head.fence}, which is higher than {token}")
        before_put()
        try:
            return store.put(key, data, token, None if head is None else head.version)
        except PreconditionFailed:
            if attempt == ATTEMPTS:
                raise


def main() -> None:
    late, current = 7, 9
    with tempfile.TemporaryDirectory() as folder:
        store = Files(Path(folder))
        print(f"the execution with token {late} stalls, the one with token {current} writes")
        write(store, "report", "of the new owner", current)
        try:
            write(store, "report", "of the old owner", late)
        except Stale as refusal:
            print(f"  refused: {refusal}")
        else:
            raise SystemExit("the late writer was let in")

        print("the same, and the late one has looked already when it stalls")
        try:
            write(store, "other", "of the old owner", late, lambda: write_once(store, "of the new owner", current))
        except Stale as refusal:
            print(f"  refused: {refusal}")
        else:
            raise SystemExit("the late writer was let in")
        assert (store.get("report"), store.get("other")) == ("of the new owner", "of the new owner")
        print("the store is right")


def write_once(store: Files, data: str, token: int) -> None:
    """Writes the object ``other`` if it was not written yet."""
    if store.get("other") is None:
        write(store, "other", data, token)


if __name__ == "__main__":
    main()
