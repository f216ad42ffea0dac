"""Locks of sidecars, of Curator, of kazoo and of go-zookeeper in one queue."""

from __future__ import annotations

import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from sidekeeper._proto.v1 import lock_service_pb2 as pb

from interop.lock_steps import LockSteps
from interop.members import GoLockPeer, LockPeer, MixedFleet
from interop.transaction_log import changes
from support.lock_queue import FencedCounter, Grant, Journal, connection, hold, request
from support.processes import PATIENCE, eventually
from support.request_proxy import RequestProxy
from support.znodes import children

#: How often each contender holds the lock; `make locks` asks for more.
ROUNDS = int(os.environ.get("LOCK_ROUNDS", "20"))


def contend(fleet: MixedFleet, ours: list[str], java: list[str], kazoo: int = 0, go: int = 0) -> Journal:
    """Contenders of two sidecars and of Curator, of these modes, and so many of kazoo and of go-zookeeper."""
    path = f"/{fleet.namespace}-locks/bill"
    if kazoo:
        # A persistent parent: an object of kazoo fails for ever once the container is gone (L29).
        fleet.tree.client.ensure_path(path)
    sidecars = [fleet.sidecar(number) for number in (1, 2)]
    journal = Journal()
    count = len(ours) + len(java) + kazoo + go
    with ThreadPoolExecutor(len(ours) + kazoo) as pool:
        with hold(sidecars[0], path, "MUTEX" if kazoo or go else "WRITE") as events:
            next(event for event in events if event.WhichOneof("event") == "acquired")
            peers = [LockPeer(fleet, path, ROUNDS, java), *([GoLockPeer(fleet, path, ROUNDS, go)] if go else [])]
            futures = [
                pool.submit(journal.through_sidecar, sidecars[number % 2], path, f"ours-{number}", ROUNDS, mode)
                for number, mode in enumerate(ours)
            ]
            futures += [
                pool.submit(journal.through_kazoo, fleet.server.address, path, f"kazoo-{number}", ROUNDS)
                for number in range(kazoo)
            ]
            eventually("all wait", lambda: len(fleet.tree.client.get_children(path)) == count + 1, 2 * PATIENCE)
        for future in futures:
            future.result(8 * PATIENCE)
    for peer in peers:
        peer.wait("done", lambda events: any(event["event"] == "done" for event in events), 8 * PATIENCE)
        assert peer.events("failed") == []
        journal.add(
            Grant(one["begin"], one["end"], one["token"], one["mode"], one["who"]) for one in peer.events("grant")
        )
    assert len(journal.grants) == ROUNDS * count
    # Nothing is left in the queue. The container may be gone.
    assert children(fleet.tree.client, path) == []
    return journal


def test_s1_one_queue_of_sidecars_curator_kazoo_and_go(fleet: MixedFleet) -> None:
    journal = contend(fleet, ["MUTEX"] * 2, ["MUTEX"] * 2, kazoo=2, go=2)
    assert journal.overlaps() == []
    assert journal.out_of_order() == []
    # All waited: each holds once before any holds for the second time.
    assert len({grant.who for grant in sorted(journal.grants)[:8]}) == 8


KINDS = ("ours", "curator", "kazoo", "go")


@pytest.mark.parametrize("asker", KINDS)
@pytest.mark.parametrize("holder", KINDS)
def test_s3_the_holder_excludes_the_asker_until_it_releases(fleet: MixedFleet, holder: str, asker: str) -> None:
    with LockSteps(fleet) as steps:
        first = steps.ask(holder, "holder")
        token = first.wait_held()
        second = steps.ask(asker, "asker")
        second.wait_behind(first)
        first.release()
        assert second.wait_held() > token
        second.release()
        steps.check_over()


def test_s6_readers_and_writers_with_curators_read_write_lock(fleet: MixedFleet) -> None:
    modes = ["READ", "WRITE", "READ", "READ", "WRITE", "READ"]
    journal = contend(fleet, modes, modes)
    assert journal.overlaps() == []
    assert journal.out_of_order() == []
    assert journal.readers_together()


