from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta, timezone

import pytest

import sidekeeper
from sidekeeper.testing import FakeSidecar, Outcome


def make(*, on_loop: bool, seen: list[sidekeeper.Execution]) -> sidekeeper.Application:
    """An application as users have it, with a handler of either kind."""
    app = sidekeeper.Application()
    decorate = app.job(
        "orderSync", sharding_total_count=4, sharding_item_parameters="0=Beijing,1=Shanghai", job_parameter="all"
    )

    async def handle_on_loop(execution: sidekeeper.Execution) -> None:
        seen.append(execution)
        if execution.item == 1:
            raise RuntimeError("no luck")
        if execution.item == 2:
            await execution.progress_async(b"page 7")
            await asyncio.sleep(60)

    def handle_on_thread(execution: sidekeeper.Execution) -> None:
        seen.append(execution)
        if execution.item == 1:
            raise RuntimeError("no luck")
        if execution.item == 2:
            execution.progress(b"page 7")
            execution.cancelled.wait(60)
            execution.raise_if_cancelled()

    decorate(handle_on_loop if on_loop else handle_on_thread)
    return app


@pytest.mark.parametrize("on_loop", [True, False])
def test_handlers_can_be_tested_without_a_process(on_loop: bool) -> None:
    seen: list[sidekeeper.Execution] = []
    with FakeSidecar(make(on_loop=on_loop, seen=seen)) as sidecar:
        assert sidecar.execute("orderSync").succeeded
        failed = sidecar.execute("orderSync", 1, attempt=2, checkpoint=b"page 3")
        assert (failed.outcome, failed.item) == (Outcome.FAILURE, 1)
        assert "no luck" in failed.message
        running = sidecar.start("orderSync", item=2, source=sidekeeper.ExecutionSource.FAILOVER)
        while not running.checkpoints:
            time.sleep(0.001)
        assert (running.checkpoints, running.progress_count) == ([b"page 7"], 1)
        running.cancel(sidekeeper.CancelReason.DEADLINE)
        assert "DEADLINE" in running.result().message
        assert [result.item for result in sidecar.results] == [0, 1, 2]
    first, second, third = seen
    assert (first.item_parameter, first.job_parameter, first.sharding_total_count) == ("Beijing", "all", 4)
    assert first.scheduled_time == datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert second.scheduled_time - first.scheduled_time == timedelta(seconds=1)
    assert (second.attempt, second.checkpoint) == (2, b"page 3")
    assert third.source is sidekeeper.ExecutionSource.FAILOVER
    assert first.fencing_token < second.fencing_token < third.fencing_token


def test_an_application_can_be_tested_again_and_again() -> None:
    app = make(on_loop=True, seen=[])
    for _ in range(3):
        with FakeSidecar(app) as sidecar:
            sidecar.assign("orderSync", [0, 3])
            assert {item: one.succeeded for item, one in sidecar.fire("orderSync").items()} == {0: True, 3: True}


async def test_on_a_loop_of_the_tests_own() -> None:
    app = make(on_loop=True, seen=[])
    async with FakeSidecar(app) as sidecar:
        assert (await sidecar.execute_async("orderSync")).succeeded
        running = await sidecar.start_async("orderSync", 2, time_left=timedelta(minutes=1))
        running.cancel()
        assert (await running.result_async()).outcome is Outcome.FAILURE
        with pytest.raises(RuntimeError, match="_async"):
            sidecar.execute("orderSync")


def test_ownership_is_reported_as_by_a_sidecar() -> None:
    app = make(on_loop=True, seen=[])
    told: list[tuple[str, list[int]]] = []

    def note(kind: str, change: sidekeeper.ItemsChange) -> None:
        told.append((kind, [item.item for item in change.items]))

    app.on_assigned("orderSync")(lambda change: note("assigned", change))
    app.on_revoked("orderSync")(lambda change: note("revoked", change))
    app.on_lost("orderSync")(lambda change: note("lost", change))
    with FakeSidecar(app) as sidecar:
        sidecar.assign("orderSync", [0, 1])
        sidecar.assign("orderSync", [1, 2])
        sidecar.lose_session("orderSync")
        sidecar.assign("orderSync", [3])
        sidecar.disconnect("orderSync")
        sidecar.assign("orderSync", [0])
        sidecar.stop()
    assert told == [
        ("assigned", [0, 1]),
        ("revoked", [0]),
        ("assigned", [2]),
        ("lost", [1, 2]),
        ("assigned", [3]),
        ("lost", [3]),
        ("assigned", [0]),
        ("revoked", [0]),
    ]


def test_an_acknowledgement_that_does_not_come_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidekeeper.testing.PATIENCE", 0.3)
    app = make(on_loop=True, seen=[])

    @app.on_revoked("orderSync")
    def fail(_: sidekeeper.ItemsChange) -> None:
        raise RuntimeError("cannot let go")

    with FakeSidecar(app) as sidecar:
        sidecar.assign("orderSync", [0])
        with pytest.raises(TimeoutError, match="acknowledgement"):
            sidecar.assign("orderSync", [])


def test_errors_of_the_application_are_reported() -> None:
    with pytest.raises(ValueError, match="no job"), FakeSidecar(sidekeeper.Application()):
        pass
    with FakeSidecar(make(on_loop=True, seen=[])) as sidecar, pytest.raises(ValueError, match="billing"):
        sidecar.execute("billing")
