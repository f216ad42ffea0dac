"""Campaigns and observers beside a sidecar in memory. The real elections are in tests/e2e/test_elections_python.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import grpc
import pytest

import sidekeeper
from sidekeeper._proto.v1 import election_service_pb2 as pb
from sidekeeper._proto.v1.lock_service_pb2 import LockId
from sidekeeper.connection import in_memory
from sidekeeper.testing import FakeSidecar, LockLoss
from tests.test_lock import PATIENCE, Program, eventually

KEPT = [loss for loss in LockLoss if loss not in (LockLoss.HOLD_TIMEOUT, LockLoss.DRAINING)]


@pytest.fixture
def sidecar() -> Iterator[FakeSidecar]:
    with FakeSidecar() as fake:
        yield fake


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """The threads of other programs."""
    with ThreadPoolExecutor(8) as executor:
        yield executor


def candidate(pool: ThreadPoolExecutor, value: str, terms: list[int] | None = None) -> Program:
    """A program that stands on a thread, and leads until it is told to end."""
    return Program(pool, sidekeeper.leader("chief", value=value), terms)


def refused(campaign: sidekeeper.Campaign) -> sidekeeper.ElectionError:
    with pytest.raises(sidekeeper.ElectionError) as error:
        campaign.__enter__()
    return error.value


def values(sidecar: FakeSidecar) -> list[str]:
    """The leader and the candidates that wait."""
    state = sidecar.election_state("chief")
    return [one.value for one in (*([state.leader] if state.leader else []), *state.waiting)]


def test_candidates_lead_in_their_order_and_the_term_grows(sidecar: FakeSidecar, pool: ThreadPoolExecutor) -> None:
    terms: list[int] = []
    programs = []
    for number in range(4):
        programs.append(candidate(pool, f"machine-{number}", terms))
        sidecar.wait_election("chief", leaders=1, waiting=number)
    assert values(sidecar) == [f"machine-{number}" for number in range(4)]
    for number, program in enumerate(programs):
        assert program.held.wait(PATIENCE)
        assert len(terms) == number + 1
        program.end.set()
        program.result.result(PATIENCE)
    assert terms == sorted(set(terms))
    assert values(sidecar) == []


def test_elections_have_names_and_paths_apart_from_locks(sidecar: FakeSidecar) -> None:
    with sidekeeper.leader("chief") as named, sidekeeper.leader(path="/latch") as placed, sidekeeper.lock("chief"):
        assert named.node_path.startswith("/fake-sidekeeper/@-@locks/elections/chief/_c_")
        assert placed.node_path.startswith("/latch/_c_")
        state = sidecar.election_state("/latch")
        assert state.leader == sidekeeper.Leader("", placed.term, placed.node_path.rpartition("/")[2])
        with pytest.raises(RuntimeError, match="used before"):
            named.__enter__()


@pytest.mark.parametrize(
    ("campaign", "field"),
    [
        (lambda: sidekeeper.leader("a/b"), "election.name: given `a/b`"),
        (lambda: sidekeeper.leader("@-@x"), "election.name"),
        (lambda: sidekeeper.leader(path="latch"), "election.path: given `latch`"),
        (lambda: sidekeeper.leader("chief", value="ä" * 2049), "value: given `ää"),
        (lambda: sidekeeper.leader("chief", application_id="a b"), "application_id"),
    ],
)
def test_what_a_sidecar_refuses_is_refused(
    sidecar: FakeSidecar, campaign: Callable[[], sidekeeper.Campaign], field: str
) -> None:
    error = refused(campaign())
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert error.details.startswith(field)
    assert values(sidecar) == []


def test_a_second_campaign_of_the_same_application_is_refused(sidecar: FakeSidecar) -> None:
    with sidekeeper.leader("chief", application_id="a"):
        error = refused(sidekeeper.leader("chief", application_id="a"))
        assert (error.code, error.reason) == ("FAILED_PRECONDITION", "LOCK_HELD_ALREADY")
        with sidekeeper.leader("other", application_id="a"):
            pass
    with sidekeeper.leader("chief", application_id="a"):
        pass


@pytest.mark.parametrize("loss", KEPT)
def test_a_block_on_a_thread_hears_of_the_loss(sidecar: FakeSidecar, loss: LockLoss) -> None:
    with pytest.raises(sidekeeper.ElectionError) as lost:  # noqa: PT012, SIM117 - the error comes at the end of the block
        with sidekeeper.leader("chief", value="A") as leadership:
            other = sidecar.add_candidate("chief", "B")
            assert not leadership.wait_lost(0.01)
            assert not other.leads
            sidecar.lose_leadership("chief", loss)
            # The campaign ends with the loss, not with the client's stream.
            assert values(sidecar) == ["B"]
            assert leadership.wait_lost(PATIENCE)
            assert other.leads
            assert other.term > leadership.term
            with pytest.raises(sidekeeper.ElectionError):
                leadership.resign()
    assert (lost.value.code, lost.value.reason) == ("ABORTED", "LOCK_LOST")
    assert lost.value.details == f"the sidecar has reported the loss: {loss.name}"


def test_a_sidecar_that_drains_ends_the_campaign(sidecar: FakeSidecar) -> None:
    leadership = sidekeeper.leader("chief").__enter__()
    sidecar.lose_leadership("chief", LockLoss.DRAINING)
    assert values(sidecar) == []
    assert leadership.wait_lost(PATIENCE)
    with pytest.raises(sidekeeper.ElectionError, match="DRAINING"):
        leadership.__exit__(None, None, None)


def test_a_candidate_that_has_lost_stands_again_behind_the_others(sidecar: FakeSidecar) -> None:
    first, second = sidecar.add_candidate("chief", "A"), sidecar.add_candidate("chief", "B")
    term = first.term
    sidecar.lose_leadership("chief", LockLoss.LEASE_LOST)
    assert values(sidecar) == ["B", "A"]
    assert (first.leads, second.leads) == (False, True)
    assert first.term > second.term > term
    second.leave()
    assert first.leads
    sidecar.lose_leadership("chief", LockLoss.DRAINING)
    first.leave()
    assert values(sidecar) == []


async def test_a_block_on_a_loop_is_cancelled_by_the_loss() -> None:
    async with FakeSidecar() as sidecar:
        async with sidekeeper.leader("chief") as leadership:
            with pytest.raises(sidekeeper.ElectionError, match="no candidate"):
                await leadership.resign_async(successor="nobody")
            await leadership.resign_async()
            assert values(sidecar) == []
            assert not leadership.lost
        with pytest.raises(sidekeeper.ElectionError) as lost:  # noqa: PT012
            async with sidekeeper.leader("chief"):
                sidecar.lose_leadership("chief")
                await asyncio.sleep(PATIENCE)
        assert lost.value.reason == "LOCK_LOST"
        await sidecar.wait_election_async("chief", leaders=0, waiting=0)


async def test_a_task_that_stands_can_be_cancelled() -> None:
    async def lead() -> None:
        async with sidekeeper.leader("chief"):
            raise AssertionError("it leads")

    async with FakeSidecar() as sidecar, sidekeeper.leader("chief"):
        waits = asyncio.ensure_future(lead())
        await sidecar.wait_election_async("chief", waiting=1)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert sidecar.election_state("chief").waiting == ()


def test_a_leader_names_its_successor(sidecar: FakeSidecar, pool: ThreadPoolExecutor) -> None:
    with sidekeeper.leader("chief", value="A") as leadership:
        programs = [candidate(pool, value) for value in ("B", "C", "D") if sidecar.wait_election("chief", leaders=1)]
        sidecar.wait_election("chief", waiting=3)
        with pytest.raises(sidekeeper.ElectionError) as unknown:
            leadership.resign(successor="nobody")
        assert (unknown.value.code, unknown.value.reason) == ("NOT_FOUND", "CANDIDATE_UNKNOWN")
        assert not leadership.lost
        chosen = sidecar.election_state("chief").waiting[1]
        leadership.resign(successor=chosen.node_name)
        state = sidecar.election_state("chief")
        assert (state.leader, len(state.waiting)) == (chosen, 2)
        leadership.resign()
    for program in programs:
        program.end.set()
    for program in programs:
        program.result.result(PATIENCE)


def test_those_before_the_successor_stand_again_behind_it(sidecar: FakeSidecar) -> None:
    with sidekeeper.leader("chief", value="A") as leadership:
        for value in ("B", "C", "D", "E"):
            sidecar.add_candidate("chief", value)
        leadership.resign(successor="D")
    assert values(sidecar) == ["D", "E", "B", "C"]


def test_a_candidate_that_keeps_its_place_is_in_the_way(sidecar: FakeSidecar) -> None:
    with sidekeeper.leader("chief", value="A") as leadership:
        others = [sidecar.add_candidate("chief", value) for value in ("B", "C", "D")]
        others[1].keep_place()
        with pytest.raises(sidekeeper.ElectionError) as refused:
            leadership.resign(successor="D")
        assert (refused.value.code, refused.value.reason) == ("FAILED_PRECONDITION", "CANDIDATE_IN_THE_WAY")
        assert not leadership.lost
        assert values(sidecar) == ["A", "C", "D", "B"]
        others[1].leave()
        leadership.resign(successor="D")
        assert others[2].leads


def test_only_a_leader_names_a_successor_and_an_ended_campaign_is_unknown(sidecar: FakeSidecar) -> None:
    service = in_memory[-1].elections
    sidecar.add_candidate("chief", "A")
    campaign = service.Campaign(pb.CampaignRequest(election=LockId(name="chief")))
    started = next(campaign)
    with pytest.raises(grpc.RpcError, match="does not lead the election"):
        service.Resign(pb.ResignRequest(campaign_id=started.started.campaign_id, successor="A"))
    assert next(campaign).following.position == 1
    assert next(campaign).leader_changed.leader.value == "A"
    service.Resign(pb.ResignRequest(campaign_id=campaign.campaign_id))
    assert [event.WhichOneof("event") for event in campaign] == ["resigned"]
    with pytest.raises(grpc.RpcError, match="this sidecar has no hold"):
        service.Resign(pb.ResignRequest(campaign_id=campaign.campaign_id))


def test_a_suspension_is_told_and_nobody_comes_to_lead(sidecar: FakeSidecar) -> None:
    with sidekeeper.leader("chief") as leadership:
        leaders = iter(sidekeeper.observe_leader("chief"))
        assert next(leaders) is not None
        before = sidecar.add_candidate("chief", "B")
        sidecar.suspend_elections()
        eventually(lambda: leadership.suspended)
        assert not leadership.lost
        other = sidecar.add_candidate("other")
        with pytest.raises(sidekeeper.ElectionError) as away:
            leadership.resign(successor="B")
        assert (away.value.code, away.value.reason) == ("UNAVAILABLE", "REGISTRY_AWAY")
        sidecar.resume_elections()
        eventually(lambda: not leadership.suspended)
        assert other.leads
        sidecar.suspend_elections()
    assert not before.leads
    assert sidecar.election_state("chief").leader is None
    sidecar.resume_elections()
    assert before.leads
    seen = next(leaders)
    assert seen is not None
    assert seen.value == "B"


async def test_a_leader_on_a_loop_knows_whether_the_registry_answers() -> None:
    async with FakeSidecar() as sidecar, sidekeeper.leader("chief") as leadership:
        assert not leadership.suspended
        sidecar.suspend_elections()
        await asyncio.to_thread(eventually, lambda: leadership.suspended)
        assert not leadership.lost
        sidecar.resume_elections()
        await asyncio.to_thread(eventually, lambda: not leadership.suspended)


def test_a_leadership_beside_a_silent_sidecar_is_lost_with_its_lease(sidecar: FakeSidecar) -> None:
    sidecar.election_lease = timedelta(milliseconds=20)
    assert sidecar.election_lease == timedelta(milliseconds=20)
    with pytest.raises(sidekeeper.ElectionError) as lost:  # noqa: SIM117
        with sidekeeper.leader("chief") as leadership:
            assert leadership.wait_lost(PATIENCE)
    assert (lost.value.code, lost.value.reason) == ("DEADLINE_EXCEEDED", "LOCK_LOST")


def test_an_observer_sees_each_leader_once(sidecar: FakeSidecar) -> None:
    leaders = iter(sidekeeper.observe_leader("chief"))
    assert next(leaders) is None
    first, second = sidecar.add_candidate("chief", "A"), sidecar.add_candidate("chief", "B")
    seen = next(leaders)
    first.leave()
    again = next(leaders)
    assert seen is not None
    assert again is not None
    assert [(one.value, one.term) for one in (seen, again)] == [("A", first.term), ("B", second.term)]
    second.leave()
    assert next(leaders) is None
    with pytest.raises(sidekeeper.ElectionError, match=r"election\.name: given `a/b`"):
        next(iter(sidekeeper.observe_leader("a/b")))
    with pytest.raises(ValueError, match="observe_leader: give either"):
        sidekeeper.observe_leader()


async def test_an_observer_on_a_loop_ends_with_the_sidecar() -> None:
    seen: list[str] = []
    with pytest.raises(sidekeeper.ElectionError) as ended:  # noqa: PT012
        async with FakeSidecar() as sidecar:
            candidate = sidecar.add_candidate("chief", "A")
            leaders = sidekeeper.observe_leader("chief").__aiter__()
            async for leader in leaders:
                seen.append(leader.value if leader else "nobody")
                if leader is None:
                    break
                candidate.leave()
            await leaders.aclose()  # type: ignore[attr-defined]
            assert in_memory[-1].elections._observations == []
            leaders = sidekeeper.observe_leader("chief").__aiter__()
            assert await leaders.__anext__() is None
        await leaders.__anext__()
    assert seen == ["A", "nobody"]
    assert ended.value.code == "UNAVAILABLE"


def test_a_sidecar_that_ends_takes_the_leadership_away() -> None:
    with pytest.raises(sidekeeper.ElectionError) as lost:  # noqa: PT012
        with FakeSidecar():
            leadership = sidekeeper.leader("chief").__enter__()
        assert leadership.wait_lost(PATIENCE)
        leadership.__exit__(None, None, None)
    assert (lost.value.code, lost.value.reason) == ("UNAVAILABLE", "LOCK_LOST")
    assert "no sidecar answers" in str(refused(sidekeeper.leader("chief", endpoint="unix:///nobody/is/here")))


def test_a_mistake_of_the_test_is_an_error(sidecar: FakeSidecar) -> None:
    with pytest.raises(ValueError, match="nobody leads the election"):
        sidecar.lose_leadership("chief")
    with pytest.raises(ValueError, match="loss: given `HOLD_TIMEOUT`"):
        sidecar.lose_leadership("chief", LockLoss.HOLD_TIMEOUT)
    with pytest.raises(ValueError, match=r"election\.name: given `a/b`"):
        sidecar.election_state("a/b")
    with pytest.raises(ValueError, match="value"):
        sidecar.add_candidate("chief", "x" * 4097)
    with pytest.raises(TimeoutError, match="chief"):
        sidecar.wait_election("chief", leaders=1, timeout=0.01)


@pytest.mark.parametrize("on_loop", [True, False])
def test_handlers_lead(on_loop: bool) -> None:
    app = sidekeeper.Application()
    decorate = app.job("billing", sharding_total_count=2)

    async def handle_on_loop(_: sidekeeper.Execution) -> None:
        async with sidekeeper.leader("chief"):
            await asyncio.sleep(PATIENCE)

    def handle_on_thread(_: sidekeeper.Execution) -> None:
        with sidekeeper.leader("chief") as leadership:
            assert leadership.wait_lost(PATIENCE)

    decorate(handle_on_loop if on_loop else handle_on_thread)
    with FakeSidecar(app) as sidecar:
        running = [sidecar.start("billing", item) for item in range(2)]
        sidecar.wait_election("chief", leaders=1, waiting=1)
        sidecar.lose_leadership("chief")
        sidecar.wait_election("chief", leaders=1, waiting=0)
        sidecar.lose_leadership("chief")
        for one in running:
            assert "REVOKED" in one.result().message


def test_an_observation_whose_stream_ends_is_an_error(sidecar: FakeSidecar) -> None:
    leaders = iter(sidekeeper.observe_leader("chief"))
    assert next(leaders) is None
    (observation,) = in_memory[-1].elections._observations
    observation.end(None)
    with pytest.raises(sidekeeper.ElectionError, match="the sidecar has ended the stream of the election"):
        next(leaders)