def test_s9_permits_of_curators_semaphore(fleet: MixedFleet) -> None:
    path, mode = f"/{fleet.namespace}-locks/bill", "SEMAPHORE:3"
    client, journal = fleet.tree.client, Journal()
    sidecars = [fleet.sidecar(number) for number in (1, 2)]
    with ThreadPoolExecutor(4) as pool, ExitStack() as held:
        # All permits are taken, until one contender of Curator or of a sidecar is the first of the queue and the others wait.
        for _ in range(3):
            events = held.enter_context(hold(sidecars[0], path, mode))
            next(event for event in events if event.WhichOneof("event") == "acquired")
        peer = LockPeer(fleet, path, ROUNDS, [mode] * 4)
        futures = [
            pool.submit(journal.through_sidecar, sidecars[number % 2], path, f"ours-{number}", ROUNDS, mode)
            for number in range(4)
        ]
        eventually("all wait", lambda: len(client.get_children(f"{path}/locks")) == 8, 2 * PATIENCE)
        # One of them waits for a permit: its node is there, and it does not hold.
        eventually("the first asks", lambda: len(client.get_children(f"{path}/leases")) == 4)
        assert journal.grants == []
        assert peer.events("grant") == []
        held.close()
        for future in futures:
            future.result(8 * PATIENCE)
    peer.wait("done", lambda events: any(event["event"] == "done" for event in events), 8 * PATIENCE)
    assert peer.events("failed") == []
    journal.add(Grant(one["begin"], one["end"], one["token"], one["mode"], one["who"]) for one in peer.events("grant"))
    assert len(journal.grants) == 8 * ROUNDS
    assert 1 < journal.most_at_once() <= 3
    for part in ("locks", "leases"):
        assert children(client, f"{path}/{part}") == []


def test_s10_a_sidecar_asks_for_one_permit_at_a_time(fleet: MixedFleet) -> None:
    """Two that take two permits one after another can wait for one another for ever, as in Curator: it cannot be asked for."""
    path = f"/{fleet.namespace}-locks/bill"
    with connection(fleet.sidecar(1)) as stub:
        both = request(path, "SEMAPHORE:2", "two of two")
        both.application_id = "billing"
        first = stub.Hold(both, timeout=4 * PATIENCE)
        next(event for event in first if event.WhichOneof("event") == "acquired")
        with pytest.raises(grpc.RpcError) as refused:
            next(stub.Hold(both, timeout=4 * PATIENCE))
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        first.cancel()


@pytest.mark.parametrize("writer", ["ours", "curator"])
def test_s7_readers_that_come_later_wait_behind_a_waiting_writer(fleet: MixedFleet, writer: str) -> None:
    with LockSteps(fleet) as steps:
        first = [steps.ask(kind, f"first-{kind}", "READ") for kind in ("ours", "curator")]
        for reader in first:
            reader.wait_held()
        between = steps.ask(writer, "writer", "WRITE")
        between.wait_behind(first[-1])
        later = [steps.ask(kind, f"later-{kind}", "READ") for kind in ("ours", "curator")]
        # The first readers still hold: the later ones wait for the writer.
        for reader in later:
            reader.wait_behind(between)
        for reader in first:
            reader.release()
        between.wait_held()
        for reader in later:
            reader.wait_behind(between)
        between.release()
        # Both hold at the same time: neither has given the lock back.
        for reader in later:
            reader.wait_held()
        for reader in later:
            reader.release()
        steps.check_over()


def test_s8_a_writer_waits_for_a_writer_of_curator_that_has_become_a_reader(fleet: MixedFleet) -> None:
    store = FencedCounter()
    with LockSteps(fleet) as steps:
        writer = steps.ask("curator", "java", "WRITE")
        assert store.write(writer.wait_held())
        ours = steps.ask("ours", "ours", "WRITE")
        ours.wait_behind(writer)
        reader = steps.ask("curator", "java", "READ")
        newer = reader.wait_held()
        writer.release()
        ours.wait_behind(reader)
        reader.release()
        token = ours.wait_held()
        # The store has seen tokens of writers only: that of the reader is newer than that of the waiting writer (L25).
        assert store.write(token)
        assert token < newer
        ours.release()
        # Java's two grants overlap, and no other ones do.
        assert {grant.who for pair in steps.journal.overlaps() for grant in pair} == {"java"}
        assert fleet.tree.client.get_children(steps.path) == []


