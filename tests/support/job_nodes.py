"""The nodes of one job in ZooKeeper, read and written by a client of the test's own."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

import yaml
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from support import znodes

JOB = "orderSync"

#: A schedule that never fires while a test runs.
NEVER = "0 0 0 1 1 ? 2099"
EACH_SECOND = "* * * * * ?"

#: Nodes that exist only during an execution, a takeover, an election, a resharding, a trigger or a barrier's round.
PASSING = re.compile(
    r"sharding/\d+/(running|misfire|failover|failovering)|leader/(failover/items|[a-z]+/latch|trigger)/.+|"
    r"leader/sharding/(necessary|processing)|guarantee/.+/.+|trigger/.+"
)


class Tree:
    """One job's nodes in ZooKeeper."""

    def __init__(self, client: KazooClient, namespace: str):
        self.client = client
        self.namespace = f"/{namespace}"
        self.root = f"{self.namespace}/{JOB}"

    def path(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def get(self, path: str) -> str | None:
        """A node's data. None: the node does not exist."""
        return znodes.data(self.client, self.path(path))

    def version(self, path: str) -> int:
        """How often the node has been set since its creation."""
        return int(self.client.get(self.path(path))[1].version)

    def children(self, path: str) -> list[str]:
        return znodes.children(self.client, self.path(path))

    def create(self, path: str, data: str = "") -> None:
        self.client.create(self.path(path), data.encode(), makepath=True)

    def set(self, path: str, data: str) -> None:
        self.client.set(self.path(path), data.encode())

    def delete(self, path: str) -> None:
        self.client.delete(self.path(path))

    def configure(self, **settings: Any) -> None:
        """Changes settings of the job's configuration, named as in YAML, as ElasticJob's console does."""
        configuration = yaml.safe_load(self.get("config") or "")
        self.set("config", yaml.safe_dump({**configuration, **settings}))

    def fire_once(self, ahead: float = 3.0) -> float:
        """Gives the job a schedule that fires once, soon. Returns the time of the fire.

        The fire is `ahead` seconds away, or up to one second less: by then all instances have seen the change. The
        schedule has a second fire far in the future, because a Java instance whose schedule has ended accepts no other
        schedule.
        """
        at = (datetime.now(timezone.utc) + timedelta(seconds=ahead)).replace(microsecond=0)
        self.configure(cron=f"{at.second} {at.minute} {at.hour} {at.day} {at.month} ? {at.year},2099")
        return at.timestamp()

    def owners(self) -> dict[int, str]:
        """The owner of each item that has one."""
        owners = {item: self.get(f"sharding/{item}/instance") for item in map(int, self.children("sharding"))}
        return {item: owner for item, owner in owners.items() if owner is not None}

    def leftovers(self) -> list[str]:
        """Nodes that exist only while something happens."""
        return [path for path in self.nodes() if PASSING.fullmatch(path)]

    def is_handing_over(self) -> bool:
        """Whether a handoff is in progress. The counts may be even before it ends: an instance that ranks first still
        gets the item that another instance owns beyond an equal share."""
        return self.client.exists(f"{self.namespace}-sidekeeper/{JOB}/fleet/handoff") is not None

    def nodes(self) -> dict[str, tuple[str, int]]:
        """All nodes of the job: from the path below the job's root to data and ephemeral owner (0: persistent)."""
        nodes: dict[str, tuple[str, int]] = {}

        def walk(path: str) -> None:
            try:
                data, stat = self.client.get(self.path(path))
                nodes[path] = (data.decode(), stat.ephemeralOwner)
                children = self.client.get_children(self.path(path))
            except NoNodeError:
                return
            for child in children:
                walk(f"{path}/{child}" if path else child)

        walk("")
        return nodes
