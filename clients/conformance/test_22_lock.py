from __future__ import annotations

import time

import pytest

from driver import QUIET, Application, Sidecar, World, eventually, quiet
from support.processes import PATIENCE

pytestmark = pytest.mark.complete

#: Longer than any wait of a test: a lock that comes within it is not free because a session has ended.
LONG = PATIENCE + 10

#: The session of a sidecar that is to lose it.
SHORT = 4.0


def on_zookeeper(world: World, number: int, session: float = LONG) -> Sidecar:
    """A sidecar with a session."""
    sidecar = world.sidecar(number, zookeeper=True, session=f"{session:.0f}s").ready()
    eventually(f"sidecar {number} has a session", sidecar.knows_locks)
    return sidecar


def waiting(sidecar: Sidecar, count: int) -> None:
    """Waits until so many programs wait for the lock."""
    eventually(f"{count} wait", lambda: len(sidecar.lock("bill").waiting) == count)


def lost(program: Application, code: str) -> None:
    """Waits until the work under the lock has ended because of the loss, and the client has said so."""
    cancelled = program.told("lock_cancelled", lock="bill")
    failed = program.told("lock_failed", lock="bill")
    assert (failed["code"], failed["reason"]) == (code, "LOCK_LOST")
    assert cancelled["time"] <= failed["time"]
    assert program.all("lock_released") == []


def test_programs_hold_one_after_another_in_their_order_and_the_token_grows(world: World) -> None:
    first, second = on_zookeeper(world, 1), on_zookeeper(world, 2)
    programs = [world.application(sidecar) for sidecar in (first, second, first, second)]
    for number, program in enumerate(programs):
        program.lock("bill", holder=f"program-{number}")
        waiting(first, number)
        eventually("one holds", lambda: len(first.lock("bill").holders) == 1)
    queue = first.lock("bill")
    assert [one.holder for one in (*queue.holders, *queue.waiting)] == [f"program-{number}" for number in range(4)]

    def holding() -> list[Application]:
        return [program for program in programs if program.all("lock_held") and not program.all("lock_released")]

    tokens = []
    released = 0.0
    for program in programs:
        # Within a wait of the test, which no session's end is.
        held = program.told("lock_held", lock="bill")
        assert held["time"] >= released
        assert held["node"].startswith(f"{queue.path}/")
        tokens.append(held["token"])
        quiet("another program holds, too", lambda: len(holding()) > 1)
        released = time.time()
        program.unlock("bill")
        program.told("lock_released", lock="bill")
    assert tokens == sorted(set(tokens))
    state = second.lock("bill")
    assert (list(state.holders), list(state.waiting)) == ([], [])
    assert not any(program.all("lock_cancelled", "lock_failed") for program in programs)


def test_readers_hold_together_and_a_writer_alone(world: World) -> None:
    sidecar = world.sidecar().ready()
    readers = [world.application(sidecar) for _ in range(2)]
    for reader in readers:
        reader.lock("bill", mode="READ")
        reader.told("lock_held", lock="bill")
    writer = world.application(sidecar)
    writer.lock("bill", mode="WRITE")
    waiting(sidecar, 1)
    readers[0].unlock("bill")
    readers[0].told("lock_released", lock="bill")
    assert writer.all("lock_held") == []
    readers[1].unlock("bill")
    writer.told("lock_held", lock="bill")


def test_a_semaphore_has_as_many_holders_as_permits(world: World) -> None:
    sidecar = world.sidecar().ready()
    programs = [world.application(sidecar) for _ in range(3)]
    for program in programs[:2]:
        program.lock("bill", permits=2)
        program.told("lock_held", lock="bill")
    programs[2].lock("bill", permits=2)
    waiting(sidecar, 1)
    assert programs[2].all("lock_held") == []
    # The second one goes first.
    programs[1].unlock("bill")
    programs[1].told("lock_released", lock="bill")
    token = programs[2].told("lock_held", lock="bill")["token"]
    assert token > max(program.all("lock_held")[0]["token"] for program in programs[:2])
    assert programs[0].all("lock_released", "lock_cancelled", "lock_failed") == []


