"""Tickets of ElasticJob's users, each with a test that shows that sidecars do not have the fault.

| ticket | what its users saw | further tests of the same |
| --- | --- | --- |
| 114 | an item is executed twice, on two machines, after one of them has stood still | `interop/test_session.py` |
| 507 | an instance that has lost ZooKeeper goes on executing while another one begins | `it/session.rs` p2_p4_... |
| 543 | after an interruption some jobs stay shut down | `it/session.rs` p4_... |
| 671 | a failover executes items that had been executed, and more often than needed | `it/failover.rs` p5_... |
| 687 | a change of ZooKeeper's leader sets off failovers | `test_planned_changes.py` |
| 1471 | followers do not execute when somebody joins just after the leader has divided | `simulation/scenarios.rs` |
| 1549 | an instance that cannot reach ZooKeeper, but is alive, executes what others have got | `it/session.rs` |
| 1777 | a failover has to wait for the session timeout | `make failover-time` measures |
| 1857 | the ensemble was away, and jobs have shut themselves down | `it/trigger_nodes.rs` h27_... |
| 1979 | a deployment interrupts what is being executed | `e2e/test_membership.py`, `it/drain.rs` |
| 2090 | items are executed at odd times when instances restart, with failover | `it/failover.rs` |
| 2102 | "leader is electing" for ever, after everybody was killed | `registry/latch.rs` |
| 2161 | a restart executes again what had been completed | `e2e/test_membership.py` |
| 2383 | an instance whose session expired is shut down for good | `interop/test_session.py` |
| 2403 | many instances that come back together bring ZooKeeper down | `interop/test_requests.py`, `tests/budget.rs` |
| 2473 | a handler does not learn that it is interrupted | `it/drain.rs`, `clients/python/tests` |

That nothing was executed twice at once, that tokens grew, and that no process has ended by itself is judged after each
test (`conftest.py`).
"""

from __future__ import annotations

import time
from collections import Counter

import pytest

from faults.ensemble import now
from faults.fleet import Application, FaultFleet, Slot
from support.job_nodes import EACH_SECOND
from support.processes import PATIENCE, eventually

#: How long ZooKeeper waits for word from a sidecar, in seconds.
SESSION = 3.0

#: Longer than a session, and than ZooKeeper takes to notice its end: it checks once a tick, each half second.
BEYOND = SESSION + 1.5


#: How many requests of one instance it may take until it is back and has begun to execute, what goes on at rest and
#: what the test itself asks included: one and a half for each item.
REQUESTS_TO_COME_BACK = 75


def hold_all(fleet: FaultFleet) -> float:
    """Has the job fire once, with all executions held open; returns when each application executes what it owns."""
    for slot in fleet.slots:
        slot.application.command("hold")
    fire = fleet.fire()
    fleet.look_executing(fleet.slots)
    return fire


def release_all(fleet: FaultFleet) -> None:
    for slot in fleet.slots:
        slot.application.command("release")
    fleet.look("over", lambda: not fleet.executing() and not fleet.running())


def fire_and_wait(fleet: FaultFleet) -> float:
    """Has the job fire once, and waits until each item was executed, and that is recorded."""
    fire = fleet.fire()
    total = fleet.slots[0].job["sharding_total_count"]
    eventually(
        "all executed",
        lambda: (
            {one.item for one in fleet.judge().executions if one.scheduled == fire and one.outcome == "end"}
            == set(range(total))
        ),
    )
    fleet.look("recorded", lambda: not fleet.running())
    return fire


def counts(fleet: FaultFleet) -> dict[tuple[str, str], int]:
    """How many executions there were, by source and outcome."""
    return dict(Counter((one.source, one.outcome) for one in fleet.judge().executions))


def registered(fleet: FaultFleet) -> dict[str, int]:
    """The transactions that created what holds the fleet together: instances and assignments."""
    tree = fleet.tree
    nodes = [f"instances/{name}" for name in tree.children("instances")]
    nodes += [f"sharding/{item}/instance" for item in tree.children("sharding")]
    return {node: tree.client.get(tree.path(node))[1].czxid for node in nodes}


def wait_gone(fleet: FaultFleet, instance: str) -> float:
    """Waits until ZooKeeper has removed an instance; returns when that was seen."""
    fleet.look(f"{instance} gone", lambda: instance not in fleet.tree.children("instances"))
    return now()


def last(application: Application, *kinds: str) -> dict[str, object]:
    return application.events(*kinds)[-1]


