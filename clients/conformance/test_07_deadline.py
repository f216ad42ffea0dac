from __future__ import annotations

import time

import pytest

from driver import World, eventually, job

pytestmark = pytest.mark.complete

TIMEOUT = 0.8


def limited(**fields: object) -> dict[str, object]:
    return job(total=1, configuration={"props": {"sidekeeper.execution-timeout": f"{int(TIMEOUT * 1000)}ms"}}, **fields)


def test_the_handler_knows_its_deadline_and_is_cancelled_at_it(world: World) -> None:
    sidecar = world.sidecar()
    application = world.application(sidecar).run(limited())
    application.attached([0])
    application.behave("hold")
    application.trigger()
    started = application.told("started")
    assert abs(started["deadline"] - started["fired"] - TIMEOUT) < 0.2
    cancelled = application.told("cancelled")
    assert cancelled["reason"] == "DEADLINE"
    assert cancelled["time"] >= started["deadline"] - 0.05
    eventually("nothing runs", lambda: sidecar.running() == [])


def test_progress_extends_it(world: World) -> None:
    sidecar = world.sidecar()
    application = world.application(sidecar).run(limited())
    application.attached([0])
    application.behave("hold")
    application.trigger()
    deadline = application.told("started")["deadline"]
    for count in range(3):
        application.order("progress", item=0)
        progress = application.told("progress", after=count)
        assert not progress["cancelled"]
        assert progress["deadline"] > deadline
        deadline = progress["deadline"]
        time.sleep(TIMEOUT / 2)  # a part of it passes
    assert application.all("cancelled") == []
    application.release()
    application.told("ended", outcome="success")
    eventually("nothing runs", lambda: sidecar.running() == [])
