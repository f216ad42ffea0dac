"""The examples of stores that refuse a late writer: each plays its scene, and fails if the late writer gets in."""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "fencing"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"fencing_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for their module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("example", ["sql", "redis_script", "object_store"])
def test_a_late_writer_is_refused(example: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
    command = [sys.executable, str(EXAMPLES / f"{example}.py")]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    assert "refused: " in told.stdout, told.stdout
    assert told.stdout.endswith("the store is right\n"), told.stdout


def test_a_table_of_fences_protects_rows_that_the_new_owner_has_not_written_and_a_column_does_not() -> None:
    sql = load("sql")
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.executescript(sql.SCHEMA)
    database.execute("INSERT INTO accounts (id, balance) VALUES ('alice', 100), ('bob', 100)")
    with sql.fenced(database, "settle", 0, 9):
        sql.write_row(database, "alice", 1, 9)
    with pytest.raises(sql.Stale), sql.fenced(database, "settle", 0, 8):
        pytest.fail("it was let in")
    sql.write_row(database, "bob", 2, 8)  # what the table would have refused
    with pytest.raises(sql.Stale):
        sql.write_row(database, "alice", 3, 8)
    with sql.fenced(database, "settle", 1, 1):  # another item has its own tokens
        pass
    assert sql.balances(database) == {"alice": 1, "bob": 2}


def test_tokens_as_texts_keep_their_order() -> None:
    as_text = load("redis_script").as_text
    tokens = [0, 9, 10, 2**53, 2**53 + 1, 2**63 - 1]
    assert sorted(map(as_text, tokens)) == [as_text(token) for token in tokens]
    assert len({len(as_text(token)) for token in tokens}) == 1


def test_a_conditional_put_needs_the_version_that_was_read(tmp_path: Path) -> None:
    objects = load("object_store")
    store = objects.Files(tmp_path)
    store.put("report", "one", 7, None)
    for expected in (None, 2):
        with pytest.raises(objects.PreconditionFailed):
            store.put("report", "two", 9, expected)
    store.put("report", "two", 9, 1)
    assert (store.get("report"), store.head("report")) == ("two", objects.Head(2, 9))