def test_114_a_machine_that_stood_still_does_not_write_what_another_has_written(fleet: FaultFleet) -> None:
    first, second = fleet.start(2, session=SESSION, duration=1.0)
    mine = first.application.owned()
    fleet.fire()
    fleet.look("executing", lambda: first.application.executing() == set(mine))
    first.sidecar.freeze()
    first.application.freeze()
    wait_gone(fleet, first.application.instance)
    fleet.look(
        "taken over",
        lambda: {e["item"] for e in second.application.events("end")} == set(range(6)),
    )
    first.application.thaw()
    first.sidecar.thaw()
    # It wakes in the middle of its executions, whose time is over: they want to write at once.
    fleet.look("told or refused", lambda: not first.application.executing())
    assert not first.application.events("end")
    fleet.divide()
    assert sorted(write.item for write in fleet.store.log() if write.kind == "commit" and write.accepted) == [*range(6)]


def test_507_an_application_without_zookeeper_is_cancelled_before_another_one_begins(fleet: FaultFleet) -> None:
    first, second = fleet.start(2, session=SESSION)
    hold_all(fleet)
    mine = first.application.owned()
    instance = first.application.instance
    first.link.hole("up", "down")
    gone = wait_gone(fleet, instance)
    told = first.application.events("cancelled")
    assert sorted(event["item"] for event in told) == mine
    assert {event["reason"] for event in told} == {"LEASE_LOST"}
    assert max(event["time"] for event in told) < gone
    assert last(first.application, "session")["state"] == "LOST"
    fleet.look("taken over", lambda: second.application.executing() == set(range(6)))
    first.link.heal()
    second.application.command("release")
    first.application.command("release")
    fleet.divide()
    fire_and_wait(fleet)


def test_543_short_interruptions_shut_nothing_down(fleet: FaultFleet) -> None:
    # An attempt to connect may take a second, which is not short beside the lease of a session of three.
    slots = fleet.start(2, session=4 * SESSION)
    before = registered(fleet)
    hold_all(fleet)
    for number in range(3):
        for slot in slots:
            slot.link.cut()
        for slot in slots:
            suspended(slot, number + 1)
            slot.link.heal()
        for slot in slots:
            connected(slot, number + 1)
    release_all(fleet)
    assert registered(fleet) == before
    assert counts(fleet) == {("SCHEDULE", "end"): 6}
    fire_and_wait(fleet)


def suspended(slot: Slot, times: int = 1) -> None:
    """Waits until an application has got that many notices of a suspended session."""
    slot.application.wait("SUSPENDED", lambda events: states(events).count("SUSPENDED") >= times)


def connected(slot: Slot, times: int = 1) -> None:
    """Waits until an application has got that many notices of a connected session."""
    slot.application.wait(
        "CONNECTED", lambda events: states(events).count("CONNECTED") >= times and states(events)[-1] == "CONNECTED"
    )


def states(events: list[dict[str, object]]) -> list[object]:
    return [event["state"] for event in events if event["event"] == "session"]


@pytest.mark.smoke
def test_671_a_failover_executes_what_was_interrupted_and_nothing_else(fleet: FaultFleet) -> None:
    slots = fleet.start(3, session=SESSION, sharding_total_count=9)
    # Nothing of its items is executed: nothing is to be executed by others until the next fire.
    fire_and_wait(fleet)
    slots[2].kill_application()
    fleet.divide(slots[:2])
    slots[2].start_application()
    fleet.divide()
    hold_all(fleet)
    interrupted = slots[2].application.owned()
    slots[2].kill_application()
    survivors = [slot.application for slot in slots[:2]]
    fleet.look("taken over", lambda: survivors[0].executing() | survivors[1].executing() == set(range(9)))
    for slot in slots[:2]:
        slot.application.command("release")
    fleet.divide(slots[:2])
    executions = [one for one in fleet.judge().executions if one.source == "FAILOVER"]
    assert sorted(one.item for one in executions) == interrupted, list(map(str, executions))
    slots[2].start_application()
    fleet.divide()
    fire_and_wait(fleet)
    assert counts(fleet) == {("SCHEDULE", "end"): 9 + 6 + 9, ("SCHEDULE", ""): 3, ("FAILOVER", "end"): 3}


def test_687_a_change_of_zookeepers_leader_sets_nothing_off(fleet: FaultFleet) -> None:
    fleet.start(2, session=6.0)
    before = registered(fleet)
    hold_all(fleet)
    leader = fleet.ensemble.leader()
    leader.kill()
    fleet.ensemble.leader()
    leader.start()
    fleet.ensemble.wait_serving()
    for slot in fleet.slots:
        states_told = states(slot.application.events("session"))
        if states_told:
            connected(slot)
    release_all(fleet)
    fire_and_wait(fleet)
    assert registered(fleet) == before
    assert counts(fleet) == {("SCHEDULE", "end"): 12}


