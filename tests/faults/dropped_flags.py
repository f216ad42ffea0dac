"""Flags of interrupted items that a sidecar of the previous release has deleted without a takeover.

A sidecar of the previous release takes a flag that an instance sets while it leaves for a late flag of a Java instance, if it
sees the flag before it sees the departure, and deletes it. No instance executes the interrupted item again then. This version
waits until all changes of that transaction have been seen (`coordination/job/failover/late_flags.rs`). In a fleet of two
versions nothing can protect an item from that, so the judge excuses exactly the items whose flags were deleted so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import groupby
from pathlib import Path

from interop.transaction_log import Change, changes


def dropped_flags(log: Iterable[Change], sessions: Collection[int]) -> list[tuple[int, float]]:
    """The items whose flags one of these sessions has deleted without a takeover, and when; wall clock.

    `log`: the changes of one job, in the order of their transactions.
    """
    found = []
    for _, group in groupby(log, key=lambda change: change.zxid):
        transaction = list(group)
        for change in transaction:
            folder, _, item = change.path.rpartition("/")
            if (
                change.data is not None
                or change.session not in sessions
                or not folder.endswith("/leader/failover/items")
            ):
                continue
            taken = f"{folder.removesuffix('/leader/failover/items')}/sharding/{item}/failover"
            if not any(other.path == taken and other.data is not None for other in transaction):
                found.append((int(item), change.time))
    return found


def of_servers(folders: Iterable[Path], job: str) -> list[Change]:
    """The changes of a job's nodes that any server has in its log, each transaction once and in their order."""
    found: dict[int, list[Change]] = {}
    for folder in folders:
        for zxid, group in groupby(changes(folder, job), key=lambda change: change.zxid):
            found.setdefault(zxid, list(group))
    return [change for zxid in sorted(found) for change in found[zxid]]
