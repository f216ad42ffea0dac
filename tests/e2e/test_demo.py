"""The demo: it succeeds, and its ledger finds each kind of error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from ledger import INTERVAL, ITEMS, Ledger

from support.processes import ROOT
from support.zookeeper import ZooKeeperServer

DEMO = ROOT / "examples" / "demo" / "demo.py"
FIRST = datetime(2030, 1, 1, 12, 0, 0, tzinfo=timezone.utc)


@pytest.mark.parametrize("registry", ["embedded", "zookeeper"])
def test_the_demo_ends_well(binary: Path, zookeeper: ZooKeeperServer, registry: str) -> None:
    arguments = [sys.executable, str(DEMO), "--sidekeeper", str(binary)]
    if registry == "zookeeper":
        arguments += ["--zookeeper", zookeeper.address]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "each executed exactly once" in done.stdout
    assert "is killed while it executes items" in done.stdout


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for the path of a socket, which has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="sk-") as folder:
        yield Path(folder)


def test_ctrl_c_cleans_up(binary: Path, short_folder: Path) -> None:
    arguments = [sys.executable, str(DEMO), "--sidekeeper", str(binary)]
    environment = {**os.environ, "TMPDIR": str(short_folder)}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "has items" in line:
                demo.send_signal(signal.SIGINT)
                break
        rest = demo.stdout.read()
    assert demo.returncode == 130, rest
    assert list(short_folder.iterdir()) == []


class Story:
    """Fills a ledger with two fires without errors, but for what a test leaves out or adds."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.token = 0

    def start(self, fire: datetime, item: int, worker: str = "worker-1", **changes: Any) -> str:
        self.token += 1
        event = {
            "event": "start",
            "worker": worker,
            "pid": 1,
            "item": item,
            "parameter": "x",
            "fire": fire.isoformat(),
            "source": "SCHEDULE",
            "fencing_token": self.token,
            "execution_id": f"{worker}-{self.token}",
            **changes,
        }
        self.ledger.take(event)
        return str(event["execution_id"])

    def end(self, execution_id: str) -> None:
        self.ledger.take({"event": "end", "worker": "worker-1", "execution_id": execution_id})

    def fires(self, without: tuple[datetime, int] | None = None) -> None:
        for fire in (FIRST, FIRST + INTERVAL):
            for item in ITEMS:
                if (fire, item) != without:
                    self.end(self.start(fire, item))

    def faults(self) -> list[str]:
        return self.ledger.faults(FIRST, FIRST + INTERVAL)


def test_the_demo_has_nothing_to_say_when_all_is_well() -> None:
    story = Story()
    story.fires()
    assert story.faults() == []


def test_the_demo_sees_a_lost_item() -> None:
    story = Story()
    story.fires(without=(FIRST + INTERVAL, 3))
    assert [fault.split(", ")[1] for fault in story.faults()] == ["item 3: not executed"]


def test_the_demo_sees_an_item_executed_twice() -> None:
    story = Story()
    story.fires()
    story.end(story.start(FIRST + INTERVAL, 3, worker="worker-2"))
    assert ["executed 2 times, by worker-1, worker-2" in fault for fault in story.faults()] == [True]


def test_the_demo_sees_an_execution_that_is_never_ended() -> None:
    story = Story()
    story.fires(without=(FIRST, 0))
    story.start(FIRST, 0)
    assert any("did not end it" in fault for fault in story.faults())
    story.ledger.killed(1)
    assert not any("did not end it" in fault for fault in story.faults())


def test_the_demo_sees_a_token_that_does_not_grow() -> None:
    story = Story()
    story.fires(without=(FIRST + INTERVAL, 5))
    story.end(story.start(FIRST + INTERVAL, 5, fencing_token=2))
    assert ["fencing token 2 after 6" in fault for fault in story.faults()] == [True]


def test_the_demo_counts_fires_without_any_execution() -> None:
    story = Story()
    story.fires()
    assert len(story.ledger.fires(FIRST, FIRST + timedelta(seconds=6))) == 4
    assert len(story.ledger.faults(FIRST, FIRST + timedelta(seconds=6))) == 12
