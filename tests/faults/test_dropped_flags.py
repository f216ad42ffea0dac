"""Which flags of interrupted items were deleted without a takeover, by ZooKeeper's log."""

from __future__ import annotations

from pathlib import Path

from faults.dropped_flags import dropped_flags, of_servers
from interop.transaction_log import Change
from support.zookeeper import ZooKeeperServer

JOB = "/ns/orderSync"
FLAG = f"{JOB}/leader/failover/items/3"
TAKEN = f"{JOB}/sharding/3/failover"


def test_only_a_deletion_without_a_takeover_by_one_of_the_sessions_counts() -> None:
    log = [
        Change(1, 1.0, FLAG, "", session=7),
        Change(2, 2.0, TAKEN, "10.0.0.1", session=7),
        Change(2, 2.0, FLAG, None, session=7),
        Change(3, 3.0, FLAG, "", session=7),
        Change(4, 4.0, FLAG, None, session=8),
        Change(5, 5.0, FLAG, "", session=7),
        Change(6, 6.0, f"{JOB}/leader/failover/items", None, session=7),
        Change(7, 7.0, FLAG, None, session=7),
        # A guard: created and deleted, so that the transaction fails if another instance has taken the item.
        Change(8, 8.0, TAKEN, "", session=7),
        Change(8, 8.0, TAKEN, None, session=7),
    ]
    assert dropped_flags(log, {7}) == [(3, 7.0)]
    assert dropped_flags(log, {7, 8}) == [(3, 4.0), (3, 7.0)]


def test_the_logs_of_servers_say_which_session_has_deleted_a_flag(zookeeper: ZooKeeperServer) -> None:
    client = zookeeper.client()
    try:
        client.create(FLAG, makepath=True)
        client.ensure_path(f"{JOB}/sharding/3")
        takeover = client.transaction()
        takeover.create(TAKEN)
        takeover.delete(FLAG)
        assert not any(isinstance(one, Exception) for one in takeover.commit())
        client.create(FLAG)
        client.delete(FLAG)
        session = client.client_id[0]
    finally:
        client.stop()
        client.close()
    log = of_servers([Path(zookeeper.data), Path(zookeeper.data)], JOB)
    found = dropped_flags(log, {session})
    assert [item for item, _ in found] == [3]
    assert dropped_flags(log, {session + 1}) == []
