"""Nodes of ZooKeeper, read by a client of the test's own while others create and delete them."""

from __future__ import annotations

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError


def data(client: KazooClient, path: str) -> str | None:
    """A node's data. None: the node does not exist."""
    try:
        return client.get(path)[0].decode()
    except NoNodeError:
        return None


def children(client: KazooClient, path: str) -> list[str]:
    """The names of a node's children, sorted. Empty, too, if the node does not exist."""
    try:
        return sorted(client.get_children(path))
    except NoNodeError:
        return []
