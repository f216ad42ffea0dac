"""Changes on purpose, which are most changes: no execution may notice them."""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from dataclasses import dataclass

from faults.ensemble import now
from faults.fleet import FaultFleet, Slot
from faults.judge import Judge
from support.job_nodes import EACH_SECOND, NEVER
from support.processes import eventually

ITEMS = 50
SLOTS = 5


@dataclass(frozen=True)
class Change:
    """A slot leaves or comes back."""

    slot: int
    leaves: bool
    since: float
    #: When the present instances owned the items evenly.
    until: float


def test_the_ensemble_changes_its_leader(fleet: FaultFleet) -> None:
    """Twenty items are being executed: none is cancelled, none moves, none is failed over."""
    items = 20
    slots = fleet.start(3, session=6.0, sharding_total_count=items)
    for slot in slots:
        slot.application.command("hold")
    owners = created(fleet, items)
    fire = fleet.fire()
    everything = set(range(items))
    fleet.look("all executed", lambda: fleet.executing() == everything)
    leader = fleet.ensemble.leader()
    leader.kill()
    fleet.ensemble.leader()
    running = {item: slot.application.instance for slot in slots for item in slot.application.executing()}
    assert set(running) == everything
    fleet.look("the same running nodes", lambda: fleet.running() == running)
    leader.start()
    fleet.ensemble.wait_serving()
    # Results are recorded only when the sidecars are connected again.
    for slot in slots:
        slot.application.command("release")
    fleet.look("all recorded", lambda: not fleet.running())
    judge = fleet.judge()
    assert sorted((one.item, one.source, one.outcome, one.scheduled) for one in judge.executions) == [
        (item, "SCHEDULE", "end", fire) for item in range(items)
    ]
    assert created(fleet, items) == owners
    assert not judge.cancels()


def created(fleet: FaultFleet, items: int) -> list[int]:
    """The transactions that gave each item to its owner."""
    tree = fleet.tree
    return [tree.client.get(tree.path(f"sharding/{item}/instance"))[1].czxid for item in range(items)]


def test_five_sidecars_are_restarted_one_after_the_other(fleet: FaultFleet) -> None:
    """Fifty items fire each second for 300 ms: none is interrupted, none is executed twice for one fire, none is lost,
    and none moves but with its owner: away when that leaves, back when it is there again."""
    slots = fleet.start(SLOTS, session=6.0, sharding_total_count=ITEMS, cron=EACH_SECOND, duration=0.3, failover=True)
    wait_fire(fleet)
    began = time.time()
    changes: list[Change] = []
    for slot in slots:
        since = now()
        slot.stop_in_peace()
        fleet.divide([other for other in slots if other is not slot])
        changes.append(Change(slot.number, leaves=True, since=since, until=now()))
        wait_fire(fleet)
        since = now()
        slot.start_again()
        fleet.divide(slots)
        changes.append(Change(slot.number, leaves=False, since=since, until=now()))
        wait_fire(fleet)
    ended = time.time()
    wait_fire(fleet, ended + 1.0)
    fleet.tree.configure(cron=NEVER)
    fleet.look("all recorded", lambda: not fleet.executing() and not fleet.running())
    judge = fleet.judge()
    fires = [float(second) for second in range(int(began) + 1, int(ended))]
    problems = [
        str(one) for one in judge.executions if one.outcome != "end" or one.source not in ("SCHEDULE", "MISFIRE")
    ]
    problems += map(str, [*judge.once(), *judge.missing(range(ITEMS), fires)])
    problems += moves_beyond(judge, began, changes)
    assert not problems, "\n".join(problems)
    assert not judge.excused


def test_five_sidecars_with_names_are_restarted_and_no_item_moves(fleet: FaultFleet) -> None:
    """As before, but each instance has a name, and its items are reserved for it: no item moves, and no resharding happens."""
    slots = fleet.start(
        SLOTS,
        named=True,
        session=6.0,
        sharding_total_count=ITEMS,
        cron=EACH_SECOND,
        duration=0.3,
        failover=True,
        props={"sidekeeper.grace": "60s"},
    )
    wait_fire(fleet)
    owners = fleet.tree.owners()
    divided = fleet.tree.client.get(fleet.tree.path("leader/sharding"))[1].version
    began = time.time()
    for slot in slots:
        away = slot.application.instance
        slot.stop_in_peace()
        assert away not in fleet.tree.children("instances")
        others = {item for item, owner in owners.items() if owner != away}
        wait_fire(fleet, items=others)
        assert fleet.tree.owners() == owners
        slot.start_again()
        whole(fleet, slots)
        wait_fire(fleet)
        assert fleet.tree.owners() == owners
    ended = time.time()
    wait_fire(fleet, ended + 1.0)
    fleet.tree.configure(cron=NEVER)
    fleet.look("all recorded", lambda: not fleet.executing() and not fleet.running())
    judge = fleet.judge()
    fires = [float(second) for second in range(int(began) + 1, int(ended))]
    problems = [
        str(one) for one in judge.executions if one.outcome != "end" or one.source not in ("SCHEDULE", "MISFIRE")
    ]
    problems += map(str, [*judge.once(), *judge.missing(range(ITEMS), fires)])
    problems += [
        f"item {item} moved from slot {one.application.slot} to {other.application.slot}"
        for item in range(ITEMS)
        for one, other in zip(judge.of(item), judge.of(item)[1:])
        if one.start_wall > began and one.application.slot != other.application.slot
    ]
    assert not problems, "\n".join(problems)
    assert not judge.excused
    assert fleet.tree.client.get(fleet.tree.path("leader/sharding"))[1].version == divided


