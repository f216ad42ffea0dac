from __future__ import annotations

import pytest

from driver import World, eventually, job, quiet

pytestmark = pytest.mark.robust


def test_without_a_grace_it_is_cancelled_and_the_items_are_lost(world: World) -> None:
    sidecar = world.sidecar()
    application = world.application(sidecar).run(job(total=1))
    application.attached([0])
    application.behave("hold")
    application.trigger()
    old = application.told("started")
    sidecar.kill()
    assert application.told("cancelled")["reason"] == "DETACHED"
    assert application.told("lost")["reason"] == "DETACHED"
    assert application.attached([])["reason"] == "DETACHED"
    application.behave("succeed")
    sidecar = world.sidecar()
    application.told("assigned", after=1)
    application.trigger()
    new = application.told("started", after=1)
    assert new["execution_id"] != old["execution_id"]
    application.told("ended", execution_id=new["execution_id"], outcome="success")
    eventually("nothing runs", lambda: sidecar.running() == [])


def test_with_a_grace_it_goes_on_and_is_reported(world: World) -> None:
    options = ["--state-dir", str(world.folder / "state")]
    sidecar = world.sidecar(zookeeper=True, options=options)
    configuration = {"props": {"sidekeeper.grace": "20s"}}
    application = world.application(sidecar).run(job(configuration=configuration))
    instance = application.attached([0, 1])["instance"]
    application.behave("hold")
    application.trigger()
    application.told("started", after=1)
    sidecar.kill()
    application.release(0)
    application.told("ended", item=0, outcome="success")
    told = len(application.all("assignment"))
    quiet("it gives up", lambda: application.all("cancelled", "lost"), seconds=0.7)  # the first attempts to attach fail
    sidecar = world.sidecar(zookeeper=True, options=options)
    again = application.told("assignment", after=told)
    assert again["instance"] == instance
    # What ended meanwhile is reported, what runs goes on.
    eventually("item 0 is reported", lambda: sidecar.running() == [1])
    application.release()
    application.told("ended", item=1, outcome="success")
    eventually("nothing runs", lambda: sidecar.running() == [])
    quiet("it is cancelled, lost, or begun again", lambda: application.all("cancelled", "lost"))
    assert len(application.all("started")) == 2