def test_a_program_that_is_killed_leaves_its_lock_delay(world: World) -> None:
    sidecar = world.sidecar().ready()
    program, following = world.application(sidecar), world.application(sidecar)
    program.lock("bill", lock_delay=1)
    token = program.told("lock_held", lock="bill")["token"]
    program.kill()
    eventually("the holder has vanished", lambda: len(sidecar.lock("bill").vanished) == 1)
    asked = time.time()
    following.lock("bill", lock_delay=1)
    held = following.told("lock_held", lock="bill")
    assert held["token"] > token
    # The delay counts from when the next one sees that the holder has vanished.
    assert held["time"] >= asked + 1
    following.unlock("bill")
    following.told("lock_released", lock="bill")
    assert list(sidecar.lock("bill").vanished) == []


def test_the_work_under_a_lost_permit_ends_and_the_other_permits_are_held_on(world: World) -> None:
    sidecar = world.sidecar().ready()
    program, other, following = (world.application(sidecar) for _ in range(3))
    tokens = []
    for one in (program, other):
        one.lock("bill", permits=2)
        tokens.append(one.told("lock_held", lock="bill")["token"])
    following.lock("bill", permits=2)
    waiting(sidecar, 1)
    sidecar.break_lock("bill", tokens[0])
    lost(program, "ABORTED")
    assert "REVOKED" in program.told("lock_failed")["message"]
    assert following.told("lock_held", lock="bill")["token"] > max(tokens)
    assert other.all("lock_released", "lock_cancelled", "lock_failed") == []
    other.unlock("bill")
    other.told("lock_released", lock="bill")


def test_a_program_that_is_killed_frees_its_lock(world: World) -> None:
    # The sessions of the embedded registry do not end by themselves: the end of the stream frees the lock.
    sidecar = world.sidecar().ready()
    program, following = world.application(sidecar), world.application(sidecar)
    program.lock("bill")
    token = program.told("lock_held", lock="bill")["token"]
    following.lock("bill")
    waiting(sidecar, 1)
    assert following.all("lock_held") == []
    program.kill()
    assert following.told("lock_held", lock="bill")["token"] > token


def test_a_program_that_is_killed_while_it_waits_leaves_the_queue(world: World) -> None:
    sidecar = world.sidecar().ready()
    holder, program, following = (world.application(sidecar) for _ in range(3))
    holder.lock("bill")
    holder.told("lock_held", lock="bill")
    program.lock("bill")
    waiting(sidecar, 1)
    following.lock("bill")
    waiting(sidecar, 2)
    program.kill()
    waiting(sidecar, 1)
    holder.unlock("bill")
    following.told("lock_held", lock="bill")


def test_the_work_ends_when_an_operator_breaks_the_lock(world: World) -> None:
    sidecar = world.sidecar().ready()
    program, following = world.application(sidecar), world.application(sidecar)
    program.lock("bill")
    token = program.told("lock_held", lock="bill")["token"]
    following.lock("bill")
    waiting(sidecar, 1)
    sidecar.break_lock("bill")
    lost(program, "ABORTED")
    assert "REVOKED" in program.told("lock_failed")["message"]
    assert following.told("lock_held", lock="bill")["token"] > token
    # A program that has lost a lock can hold it again.
    following.unlock("bill")
    program.lock("bill")
    program.told("lock_held", after=1, lock="bill")


def test_the_work_ends_when_the_sidecar_is_killed(world: World) -> None:
    sidecar = world.sidecar().ready()
    program = world.application(sidecar)
    program.lock("bill")
    program.told("lock_held", lock="bill")
    sidecar.kill()
    lost(program, "UNAVAILABLE")


