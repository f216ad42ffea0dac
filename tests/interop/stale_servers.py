"""Servers without instances, on a real ZooKeeper and beside an instance of ElasticJob (`make stale-servers`): the shortest time is ten minutes.

A leader of ours removes the node of a server that has had no instance for the time of `sidekeeper.stale-servers`. While Java instances are
online it does so only with `sidekeeper.stale-servers-beside-java`.
"""

from __future__ import annotations

import time

from interop.members import Java, MixedFleet
from support.processes import eventually

TIME = 600.0
#: How much later than its time a server may be gone.
LATE = 60.0

#: The servers of the instances that leave first, but for the one that is disabled.
STALE = {"10.0.0.2", "10.0.1.2"}


def servers(fleet: MixedFleet) -> dict[str, str | None]:
    """The servers of the job, and what their nodes say."""
    return {server: fleet.tree.get(f"servers/{server}") for server in fleet.tree.children("servers")}


def beside(fleet: MixedFleet, beside_java: bool) -> tuple[Java, dict[str, str | None]]:
    """One instance of ours, which leads, and one of Java, after others have left; and the servers."""
    props = {"sidekeeper.stale-servers": "10m", "sidekeeper.stale-servers-beside-java": str(beside_java).lower()}
    ours, java = fleet.ours(1, props=props), fleet.java(1, props=props)
    fleet.assert_leads(ours)
    leaving = [fleet.ours(2, props=props), fleet.ours(3, props=props), fleet.java(2, props=props)]
    fleet.divide(ours, java, *leaving)
    for one in leaving:
        one.leave()
        fleet.gone(one)
    fleet.tree.set(f"servers/{leaving[1].address}", "DISABLED")
    fleet.divide(ours, java)
    before = servers(fleet)
    assert set(before) == {one.address for one in (ours, java, *leaving)} > STALE
    return java, before


def without(before: dict[str, str | None], gone: set[str]) -> dict[str, str | None]:
    return {server: state for server, state in before.items() if server not in gone}


def test_beside_java_servers_without_instances_are_removed_if_the_job_asks_for_it(fleet: MixedFleet) -> None:
    _, before = beside(fleet, beside_java=True)
    eventually("the stale servers are gone", lambda: not STALE & set(servers(fleet)), TIME + LATE)
    assert servers(fleet) == without(before, STALE)
    fleet.assert_once(fleet.fire())
    assert not fleet.tree.leftovers()


def test_beside_java_no_server_is_removed_otherwise_until_the_java_instance_has_left(fleet: MixedFleet) -> None:
    java, before = beside(fleet, beside_java=False)
    end = time.monotonic() + TIME + LATE

    def is_over() -> bool:
        assert servers(fleet) == before
        return time.monotonic() > end

    eventually("the time is over", is_over, TIME + 2 * LATE)
    java.leave()
    # The time begins now, for its server, too.
    gone = STALE | {java.address}
    eventually("the stale servers are gone", lambda: not gone & set(servers(fleet)), TIME + LATE)
    assert servers(fleet) == without(before, gone)
