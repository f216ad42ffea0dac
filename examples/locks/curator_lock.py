"""A kazoo lock that stands in one queue with Curator, go-zookeeper and sidecars.

kazoo's own `Lock` excludes nobody but other kazoo programs (docs/locks.md). A program that has the Sidekeeper client
needs neither: it uses its sidecar.
"""

from kazoo.recipe.lock import Lock


class CuratorLock(Lock):
    """A lock whose nodes have Curator's names. It uses names of kazoo that are private: kazoo 2.8 or newer."""

    _NODE_NAME = "lock-"
    _EXCLUDE_NAMES = ["lock-", "__lock__"]
