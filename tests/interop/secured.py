"""A fleet of Java instances and ours on a server that authenticates them: the tour for each kind of credentials."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kazoo.exceptions import NoNodeError

from interop.members import MixedFleet
from support.fleet import ending
from support.job_nodes import JOB
from support.processes import PATIENCE, eventually, sidekeeper_binary
from support.zookeeper import ZooKeeperServer

#: The super user: it may read and change all nodes.
SUPER = "super:secret"


def digest_of(text: str) -> str:
    user = text.split(":")[0]
    return f"{user}:{base64.b64encode(hashlib.sha1(text.encode()).digest()).decode()}"


def super_user() -> str:
    """The option of a server's JVM that lets the super user in."""
    return f"-Dzookeeper.DigestAuthenticationProvider.superDigest={digest_of(SUPER)}"


@dataclass
class Access:
    """How the members of a fleet show themselves."""

    #: The entries of the access list that a Java instance gives its nodes.
    acl: set[str]
    tls: bool = False
    java_settings: dict[str, str] = field(default_factory=dict)
    java_options: list[str] = field(default_factory=list)
    sidecar_options: list[str] = field(default_factory=list)


@contextmanager
def fleet_on(
    server: ZooKeeperServer, wanted: Access, folder: Path, node: pytest.Item, has_failed: Callable[[], bool]
) -> Iterator[MixedFleet]:
    """A fleet whose members show themselves like that to the server at its address."""
    client = server.client([("digest", SUPER)])
    namespace = f"secure-{node.name.split('[')[1].rstrip(']')}"
    fleet = MixedFleet(folder, server, client, namespace)
    # The first handshake of a JVM takes seconds.
    fleet.java_settings = {"max_sleep": 5_000, **wanted.java_settings}
    fleet.java_options = wanted.java_options
    fleet.sidecar_options = wanted.sidecar_options
    with ending(fleet, node, has_failed):
        yield fleet
    client.stop()
    client.close()


def attach_reshard_fail_over_and_trigger(fleet: MixedFleet, wanted: Access, leader: str) -> None:
    """The tour."""
    java, ours = fleet.pair(leader, failover=True)
    fleet.assert_once(fleet.fire())
    assert owners_of_nodes(fleet) == {frozenset(wanted.acl)}
    # Another instance of ours joins.
    third = fleet.ours(2, failover=True)
    fleet.divide(java, ours, third)
    fleet.fire()
    # A trigger through the sidecar: each instance executes its items once.
    before = len(fleet.executions())
    command = [str(sidekeeper_binary()), "trigger", JOB, "--endpoint", f"unix://{ours.sidecar.socket}"]
    subprocess.run(command, check=True, timeout=PATIENCE)
    eventually("the trigger", lambda: len([one for one in fleet.executions() if one.outcome == "end"]) >= before + 4)
    # The Java instance dies, and then one of ours: the others execute their items.
    for dying in (java, third):
        items = fleet.items_of(dying)
        dying.command("hold")
        fire = fleet.start_fire()
        fleet.wait_running(dying, items)
        dying.die()
        eventually("taken over", lambda fire=fire: fleet.executed(fire) == {0, 1, 2, 3})  # type: ignore[misc]
        fleet.gone(dying)
        if dying is java:
            fleet.divide(ours, third)
    assert owners_of_nodes(fleet) == {frozenset(wanted.acl)}


def owners_of_nodes(fleet: MixedFleet) -> set[frozenset[str]]:
    """The access lists of all nodes of the job, and of ours beside the namespace."""
    client, found = fleet.tree.client, set()

    def walk(path: str) -> None:
        try:
            acls, _ = client.get_acls(path)
            children = client.get_children(path)
        except NoNodeError:
            # An execution has ended meanwhile, or a leader has resharded.
            return
        found.add(frozenset(_owner(acl.id.scheme, acl.id.id) for acl in acls if acl.perms == 31))
        for child in children:
            walk(f"{path}/{child}")

    walk(fleet.tree.root)
    walk(f"{fleet.tree.namespace}-sidekeeper")
    return found


def _owner(scheme: str, identity: str) -> str:
    return identity if scheme == "digest" else f"{scheme}:{identity}"
