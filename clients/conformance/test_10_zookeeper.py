from __future__ import annotations

import time

import pytest

from driver import World, eventually, job

pytestmark = pytest.mark.robust


def test_zookeeper_down_for_less_than_a_session_loses_nothing(world: World) -> None:
    # Longer than any machine takes to start a server.
    sidecar = world.sidecar(zookeeper=True, session="20s")
    application = world.application(sidecar).run(job(configuration={"failover": True}))
    application.attached([0, 1])
    application.behave("hold", 1)
    application.trigger()
    application.told("started", item=1)
    application.told("ended", item=0)
    world.server.restart()
    application.told("session", state="SUSPENDED")
    application.release()
    application.told("ended", item=1, outcome="success")
    application.told("session", state="CONNECTED")
    eventually("the result is recorded", lambda: sidecar.running() == [])
    assert application.all("lost", "cancelled") == []
    application.behave("succeed")
    application.trigger()
    eventually("all is well", lambda: len(application.all("ended", outcome="success")) == 4)


def test_zookeeper_down_for_longer_stops_executions_in_time_and_they_begin_anew(world: World) -> None:
    sidecar = world.sidecar(zookeeper=True, session="2s")
    application = world.application(sidecar).run(job(total=1))
    application.attached([0])
    application.behave("hold")
    application.trigger()
    old = application.told("started")
    world.server.kill()
    gone = time.time()
    cancelled = application.told("cancelled")
    assert cancelled["reason"] == "LEASE_LOST"
    assert cancelled["time"] < gone + 2.0, "the session could have ended before the handler was cancelled"
    application.told("lost")
    application.behave("succeed")
    world.server.restart(away=2.5)
    application.told("assigned", after=1)
    application.trigger()
    ended = application.told("ended", outcome="success")
    (new,) = application.all("started", execution_id=ended["execution_id"])
    assert new["token"] > old["token"]
    eventually("nothing runs", lambda: sidecar.running() == [])
