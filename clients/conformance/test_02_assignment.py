from __future__ import annotations

import pytest

from driver import JOB, World, eventually, items_of, job

pytestmark = pytest.mark.complete


def test_assignments_and_callbacks_come_in_order(world: World) -> None:
    sidecar = world.sidecar()
    first = world.application(sidecar).run(job(total=4))
    first.attached([0, 1, 2, 3])
    second = world.application(sidecar).run(job(total=4))
    second.attached()
    eventually("two items each", lambda: (len(first.owned()), len(second.owned())) == (2, 2))
    second.stop()
    assert second.exit_status() == 0
    eventually("all items again", lambda: first.owned() == [0, 1, 2, 3])
    for application in (first, second):
        follow(application.events("assignment", "assigned", "revoked", "lost"))
    assert first.all("lost") == []
    taken = sorted(item for one in first.all("revoked") for item in items_of(one))
    given = sorted(item for one in second.all("assigned") for item in items_of(one))
    assert taken == given
    assert len(taken) == 2


def follow(events: list[dict[str, object]]) -> None:
    """Holds the callbacks against the assignments, which follow them, and generations against each other."""
    owned: dict[int, int] = {}
    generation = 0
    for event in events:
        items = {item["item"]: item["token"] for item in event["items"]}
        assert items or event["event"] == "assignment", f"a callback about nothing: {event}"
        if event["event"] == "assigned":
            owned.update(items)
        elif event["event"] == "assignment":
            assert owned == items, f"the callbacks before it do not add up: {event}"
        else:
            assert items.keys() <= owned.keys(), f"not owned: {event}"
            owned = {item: token for item, token in owned.items() if item not in items}
        assert event["generation"] >= generation
        generation = event["generation"]
        assert event["job"] == JOB


def test_one_instance_leads(world: World) -> None:
    sidecar = world.sidecar()
    application = world.application(sidecar).run(job())
    eventually("it leads", lambda: any(one["leader"] for one in application.all("assignment", "leadership")))


def test_a_leaving_client_revokes_its_items_before_the_stream_ends(world: World) -> None:
    sidecar = world.sidecar()
    application = world.application(sidecar).run(job())
    instance = application.attached([0, 1])["instance"]
    application.order("hold_callbacks", kinds=["revoked"])
    application.stop()
    told = application.told("revoked")
    assert (items_of(told), told["reason"]) == ([0, 1], "DETACHED")
    # It waits for the callback, and is an instance until then.
    assert sidecar.instances() == [instance]
    application.order("release_callbacks")
    assert application.exit_status() == 0
    assert application.all("lost") == []
    assert application.all("assignment")[-1]["items"] == []
    eventually("the instance has gone", lambda: sidecar.instances() == [])