def test_the_work_ends_with_the_lease_of_a_silent_sidecar_before_another_program_holds(world: World) -> None:
    silent, other = on_zookeeper(world, 1, SHORT), on_zookeeper(world, 2, SHORT)
    program, following = world.application(silent), world.application(other)
    program.lock("bill")
    token = program.told("lock_held", lock="bill")["token"]
    following.lock("bill")
    waiting(other, 1)
    # A lock outlives its first lease, because the sidecar renews it.
    quiet("the lock is lost", lambda: program.all("lock_cancelled"), seconds=SHORT * 1.2)
    silent.freeze()
    lost(program, "DEADLINE_EXCEEDED")
    held = following.told("lock_held", lock="bill")
    assert held["token"] > token
    assert program.told("lock_cancelled")["time"] < held["time"]


def test_a_lock_is_lost_when_its_own_time_is_over(world: World) -> None:
    program = world.application(world.sidecar().ready())
    program.lock("bill", hold_timeout=0.05)
    program.told("lock_held", lock="bill")
    lost(program, "ABORTED")
    assert "HOLD_TIMEOUT" in program.told("lock_failed")["message"]


def test_a_holder_hears_that_another_program_asks_for_its_lock(world: World) -> None:
    sidecar = world.sidecar().ready()
    program = world.application(sidecar)
    program.lock("bill")
    program.told("lock_held", lock="bill")
    quiet("nobody has asked", lambda: program.all("lock_asked"), seconds=QUIET)
    sidecar.request_revocation("bill")
    program.told("lock_asked", lock="bill")
    program.unlock("bill")
    program.told("lock_released", lock="bill")


@pytest.mark.parametrize("limit", [0, 0.2])
def test_a_program_waits_for_as_long_as_it_wants(world: World, limit: float) -> None:
    sidecar = world.sidecar().ready()
    holder, program = world.application(sidecar), world.application(sidecar)
    holder.lock("bill", holder="machine-7")
    holder.told("lock_held", lock="bill")
    program.lock("bill", wait_timeout=limit)
    failed = program.told("lock_failed", lock="bill")
    assert (failed["code"], failed["reason"]) == ("DEADLINE_EXCEEDED", "LOCK_NOT_FREE")
    assert "machine-7" in failed["message"]
    assert list(sidecar.lock("bill").waiting) == []
    holder.unlock("bill")
    holder.told("lock_released", lock="bill")
    program.lock("bill", wait_timeout=limit)
    program.told("lock_held", lock="bill")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "a/b"}, "lock.name: given `a/b`"),
        ({"path": "locks"}, "lock.path: given `locks`"),
        ({"name": "bill", "hold_timeout": 0.0001}, "hold_timeout"),
        ({"name": "bill", "holder": "x" * 256}, "holder"),
        ({"name": "bill", "application_id": "a b"}, "application_id"),
    ],
)
def test_a_wrong_field_is_named(world: World, fields: dict[str, object], said: str) -> None:
    program = world.application(world.sidecar().ready())
    program.order("lock", **fields)
    failed = program.told("lock_failed", lock=fields.get("name") or fields["path"])
    assert (failed["code"], failed["reason"]) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert failed["message"].startswith(said)
    assert program.all("lock_held") == []


def test_a_hold_that_would_wait_for_itself_or_exclude_nobody_is_refused(world: World) -> None:
    program = world.application(world.sidecar().ready())
    program.lock("bill", application_id="a")
    program.told("lock_held", lock="bill")
    program.lock("bill", application_id="a")
    assert program.told("lock_failed")["reason"] == "LOCK_HELD_ALREADY"
    program.lock("bill", application_id="b", mode="READ")
    assert program.told("lock_failed", after=1)["reason"] == "LOCK_OF_OTHER_KIND"
    assert {one["code"] for one in program.all("lock_failed")} == {"FAILED_PRECONDITION"}


def test_without_a_sidecar_the_error_names_the_endpoint(world: World) -> None:
    endpoint = f"unix://{world.folder}/nobody.sock"
    program = world.application(endpoint)
    program.lock("bill")
    failed = program.told("lock_failed", lock="bill")
    assert failed["code"] == "UNAVAILABLE"
    assert endpoint in failed["message"]
