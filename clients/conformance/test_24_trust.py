from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from driver import Application, World, eventually
from support.squatter import UID, squatting

pytestmark = pytest.mark.complete

as_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can serve as another user, with setpriv"
)

TOKEN = "t0ken"


def test_an_application_without_an_endpoint_finds_the_sidecar_of_its_user(world: World) -> None:
    runtime = world.folder / "runtime"
    (runtime / "sidekeeper").mkdir(parents=True)
    runtime.chmod(0o700)
    application = world.wanderer([], XDG_RUNTIME_DIR=str(runtime)).run()
    eventually("it looks", lambda: "no sidecar answers" in application.log.read_text())
    world.sidecar(options=["--listen", f"unix:{runtime}/sidekeeper/api.sock"])
    application.attached([0, 1])
    application.lock("bill")
    application.told("lock_held", lock="bill")
    application.trigger()


@contextmanager
def calling(world: World, place: str, **environment: str) -> Iterator[tuple[Application, dict[str, int]]]:
    """An application that attaches, locks and triggers while another user serves in the sidecar's place."""
    with squatting(world.folder / "squat", place) as (inside, seen, told):
        runtime = {"XDG_RUNTIME_DIR": seen["XDG_RUNTIME_DIR"], "SIDEKEEPER_TOKEN": TOKEN}
        application = world.wanderer(inside, **runtime, **environment).run()
        application.lock("bill", wait_timeout=1)
        application.order("trigger", job="orderSync")
        yield application, told
        application.kill()


@as_root
@pytest.mark.parametrize("place", ["the socket", "the port"])
def test_se_3_an_application_sends_nothing_to_a_listener_of_another_user(world: World, place: str) -> None:
    with calling(world, place) as (application, told):
        eventually("it says so", lambda: "no sidecar answers" in application.log.read_text())
        assert application.told("lock_failed")["code"] == "UNAVAILABLE"
        assert application.told("trigger_failed")["code"] == "UNAVAILABLE"
        if place == "the port":
            assert f"uid {UID} serves at" in application.log.read_text()
    assert told["bytes"] == 0


@as_root
def test_an_endpoint_that_is_given_is_trusted(world: World) -> None:
    with calling(world, "the port", SIDEKEEPER_ENDPOINT="http://127.0.0.1:7070") as (application, told):
        application.told("lock_failed")
    assert told["bytes"] > 0
