"""A fire of many items, which takes several transactions of each sidecar; and what a machine that died had missed."""

from __future__ import annotations

from faults.fleet import FaultFleet
from support.job_nodes import JOB
from support.processes import PATIENCE
from support.znodes import children

#: Each of two sidecars starts its half with at least two transactions.
ITEMS = 1_200


def test_a_machine_dies_between_the_transactions_of_a_fire(fleet: FaultFleet) -> None:
    """What has begun is executed again for its instant, what has not is re-run, and nothing is executed twice at once."""
    # On a busy machine an application that begins hundreds of executions reads nothing for seconds. If its lease ends
    # meanwhile, it fails the executions that it has, and no instance executes them again.
    slots = fleet.start(2, session=12.0, sharding_total_count=ITEMS, duration=0.1)
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

    # A busy machine needs a while for these executions, each with several lines in a journal.
    fleet.look("all executed", lambda: len(done()) == ITEMS, 8 * PATIENCE)
    fleet.look("all recorded", lambda: not fleet.running(), 8 * PATIENCE)
    judge = fleet.judge()
    problems = [*judge.once(), *judge.missing(range(ITEMS), [fire]), *judge.redone(range(ITEMS))]
    assert not problems, "\n".join(map(str, problems[:10]))
    assert judge.sources()["MISFIRE"] > 0
    assert other.application.instance in fleet.tree.children("instances")


def test_p5_what_a_machine_had_missed_when_it_died_is_re_run_by_one_that_came_later(fleet: FaultFleet) -> None:
    """The items were busy at the fire, so it has a witness and no flags. The newcomer learns of it from that only."""
    items = range(6)
    [dead] = fleet.start(1, session=3.0, sharding_total_count=len(items), duration=0.0)
    dead.application.command("hold")
    fires = [fleet.fire()]
    fleet.look("all begun", lambda: len(dead.application.events("start")) == len(items))
    fires.append(fleet.fire())
    ledger = f"{fleet.tree.namespace}-sidekeeper/{JOB}/fires"
    fleet.look(
        "the witness", lambda: [name for name in children(fleet.tree.client, ledger) if name.startswith("witness-")]
    )
    assert not [path for path in fleet.tree.leftovers() if path.endswith("/misfire")]
    dead.die()
    newcomer = fleet.slot(session=3.0, sharding_total_count=len(items), duration=0.0)
    fleet.look(
        "all begun again, and re-run",
        lambda: (
            {(event["source"], event["item"]) for event in newcomer.application.events("start")}
            >= {(source, item) for source in ("FAILOVER", "MISFIRE") for item in items}
        ),
        2 * PATIENCE,
    )
    fleet.look("all recorded", lambda: not fleet.running())
    judge = fleet.judge()
    assert not [*judge.once(), *judge.missing(items, fires), *judge.redone(items), *judge.instants()]
    assert judge.sources() == {"SCHEDULE": 6, "FAILOVER": 6, "MISFIRE": 6}
