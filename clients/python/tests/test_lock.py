from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest

import sidekeeper
from sidekeeper.testing import FakeSidecar, LockLoss

PATIENCE = 10.0


@pytest.fixture
def sidecar() -> Iterator[FakeSidecar]:
    with FakeSidecar() as fake:
        yield fake


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """The threads of other programs."""
    with ThreadPoolExecutor(8) as executor:
        yield executor


def eventually(look: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < end
        time.sleep(0.001)


def refused(lock: sidekeeper.Lock) -> sidekeeper.LockError:
    with pytest.raises(sidekeeper.LockError) as error:
        lock.__enter__()
    return error.value


class Program:
    """A program that holds a lock, or leads, on a thread until it is told to end."""

    def __init__(
        self, pool: ThreadPoolExecutor, place: sidekeeper.Lock | sidekeeper.Campaign, numbers: list[int] | None = None
    ) -> None:
        self.end = threading.Event()
        self.held = threading.Event()
        self._place = place
        self._numbers = [] if numbers is None else numbers
        self.result: Future[None] = pool.submit(self._run)

    def _run(self) -> None:
        with self._place as place:
            self._numbers.append(place.term if isinstance(place, sidekeeper.Campaign) else place.fencing_token)
            self.held.set()
            assert self.end.wait(PATIENCE)


def test_programs_hold_in_their_order_and_the_token_grows(sidecar: FakeSidecar, pool: ThreadPoolExecutor) -> None:
    tokens: list[int] = []
    programs = []
    for number in range(4):
        programs.append(Program(pool, sidekeeper.lock("bill", holder=f"machine-{number}"), tokens))
        state = sidecar.wait_lock("bill", holders=1, waiting=number)
    assert [one.holder for one in (*state.holders, *state.waiting)] == [f"machine-{number}" for number in range(4)]
    for number, program in enumerate(programs):
        assert program.held.wait(PATIENCE)
        assert len(tokens) == number + 1
        assert not any(later.held.is_set() for later in programs[number + 1 :])
        program.end.set()
        program.result.result(PATIENCE)
    assert tokens == sorted(set(tokens))
    assert sidecar.lock_state("bill").holders == ()


def test_readers_hold_together_and_writers_alone(sidecar: FakeSidecar, pool: ThreadPoolExecutor) -> None:
    read, write = sidekeeper.LockMode.READ, sidekeeper.LockMode.WRITE
    programs = []
    for mode in (read, read, write, read):
        programs.append(Program(pool, sidekeeper.lock("bill", mode=mode)))
        state = sidecar.wait_lock("bill", holders=min(2, len(programs)), waiting=max(0, len(programs) - 2))
    assert [one.mode for one in state.holders] == [read, read]
    assert [one.mode for one in state.waiting] == [write, read]
    programs[0].end.set()
    programs[0].result.result(PATIENCE)
    assert not programs[2].held.is_set()
    for program in programs[1:]:
        assert program.held.wait(PATIENCE)
        program.end.set()
        program.result.result(PATIENCE)


def test_a_semaphore_has_as_many_holders_as_permits(sidecar: FakeSidecar, pool: ThreadPoolExecutor) -> None:
    tokens: list[int] = []
    programs = []
    for number in range(4):
        programs.append(Program(pool, sidekeeper.lock("bill", permits=2), tokens))
        assert number > 1 or programs[number].held.wait(PATIENCE)
        state = sidecar.wait_lock("bill", holders=min(2, number + 1), waiting=max(0, number - 1))
    contenders = (*state.holders, *state.waiting)
    assert {one.mode for one in contenders} == {sidekeeper.LockMode.SEMAPHORE}
    assert [one.node_name.split("_c_")[0] for one in contenders] == ["leases/", "leases/", "locks/", "locks/"]
    error = refused(sidekeeper.lock("bill", permits=2, wait_timeout=0))
    assert (error.reason, state.waiting[0].node_name in error.details) == ("LOCK_NOT_FREE", True)
    # The second holder goes first: the third holds, and the fourth waits for the first one.
    programs[1].end.set()
    assert programs[2].held.wait(PATIENCE)
    state = sidecar.wait_lock("bill", holders=2, waiting=1)
    assert not programs[3].held.is_set()
    for program in (programs[0], programs[2], programs[3]):
        assert program.held.wait(PATIENCE)
        program.end.set()
        program.result.result(PATIENCE)
    assert tokens == sorted(set(tokens))
    assert sidecar.lock_state("bill").holders == ()


def test_the_first_that_waits_for_a_permit_hears_of_a_holder(sidecar: FakeSidecar) -> None:
    with sidekeeper.lock("bill", permits=1) as held:
        error = refused(sidekeeper.lock("bill", permits=1, wait_timeout=0))
        assert (error.reason, held.node_path.rpartition("/")[2] in error.details) == ("LOCK_NOT_FREE", True)
        error = refused(sidekeeper.lock("bill", wait_timeout=0))
        assert error.reason == "LOCK_OF_OTHER_KIND"


def test_an_object_holds_once_and_names_the_lock_everywhere(sidecar: FakeSidecar) -> None:
    with sidekeeper.lock("bill") as first, sidekeeper.lock(path="/locks/bill") as second:
        assert first.node_path.startswith("/fake-sidekeeper/@-@locks/queues/bill/_c_")
        assert second.node_path.startswith("/locks/bill/_c_")
        assert sidecar.lock_state("/locks/bill").holders[0].fencing_token == second.fencing_token
        assert sidecar.lock_names() == ["bill"]
        with pytest.raises(RuntimeError, match="bill"):
            first.__enter__()
    assert sidecar.lock_names() == []


def test_all_names_are_listed(sidecar: FakeSidecar) -> None:
    names = [f"lock-{number:03}" for number in range(250)]
    locks = [sidekeeper.lock(name).__enter__() for name in names]
    assert sidecar.lock_names() == names
    for lock in locks:
        lock.__exit__(None, None, None)


def test_a_program_waits_for_as_long_as_it_wants(sidecar: FakeSidecar) -> None:
    with sidekeeper.lock("bill", holder="machine-7"):
        for timeout in (0, 0.05):
            error = refused(sidekeeper.lock("bill", wait_timeout=timeout))
            assert (error.lock, error.code, error.reason) == ("bill", "DEADLINE_EXCEEDED", "LOCK_NOT_FREE")
            assert "machine-7" in error.details
        assert len(sidecar.lock_state("bill").waiting) == 0
    with sidekeeper.lock("bill", wait_timeout=0) as lock:
        assert not lock.lost


def test_a_second_hold_of_the_same_application_is_refused(sidecar: FakeSidecar) -> None:
    with sidekeeper.lock("bill", application_id="a"):
        error = refused(sidekeeper.lock("bill", application_id="a", wait_timeout=0))
        assert (error.code, error.reason) == ("FAILED_PRECONDITION", "LOCK_HELD_ALREADY")
        error = refused(sidekeeper.lock("bill", application_id="b", wait_timeout=0))
        assert error.reason == "LOCK_NOT_FREE"
        with sidekeeper.lock("other", application_id="a"):
            pass
    with sidekeeper.lock("bill", application_id="a"):
        pass


def test_a_lock_of_another_kind_is_refused(sidecar: FakeSidecar) -> None:
    with sidekeeper.lock("bill"):
        error = refused(sidekeeper.lock("bill", mode=sidekeeper.LockMode.READ, wait_timeout=0))
        assert (error.code, error.reason) == ("FAILED_PRECONDITION", "LOCK_OF_OTHER_KIND")


@pytest.mark.parametrize(
    ("lock", "field"),
    [
        (lambda: sidekeeper.lock("a/b"), "lock.name: given `a/b`"),
        (lambda: sidekeeper.lock(".."), "lock.name"),
        (lambda: sidekeeper.lock("@-@x"), "lock.name"),
        (lambda: sidekeeper.lock("ä" * 101), "lock.name"),
        (lambda: sidekeeper.lock("a\nb"), "lock.name"),
        (lambda: sidekeeper.lock(path="locks"), "lock.path"),
        (lambda: sidekeeper.lock(path="/"), "lock.path"),
        (lambda: sidekeeper.lock(path="/jobs-sidekeeper/x"), "lock.path"),
        (lambda: sidekeeper.lock("bill", wait_timeout=-1), "wait_timeout"),
        (lambda: sidekeeper.lock("bill", wait_timeout=366 * 24 * 3600), "wait_timeout"),
        (lambda: sidekeeper.lock("bill", hold_timeout=0), "hold_timeout"),
        (lambda: sidekeeper.lock("bill", holder="x" * 256), "holder"),
        (lambda: sidekeeper.lock("bill", application_id="a b"), "application_id"),
        (lambda: sidekeeper.lock("bill", permits=1_001), "permits"),
        (lambda: sidekeeper.lock("bill", lock_delay=601), "lock_delay: given `601s`"),
        (lambda: sidekeeper.lock(path="/locks/bill", lock_delay=1), "lock_delay"),
        (lambda: sidekeeper.lock("bill", permits=1, lock_delay=1), "lock_delay"),
        (lambda: sidekeeper.lock("bill", mode=sidekeeper.LockMode.SEMAPHORE), "permits: given `0`"),
        (lambda: sidekeeper.lock("bill", mode=sidekeeper.LockMode.READ, permits=2), "permits: given `2`"),
    ],
)
def test_what_a_sidecar_refuses_is_refused(
    sidecar: FakeSidecar, lock: Callable[[], sidekeeper.Lock], field: str
) -> None:
    error = refused(lock())
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert error.details.startswith(field)
    assert sidecar.lock_names() == []


@pytest.mark.parametrize("loss", list(LockLoss))
def test_a_block_on_a_thread_hears_of_the_loss(sidecar: FakeSidecar, pool: ThreadPoolExecutor, loss: LockLoss) -> None:
    with pytest.raises(sidekeeper.LockError) as lost:  # noqa: PT012, SIM117 - the error comes at the end of the block
        with sidekeeper.lock("bill") as lock:
            following = Program(pool, sidekeeper.lock("bill"))
            sidecar.wait_lock("bill", waiting=1)
            assert not lock.wait_lost(0.01)
            sidecar.lose_lock("bill", loss)
            assert lock.wait_lost(PATIENCE)
            assert following.held.wait(PATIENCE)
    assert (lost.value.code, lost.value.reason) == ("ABORTED", "LOCK_LOST")
    assert loss.name in lost.value.details
    following.end.set()
    following.result.result(PATIENCE)


async def test_a_block_on_a_loop_is_cancelled_by_the_loss() -> None:
    async with FakeSidecar() as sidecar:
        async with sidekeeper.lock("bill") as lock:
            assert sidecar.lock_state("bill").holders[0].fencing_token == lock.fencing_token
        with pytest.raises(sidekeeper.LockError) as lost:  # noqa: PT012
            async with sidekeeper.lock("bill"):
                sidecar.lose_lock("bill")
                await asyncio.sleep(PATIENCE)
        assert lost.value.reason == "LOCK_LOST"
        await asyncio.sleep(0)  # the task is not cancelled any more
        assert sidecar.lock_state("bill").holders == ()


async def test_a_task_that_waits_can_be_cancelled() -> None:
    async def hold() -> None:
        async with sidekeeper.lock("bill"):
            raise AssertionError("it holds")

    async with FakeSidecar() as sidecar, sidekeeper.lock("bill"):
        waits = asyncio.ensure_future(hold())
        await sidecar.wait_lock_async("bill", waiting=1)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert sidecar.lock_state("bill").waiting == ()


def test_a_lock_is_lost_when_its_own_time_is_over(sidecar: FakeSidecar) -> None:
    with pytest.raises(sidekeeper.LockError) as lost:  # noqa: SIM117
        with sidekeeper.lock("bill", hold_timeout=0.01) as lock:
            assert lock.wait_lost(PATIENCE)
    assert "HOLD_TIMEOUT" in lost.value.details
    assert sidecar.lock_state("bill").holders == ()


def test_a_lock_beside_a_silent_sidecar_is_lost_with_its_lease(sidecar: FakeSidecar) -> None:
    sidecar.lock_lease = timedelta(milliseconds=20)
    with pytest.raises(sidekeeper.LockError) as lost:  # noqa: SIM117
        with sidekeeper.lock("bill") as lock:
            assert lock.wait_lost(PATIENCE)
    assert (lost.value.code, lost.value.reason) == ("DEADLINE_EXCEEDED", "LOCK_LOST")


def test_a_suspension_is_told_and_grants_nothing(sidecar: FakeSidecar, pool: ThreadPoolExecutor) -> None:
    with sidekeeper.lock("bill") as lock:
        sidecar.suspend_locks()
        eventually(lambda: lock.suspended)
        following = Program(pool, sidekeeper.lock("bill"))
        other = Program(pool, sidekeeper.lock("other"))
        sidecar.wait_lock("bill", waiting=1)
        sidecar.wait_lock("other", holders=0, waiting=1)
        assert "did not answer" in refused(sidekeeper.lock("third", wait_timeout=0)).details
        sidecar.resume_locks()
        eventually(lambda: not lock.suspended)
        assert other.held.wait(PATIENCE)
        sidecar.suspend_locks()
    assert sidecar.lock_state("bill").holders == ()
    assert not following.held.is_set()
    sidecar.resume_locks()
    assert following.held.wait(PATIENCE)
    for program in (following, other):
        program.end.set()
        program.result.result(PATIENCE)


def test_a_holder_can_be_asked_for_the_lock(sidecar: FakeSidecar) -> None:
    with pytest.raises(ValueError, match="nobody holds the lock"):
        sidecar.request_revocation("bill")
    with sidekeeper.lock("bill") as lock:
        assert not lock.revocation_requested
        sidecar.request_revocation("bill")
        eventually(lambda: lock.revocation_requested)
        assert not lock.lost


def test_a_mistake_of_the_test_is_an_error(sidecar: FakeSidecar) -> None:
    with pytest.raises(ValueError, match="nobody holds the lock"):
        sidecar.lose_lock("bill")
    with pytest.raises(ValueError, match=r"lock\.name: given `a/b`"):
        sidecar.lock_state("a/b")
    with pytest.raises(TimeoutError, match="bill"):
        sidecar.wait_lock("bill", waiting=1, timeout=0.01)
    with pytest.raises(RuntimeError, match="no application"):
        sidecar.stop()


def test_a_sidecar_that_ends_takes_its_locks_away() -> None:
    with pytest.raises(sidekeeper.LockError) as lost:  # noqa: PT012
        with FakeSidecar():
            lock = sidekeeper.lock("bill").__enter__()
        assert lock.wait_lost(PATIENCE)
        lock.__exit__(None, None, None)
    assert (lost.value.code, lost.value.reason) == ("UNAVAILABLE", "LOCK_LOST")
    assert refused(sidekeeper.lock("bill", endpoint="unix:///nobody/is/here")).code == "UNAVAILABLE"


@pytest.mark.parametrize("on_loop", [True, False])
def test_handlers_hold_locks(on_loop: bool) -> None:
    app = sidekeeper.Application()
    decorate = app.job("billing", sharding_total_count=2)

    async def handle_on_loop(_: sidekeeper.Execution) -> None:
        async with sidekeeper.lock("bill"):
            await asyncio.sleep(PATIENCE)

    def handle_on_thread(_: sidekeeper.Execution) -> None:
        with sidekeeper.lock("bill") as lock:
            assert lock.wait_lost(PATIENCE)

    decorate(handle_on_loop if on_loop else handle_on_thread)
    with FakeSidecar(app) as sidecar:
        running = [sidecar.start("billing", item) for item in range(2)]
        sidecar.wait_lock("bill", holders=1, waiting=1)
        for _ in running:
            sidecar.lose_lock("bill")
        for one in running:
            assert "REVOKED" in one.result().message
