from __future__ import annotations

import time

import pytest
from sidekeeper._proto.v1 import attach_pb2

from driver import JOB, QUIET, Application, Sidecar, World, eventually, items_of, job, quiet
from relay import ATTACH, Relay

pytestmark = pytest.mark.robust

#: ZooKeeper's session, and what is left of it as a lease when word is heard: the margin is 1 s.
SESSION = 4.0


def test_a_silent_sidecar_has_executions_stop_in_time(world: World) -> None:
    sidecar = world.sidecar(zookeeper=True, session="4s")
    application = world.application(sidecar).run(job())
    tokens = {item["item"]: item["token"] for item in application.attached([0, 1])["items"]}
    application.behave("hold")
    application.trigger()
    application.told("started", after=1)
    sidecar.freeze()
    frozen = time.time()
    cancelled = application.told("cancelled", after=1)
    lost = application.told("lost")
    assert (cancelled["reason"], lost["reason"], items_of(lost)) == ("LEASE_LOST", "SILENT", [0, 1])
    assert max(cancelled["time"], lost["time"]) < frozen + SESSION
    application.told("session", state="SILENT")
    application.behave("succeed")
    sidecar.thaw()
    # It may be the same session as before, or after a moment a new one.
    again = application.told("assigned", after=1)
    assert all(item["token"] >= tokens[item["item"]] for item in again["items"])
    executed_again(application)


def test_a_stopped_application_begins_nothing_that_has_waited_until_the_lease_was_over(world: World) -> None:
    sidecar = world.sidecar(zookeeper=True, session="4s")
    application = world.application(sidecar).run(job())
    application.attached([0, 1])
    application.behave("succeed")
    application.freeze()
    # A lease waits in its socket, and then two executions. The sidecar sends a new lease each second.
    time.sleep(SESSION / 2)
    sidecar.trigger()
    eventually("they are started", lambda: sidecar.running() == [0, 1])
    time.sleep(QUIET)
    sidecar.freeze()
    time.sleep(SESSION)
    application.thaw()
    assert items_of(application.told("lost", reason="SILENT")) == [0, 1]
    quiet("an execution has begun", lambda: application.all("started"))
    sidecar.thaw()
    application.told("assigned", after=1)
    executed_again(application)


def test_an_application_that_was_stopped_for_too_long_loses_no_item_of_a_living_session(world: World) -> None:
    sidecar = world.sidecar(zookeeper=True, session="4s")
    loses_no_item_of_a_living_session(world.application(sidecar), sidecar)


def test_an_application_that_dies_just_after_it_was_interrupted_loses_no_item(world: World) -> None:
    sidecars = [world.sidecar(number, zookeeper=True, session="4s") for number in (1, 2)]
    first, second = (world.application(one) for one in sidecars)
    wanted = job(total=4, configuration={"failover": True})
    first.run(wanted).attached([0, 1, 2, 3])
    first.behave("hold")
    first.trigger()
    first.told("started", after=3)
    second.behave("succeed")
    second.run(wanted)
    first.freeze()
    time.sleep(SESSION)
    first.thaw()
    first.told("cancelled")
    first.popen.kill()

    def executed() -> set[int]:
        return {one["item"] for one in second.all("ended", outcome="success")}

    eventually("the other one executes them", lambda: executed() == {0, 1, 2, 3})
    eventually("nothing runs", lambda: sidecars[1].running() == [])


RENEW = "/sidekeeper.v1.ParticipantService/RenewLease"


class ElsewhereRelay(Relay):
    """A relay to a sidecar with another clock, which sends a lease on the stream only once."""

    def __init__(self, world: World) -> None:
        super().__init__(world.sidecar(zookeeper=True, session="4s").ready(), world.folder)
        world.closing.append(self.close)
        self.told = False
        self.asked: list[float] = []
        self.answers = True
        self.to_application = self._told
        self.to_sidecar = self._asked

    def _told(self, method: str, message: bytes) -> bytes | None:
        event = attach_pb2.AttachResponse.FromString(message) if method == ATTACH else None
        if event is None or not event.HasField("session_changed"):
            return message
        event.session_changed.boottime_clock = "of another kernel"
        told, self.told = self.told, True
        return None if told else event.SerializeToString()

    def _asked(self, method: str, message: bytes) -> bytes | None:
        if method == RENEW:
            self.asked.append(time.time())
            return message if self.answers else None
        return message


def test_an_application_without_the_sidecars_clock_asks_for_the_lease(world: World) -> None:
    relay = ElsewhereRelay(world)
    application = world.application(relay.endpoint).run(job())
    application.attached([0, 1])
    application.behave("hold")
    application.trigger()
    application.told("started", after=1)
    quiet("it stops", lambda: application.all("cancelled", "lost"), seconds=SESSION * 1.5)
    assert len(relay.asked) >= 3
    relay.answers = False
    silent = time.time()
    cancelled = application.told("cancelled", after=1)
    lost = application.told("lost")
    assert (cancelled["reason"], lost["reason"], items_of(lost)) == ("LEASE_LOST", "SILENT", [0, 1])
    assert max(cancelled["time"], lost["time"]) < silent + SESSION
    application.behave("succeed")
    relay.answers = True
    application.told("assigned", after=1)
    application.told("session", state="CONNECTED")
    executed_again(application)


def executed_again(application: Application) -> None:
    def executed() -> bool:
        application.order("trigger", job=JOB)
        time.sleep(0.2)
        return len(application.all("ended", outcome="success")) >= 2

    eventually("they are executed again", executed)


def test_without_the_sidecars_clock_no_item_of_a_living_session_is_lost(world: World) -> None:
    relay = ElsewhereRelay(world)
    loses_no_item_of_a_living_session(world.application(relay.endpoint), relay.sidecar)


def loses_no_item_of_a_living_session(application: Application, sidecar: Sidecar) -> None:
    """An application is stopped until its lease has ended by its own clock, while it executes two items of three."""
    application.run(job(total=3, concurrency=2, configuration={"failover": True})).attached([0, 1, 2])
    instances = sidecar.instances()
    application.behave("hold")
    application.trigger()
    first = {one["item"]: one["token"] for one in (application.told("started"), application.told("started", after=1))}
    eventually("the third waits in the application", lambda: sidecar.running() == [0, 1, 2])
    application.freeze()
    time.sleep(SESSION)
    application.thaw()
    application.told("cancelled", after=1)
    application.behave("succeed")

    def succeeded() -> list[int]:
        application.release()
        return sorted(one["item"] for one in application.all("ended", outcome="success"))

    eventually("each is executed to its end", lambda: succeeded() == [0, 1, 2])
    again = [one for one in application.all("started", source="FAILOVER") if one["token"] > first[one["item"]]]
    assert sorted(one["item"] for one in again) == sorted(first)
    assert sidecar.instances() == instances, "the stream has not ended"
    eventually("nothing runs", lambda: sidecar.running() == [])
