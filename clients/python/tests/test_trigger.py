"""Triggering jobs, blocking and on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Callable

import grpc
import pytest

import sidekeeper
from sidekeeper._proto.v1.job_service_pb2 import TriggerJobResponse
from tests.sidecar import FakeSidecar, error_details, soon

Trigger = Callable[..., Awaitable[sidekeeper.TriggerResult]]


async def blocking(*args: Any, **kwargs: Any) -> sidekeeper.TriggerResult:
    return await asyncio.to_thread(sidekeeper.trigger, *args, **kwargs)


both = pytest.mark.parametrize("trigger", [blocking, sidekeeper.trigger_async])


@both
async def test_a_trigger_returns_the_instances_that_fire(sidecar: FakeSidecar, trigger: Trigger) -> None:
    sidecar.trigger_answer = TriggerJobResponse(
        triggered_instance_ids=["10.0.0.1@-@1", "10.0.0.2@-@1"], pending_instance_ids=["10.0.0.3@-@1"]
    )
    result = await soon(trigger("orderSync", endpoint=sidecar.target))
    assert result == sidekeeper.TriggerResult(("10.0.0.1@-@1", "10.0.0.2@-@1"), ("10.0.0.3@-@1",))
    assert sidecar.triggered == ["orderSync"]


@both
async def test_items_and_a_parameter_are_sent_and_the_items_returned(sidecar: FakeSidecar, trigger: Trigger) -> None:
    sidecar.trigger_answer = TriggerJobResponse(triggered_items=[1, 4])
    result = await soon(trigger("orderSync", items=[4, 1], parameter="", endpoint=sidecar.target))
    assert result == sidekeeper.TriggerResult((), (), (1, 4))
    assert sidecar.triggered_items == ([4, 1], "")
    # A sidecar of an earlier version ignores both.
    sidecar.trigger_answer = TriggerJobResponse(triggered_instance_ids=["10.0.0.1@-@1"])
    with pytest.raises(sidekeeper.TriggerError, match="of an earlier version") as raised:
        await soon(trigger("orderSync", items=[1], endpoint=sidecar.target))
    assert (raised.value.code, sidecar.triggered_items) == ("UNIMPLEMENTED", ([1], None))


@both
async def test_a_refusal_is_raised_with_the_sidecars_words(sidecar: FakeSidecar, trigger: Trigger) -> None:
    details = error_details(("sidekeeper", "JOB_NOT_CONFIGURED"))
    sidecar.trigger_answer = (grpc.StatusCode.NOT_FOUND, "job `x` has no configuration", details)
    with pytest.raises(sidekeeper.TriggerError, match="job 'x' was not triggered: NOT_FOUND: job `x` has no") as raised:
        await soon(trigger("x", endpoint=sidecar.target))
    assert (raised.value.job_name, raised.value.code, raised.value.reason) == ("x", "NOT_FOUND", "JOB_NOT_CONFIGURED")
    assert sidecar.triggered == ["x"]  # and not again


@both
async def test_a_trigger_without_a_sidecar_fails_at_once(sidecar: FakeSidecar, trigger: Trigger) -> None:
    await sidecar.stop()
    with pytest.raises(sidekeeper.TriggerError) as raised:
        await soon(trigger("x", endpoint=sidecar.target))
    assert raised.value.code == "UNAVAILABLE"
    assert f"no sidecar answers at {sidecar.target}: is `sidekeeper serve` running there?" in str(raised.value)


@both
async def test_a_sidecar_that_says_unavailable_is_there(sidecar: FakeSidecar, trigger: Trigger) -> None:
    details = error_details(("sidekeeper", "REGISTRY_AWAY"))
    sidecar.trigger_answer = (grpc.StatusCode.UNAVAILABLE, "the registry does not answer", details)
    with pytest.raises(sidekeeper.TriggerError, match=r"UNAVAILABLE: the registry does not answer$") as raised:
        await soon(trigger("x", endpoint=sidecar.target))
    assert raised.value.reason == "REGISTRY_AWAY"


@both
async def test_the_endpoint_comes_from_the_environment(
    sidecar: FakeSidecar, trigger: Trigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIDEKEEPER_ENDPOINT", sidecar.target)
    await soon(trigger("orderSync"))
    assert sidecar.triggered == ["orderSync"]
    with pytest.raises(ValueError, match="allowed are"):
        await soon(trigger("orderSync", endpoint="ftp://x"))
