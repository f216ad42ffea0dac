from __future__ import annotations

import pytest
from sidekeeper._proto.v1 import completion_pb2

from driver import World, eventually, job
from relay import Relay

pytestmark = pytest.mark.minimal

TEXT = "no room for pallet №7\nsecond line"
OUTCOMES = {
    "failure": completion_pb2.EXECUTION_OUTCOME_FAILURE,
    "rejected": completion_pb2.EXECUTION_OUTCOME_REJECTED,
    "success": completion_pb2.EXECUTION_OUTCOME_SUCCESS,
}


@pytest.mark.parametrize(("behaviour", "outcome"), [("fail", "failure"), ("reject", "rejected")])
def test_it_is_reported_with_its_text_and_the_application_goes_on(
    world: World, relay: Relay, behaviour: str, outcome: str
) -> None:
    application = world.application(relay.endpoint).run(job())
    application.attached([0, 1])
    application.behave(behaviour, 0, message=TEXT)
    application.trigger()
    ended = application.told("ended", item=0, outcome=outcome)
    result = relay.result(ended["execution_id"])
    assert result.outcome == OUTCOMES[outcome]
    assert TEXT in result.failure_message
    ended = application.told("ended", item=1, outcome="success")
    result = relay.result(ended["execution_id"])
    assert (result.outcome, result.failure_message) == (OUTCOMES["success"], "")
    eventually("nothing runs", lambda: relay.sidecar.running() == [])
    application.behave("succeed")
    application.trigger()
    application.told("ended", item=0, outcome="success")


def test_a_long_text_is_shortened_and_not_refused(world: World, relay: Relay) -> None:
    application = world.application(relay.endpoint).run(job(total=1))
    application.attached([0])
    application.behave("fail", message="begin " + "ö" * 40_000)
    application.trigger()
    result = relay.result(application.told("ended", outcome="failure")["execution_id"])
    assert "begin öö" in result.failure_message
    assert 1_000 <= len(result.failure_message.encode()) <= 16 * 1024
    eventually("nothing runs", lambda: relay.sidecar.running() == [])
