from __future__ import annotations

import pytest

from driver import World, eventually, job

pytestmark = pytest.mark.minimal


def test_an_operators_cancel_reaches_the_handler(world: World) -> None:
    sidecar = world.sidecar()
    application = world.application(sidecar).run(job())
    application.attached([0, 1])
    application.behave("hold")
    application.trigger()
    application.told("started", after=1)
    sidecar.cancel(0)
    cancelled = application.told("cancelled")
    assert (cancelled["item"], cancelled["reason"]) == (0, "OPERATOR")
    eventually("only item 1 runs", lambda: sidecar.running() == [1])
    application.release()
    application.told("ended", item=1, outcome="success")
    eventually("nothing runs", lambda: sidecar.running() == [])
    assert len(application.all("cancelled")) == 1


def test_a_handler_that_ends_well_all_the_same_has_succeeded(world: World) -> None:
    sidecar = world.sidecar()
    application = world.application(sidecar).run(job(total=1))
    instance = application.attached([0])["instance"]
    application.behave("ignore_cancel")
    application.trigger()
    application.told("started")
    sidecar.cancel()
    assert application.told("cancelled")["reason"] == "OPERATOR"
    application.release()
    application.told("ended", outcome="success")
    eventually("nothing runs", lambda: sidecar.running() == [])
    assert sidecar.instances() == [instance]