def test_a_machine_that_dies_is_waited_for_and_its_items_go_in_the_end(fleet: FaultFleet) -> None:
    """What it executed is taken over at once; what it owns is when it is back, or when the grace is over."""
    items = 9
    slots = fleet.start(
        3,
        named=True,
        session=3.0,
        sharding_total_count=items,
        duration=0.3,
        failover=True,
        props={"sidekeeper.grace": "8s"},
    )
    owners = fleet.tree.owners()
    dead = slots[1]
    mine = {item for item, owner in owners.items() if owner == dead.application.instance}
    dead.application.command("hold")
    fleet.fire()
    fleet.look("held", lambda: dead.application.executing() == mine)
    kill(dead)
    others = [slot for slot in slots if slot is not dead]

    def taken() -> set[int]:
        events = [event for slot in others for event in slot.application.events("start")]
        return {event["item"] for event in events if event["source"] == "FAILOVER"}

    fleet.look("taken over", lambda: taken() == mine)
    assert fleet.tree.owners() == owners
    dead.start_again()
    whole(fleet, slots, items)
    assert fleet.tree.owners() == owners
    # The leader, this time; and it stays away.
    leader = next(slot for slot in slots if slot.application.instance == fleet.tree.get("leader/election/instance"))
    kill(leader)
    rest = [slot for slot in slots if slot is not leader]
    fleet.look("gone", lambda: len(fleet.tree.children("instances")) == 2)
    assert fleet.tree.owners() == owners
    whole(fleet, rest, items)
    assert {len(slot.application.owned()) for slot in rest} == {4, 5}
    assert not fleet.tree.leftovers()


def kill(slot: Slot) -> None:
    """The machine dies, with both processes."""
    slot.kill_application()
    slot.kill_sidecar()


def whole(fleet: FaultFleet, slots: Sequence[Slot], items: int = ITEMS) -> None:
    """Waits until each item belongs to an instance that is there, and knows it."""

    def owned() -> bool:
        owners = fleet.tree.owners()
        shares = [(slot.application.instance, slot.application.owned()) for slot in slots]
        told = {item: instance for instance, share in shares for item in share}
        return len(told) == items and told == owners and fleet.tree.get("leader/sharding/necessary") is None

    fleet.look("each item has an owner", owned)


def wait_fire(fleet: FaultFleet, after: float = 0.0, items: Container[int] = range(ITEMS)) -> None:
    """Waits until these items have been executed for one fire that is still to come, or for one after an instant."""
    wanted = {item for item in range(ITEMS) if item in items}
    fire = float(int(max(after, time.time())) + 1)

    def executed() -> bool:
        done = {
            event["item"]
            for application in fleet.applications
            for event in application.events("start")
            if event["scheduled"] >= fire
        }
        return wanted <= done

    eventually(f"all items executed for {fire:.0f}", executed)


def moves_beyond(judge: Judge, began: float, changes: Sequence[Change]) -> list[str]:
    """Items that have moved although their owner did not leave, nor had the one come back that they were taken from."""
    found = []
    for item in range(ITEMS):
        executions = judge.of(item)
        earlier = sum(one.start_wall < began for one in executions)
        # Begins with the last one before: it has the item's owner.
        executions = executions[max(0, earlier - 1) :]
        #: Slots that the item has left when they went away.
        left: set[int] = set()
        for one, other in zip(executions, executions[1:]):
            old, new = one.application.slot, other.application.slot
            if old == new:
                continue
            meanwhile = [change for change in changes if change.since < other.start and one.start < change.until]
            if any(change.leaves and change.slot == old for change in meanwhile):
                left.add(old)
            elif new in left and any(not change.leaves and change.slot == new for change in meanwhile):
                left.discard(new)
            else:
                found.append(f"item {item} moved from slot {old} to {new}: {one} -> {other}")
    return found
