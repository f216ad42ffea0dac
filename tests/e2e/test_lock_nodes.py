"""The node of a lock: a container that ZooKeeper deletes when it is empty, and its counter, which ends."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from kazoo.client import KazooClient

from support.fleet import Fleet
from support.lock_queue import Journal, connection, hold, request
from support.processes import PATIENCE, eventually
from support.request_proxy import RequestProxy
from support.sidecar import Sidecar
from support.znodes import children
from support.zookeeper import ZooKeeperServer


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A server that looks for empty containers each second; a snapshot of it can be edited."""
    options = ["-Dznode.container.checkIntervalMs=1000", "-Dzookeeper.digest.enabled=false"]
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"), options)
    yield server
    server.kill()


@pytest.fixture(scope="module")
def client(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    client = zookeeper.client()
    yield client
    client.stop()
    client.close()


def test_s30_a_container_may_be_deleted_between_two_requests(fleet: Fleet) -> None:
    proxy = RequestProxy(fleet.server.port)
    sidecar = Sidecar(1, fleet.folder, proxy.address, fleet.namespace, "30s", ["--request-timeout", "30s"])
    fleet.processes.append(sidecar)
    path, client = f"/{fleet.namespace}-locks/bill", fleet.tree.client
    tokens, containers = [], set()
    for between in (False, True, True, True):
        # The contender has asked for its node in a container that is gone when ZooKeeper gets the request.
        held = proxy.hold_back("create", path) if between else None
        with hold(sidecar, path) as events:
            if held:
                held.wait()
                eventually("the container is deleted", lambda: client.exists(path) is None)
                held.go_on.set()
            gained = next(event.acquired for event in events if event.WhichOneof("event") == "acquired")
            # The numbers begin anew, and the token grows.
            assert gained.node_path.endswith("-lock-0000000000")
            tokens.append(gained.fencing_token)
            containers.add(client.exists(path).czxid)
        eventually("an empty queue", lambda: children(client, path) == [])
    assert tokens == sorted(set(tokens))
    assert len(containers) == 4
    sidecar.kill()
    proxy.end()


#: Where a node's record in a snapshot has its counter: behind four times of eight bytes and a version of four, which follow
#: the access list's number (eight bytes).
COUNTER_AT = 8 + 4 * 8 + 4

#: A snapshot has a checksum of all before it in several places, each with this behind it.
SEAL = struct.pack(">i", 1) + b"/"

#: The last number that a node can get, and how many are left before it.
LAST, LEFT = 2**31 - 1, 7


def preset_counter(snapshot: Path, path: str, counter: int) -> None:
    """Has a node in a snapshot have had so many children."""
    old = snapshot.read_bytes()
    name = struct.pack(">i", len(path)) + path.encode()
    assert old.count(name) == 1
    at = old.index(name) + len(name)
    (length,) = struct.unpack_from(">i", old, at)
    at += 4 + max(0, length) + COUNTER_AT
    new = bytearray(old)
    struct.pack_into(">i", new, at, counter)
    seal = old.find(SEAL, at)
    seals = 0
    while seal >= 0:
        if struct.unpack_from(">q", old, seal - 8)[0] == zlib.adler32(old[: seal - 8]):
            struct.pack_into(">q", new, seal - 8, zlib.adler32(new[: seal - 8]))
            seals += 1
        seal = old.find(SEAL, seal + 1)
    assert seals, "the snapshot has no checksum"
    snapshot.write_bytes(new)


def test_s32_at_the_end_of_the_counter_a_hold_is_refused(fleet: Fleet) -> None:
    path, client, server = f"/{fleet.namespace}-locks/bill", fleet.tree.client, fleet.server
    client.ensure_path(path)
    # It writes a snapshot when it starts, and reads it when it starts again.
    server.restart()
    server.kill()
    snapshots = sorted(server.data.glob("version-2/snapshot.*"), key=lambda file: int(file.suffix[1:], 16))
    preset_counter(snapshots[-1], path, LAST - LEFT)
    server.start()
    server.wait_serving()
    sidecars = [fleet.sidecar(number) for number in (1, 2)]
    journal = Journal()
    refused = []

    def contend(number: int) -> None:
        with connection(sidecars[number % 2]) as stub:
            for _ in range(5):
                stream = stub.Hold(request(path, "MUTEX", f"{number}"), timeout=4 * PATIENCE)
                try:
                    gained = next(event.acquired for event in stream if event.WhichOneof("event") == "acquired")
                    journal.hold(f"{number}", gained.fencing_token)
                except grpc.RpcError as error:
                    refused.append((error.code(), "has reached the end of its counter" in error.details()))
                stream.cancel()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(contend, number) for number in range(4)]:
            future.result(8 * PATIENCE)
    # While requests are in flight the counter is negative for a moment. Other libraries take such a contender as the first,
    # so a sidecar that sees one refuses everybody in the queue: not each number that is left leads to a grant.
    assert 0 < len(journal.grants) <= LEFT
    assert refused == [(grpc.StatusCode.FAILED_PRECONDITION, True)] * (20 - len(journal.grants))
    assert journal.overlaps() == []
    assert journal.out_of_order() == []
    # As docs/locks.md says: let the queue run empty, and delete the lock's node.
    eventually("an empty queue", lambda: client.retry(client.get_children, path) == [])
    client.retry(client.delete, path)
    with hold(sidecars[0], path) as events:
        gained = next(event.acquired for event in events if event.WhichOneof("event") == "acquired")
        assert gained.fencing_token > max(grant.token for grant in journal.grants)
