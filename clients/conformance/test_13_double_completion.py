from __future__ import annotations

from collections import Counter

import pytest

from driver import World, eventually, job, quiet
from relay import REPORT, Relay

pytestmark = pytest.mark.robust


def test_a_lost_answer_is_asked_for_again_and_recorded_once(world: World, relay: Relay) -> None:
    losing = [2]

    def lose(method: str, answer: bytes) -> bytes | None:
        if method == REPORT and losing[0]:
            losing[0] -= 1
            return None
        return answer

    application = world.application(relay.endpoint).run(job(total=1))
    application.attached([0])
    relay.to_application = lose
    application.trigger()
    execution = application.told("ended", outcome="success")["execution_id"]

    def reports() -> int:
        return Counter(result.execution_id for result in relay.results)[execution]

    eventually("it is reported three times", lambda: reports() == 3)
    eventually("nothing runs", lambda: relay.sidecar.running() == [])
    quiet("it is reported, or executed, again", lambda: reports() > 3 or application.all("started")[1:])
    outcomes = {result.outcome for result in relay.results}
    assert len(outcomes) == 1
    application.trigger()
    application.told("ended", after=1, outcome="success")


def test_a_lost_report_is_sent_again(world: World, relay: Relay) -> None:
    losing = [2]

    def lose(method: str, request: bytes) -> bytes | None:
        if method == REPORT and losing[0]:
            losing[0] -= 1
            return None
        return request

    relay.to_sidecar = lose
    application = world.application(relay.endpoint).run(job(total=1))
    application.attached([0])
    application.trigger()
    application.told("ended", outcome="success")
    eventually("nothing runs", lambda: losing[0] == 0 and relay.sidecar.running() == [])
