from __future__ import annotations

import signal
import threading

import grpc
import pytest

from driver import Sidecar, World, eventually, items_of, job, quiet

pytestmark = pytest.mark.robust


def held(world: World, failover: bool = False, **fields: object) -> tuple:
    """An application that executes item 0 of two, one at a time."""
    sidecar = world.sidecar()
    application = world.application(sidecar).run(job(concurrency=1, configuration={"failover": failover}), **fields)
    application.attached([0, 1])
    application.behave("hold")
    application.trigger()
    return sidecar, application, application.told("started")["item"]


def test_sigterm_lets_everything_end_that_was_started(world: World) -> None:
    sidecar, application, item = held(world, drain_timeout=15)
    application.behave("succeed", 1 - item)
    application.popen.send_signal(signal.SIGTERM)
    quiet("it ends too early", lambda: application.popen.poll() is not None)
    assert sidecar.running() == [0, 1]
    application.release()
    assert application.exit_status() == 0
    application.told("ended", item=item, outcome="success")
    application.told("ended", item=1 - item, outcome="success")
    application.told("stopped")
    assert application.all("cancelled", "lost") == []
    assert items_of(application.all("revoked")[-1]) == [0, 1]
    eventually("it has gone", lambda: (sidecar.running(), sidecar.instances()) == ([], []))


def test_nothing_starts_for_an_application_that_stops(world: World) -> None:
    sidecar = world.sidecar()
    application = world.application(sidecar).run(job(total=4), drain_timeout=15)
    application.attached([0, 1, 2, 3])
    application.behave("hold", 0)
    application.trigger()
    application.told("started", item=0)
    for item in (1, 2, 3):
        application.told("ended", item=item, outcome="success")
    application.popen.send_signal(signal.SIGTERM)
    application.told("revoked")
    begun = application.all("started")
    # The items that are not executed move at once: more than an equal share.
    successor = world.application(sidecar).run(job(total=4))
    successor.attached([1, 2, 3])
    sidecar.trigger()
    successor.told("ended", item=1, outcome="success")
    assert application.all("started") == begun
    application.release()
    assert application.exit_status() == 0
    application.told("ended", item=0, outcome="success")
    successor.attached([0, 1, 2, 3])
    sidecar.trigger()
    successor.told("ended", item=0, outcome="success")
    assert application.all("cancelled", "lost") == []
    assert successor.all("started", source="FAILOVER") == []


@pytest.mark.parametrize("silent", ["sidecar", "ZooKeeper"])
def test_nothing_that_is_silent_holds_up_a_stop(world: World, silent: str) -> None:
    sidecar = world.sidecar(zookeeper=True)
    application = world.application(sidecar).run(job(), drain_timeout=30)
    application.attached([0, 1])
    if silent == "sidecar":
        sidecar.freeze()
    else:
        world.server.kill()
    try:
        application.popen.send_signal(signal.SIGTERM)
        assert application.exit_status(timeout=20) == 0
        application.told("stopped")
    finally:
        if silent == "sidecar":
            sidecar.thaw()
        else:
            world.server.restart()
    eventually("it has gone", lambda: has_no_instances(sidecar))


def has_no_instances(sidecar: Sidecar) -> bool:
    """Whether the sidecar shows none. It cannot tell before it has a session again."""
    try:
        return sidecar.instances() == []
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False


def test_the_next_instance_executes_what_an_application_has_left(world: World) -> None:
    sidecar, application, item = held(world, failover=True, drain_timeout=0.3)
    application.popen.send_signal(signal.SIGTERM)
    assert application.exit_status() == 0
    successor = world.application(sidecar).run(job(concurrency=1, configuration={"failover": True}))
    started = successor.told("started")
    assert (started["item"], started["source"]) == (1 - item, "FAILOVER")
    successor.told("ended", item=1 - item, outcome="success")
    quiet("the other item is executed again", lambda: successor.all("started", item=item))


def test_another_instance_executes_everything_if_the_sidecar_is_killed_meanwhile(world: World) -> None:
    sidecars = [world.sidecar(number, zookeeper=True, session="2s") for number in (1, 2)]
    wanted = job(concurrency=1, configuration={"failover": True})
    first, second = (world.application(one) for one in sidecars)
    first.run(wanted, drain_timeout=15).attached([0, 1])
    first.behave("hold")
    first.trigger()
    first.told("started")
    first.popen.send_signal(signal.SIGTERM)
    first.told("revoked")
    second.run(wanted)
    sidecars[0].popen.kill()
    second.told("ended", item=0, outcome="success")
    second.told("ended", item=1, outcome="success")
    started = [(one["item"], one["source"]) for one in second.all("started")]
    assert sorted(started) == [(0, "FAILOVER"), (1, "FAILOVER")]


def test_an_execution_that_does_not_end_in_time_is_cancelled(world: World) -> None:
    sidecar, application, item = held(world, drain_timeout=0.3)
    application.popen.send_signal(signal.SIGTERM)
    assert application.told("cancelled", item=item)["reason"] == "DRAIN_TIMEOUT"
    assert application.exit_status() == 0
    eventually("it has gone", lambda: (sidecar.running(), sidecar.instances()) == ([], []))


def test_a_second_signal_ends_it_at_once(world: World) -> None:
    _, application, _ = held(world, drain_timeout=60)
    application.popen.send_signal(signal.SIGTERM)
    quiet("it ends too early", lambda: application.popen.poll() is not None)
    application.popen.send_signal(signal.SIGTERM)
    application.exit_status(timeout=10)
    # The process does not wait until its handlers have reported the Cancel.
    assert {one["reason"] for one in application.all("cancelled")} <= {"STOPPED"}
    assert application.all("ended", outcome="success") == []


@pytest.mark.parametrize("how", ["call", "signal"])
def test_a_draining_sidecar_lets_what_runs_end(world: World, how: str) -> None:
    sidecar, application, item = held(world)
    application.behave("succeed", 1 - item)
    if how == "signal":
        sidecar.popen.send_signal(signal.SIGTERM)
        quiet("it is stopped", lambda: application.all("cancelled"))
        application.release()
        assert sidecar.popen.wait(20) == 0
    else:
        draining = threading.Thread(target=sidecar.drain, args=(15.0,))
        draining.start()
        quiet("it is stopped", lambda: application.all("cancelled"))
        application.release()
        draining.join(20)
        assert not draining.is_alive()
    application.told("ended", item=item, outcome="success")
    assert application.all("cancelled") == []
    # No instance owns the item when the sidecar has ended.
    eventually("nothing is owned", lambda: application.owned() == [])
    if how == "signal":
        # The application outlives its sidecar, and is back with the next one.
        told = len(application.all("assigned"))
        world.sidecar()
        application.told("assigned", after=told)
