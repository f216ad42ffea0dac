"""A fire of many items, which takes several transactions of each sidecar."""

from __future__ import annotations

from faults.fleet import FaultFleet

#: Each of two sidecars starts its half with at least two transactions.
ITEMS = 2_000


def test_a_machine_dies_between_the_transactions_of_a_fire(fleet: FaultFleet) -> None:
    """What has begun is executed again for its instant, what has not is re-run, and nothing is executed twice at once."""
    slots = fleet.start(2, session=3.0, sharding_total_count=ITEMS, duration=0.05)
    dead, other = slots
    fire = fleet.fire()
    fleet.look("the first executions", lambda: dead.application.events("start"))
    dead.kill_sidecar()
    dead.kill_application()
    begun = {event["item"] for event in dead.application.events("start")}
    assert len(begun) < ITEMS // 2

    def done() -> set[int]:
        events = [event for slot in slots for event in slot.application.events("end")]
        return {event["item"] for event in events}

    fleet.look("all executed", lambda: len(done()) == ITEMS)
    fleet.look("all recorded", lambda: not fleet.running())
    judge = fleet.judge()
    problems = [*judge.once(), *judge.missing(range(ITEMS), [fire]), *judge.redone(range(ITEMS))]
    assert not problems, "\n".join(map(str, problems[:10]))
    assert judge.sources()["MISFIRE"] > 0
    assert other.application.instance in fleet.tree.children("instances")
