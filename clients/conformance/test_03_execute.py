from __future__ import annotations

import pytest

from driver import JOB, World, eventually, job

pytestmark = pytest.mark.minimal


def test_each_item_is_executed_with_all_that_belongs_to_it(world: World) -> None:
    sidecar = world.sidecar()
    given = {"sharding_item_parameters": "0=Beijing", "job_parameter": "all"}
    application = world.application(sidecar).run(job(configuration=given))
    instance = application.attached([0, 1])["instance"]
    tokens = {item["item"]: item["token"] for item in application.attached([0, 1])["items"]}
    assert application.trigger()["instances"] == [instance]
    eventually("both have ended", lambda: len(application.all("ended", outcome="success")) == 2)
    for item in (0, 1):
        (started,) = application.all("started", item=item)
        assert started["parameter"] == {0: "Beijing"}.get(item)
        assert (started["job"], started["job_parameter"], started["total"]) == (JOB, "all", 2)
        assert (started["source"], started["attempt"], started["checkpoint"]) == ("TRIGGER", 1, None)
        assert started["task_id"] == f"{JOB}@-@0,1@-@READY@-@{instance}"
        assert started["deadline"] is None
        assert started["token"] >= tokens[item]
        assert abs(started["fired"] - started["time"]) < 10
        assert started["scheduled"] <= started["fired"] + 0.001
    assert len({one["execution_id"] for one in application.all("started")}) == 2
    eventually("nothing runs", lambda: sidecar.running() == [])


def test_the_schedule_fires(world: World) -> None:
    application = world.application().run(job(total=1, cron="* * * * * ?"))
    first = application.told("started")
    second = application.told("started", after=1)
    assert (first["source"], second["source"]) == ("SCHEDULE", "SCHEDULE")
    assert first["scheduled"] % 1 == 0
    assert second["scheduled"] >= first["scheduled"] + 1
    assert second["token"] > first["token"]


def test_the_registry_shows_what_runs(world: World) -> None:
    sidecar = world.sidecar()
    application = world.application(sidecar).run(job())
    application.attached([0, 1])
    application.behave("hold", 0)
    application.trigger()
    application.told("ended", item=1)
    eventually("only item 0 runs", lambda: sidecar.running() == [0])
    application.release()
    application.told("ended", item=0, outcome="success")
    eventually("nothing runs", lambda: sidecar.running() == [])
