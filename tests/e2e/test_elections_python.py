"""Elections through the Python client: blocks that lead, successors, observers."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
import sidekeeper
from sidekeeper._proto.v1 import election_service_pb2 as pb
from sidekeeper._proto.v1.election_service_pb2_grpc import ElectionServiceStub
from sidekeeper._proto.v1.lock_service_pb2 import LockId

from support.fleet import Fleet
from support.processes import PATIENCE, eventually
from support.sidecar import Sidecar
from support.znodes import children


def endpoint(sidecar: Sidecar) -> str:
    return f"unix://{sidecar.socket}"


def serving(fleet: Fleet, binary: Path, number: int, session_timeout: str = "6s") -> Sidecar:
    """A sidecar with a session."""
    sidecar = fleet.sidecar(number, session_timeout)
    command = [str(binary), "locks", "--endpoint", endpoint(sidecar)]
    eventually("a session", lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0)
    return sidecar


def election(fleet: Fleet) -> str:
    return f"/{fleet.namespace}-sidekeeper/@-@locks/elections/chief"


def candidates(fleet: Fleet) -> list[str]:
    """The nodes of an election in their order."""
    return sorted(children(fleet.tree.client, election(fleet)), key=lambda name: name[-10:])


class Followers:
    """Candidates on threads of their own: each leads when its turn comes, until it is told to go.

    The block of the first leader is inside of this one, so that their turns come before the threads are waited for.
    """

    def __init__(self, sidecar: Sidecar):
        self._sidecar = sidecar
        self._pool = ThreadPoolExecutor(4)
        self._go: dict[str, threading.Event] = {}
        self._done: dict[str, Future[None]] = {}

    def __enter__(self) -> Followers:
        return self

    def __exit__(self, *_: object) -> None:
        for go in self._go.values():
            go.set()
        self._pool.shutdown()
        for done in self._done.values():
            done.result()

    def stand(self, value: str) -> Future[int]:
        """A candidate more. Returns when the sidecar has seen it; its term comes later."""
        term, go = Future[int](), threading.Event()
        self._go[value] = go

        def lead() -> None:
            with sidekeeper.leader("chief", value=value, endpoint=endpoint(self._sidecar)) as leadership:
                term.set_result(leadership.term)
                assert go.wait(4 * PATIENCE)

        self._done[value] = self._pool.submit(lead)
        with grpc.insecure_channel(endpoint(self._sidecar), [("grpc.default_authority", "localhost")]) as channel:
            stub = ElectionServiceStub(channel)  # type: ignore[no-untyped-call]
            request = pb.ObserveRequest(election=LockId(name="chief"))
            for state in stub.Observe(request, timeout=PATIENCE):
                if value in [candidate.value for candidate in state.candidates]:
                    return term
        raise AssertionError("the observation has ended")

    def go(self, value: str) -> None:
        """It leads no longer."""
        self._go[value].set()
        self._done[value].result(PATIENCE)


def test_a_block_in_python_leads_and_gives_the_leadership_to_the_next_candidate(fleet: Fleet, binary: Path) -> None:
    one, two = serving(fleet, binary, 1), serving(fleet, binary, 2)
    with Followers(two) as followers:
        with sidekeeper.leader("chief", value="A", application_id="app", endpoint=endpoint(one)) as leadership:
            first = leadership.term
            assert fleet.tree.client.get(leadership.node_path)[0] == b"A"
            assert not leadership.lost
            assert not leadership.wait_lost(0.01)
            again = sidekeeper.leader("chief", application_id="app", endpoint=endpoint(one))
            with pytest.raises(sidekeeper.ElectionError) as refused:
                again.__enter__()
            assert (refused.value.code, refused.value.reason) == ("FAILED_PRECONDITION", "LOCK_HELD_ALREADY")
            with pytest.raises(RuntimeError, match="used before"):
                leadership.__enter__()
            second = followers.stand("B")
            assert not second.done()
        assert second.result(PATIENCE) > first
    assert candidates(fleet) == []
    assert not leadership.lost
    with pytest.raises(sidekeeper.ElectionError) as wrong:
        sidekeeper.leader("a/b", endpoint=endpoint(one)).__enter__()
    assert (wrong.value.code, wrong.value.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    with pytest.raises(ValueError, match="leader: give either a name or a path"):
        sidekeeper.leader(endpoint=endpoint(one))


def test_a_leader_in_python_names_its_successor(fleet: Fleet, binary: Path) -> None:
    sidecar = serving(fleet, binary, 1)
    campaign = sidekeeper.leader("chief", value="A", endpoint=endpoint(sidecar))
    with Followers(sidecar) as followers, campaign as leadership:
        second, third = followers.stand("B"), followers.stand("C")
        with pytest.raises(sidekeeper.ElectionError) as unknown:
            leadership.resign(successor="nobody")
        assert (unknown.value.code, unknown.value.reason) == ("NOT_FOUND", "CANDIDATE_UNKNOWN")
        assert not leadership.lost
        leadership.resign(successor="C")
        assert third.result(PATIENCE) > leadership.term
        assert not second.done()
        followers.go("C")
        assert second.result(PATIENCE) > third.result()
        # It has gone by its own will: that is no loss, and a second time changes nothing.
        assert not leadership.wait_lost()
        leadership.resign()
    assert candidates(fleet) == []


def delete_leader(fleet: Fleet) -> None:
    fleet.tree.client.delete(f"{election(fleet)}/{candidates(fleet)[0]}")


def test_a_block_in_python_hears_that_its_leadership_is_lost_and_stands_for_no_other(
    fleet: Fleet, binary: Path
) -> None:
    sidecar = serving(fleet, binary, 1, "2s")
    with pytest.raises(sidekeeper.ElectionError) as lost:  # noqa: PT012, SIM117 - the error comes at the end of the block
        with sidekeeper.leader("chief", endpoint=endpoint(sidecar)) as leadership:
            term = leadership.term
            delete_leader(fleet)
            assert leadership.wait_lost(PATIENCE)
            # Without `ends_when_lost` the campaign would stand again, and lead with nobody at work.
            eventually("no candidate", lambda: candidates(fleet) == [])
            with pytest.raises(sidekeeper.ElectionError):
                leadership.resign()
            assert leadership.term == term
    assert (lost.value.code, lost.value.reason) == ("ABORTED", "LOCK_LOST")
    # A silent sidecar: the lease ends by the clock of this process.
    with pytest.raises(sidekeeper.ElectionError) as silent:  # noqa: PT012, SIM117
        with sidekeeper.leader("chief", endpoint=endpoint(sidecar)) as leadership:
            assert leadership.term > term
            sidecar.popen.send_signal(signal.SIGSTOP)
            assert leadership.wait_lost(PATIENCE)
    sidecar.popen.send_signal(signal.SIGCONT)
    assert (silent.value.code, silent.value.reason) == ("DEADLINE_EXCEEDED", "LOCK_LOST")
    assert str(silent.value).startswith("election 'chief': ")
    eventually("no candidate", lambda: candidates(fleet) == [])


def test_a_block_on_an_event_loop_is_cancelled_when_its_leadership_is_lost(fleet: Fleet, binary: Path) -> None:
    sidecar = serving(fleet, binary, 1)

    def leader(value: str) -> sidekeeper.Campaign:
        return sidekeeper.leader("chief", value=value, endpoint=endpoint(sidecar))

    async def work() -> None:
        async with leader("A") as leadership:
            with pytest.raises(sidekeeper.ElectionError):
                await leadership.resign_async(successor="nobody")
            with pytest.raises(RuntimeError, match="resign_async"):
                leadership.resign()
            await leadership.resign_async()
            assert candidates(fleet) == []
            await leadership.resign_async()
            assert not leadership.lost
        async with leader("B") as leadership:
            assert leadership.term > 0
        assert candidates(fleet) == []
        async with leader("C"):
            await asyncio.to_thread(delete_leader, fleet)
            try:
                await asyncio.Event().wait()
            finally:
                # The campaign does not stand again while the block is still at its end.
                await asyncio.to_thread(eventually, "no candidate", lambda: candidates(fleet) == [])

    with pytest.raises(sidekeeper.ElectionError) as lost:
        asyncio.run(asyncio.wait_for(work(), 3 * PATIENCE))
    assert lost.value.reason == "LOCK_LOST"


def test_observers_in_python_see_each_leader_once(fleet: Fleet, binary: Path) -> None:
    one, two = serving(fleet, binary, 1), serving(fleet, binary, 2)
    seen = iter(sidekeeper.observe_leader("chief", endpoint=endpoint(two)))
    assert next(seen) is None
    campaign = sidekeeper.leader("chief", value="A", endpoint=endpoint(one))
    with Followers(two) as followers, campaign as leadership:
        node = leadership.node_path.rpartition("/")[2]
        assert next(seen) == sidekeeper.Leader("A", leadership.term, node)
        second = followers.stand("B")
        # A candidate has come meanwhile: that is no other leader.
        leadership.resign()
        leader = next(seen)
        assert leader is not None
        assert (leader.value, leader.term) == ("B", second.result(PATIENCE))

    async def observe() -> list[str]:
        values = []
        async for leader in sidekeeper.observe_leader("chief", endpoint=endpoint(two)):
            if leader is None:
                stack.enter_context(sidekeeper.leader("chief", value="D", endpoint=endpoint(one)))
            else:
                values.append(leader.value)
                if values == ["D"]:
                    two.kill()
        return values

    with ExitStack() as stack:
        with pytest.raises(sidekeeper.ElectionError) as ended:
            asyncio.run(asyncio.wait_for(observe(), PATIENCE))
        assert ended.value.code == "UNAVAILABLE"
    with pytest.raises(sidekeeper.ElectionError, match="no sidecar answers"):
        next(iter(sidekeeper.observe_leader("chief", endpoint=endpoint(two))))
    with pytest.raises(ValueError, match="observe_leader: give either"):
        sidekeeper.observe_leader()