@pytest.mark.parametrize("mode", ["MUTEX", "WRITE"])
def test_s22_a_revocation_by_curator_is_an_event(fleet: MixedFleet, mode: str) -> None:
    path = f"/{fleet.namespace}-locks/bill"
    sidecar = fleet.sidecar(1)
    peer = LockPeer(fleet, path, 0, [])
    with hold(sidecar, path, mode) as events:
        acquired = next(event.acquired for event in events if event.WhichOneof("event") == "acquired")
        peer.say(acquired.node_path)
        asked = next(event for event in events if event.WhichOneof("event") not in ("lease_renewed", "waiting"))
        assert asked.WhichOneof("event") == "revocation_requested"
        assert fleet.tree.client.exists(acquired.node_path)


@pytest.mark.parametrize("first", KINDS)
def test_s31_whoever_comes_first_makes_the_locks_node(fleet: MixedFleet, first: str) -> None:
    path, server = f"/{fleet.namespace}-locks/bill", fleet.server
    sidecar = fleet.sidecar(1)
    journal = Journal()

    def come(kind: str) -> None:
        """Has one contender of this kind hold the lock once."""
        if kind == "ours":
            journal.through_sidecar(sidecar, path, kind, 1)
        elif kind == "kazoo":
            journal.through_kazoo(server.address, path, kind, 1)
        else:
            peer = LockPeer(fleet, path, 1, ["MUTEX"]) if kind == "curator" else GoLockPeer(fleet, path, 1, 1)
            peer.wait("done", lambda events: any(event["event"] == "done" for event in events), 2 * PATIENCE)
            assert peer.events("failed") == []
            journal.add(
                Grant(one["begin"], one["end"], one["token"], one["mode"], kind) for one in peer.events("grant")
            )

    order = [first, *(kind for kind in KINDS if kind != first)]
    for kind in order:
        come(kind)
    assert [grant.who for grant in sorted(journal.grants, key=lambda grant: grant.token)] == order
    # A container, or by kazoo and go-zookeeper a persistent node, as the server's log has it.
    made = next(change for change in changes(server.data, f"/{fleet.namespace}-locks") if change.path == path)
    assert made.container is (first in ("ours", "curator"))


def test_s34_a_dead_contender_of_go_at_the_head_is_shown_and_broken(fleet: MixedFleet, binary: Path) -> None:
    path = f"/{fleet.namespace}-locks/bill"
    fleet.tree.client.ensure_path(path)
    sidecar = fleet.sidecar(1)
    # go-zookeeper's Lock fails when its connection breaks, and leaves its node; its session goes on.
    proxy = RequestProxy(fleet.server.port)
    lost = proxy.lose_reply("children", path)
    peer = GoLockPeer(fleet, path, 1, 1, proxy.address)
    lost.wait()
    peer.wait("failed", lambda events: any(event["event"] == "failed" for event in events))
    [dead] = fleet.tree.client.get_children(path)
    owner = fleet.tree.client.exists(f"{path}/{dead}").ephemeralOwner
    with connection(sidecar) as stub, hold(sidecar, path) as events:
        first = next(event.waiting.first for event in events if event.waiting.HasField("first"))
        assert first.node_name == dead
        # How long it has stood there.
        shown = stub.GetLock(pb.GetLockRequest(lock=pb.LockId(path=path))).lock.holders[0]
        assert (shown.node_name, shown.holder, int(shown.session, 16)) == (dead, "go-0", owner)
        assert 0 <= time.time() - shown.since.ToSeconds() < 2 * PATIENCE
        command = [binary, "locks", "--endpoint", f"unix://{sidecar.socket}", "--json", "--path", path]
        told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        assert (told["holders"][0]["node_name"], bool(told["holders"][0]["since"])) == (dead, True)
        stub.BreakLock(pb.BreakLockRequest(lock=pb.LockId(path=path), node_name=dead))
        gained = next(event.acquired for event in events if event.WhichOneof("event") == "acquired")
        assert fleet.tree.client.get_children(path) == [gained.node_path.rpartition("/")[2]]
    proxy.end()
