from __future__ import annotations

import pytest

from driver import World, eventually, job, quiet

pytestmark = pytest.mark.robust

#: How long an application has to report a cancelled execution.
PROPS = {"sidekeeper.cancel-grace": "300ms"}


def test_one_that_does_not_stop_is_detached_and_not_run_twice_at_once(world: World) -> None:
    sidecar = world.sidecar()
    application = world.application(sidecar).run(job(total=1, configuration={"props": PROPS}))
    application.attached([0])
    application.behave("ignore_cancel")
    application.trigger()
    old = application.told("started")
    sidecar.cancel()
    assert application.told("cancelled")["reason"] == "OPERATOR"
    lost = application.told("lost")
    assert lost["reason"] == "DETACHED"
    # It attaches again by itself, and gets the item again; but its handler still executes it.
    application.told("assigned", after=1)
    application.behave("hold")
    application.trigger()
    eventually("the new one is told", lambda: sidecar.running() == [0])
    quiet("it runs twice at once", lambda: application.all("started")[1:])
    application.release()
    application.told("ended", execution_id=old["execution_id"])
    new = application.told("started", after=1)
    assert new["token"] > old["token"]
    application.release()
    application.told("ended", execution_id=new["execution_id"], outcome="success")
    eventually("nothing runs", lambda: sidecar.running() == [])


def test_a_slow_handler_disturbs_no_other(world: World) -> None:
    sidecar = world.sidecar()
    application = world.application(sidecar).run(job(total=3, concurrency=2), job("billing", total=1, concurrency=1))
    application.attached([0, 1, 2])
    application.told("assigned", job="billing")
    application.behave("slow", 0, seconds=1.0)
    application.trigger()
    for item in (1, 2):
        application.told("ended", item=item, outcome="success")
    assert application.all("ended", item=0) == []
    application.trigger("billing")
    application.told("ended", job="billing")
    application.told("ended", item=0, job="orderSync", outcome="success")
    eventually("nothing runs", lambda: sidecar.running() == [])
