from __future__ import annotations

import time

import pytest

from driver import QUIET, Application, World, eventually, job, quiet

pytestmark = pytest.mark.minimal

#: ZooKeeper's session. After it another instance may execute the same item at the same time.
SESSION = 4.0


def stopped(application: Application, count: int) -> bool:
    """Whether that many executions got a Cancel, or the process has ended, which stops them as well."""
    return application.popen.poll() is not None or len(application.all("cancelled")) == count


def test_what_is_executed_stops_when_the_stream_ends(world: World) -> None:
    sidecar = world.sidecar()
    application = world.application(sidecar).run(job())
    application.attached([0, 1])
    application.behave("hold")
    application.trigger()
    application.told("started", after=1)
    sidecar.kill()
    eventually("both stop", lambda: stopped(application, 2))
    assert application.all("ended", outcome="success") == []


@pytest.mark.parametrize("silent", ["sidecar", "ZooKeeper"])
def test_what_is_executed_stops_before_the_session_ends(world: World, silent: str) -> None:
    sidecar = world.sidecar(zookeeper=True, session=f"{SESSION:.0f}s")
    application = world.application(sidecar).run(job())
    application.attached([0, 1])
    application.behave("hold")
    application.trigger()
    application.told("started", after=1)
    gone = time.monotonic()
    if silent == "sidecar":
        sidecar.freeze()
    else:
        world.server.kill()
    try:
        eventually("both stop", lambda: stopped(application, 2))
        assert time.monotonic() < gone + SESSION
    finally:
        if silent == "ZooKeeper":
            world.server.restart()
    assert application.all("ended", outcome="success") == []


def test_nothing_begins_that_has_waited_until_the_lease_was_over(world: World) -> None:
    sidecar = world.sidecar(zookeeper=True, session=f"{SESSION:.0f}s")
    application = world.application(sidecar).run(job())
    application.attached([0, 1])
    application.freeze()
    sidecar.trigger()
    eventually("they are started", lambda: sidecar.running() == [0, 1])
    time.sleep(QUIET)  # they wait in the application's socket
    sidecar.freeze()
    time.sleep(SESSION)
    application.thaw()
    quiet("an execution has begun", lambda: application.all("started"), seconds=1.0)
