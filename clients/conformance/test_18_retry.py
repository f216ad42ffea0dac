from __future__ import annotations

import pytest

from driver import World, eventually, job

pytestmark = pytest.mark.complete

PROPS = {"sidekeeper.retry-max-attempts": "3", "sidekeeper.retry-backoff": "50ms"}


def test_attempts_are_counted_and_a_checkpoint_is_handed_on(world: World) -> None:
    sidecar = world.sidecar()
    application = world.application(sidecar).run(job(total=1, configuration={"props": PROPS}))
    application.attached([0])
    application.behave("checkpoint_and_fail", message="no luck", checkpoint="page 7")
    application.trigger()
    second = application.told("started", after=1)
    application.behave("succeed")
    application.told("ended", outcome="success")
    started = application.all("started")
    assert [one["attempt"] for one in started] == list(range(1, len(started) + 1))
    assert started[0]["checkpoint"] is None
    assert {one["checkpoint"] for one in started[1:]} == {"page 7"}
    assert second["scheduled"] == started[0]["scheduled"]
    assert second["execution_id"] != started[0]["execution_id"]
    assert second["token"] > started[0]["token"]
    eventually("nothing runs", lambda: sidecar.running() == [])


def test_what_is_rejected_is_not_tried_again(world: World) -> None:
    sidecar = world.sidecar()
    application = world.application(sidecar).run(job(total=1, configuration={"props": PROPS}))
    application.attached([0])
    application.behave("reject", message="not now")
    application.trigger()
    application.told("ended", outcome="rejected")
    eventually("nothing runs", lambda: sidecar.running() == [])
    assert len(application.all("started")) == 1


def test_progress_of_an_execution_that_is_over_is_an_error(world: World) -> None:
    sidecar = world.sidecar()
    application = world.application(sidecar).run(job(total=1))
    application.attached([0])
    application.behave("ignore_cancel")
    application.trigger()
    application.told("started")
    application.order("progress", item=0, checkpoint="page 7")
    assert not application.told("progress")["cancelled"]
    sidecar.cancel()
    application.told("cancelled")
    application.order("progress", item=0)
    assert application.told("progress", after=1)["cancelled"]
    application.release()
    application.told("ended", outcome="success")


def test_progress_is_reported_with_the_token(world: World) -> None:
    secret = world.folder / "sidecar.toml"
    secret.write_text('token = "open-sesame"\n')
    sidecar = world.sidecar(options=["--config", str(secret)]).ready()
    application = world.application(sidecar, SIDEKEEPER_TOKEN="open-sesame").run(job(total=1))
    application.attached([0])
    application.behave("hold")
    application.trigger()
    application.told("started")
    application.order("progress", item=0, checkpoint="page 7")
    assert not application.told("progress")["superseded"]
    application.release()
    application.told("ended", outcome="success")
