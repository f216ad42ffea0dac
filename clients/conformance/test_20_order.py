from __future__ import annotations

import pytest

from driver import World, eventually, job, quiet

pytestmark = pytest.mark.robust


def test_concurrency_is_kept(world: World) -> None:
    sidecar = world.sidecar()
    application = world.application(sidecar).run(job(total=6, concurrency=2))
    application.attached([0, 1, 2, 3, 4, 5])
    application.behave("hold")
    application.trigger()
    eventually("all run for the registry", lambda: len(sidecar.running()) == 6)
    done: set[int] = set()
    while len(done) < 4:

        def running() -> set[int]:
            started = {one["item"] for one in application.all("started")}
            return started - {one["item"] for one in application.all("ended")}

        eventually("two run", lambda: len(running()) == 2)
        quiet("more run", lambda: len(running()) > 2, seconds=0.1)
        item = min(running())
        application.release(item)
        application.told("ended", item=item)
        done.add(item)
    application.release()
    eventually("all have begun", lambda: len(application.all("started")) == 6)
    application.release()
    eventually("nothing runs", lambda: sidecar.running() == [])


def test_an_item_is_executed_one_at_a_time_and_in_order(world: World) -> None:
    application = world.application().run(job(total=2, cron="* * * * * ?", concurrency=8))
    application.attached([0, 1])
    application.behave("slow", seconds=0.4)
    application.told("ended", item=0, after=2)
    application.told("ended", item=1, after=2)
    for item in (0, 1):
        events = [one for one in application.events("started", "ended") if one["item"] == item]
        kinds = [one["event"] for one in events]
        assert kinds[: len(kinds) // 2 * 2] == ["started", "ended"] * (len(kinds) // 2)
        tokens = [one["token"] for one in events if one["event"] == "started"]
        assert tokens == sorted(set(tokens))


def test_one_that_is_cancelled_while_it_waits_never_begins(world: World) -> None:
    sidecar = world.sidecar()
    application = world.application(sidecar).run(job(concurrency=1))
    application.attached([0, 1])
    application.behave("hold")
    application.trigger()
    begun = application.told("started")["item"]
    eventually("both run for the registry", lambda: sidecar.running() == [0, 1])
    sidecar.cancel(1 - begun)
    eventually("the waiting one is over", lambda: sidecar.running() == [begun])
    application.release()
    application.told("ended", item=begun, outcome="success")
    eventually("nothing runs", lambda: sidecar.running() == [])
    quiet("it began", lambda: application.all("started", item=1 - begun))