def test_1471_an_instance_that_joins_at_a_fire_keeps_no_other_from_executing(fleet: FaultFleet) -> None:
    slots = fleet.start(2, session=SESSION, cron=EACH_SECOND, duration=0.15)
    began = time.time()
    third = fleet.slot(session=SESSION, cron=EACH_SECOND, duration=0.15)
    for _ in range(3):
        fleet.divide()
        third.kill_application()
        fleet.divide(slots)
        # Its instance is registered about when the others fire.
        time.sleep(1.0 - time.time() % 1.0)
        third.start_application()
    fleet.divide()
    ended = time.time()
    eventually(
        "later fires",
        lambda: all(max(s["scheduled"] for s in slot.application.events("start")) > ended + 1 for slot in slots),
    )
    fires = range(int(began) + 2, int(ended))
    judge = fleet.judge()
    assert not [str(problem) for problem in judge.missing(range(6), map(float, fires))]
    assert not judge.excused


def test_1549_an_instance_without_zookeeper_executes_no_items_of_others(fleet: FaultFleet) -> None:
    first, second = fleet.start(2, session=SESSION, cron=EACH_SECOND)
    first.link.hole("up")
    suspended_or_lost = ("SUSPENDED", "LOST")
    first.application.wait(
        "word", lambda events: [e for e in events if e["event"] == "session" and e["state"] in suspended_or_lost]
    )
    told = first.application.events("session")[0]["time"]
    wait_gone(fleet, first.application.instance)
    fleet.divide([second])
    held = len(second.application.events("start"))
    fleet.look("the other executes all", lambda: len(second.application.events("start")) >= held + 12)
    # What had been sent before is begun; nothing that was due later.
    late = [event for event in first.application.events("start") if event["time"] > told]
    assert not late
    first.link.heal()
    fleet.divide()


def test_1777_a_failover_does_not_wait_for_the_session(fleet: FaultFleet) -> None:
    first, second = fleet.start(2, session=30.0)
    hold_all(fleet)
    interrupted = set(first.application.owned())
    killed = now()
    first.kill_application()
    second.application.wait(
        "all taken over", lambda events: {e["item"] for e in events if e.get("source") == "FAILOVER"} == interrupted
    )
    # Far below the session; `make failover-time` measures how far.
    assert max(event["time"] for event in second.application.events("start")) - killed < 3.0
    second.application.command("release")


def test_1857_an_ensemble_that_comes_back_shuts_nothing_down(fleet: FaultFleet) -> None:
    fleet.start(2, session=SESSION)
    hold_all(fleet)
    fleet.ensemble.kill()
    for slot in fleet.slots:
        slot.application.wait("LOST", lambda events: "LOST" in states(events))
    fleet.ensemble.start()
    fleet.ensemble.wait_serving()
    for slot in fleet.slots:
        slot.application.command("release")
        connected(slot)
    fleet.divide(timeout=2 * PATIENCE)
    fire_and_wait(fleet)
    assert fleet.judge().cancels() == {"LEASE_LOST": 6}


def test_1979_a_deployment_interrupts_nothing(fleet: FaultFleet) -> None:
    slots = fleet.start(2, session=SESSION)
    hold_all(fleet)
    instance = slots[0].application.instance
    slots[0].application.popen.terminate()
    slots[1].sidecar.popen.terminate()
    fleet.ended += [slots[0].application, slots[1].sidecar]
    # Both would leave, and do not while something is executed.
    fleet.look("draining", lambda: "DRAINING" in told_log(slots[1]))
    assert instance in fleet.tree.children("instances")
    assert len(fleet.running()) == 6
    for slot in slots:
        slot.application.command("release")
    assert slots[0].application.popen.wait(PATIENCE) == 0
    assert slots[1].sidecar.popen.wait(PATIENCE) == 0
    fleet.look("nobody left", lambda: not fleet.tree.children("instances"))
    # The leader has asked for a resharding, and the next instance will make it.
    assert set(fleet.tree.leftovers()) <= {"leader/sharding/necessary"}
    assert counts(fleet) == {("SCHEDULE", "end"): 6}
    slots[0].start_application()
    slots[1].start_sidecar()
    fleet.divide()
    fire_and_wait(fleet)
    assert counts(fleet) == {("SCHEDULE", "end"): 12}


def told_log(slot: Slot) -> str:
    """Whether the application knows that its sidecar is stopping, as its client logs it."""
    return "DRAINING" if "is stopping" in slot.application.log.read_text() else ""


