from __future__ import annotations

import time

import pytest

from driver import World, quiet

pytestmark = pytest.mark.robust


def test_it_waits_for_one_and_attaches_soon(world: World) -> None:
    application = world.application(f"unix://{world.folder}/1.sock").run()
    quiet("it gives up", lambda: application.popen.poll() is not None or application.all("refused"), seconds=2.0)
    world.sidecar().ready()
    there = time.time()
    told = application.attached([0, 1])
    # The longest pause of the backoff, and room for a busy machine.
    assert told["time"] - there < 8.0


def test_it_tries_with_pauses_that_grow(world: World) -> None:
    application = world.application(f"unix://{world.folder}/1.sock").run()
    quiet("it gives up", lambda: application.popen.poll() is not None, seconds=3.0)
    tries = [one for one in application.records() if "UNAVAILABLE" in one["message"].upper()]
    # 0.1 s, 0.2 s, 0.4 s and so on, each shortened by up to half: between five and ten in three seconds.
    assert 3 <= len(tries) <= 12, [one["message"] for one in tries]
    assert {one["level"] for one in tries} == {"WARNING"}


def test_it_can_be_stopped_meanwhile(world: World) -> None:
    application = world.application(f"unix://{world.folder}/1.sock").run()
    quiet("it gives up", lambda: application.popen.poll() is not None)
    application.stop()
    assert application.exit_status() == 0
