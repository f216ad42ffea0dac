from __future__ import annotations

import pytest

from driver import World, eventually, items_of, job, quiet

pytestmark = pytest.mark.complete

DRAINED = {"props": {"sidekeeper.handoff": "drained", "sidekeeper.handoff-deadline": "30s"}}
CONTINUOUS = {"props": {"sidekeeper.ownership": "continuous"}}


def test_an_item_moves_when_its_owner_has_released_it(world: World) -> None:
    sidecars = [world.sidecar(number, zookeeper=True) for number in (1, 2)]
    first, second = (world.application(one) for one in sidecars)
    first.run(job(configuration=DRAINED)).attached([0, 1])
    first.behave("ignore_cancel")
    first.trigger()
    first.told("started", after=1)
    first.order("hold_callbacks", kinds=["revoked"])
    second.run(job(configuration=DRAINED))
    # The item moves neither before its execution has ended...
    quiet("it has moved", lambda: second.all("assigned"), seconds=1.0)
    first.release()
    revoked = first.told("revoked")
    # ... nor before the callback has returned.
    quiet("it has moved", lambda: second.all("assigned"), seconds=1.0)
    first.order("release_callbacks")
    assigned = second.told("assigned")
    assert items_of(assigned) == items_of(revoked)
    (item,) = items_of(revoked)
    assert assigned["items"][0]["token"] > revoked["items"][0]["token"]
    # The whole assignment is told last, when the next owner may have the item already.
    eventually("the first one keeps the other item", lambda: first.owned() == [1 - item])
    ended = first.told("ended", item=item)
    assert ended["time"] < assigned["time"]
    assert first.all("lost") == second.all("lost") == []


def test_a_consumer_releases_items_and_never_gets_an_execution(world: World) -> None:
    sidecars = [world.sidecar(number, zookeeper=True) for number in (1, 2)]
    first, second = (world.application(one) for one in sidecars)
    first.run(job(cron="* * * * * ?", configuration=CONTINUOUS)).attached([0, 1])
    first.order("hold_callbacks", kinds=["revoked"])
    second.run(job(cron="* * * * * ?", configuration=CONTINUOUS))
    first.told("revoked")
    quiet("it has moved", lambda: second.all("assigned"), seconds=1.0)
    first.order("release_callbacks")
    second.told("assigned")
    # Leaving hands the rest over, in the same way.
    first.order("hold_callbacks", kinds=["revoked"])
    first.stop()
    first.told("revoked", after=1)
    quiet("it has moved", lambda: second.all("assigned")[1:], seconds=1.0)
    first.order("release_callbacks")
    second.told("assigned", after=1)
    assert first.exit_status() == 0
    eventually("all is the second one's", lambda: second.owned() == [0, 1])
    assert first.all("started") == second.all("started") == []
