from __future__ import annotations

from typing import Callable

import pytest
from sidekeeper._proto.v1 import attach_pb2

from driver import JOB, World, eventually
from relay import ATTACH, Relay

pytestmark = pytest.mark.robust


def rewritten(change: Callable[[attach_pb2.AttachRequest], None]) -> Callable[[str, bytes], bytes]:
    """What the application says of itself when it attaches, changed."""

    def rewrite(method: str, message: bytes) -> bytes:
        if method != ATTACH:
            return message
        request = attach_pb2.AttachRequest.FromString(message)
        change(request)
        return request.SerializeToString()

    return rewrite


def test_it_says_which_library_and_level_it_is(world: World, relay: Relay) -> None:
    seen: list[attach_pb2.AttachRequest] = []

    def copy(request: attach_pb2.AttachRequest) -> None:
        seen.append(attach_pb2.AttachRequest.FromString(request.SerializeToString()))

    relay.to_sidecar = rewritten(copy)
    world.application(relay.endpoint).run().attached([0, 1])
    (request,) = seen
    assert request.client.startswith(f"sidekeeper-{world.subject.language}/")
    assert request.HasField("api_level")
    assert request.api_level >= request.sidecar_api_level_min >= 1


def set_level(request: attach_pb2.AttachRequest) -> None:
    request.api_level = 0


def set_needed(request: attach_pb2.AttachRequest) -> None:
    request.sidecar_api_level_min = 99


@pytest.mark.parametrize(("change", "upgrade"), [(set_level, "the client"), (set_needed, "the sidecar")])
def test_what_the_sidecar_refuses_is_refused_for_good(
    world: World, relay: Relay, change: Callable[[attach_pb2.AttachRequest], None], upgrade: str
) -> None:
    relay.to_sidecar = rewritten(change)
    application = world.application(relay.endpoint).run()
    refused = application.told("refused")
    assert (refused["job"], refused["code"]) == (JOB, "FAILED_PRECONDITION")
    assert f"upgrade {upgrade}" in refused["message"]
    assert application.exit_status() == 3
    assert relay.sidecar.instances() == []


def test_a_sidecar_from_before_levels_is_refused_for_good(world: World, relay: Relay) -> None:
    def older(method: str, message: bytes) -> bytes:
        event = attach_pb2.AttachResponse.FromString(message) if method == ATTACH else None
        if event is None or not event.HasField("attached"):
            return message
        event.attached.ClearField("api_level")
        event.attached.sidecar_version = "0.0.9"
        return event.SerializeToString()

    relay.to_application = older
    application = world.application(relay.endpoint).run()
    refused = application.told("refused")
    assert (refused["job"], refused["code"]) == (JOB, "FAILED_PRECONDITION")
    assert "0.0.9" in refused["message"]
    assert "upgrade the sidecar" in refused["message"]
    assert application.exit_status() == 3
    assert application.all("assignment", "started") == []
    eventually("nobody is attached", lambda: relay.sidecar.instances() == [])
