from __future__ import annotations

import time

import pytest

from driver import JOB, World, eventually, quiet
from support.processes import free_port

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
    assert [one["level"] for one in tries] == ["WARNING", *["DEBUG"] * (len(tries) - 1)]


def test_it_says_where_it_looks_and_that_it_has_found_one(world: World) -> None:
    endpoint = f"unix://{world.folder}/1.sock"
    application = world.application(endpoint).run()

    def said(level: str) -> list[str]:
        return [one["message"] for one in application.records() if one["level"] == level and endpoint in one["message"]]

    (warning,) = eventually("it says so", lambda: said("WARNING"))
    assert warning.startswith(f"no sidecar answers at {endpoint}: is `sidekeeper serve` running there?")
    world.sidecar().ready()
    application.attached([0, 1])
    assert said("WARNING") == [warning]
    assert said("INFO") == [f"a sidecar answers at {endpoint}"]


def test_it_can_be_stopped_meanwhile(world: World) -> None:
    application = world.application(f"unix://{world.folder}/1.sock").run()
    quiet("it gives up", lambda: application.popen.poll() is not None)
    application.stop()
    assert application.exit_status() == 0


def test_it_says_once_what_the_sidecar_waits_for(world: World) -> None:
    sidecar = world.sidecar(options=["--zookeeper", f"127.0.0.1:{free_port()}"]).ready()
    application = world.application(sidecar).run()

    def said() -> list[str]:
        return [one["message"] for one in application.records() if one["message"].startswith("not attached to job ")]

    (warning,) = eventually("it says so", said)
    assert warning.startswith(f"not attached to job {JOB} yet: ")
    assert application.all("assignment", "refused") == []
    application.stop()
    assert application.exit_status() == 0
