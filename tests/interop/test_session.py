"""Sessions end, ZooKeeper restarts, nodes vanish."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from interop.members import LEADERS, TOTAL, MixedFleet, elasticjob_version
from support.job_nodes import JOB
from support.processes import eventually, executing

KINDS = ["java", "ours"]


@pytest.mark.parametrize("leader", LEADERS)
@pytest.mark.parametrize("frozen", KINDS)
def test_an_instance_is_stopped_for_longer_than_its_session(fleet: MixedFleet, leader: str, frozen: str) -> None:
    java, ours = fleet.pair(leader)
    asleep, awake = (java, ours) if frozen == "java" else (ours, java)
    asleep.freeze()
    fleet.gone(asleep)
    fleet.assert_leads(awake)
    fleet.divide(awake)
    asleep.thaw()
    eventually("two instances again", lambda: len(fleet.tree.children("instances")) == 2)
    fleet.divide(java, ours)
    fleet.assert_once(fleet.fire())
    fleet.assert_clean()


@pytest.mark.parametrize("frozen", KINDS)
def test_an_instance_is_stopped_while_it_executes(fleet: MixedFleet, frozen: str) -> None:
    """With failover the other instance executes its items. Our stopped instance gets a Cancel, a Java one does not (H31)."""
    java, ours = fleet.pair("java" if frozen == "ours" else "ours", failover=True)
    asleep, _awake = (java, ours) if frozen == "java" else (ours, java)
    items = fleet.items_of(asleep)
    asleep.command("hold")
    fire = fleet.start_fire()
    fleet.wait_running(asleep, items)
    eventually("the others executed", lambda: len(fleet.executed(fire)) == TOTAL - len(items))
    asleep.freeze()
    fleet.gone(asleep)
    eventually("taken over", lambda: fleet.executed(fire) == set(range(TOTAL)))
    asleep.thaw()
    if frozen == "ours":
        asleep.wait("its executions cancelled", lambda events: not executing(events))
        assert {one.outcome for one in fleet.told(fire) if one.member == asleep.name} == {"cancelled"}
    asleep.command("release")
    if frozen == "java":
        eventually("over", lambda: not executing(asleep.events("start", "end")))
    eventually("two instances again", lambda: len(fleet.tree.children("instances")) == 2)
    fleet.divide(java, ours)
    fleet.assert_once(fleet.fire())
    fleet.assert_clean()


@pytest.mark.parametrize("failover", [False, True])
def test_zookeeper_restarts_within_a_second(
    fleet: MixedFleet, failover: bool, record_property: Callable[[str, object], None]
) -> None:
    """Java erases its own running nodes, and its instance for a moment (H2, H3): we neither do nor fall for it."""
    # A busy machine takes some seconds to start the server; the lease of the session has to last as long.
    java, ours = fleet.pair("ours", session=20.0, failover=failover)
    instance = ours.instance
    for member in (java, ours):
        member.command("hold")
    fire = fleet.start_fire()
    items = {member.name: fleet.items_of(member) for member in (java, ours)}
    for member in (java, ours):
        fleet.wait_running(member, items[member.name])
    running = {item: fleet.tree.nodes()[f"sharding/{item}/running"] for item in items[ours.name]}
    registered = fleet.tree.client.get(fleet.tree.path(f"instances/{java.instance}"))[1].czxid
    fleet.server.restart(away=0.5)
    eventually("connected", lambda: fleet.tree.client.connected)
    eventually(
        "Java has registered again",
        lambda: (
            (stat := fleet.tree.client.exists(fleet.tree.path(f"instances/{java.instance}")))
            and stat.czxid > registered
        ),
    )
    # Ours has kept its registration and its running nodes.
    assert instance in fleet.tree.children("instances")
    assert {item: fleet.tree.nodes().get(f"sharding/{item}/running") for item in items[ours.name]} == running
    for member in (java, ours):
        member.command("release")
    eventually("all executed", lambda: fleet.executed(fire) == set(range(TOTAL)))
    fleet.divide(java, ours)
    last = fleet.fire()
    fleet.assert_once(last)
    ours_counts = [one.item for one in fleet.told(fire) if not one.java and one.item in items[ours.name]]
    assert sorted(ours_counts) == items[ours.name]
    record_property("executions of the interrupted fire", str(fleet.counts(fire)))
    fleet.assert_clean()


def test_servers_without_instances_when_java_starts(fleet: MixedFleet) -> None:
    """Java 3.0.5 removes them, older versions leave them. A server that comes back has its own again."""
    first = fleet.ours(1)
    second = fleet.ours(2)
    fleet.divide(first, second)
    second.leave()
    fleet.gone(second)
    assert fleet.tree.children("servers") == ["10.0.0.1", "10.0.0.2"]
    java = fleet.java(1)
    kept = [] if elasticjob_version() >= (3, 0, 5) else ["10.0.0.2"]
    eventually("the servers", lambda: fleet.tree.children("servers") == ["10.0.0.1", *kept, "10.0.1.1"])
    back = fleet.ours(2)
    fleet.divide(first, java, back, total=TOTAL)
    fleet.assert_once(fleet.fire())


@pytest.mark.parametrize("leader", LEADERS)
def test_our_server_node_comes_back(fleet: MixedFleet, leader: str) -> None:
    """A Java instance that starts can delete the node of a server that is just registering (H16)."""
    java, ours = fleet.pair(leader)
    fleet.tree.delete(f"servers/{ours.address}")
    eventually("back", lambda: fleet.tree.get(f"servers/{ours.address}") == "ENABLED")
    fleet.divide(java, ours)
    fleet.assert_once(fleet.fire())
    assert fleet.tree.client.get_children(fleet.tree.namespace) == [JOB]
