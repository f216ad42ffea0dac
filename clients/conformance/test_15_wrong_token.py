from __future__ import annotations

import pytest

from driver import JOB, Sidecar, World, eventually

pytestmark = pytest.mark.robust


@pytest.fixture
def guarded(world: World) -> Sidecar:
    secret = world.folder / "sidecar.toml"
    secret.write_text('token = "open-sesame"\n')
    return world.sidecar(options=["--config", str(secret)]).ready()


@pytest.mark.parametrize("token", ["", "open-barley"])
def test_it_is_refused_for_good(world: World, guarded: Sidecar, token: str) -> None:
    application = world.application(guarded, SIDEKEEPER_TOKEN=token).run()
    refused = application.told("refused")
    assert (refused["job"], refused["code"]) == (JOB, "UNAUTHENTICATED")
    assert "token" in refused["message"]
    assert application.exit_status() == 3
    assert "sesame" not in application.log.read_text()


def test_with_the_right_one_everything_works(world: World, guarded: Sidecar) -> None:
    application = world.application(guarded, SIDEKEEPER_TOKEN="open-sesame").run()
    application.attached([0, 1])
    application.trigger()
    eventually("both have ended", lambda: len(application.all("ended", outcome="success")) == 2)
    application.stop()
    assert application.exit_status() == 0


def test_a_trigger_needs_it_too(world: World, guarded: Sidecar) -> None:
    application = world.application(guarded)
    application.order("trigger", job=JOB)
    assert application.told("trigger_failed")["code"] == "UNAUTHENTICATED"