def test_2090_restarts_execute_nothing_outside_the_schedule(fleet: FaultFleet) -> None:
    slots = fleet.start(2, session=SESSION)
    fire_and_wait(fleet)
    slots[0].kill_application()
    fleet.divide(slots[1:])
    slots[0].start_application()
    fleet.divide()
    slots[1].kill_sidecar()
    slots[1].kill_application()
    fleet.divide(slots[:1])
    slots[1].start_sidecar()
    slots[1].start_application()
    fleet.divide()
    fire_and_wait(fleet)
    assert counts(fleet) == {("SCHEDULE", "end"): 12}


def test_2102_a_leader_is_elected_when_everybody_was_killed(fleet: FaultFleet) -> None:
    slots = fleet.start(2, session=SESSION)
    for slot in slots:
        slot.kill_sidecar()
        slot.kill_application()
    # Their nodes are still there: the leader's, and that of a candidate.
    client = fleet.ensemble.client()
    latch = fleet.tree.path("leader/election/latch")
    client.ensure_path(latch)
    client.create(f"{latch}/_c_00000000-0000-4000-8000-000000000000-latch-", ephemeral=True, sequence=True)
    assert fleet.tree.get("leader/election/instance")
    for slot in slots:
        slot.start_sidecar()
        slot.start_application()
    instances = {slot.application.instance for slot in slots}
    fleet.look("registered", lambda: instances <= set(fleet.tree.children("instances")))
    client.stop()
    client.close()
    fleet.look("elected", lambda: fleet.tree.get("leader/election/instance") in instances, timeout=SESSION + PATIENCE)
    fleet.divide()
    fire_and_wait(fleet)


def test_2161_a_restart_does_not_execute_again_what_was_completed(fleet: FaultFleet) -> None:
    # A busy machine costs a short session, and then items fail over. A sidecar that stops in peace ends its session itself.
    slots = fleet.start(2, session=4 * SESSION)
    fire_and_wait(fleet)
    for slot in slots:
        slot.stop_in_peace()
        slot.start_again()
        fleet.divide()
    fire_and_wait(fleet)
    assert counts(fleet) == {("SCHEDULE", "end"): 12}
    assert not fleet.tree.leftovers()


@pytest.mark.parametrize("what", ["a server restarts", "the process stands still"])
def test_2383_an_instance_whose_session_expired_comes_back(fleet: FaultFleet, what: str) -> None:
    first, _ = fleet.start(2, session=SESSION)
    instance = first.application.instance
    if what == "a server restarts":
        leader = fleet.ensemble.leader()
        first.link.cut()
        leader.kill()
        wait_gone(fleet, instance)
        leader.start()
        first.link.heal()
    else:
        first.sidecar.freeze()
        first.application.freeze()
        wait_gone(fleet, instance)
        first.application.thaw()
        first.sidecar.thaw()
    fleet.divide(timeout=2 * PATIENCE)
    fire_and_wait(fleet)
    assert counts(fleet) == {("SCHEDULE", "end"): 6}


def test_2403_many_that_come_back_together_ask_little(fleet: FaultFleet) -> None:
    """A Java instance reads each node of each job twice when its connection is back: here, more than 200 requests."""
    items = 50
    slots = fleet.start(4, session=20.0, sharding_total_count=items)
    nodes = len(fleet.tree.nodes())
    assert nodes > 2 * items
    before = fleet.ensemble.packets_received()
    for slot in slots:
        slot.link.reset()
    for slot in slots:
        connected(slot)
    # The executing instance has its view again.
    hold_all(fleet)
    cost = fleet.ensemble.packets_received() - before
    release_all(fleet)
    assert cost / len(slots) < REQUESTS_TO_COME_BACK, (cost, nodes)


def test_2473_a_handler_learns_that_it_is_interrupted(fleet: FaultFleet) -> None:
    first, second = fleet.start(2, session=SESSION, options=["--drain-timeout", "500ms"])
    hold_all(fleet)
    mine = first.application.owned()
    first.sidecar.popen.terminate()
    fleet.ended.append(first.sidecar)
    fleet.look("told", lambda: sorted(e["item"] for e in first.application.events("cancelled")) == mine)
    assert {event["reason"] for event in first.application.events("cancelled")} == {"DRAIN_TIMEOUT"}
    assert first.sidecar.popen.wait(PATIENCE) == 0
    second.application.command("release")
    fleet.divide([second])
    first.application.command("release")
    first.start_sidecar()
    fleet.divide()
    fire_and_wait(fleet)
