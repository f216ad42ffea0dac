"""A sidecar whose server is cut off from the others cancels executions before ZooKeeper gives their items
away, though that server goes on answering (P4).

What a read proves, or a `sync`, is measured by `make session-proof`.
"""

from __future__ import annotations

import pytest

from faults.ensemble import Ensemble, Server
from faults.fleet import FaultFleet, Slot
from support.processes import eventually

#: How long ZooKeeper waits for word from a sidecar, in seconds: a server that is cut off notices it after three
#: of them.
SESSION = 4.0


def check_told_in_time(fleet: FaultFleet, first: Slot, second: Slot, server: Server, noticed: bool | None) -> None:
    """Cuts a server off, with the first slot on its side. `noticed`: see `Ensemble.cut_off`; `None`: from the leader
    only."""
    fleet.part(first, server)
    for slot in (first, second):
        slot.application.command("hold")
    fleet.fire()
    fleet.look_executing(fleet.slots)
    mine = first.application.owned()
    sessions = {session.session for session in first.sessions()}
    if noticed is None:
        fleet.ensemble.cut(server, fleet.ensemble.leader())
    else:
        fleet.ensemble.cut_off(server, noticed)
    ended = fleet.ensemble.wait_expired(sessions, 4 * SESSION)
    eventually("told to stop", lambda: sorted(event["item"] for event in first.application.events("cancelled")) == mine)
    told = first.application.events("cancelled")
    assert {event["reason"] for event in told} == {"LEASE_LOST"}
    late = [event["wall"] - ended for event in told if event["wall"] >= ended]
    assert not late, f"told {max(late):.2f} s after the session had been ended"
    fleet.look("taken over", lambda: second.application.executing() == set(range(6)))
    begun = min(event["time"] for event in second.application.events("start") if event["item"] in mine)
    assert max(event["time"] for event in told) < begun
    fleet.ensemble.heal()
    first.link.all_again()
    for slot in (first, second):
        slot.application.command("release")
    fleet.divide()


def test_59_a_sidecar_at_a_follower_that_is_cut_off_stops_in_time(fleet: FaultFleet, ensemble: Ensemble) -> None:
    first, second = fleet.start(2, session=SESSION)
    check_told_in_time(fleet, first, second, ensemble.follower(), None)


@pytest.mark.parametrize("noticed", [True, False], ids=["the followers notice at once", "the followers hear nothing"])
def test_60_a_sidecar_at_a_leader_that_is_cut_off_stops_in_time(
    fleet: FaultFleet, ensemble: Ensemble, noticed: bool
) -> None:
    first, second = fleet.start(2, session=SESSION)
    check_told_in_time(fleet, first, second, ensemble.leader(), noticed)
