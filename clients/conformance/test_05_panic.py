from __future__ import annotations

import pytest
from sidekeeper._proto.v1 import completion_pb2

from driver import World, eventually, job
from relay import Relay

pytestmark = pytest.mark.robust


def test_it_is_a_failure_with_its_place_and_the_application_goes_on(world: World, relay: Relay) -> None:
    application = world.application(relay.endpoint).run(job())
    application.attached([0, 1])
    application.behave("panic", 0)
    application.trigger()
    started = application.told("started", item=0)
    result = relay.result(started["execution_id"])
    assert result.outcome == completion_pb2.EXECUTION_OUTCOME_FAILURE
    # Where it was: the function that has the mistake is named in what is reported.
    assert "mistake" in result.failure_message.lower()
    application.told("ended", item=1, outcome="success")
    eventually("nothing runs", lambda: relay.sidecar.running() == [])
    application.behave("succeed")
    application.trigger()
    application.told("ended", item=0, outcome="success")
    assert application.popen.poll() is None
