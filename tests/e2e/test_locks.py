"""Locks: the command that runs under a lock, and one queue with kazoo."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest
import sidekeeper
from google.protobuf.duration_pb2 import Duration
from kazoo.recipe.lock import Lock
from sidekeeper._proto.v1 import lock_service_pb2 as pb

from support.fleet import Fleet
from support.lock_queue import Journal, connection, hold, request
from support.processes import PATIENCE, environment_with_client, eventually
from support.sidecar import Sidecar
from support.znodes import children


def command(binary: Path, sidecar: Sidecar, *words: str) -> list[str]:
    return [str(binary), words[0], "--endpoint", f"unix://{sidecar.socket}", *words[1:]]


def run(binary: Path, sidecar: Sidecar, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(binary, sidecar, *words), capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def locks(binary: Path, sidecar: Sidecar, *words: str) -> dict[str, object]:
    told = run(binary, sidecar, "locks", "--json", *words)
    assert told.returncode == 0, told.stderr
    return dict(json.loads(told.stdout))


def serving(fleet: Fleet, binary: Path, number: int, session_timeout: str = "6s") -> Sidecar:
    """A sidecar with a session."""
    sidecar = fleet.sidecar(number, session_timeout)
    eventually("a session", lambda: run(binary, sidecar, "locks").returncode == 0)
    return sidecar


def test_a_command_runs_under_a_lock_and_the_program_ends_as_it_does(fleet: Fleet, binary: Path) -> None:
    sidecar = serving(fleet, binary, 1)
    script = 'echo "$SIDEKEEPER_LOCK_TOKEN $SIDEKEEPER_LOCK_PATH"; exit 7'
    told = run(binary, sidecar, "lock", "nightly", "--", "sh", "-c", script)
    assert told.returncode == 7, told.stderr
    token, path = told.stdout.split()
    assert path == f"/{fleet.namespace}-sidekeeper/@-@locks/queues/nightly"
    again = run(binary, sidecar, "lock", "nightly", "--", "sh", "-c", 'echo "$SIDEKEEPER_LOCK_TOKEN"')
    assert int(again.stdout) > int(token) > 0
    assert locks(binary, sidecar, "nightly")["holders"] == []
    assert run(binary, sidecar, "lock", "nightly", "--", "no-such-program").returncode == 127


def test_commands_of_two_machines_run_one_after_another(fleet: Fleet, binary: Path, tmp_path: Path) -> None:
    sidecars = [serving(fleet, binary, number) for number in (1, 2)]
    counter = tmp_path / "counter"
    counter.write_text("0")
    # Without the lock, two of them would read the same number.
    script = 'n=$(cat "$0"); sleep 0.02; echo $((n + 1)) > "$0"'
    with ThreadPoolExecutor(12) as pool:
        told = pool.map(
            lambda number: run(binary, sidecars[number % 2], "lock", "count", "--", "sh", "-c", script, str(counter)),
            range(24),
        )
    assert [one.returncode for one in told] == [0] * 24
    assert int(counter.read_text()) == 24


@contextmanager
def holding(binary: Path, sidecar: Sidecar, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command that has the lock `nightly`, until it is told to end."""
    script = "sleep 1000 & trap 'kill $!; echo stopped; exit 3' TERM; echo holds; wait $!"
    words = ("lock", "nightly", *words, "--", "sh", "-c", script)
    process = subprocess.Popen(
        command(binary, sidecar, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "holds\n"
        yield process
    finally:
        # A test may have stopped it.
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.communicate(timeout=PATIENCE)


def test_a_command_that_does_not_wait_hears_who_holds(fleet: Fleet, binary: Path) -> None:
    sidecar = serving(fleet, binary, 1)
    with holding(binary, sidecar, "--holder", "machine-7"):
        told = run(binary, sidecar, "lock", "nightly", "--wait", "0s", "--", "true")
        assert told.returncode == 75
        assert "LOCK_NOT_FREE" in told.stderr
        assert "machine-7" in told.stderr
        shown = run(binary, sidecar, "locks", "nightly").stdout
        assert re.fullmatch(r"holds  mutex  token \d+  machine-7  _c_\S+-lock-\d{10}  session 0x[0-9a-f]+\n", shown)
        assert run(binary, sidecar, "locks").stdout == "nightly\n"
    eventually("the lock is free", lambda: locks(binary, sidecar, "nightly")["holders"] == [])


def test_a_command_that_does_not_wait_hears_that_all_permits_are_taken(fleet: Fleet, binary: Path) -> None:
    sidecar = serving(fleet, binary, 1)
    tries = ("lock", "nightly", "--permits", "2", "--wait", "0s", "--", "true")
    with holding(binary, sidecar, "--permits", "2", "--holder", "machine-7"):
        assert run(binary, sidecar, *tries).returncode == 0
        with holding(binary, sidecar, "--permits", "2", "--holder", "machine-8"):
            told = run(binary, sidecar, *tries)
            assert told.returncode == 75
            assert "LOCK_NOT_FREE" in told.stderr
            assert "machine-7" in told.stderr
            shown = run(binary, sidecar, "locks", "nightly").stdout
            line = r"holds  semaphore  token \d+  machine-[78]  leases/_c_\S+-lease-\d{10}  session 0x[0-9a-f]+\n"
            assert re.fullmatch(line * 2, shown)
    both = run(binary, sidecar, "lock", "nightly", "--permits", "2", "--write", "--", "true")
    assert both.returncode == 64
    assert "--permits" in both.stderr


def test_a_command_that_is_killed_with_its_machine_leaves_its_lock_delay(fleet: Fleet, binary: Path) -> None:
    sidecar = serving(fleet, binary, 1)
    delayed = (
        "lock",
        "nightly",
        "--lock-delay",
        "2s",
        "--holder",
        "machine-7",
        "--",
        "sh",
        "-c",
        "echo holds; sleep 1000",
    )
    with subprocess.Popen(
        command(binary, sidecar, *delayed), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        os.killpg(process.pid, signal.SIGKILL)
    shown = re.compile(r"vanished  delay 2s  machine-7  delay-2000-\d{10}  session \n")
    eventually("the holder has vanished", lambda: shown.search(run(binary, sidecar, "locks", "nightly").stdout))
    told = run(binary, sidecar, "lock", "nightly", "-v", "--lock-delay", "10m", "--", "true")
    assert told.returncode == 0
    assert "no contender is before this one; it waits for machine-7" in told.stderr
    # A command that has ended gives the lock back.
    state = locks(binary, sidecar, "nightly")
    assert (state["holders"], state["vanished"]) == ([], [])


def test_a_killed_sidecar_leaves_the_lock_delay_of_its_holder(fleet: Fleet, binary: Path) -> None:
    sidecar, other = serving(fleet, binary, 1), serving(fleet, binary, 2)
    with holding(binary, sidecar, "--lock-delay", "2s", "--holder", "machine-7"):
        sidecar.kill()
        told = run(binary, other, "lock", "nightly", "-v", "--", "true")
        assert told.returncode == 0
        # First behind the node of the killed sidecar's session, then for the delay.
        behind, delayed = "1 contenders are before this one", "no contender is before this one; it waits for machine-7"
        assert 0 <= told.stderr.find(behind) < told.stderr.find(delayed)
        assert locks(binary, other, "nightly")["vanished"] == []


@pytest.mark.parametrize("waits_for", ["a permit", "a delay"])
def test_a_contender_waits_on_through_a_restart_of_the_server(fleet: Fleet, binary: Path, waits_for: str) -> None:
    sidecar, other = serving(fleet, binary, 1, "30s"), serving(fleet, binary, 2, "30s")
    options = ["--permits", "1"] if waits_for == "a permit" else ["--lock-delay", "10m"]
    with ExitStack() as held:
        holder = held.enter_context(hold_named(sidecar, options))
        next(event for event in holder if event.WhichOneof("event") == "acquired")
        if waits_for == "a delay":
            held.close()
        with hold_named(other, options) as events:
            next(event for event in events if event.WhichOneof("event") == "waiting")
            fleet.server.restart()
            held.close()
            if waits_for == "a delay":
                eventually("a session", lambda: run(binary, other, "locks", "nightly").returncode == 0)
                [vanished] = locks(binary, other, "nightly")["vanished"]  # type: ignore[misc]
                broken = run(binary, other, "locks", "nightly", "--break-node", vanished["node_name"])
                assert broken.returncode == 0, broken.stderr
            next(event for event in events if event.WhichOneof("event") == "acquired")


@contextmanager
def hold_named(sidecar: Sidecar, options: list[str]) -> Iterator[Iterator[pb.HoldResponse]]:
    """The events of a hold of `nightly`, with a permit or with a lock delay. The hold ends with the block."""
    wanted = pb.HoldRequest(lock=pb.LockId(name="nightly"))
    if options[0] == "--permits":
        wanted.mode, wanted.permits = pb.LOCK_MODE_SEMAPHORE, 1
    else:
        wanted.lock_delay.FromSeconds(600)
    with connection(sidecar) as stub:
        stream = stub.Hold(wanted, timeout=4 * PATIENCE)
        yield stream
        stream.cancel()


def test_a_signal_reaches_the_command_and_the_lock_is_given_back(fleet: Fleet, binary: Path) -> None:
    sidecar = serving(fleet, binary, 1)
    with holding(binary, sidecar) as process:
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE)
        assert (out, process.returncode) == ("stopped\n", 3)
    assert locks(binary, sidecar, "nightly")["holders"] == []


def test_a_command_whose_lock_is_lost_is_stopped(fleet: Fleet, binary: Path) -> None:
    sidecar = serving(fleet, binary, 1)
    with holding(binary, sidecar) as process:
        [holder] = locks(binary, sidecar, "nightly")["holders"]  # type: ignore[misc]
        assert run(binary, sidecar, "locks", "nightly", "--break-node", holder["node_name"]).returncode == 0
        out, err = process.communicate(timeout=PATIENCE)
        assert (out, process.returncode) == ("stopped\n", 124)
        assert "LOCK_LOST" in err
        assert "its node was deleted" in err


def test_s13_the_lock_of_a_killed_application_is_free_at_once(fleet: Fleet) -> None:
    # Long before the session could end.
    sidecar = fleet.sidecar(1, "60s")
    path = f"/{fleet.namespace}-locks/bill"
    program = "import sidekeeper, sys, time\nwith sidekeeper.lock(path=sys.argv[1]):\n print('holds', flush=True)\n time.sleep(1000)"
    process = subprocess.Popen(
        [sys.executable, "-c", program, path],
        env=environment_with_client(SIDEKEEPER_ENDPOINT=endpoint(sidecar)),
        stdout=subprocess.PIPE,
        text=True,
    )
    with connection(sidecar):
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        with hold(sidecar, path) as events:
            next(event for event in events if event.WhichOneof("event") == "waiting")
            process.kill()
            next(event for event in events if event.WhichOneof("event") == "acquired")
    process.communicate()


def test_s14_the_lock_of_a_killed_sidecar_is_free_after_its_session(fleet: Fleet, binary: Path) -> None:
    first, second = serving(fleet, binary, 1, "2s"), serving(fleet, binary, 2, "2s")
    with holding(binary, first) as process:
        [holder] = locks(binary, second, "nightly")["holders"]  # type: ignore[misc]
        waits = subprocess.Popen(command(binary, second, "lock", "nightly", "--", "true"))
        eventually("a waiting command", lambda: locks(binary, second, "nightly")["waiting"])
        first.kill()
        # Its command is stopped at once, and the lock is not free before the session is over.
        out, err = process.communicate(timeout=PATIENCE)
        assert (out, process.returncode) == ("stopped\n", 124), err
        session = int(holder["session"], 16)
        path = f"/{fleet.namespace}-sidekeeper/@-@locks/queues/nightly/{holder['node_name']}"
        assert waits.wait(PATIENCE) == 0
        assert fleet.tree.client.exists(path) is None, session


@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_the_first_of_a_semaphores_queue_whose_sidecar_is_gone_does_not_hold_up_the_others(
    fleet: Fleet, fault: str
) -> None:
    victim, other = fleet.sidecar(1), fleet.sidecar(2)
    path, mode = f"/{fleet.namespace}-locks/bill", "SEMAPHORE:1"
    client = fleet.tree.client
    with hold(other, path, mode) as held, ExitStack() as rest:
        next(event for event in held if event.WhichOneof("event") == "acquired")
        first = rest.enter_context(hold(victim, path, mode))
        assert next(event.waiting for event in first if event.WhichOneof("event") == "waiting").position == 0
        # It has the first place, and a node among the permits that waits for room.
        assert (len(client.get_children(f"{path}/locks")), len(client.get_children(f"{path}/leases"))) == (1, 2)
        second = rest.enter_context(hold(other, path, mode))
        assert next(event.waiting for event in second if event.WhichOneof("event") == "waiting").position == 1
        if fault == "killed":
            victim.kill()
        else:
            victim.freeze()
        held.cancel()  # type: ignore[attr-defined]  # a call of gRPC
        next(event for event in second if event.WhichOneof("event") == "acquired")
        # The session of the other sidecar has ended: until then its node took the only permit.
        eventually("the first is gone", lambda: client.get_children(f"{path}/locks") == [])
        assert len(client.get_children(f"{path}/leases")) == 1
        if fault == "stopped":
            victim.thaw()
            # It stands again, behind the holder.
            eventually("it waits", lambda: len(client.get_children(f"{path}/locks")) == 1)
            eventually("it asks", lambda: len(client.get_children(f"{path}/leases")) == 2)


def test_the_next_process_of_a_killed_sidecar_resumes_the_session_without_its_locks(
    fleet: Fleet, binary: Path, tmp_path: Path
) -> None:
    def start() -> Sidecar:
        sidecar = fleet.sidecar(1, "30s", ["--state-dir", str(tmp_path)])
        eventually("a session", lambda: run(binary, sidecar, "locks").returncode == 0)
        return sidecar

    sidecar = start()
    with holding(binary, sidecar) as process:
        [before] = locks(binary, sidecar, "nightly")["holders"]  # type: ignore[misc]
        sidecar.kill()
        out, _ = process.communicate(timeout=PATIENCE)
        assert (out, process.returncode) == ("stopped\n", 124)
    sidecar = start()
    assert locks(binary, sidecar, "nightly")["holders"] == []
    with holding(binary, sidecar):
        [after] = locks(binary, sidecar, "nightly")["holders"]  # type: ignore[misc]
    assert after["session"] == before["session"]
    assert after["fencing_token"] > before["fencing_token"]


def test_s15_the_command_of_a_stopped_sidecar_is_stopped_before_another_one_starts(fleet: Fleet, binary: Path) -> None:
    first, second = serving(fleet, binary, 1, "2s"), serving(fleet, binary, 2, "2s")
    with holding(binary, first) as process:
        waits = subprocess.Popen(command(binary, second, "lock", "nightly", "--", "true"))
        eventually("a waiting command", lambda: locks(binary, second, "nightly")["waiting"])
        first.popen.send_signal(signal.SIGSTOP)
        # The sidecar is silent: the command's program knows the end of the lease by itself.
        out, err = process.communicate(timeout=PATIENCE)
        ended = time.monotonic()
        assert (out, process.returncode) == ("stopped\n", 124)
        assert "the lease of the lock is over" in err
        assert waits.poll() is None
        assert waits.wait(PATIENCE) == 0
        assert time.monotonic() > ended
        first.popen.send_signal(signal.SIGCONT)
    eventually("nothing is left", lambda: locks(binary, second, "nightly")["holders"] == [])


def test_s16_a_stopped_application_loses_its_lock(fleet: Fleet, binary: Path) -> None:
    silent = ["--silent-application-timeout", "1s"]
    sidecar = fleet.sidecar(1, options=silent)
    eventually("a session", lambda: run(binary, sidecar, "locks").returncode == 0)
    with holding(binary, sidecar) as process:
        process.send_signal(signal.SIGSTOP)
        # Its connection is closed, and the next one holds.
        assert run(binary, sidecar, "lock", "nightly", "--", "true").returncode == 0
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=PATIENCE)
        assert (out, process.returncode) == ("stopped\n", 124)


@pytest.mark.parametrize("first_to_go_on", ["application", "sidecar"])
def test_s17_a_stopped_application_with_a_stopped_sidecar_loses_its_lock(
    fleet: Fleet, binary: Path, first_to_go_on: str
) -> None:
    first, second = serving(fleet, binary, 1, "2s"), serving(fleet, binary, 2, "2s")
    with holding(binary, first) as process:
        [holder] = locks(binary, second, "nightly")["holders"]  # type: ignore[misc]
        for stopped in (process, first.popen):
            stopped.send_signal(signal.SIGSTOP)
        # The session of the stopped sidecar ends, and the next one holds. A store refuses what the former one writes later.
        told = run(binary, second, "lock", "nightly", "--", "sh", "-c", 'echo "$SIDEKEEPER_LOCK_TOKEN"')
        assert told.returncode == 0, told.stderr
        assert int(told.stdout) > int(holder["fencing_token"]) > 0
        if first_to_go_on == "sidecar":
            first.popen.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGCONT)
        # The application knows the end of the lease by itself, or the sidecar tells it of the loss before.
        out, err = process.communicate(timeout=PATIENCE)
        assert (out, process.returncode) == ("stopped\n", 124)
        assert "the lease of the lock is over" in err or (first_to_go_on == "sidecar" and "LOCK_LOST" in err)
        first.popen.send_signal(signal.SIGCONT)
    assert locks(binary, second, "nightly")["holders"] == []
    eventually(
        "the former sidecar serves again", lambda: run(binary, first, "lock", "nightly", "--", "true").returncode == 0
    )


def endpoint(sidecar: Sidecar) -> str:
    return f"unix://{sidecar.socket}"


def test_a_block_in_python_has_the_lock_and_gives_it_back(fleet: Fleet, binary: Path) -> None:
    sidecar = serving(fleet, binary, 1)
    tokens = []
    for _ in range(2):
        with sidekeeper.lock("nightly", holder="machine-7", endpoint=endpoint(sidecar)) as lock:
            tokens.append(lock.fencing_token)
            assert not lock.lost
            with pytest.raises(sidekeeper.LockError) as taken:
                sidekeeper.lock("nightly", wait_timeout=0, endpoint=endpoint(sidecar)).__enter__()
            assert (taken.value.code, taken.value.reason) == ("DEADLINE_EXCEEDED", "LOCK_NOT_FREE")
            assert "machine-7" in taken.value.details
            with pytest.raises(RuntimeError):
                lock.__enter__()
        assert locks(binary, sidecar, "nightly")["holders"] == []
    assert tokens == sorted(set(tokens))
    with pytest.raises(sidekeeper.LockError) as wrong:
        sidekeeper.lock("a/b", endpoint=endpoint(sidecar)).__enter__()
    assert (wrong.value.code, wrong.value.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    with pytest.raises(ValueError, match="a name or a path"):
        sidekeeper.lock(endpoint=endpoint(sidecar))


def break_lock(binary: Path, sidecar: Sidecar) -> None:
    [holder] = locks(binary, sidecar, "nightly")["holders"]  # type: ignore[misc]
    assert run(binary, sidecar, "locks", "nightly", "--break-node", holder["node_name"]).returncode == 0


def test_a_block_in_python_hears_that_its_lock_is_lost(fleet: Fleet, binary: Path) -> None:
    sidecar = serving(fleet, binary, 1, "2s")
    with pytest.raises(sidekeeper.LockError) as lost:  # noqa: PT012, SIM117 - the error comes at the end of the block
        with sidekeeper.lock("nightly", endpoint=endpoint(sidecar)) as lock:
            assert not lock.wait_lost(0.01)
            break_lock(binary, sidecar)
            assert lock.wait_lost(PATIENCE)
    assert (lost.value.code, lost.value.reason) == ("ABORTED", "LOCK_LOST")
    # A silent sidecar: the lease ends by the clock of this process.
    with pytest.raises(sidekeeper.LockError) as silent:  # noqa: PT012, SIM117
        with sidekeeper.lock("nightly", endpoint=endpoint(sidecar)) as lock:
            sidecar.popen.send_signal(signal.SIGSTOP)
            assert lock.wait_lost(PATIENCE)
    sidecar.popen.send_signal(signal.SIGCONT)
    assert (silent.value.code, silent.value.reason) == ("DEADLINE_EXCEEDED", "LOCK_LOST")


def test_a_block_on_an_event_loop_is_cancelled_when_its_lock_is_lost(fleet: Fleet, binary: Path) -> None:
    sidecar = serving(fleet, binary, 1)

    async def work() -> None:
        async with sidekeeper.lock("nightly", endpoint=endpoint(sidecar)) as lock:
            assert lock.fencing_token > 0
        async with sidekeeper.lock("nightly", mode=sidekeeper.LockMode.MUTEX, endpoint=endpoint(sidecar)) as lock:
            await asyncio.to_thread(break_lock, binary, sidecar)
            await asyncio.sleep(PATIENCE)

    began = time.monotonic()
    with pytest.raises(sidekeeper.LockError) as lost:
        asyncio.run(work())
    assert lost.value.reason == "LOCK_LOST"
    assert time.monotonic() - began < PATIENCE
    assert locks(binary, sidecar, "nightly")["holders"] == []


def test_s1_one_queue_with_kazoos_subclass(fleet: Fleet, binary: Path) -> None:
    sidecars = [serving(fleet, binary, number) for number in (1, 2)]
    # A persistent parent: an object of kazoo fails for ever once the container is gone (L29).
    path = f"/{fleet.namespace}-locks/bill"
    fleet.tree.client.ensure_path(path)
    journal, rounds = Journal(), int(os.environ.get("LOCK_ROUNDS", "40"))
    with ThreadPoolExecutor(6) as pool:
        ours = [pool.submit(journal.through_sidecar, sidecars[n % 2], path, f"ours-{n}", rounds) for n in range(4)]
        address = fleet.server.address
        theirs = [pool.submit(journal.through_kazoo, address, path, f"kazoo-{n}", rounds) for n in range(2)]
        for future in ours + theirs:
            future.result(8 * PATIENCE)
    assert len(journal.grants) == 6 * rounds
    assert journal.overlaps() == []
    assert journal.out_of_order() == []
    assert fleet.tree.client.get_children(path) == []


def test_s2_one_queue_of_a_hundred_contenders(fleet: Fleet, binary: Path) -> None:
    sidecars = [serving(fleet, binary, number) for number in (1, 2, 3)]
    path = f"/{fleet.namespace}-locks/bill"
    fleet.tree.client.ensure_path(path)
    journal, rounds = Journal(), max(1, int(os.environ.get("LOCK_ROUNDS", "0")) // 17)
    with ThreadPoolExecutor(100) as pool:
        with hold(sidecars[0], path) as events:
            next(event for event in events if event.WhichOneof("event") == "acquired")
            contenders = [
                pool.submit(journal.through_sidecar, sidecars[n % 3], path, f"ours-{n}", rounds) for n in range(90)
            ]
            contenders += [
                pool.submit(journal.through_kazoo, fleet.server.address, path, f"kazoo-{n}", rounds) for n in range(10)
            ]
            eventually("all wait", lambda: len(fleet.tree.client.get_children(path)) == 101)
        for contender in contenders:
            contender.result(8 * PATIENCE)
    assert len(journal.grants) == 100 * rounds
    assert journal.overlaps() == []
    assert journal.out_of_order() == []
    assert len({grant.who for grant in sorted(journal.grants)[:100]}) == 100


@pytest.mark.parametrize("how", ["killed", "stopped", "timed out"])
def test_s28_the_one_behind_a_waiting_contender_that_goes_moves_up_and_does_not_hold(
    fleet: Fleet, binary: Path, how: str
) -> None:
    first, middle, last = (serving(fleet, binary, number, "2s") for number in (1, 2, 3))
    path = f"/{fleet.namespace}-locks/bill"

    def queue() -> list[str]:
        return sorted(fleet.tree.client.get_children(path), key=lambda name: name[-10:])

    limit = Duration(seconds=1) if how == "timed out" else None
    with ExitStack() as holds:
        holder = holds.enter_context(hold(first, path))
        next(event for event in holder if event.WhichOneof("event") == "acquired")
        stub = holds.enter_context(connection(middle))
        between = stub.Hold(pb.HoldRequest(lock=pb.LockId(path=path), wait_timeout=limit))
        next(event for event in between if event.WhichOneof("event") == "waiting")
        events = holds.enter_context(hold(last, path))
        waiting = next(event.waiting for event in events if event.waiting.HasField("first"))
        assert waiting.position == 2
        before = queue()
        if how == "killed":
            middle.kill()
        elif how == "stopped":
            middle.freeze()
        # The next event of the last one is its new place.
        moved = next(event for event in events if event.WhichOneof("event") != "lease_renewed")
        assert (moved.WhichOneof("event"), moved.waiting.position) == ("waiting", 1)
        assert queue() == [before[0], before[2]]
        holder.cancel()  # type: ignore[attr-defined]
        gained = next(event.acquired for event in events if event.WhichOneof("event") == "acquired")
        assert gained.node_path == f"{path}/{before[2]}"
        middle.thaw()


def test_s29_a_limit_at_the_moment_of_the_grant_is_one_or_the_other(fleet: Fleet, binary: Path) -> None:
    sidecars = [serving(fleet, binary, number) for number in (1, 2)]
    path, client = f"/{fleet.namespace}-locks/bill", fleet.tree.client
    limit = delay = 0.05
    ends = set()
    with connection(sidecars[0]) as theirs, connection(sidecars[1]) as ours:
        for _ in range(50):
            holder = theirs.Hold(request(path, "MUTEX", ""), timeout=PATIENCE)
            next(event for event in holder if event.WhichOneof("event") == "acquired")
            asked = pb.HoldRequest(lock=pb.LockId(path=path), wait_timeout=Duration(nanos=int(limit * 1e9)))
            stream = ours.Hold(asked, timeout=PATIENCE)
            next(stream)
            time.sleep(delay)
            holder.cancel()
            # The next grant is nearer to the limit: later if this one came in time, and earlier if it did not.
            try:
                gained = next(event.acquired for event in stream if event.WhichOneof("event") == "acquired")
                delay += 0.002
                assert client.exists(gained.node_path)
                stream.cancel()
            except grpc.RpcError as error:
                delay = max(0.0, delay - 0.002)
                ends.add((error.code(), "was not free within wait_timeout" in error.details()))
            eventually("an empty queue", lambda: children(client, path) == [])
    assert ends <= {(grpc.StatusCode.DEADLINE_EXCEEDED, True)}


@pytest.mark.parametrize("patterns", [(), ("lock-",)])
def test_s4_s5_a_sidecar_waits_for_kazoos_own_locks(fleet: Fleet, binary: Path, patterns: tuple[str, ...]) -> None:
    sidecar = serving(fleet, binary, 1)
    path = f"/{fleet.namespace}-locks/bill"
    options = {"extra_lock_patterns": patterns} if patterns else {}
    theirs = Lock(fleet.tree.client, path, "kazoo", **options)
    theirs.acquire(timeout=PATIENCE)
    told = run(binary, sidecar, "lock", "--path", path, "--wait", "0s", "--", "true")
    assert told.returncode == 75
    assert "kazoo" in told.stderr
    theirs.release()
    assert run(binary, sidecar, "lock", "--path", path, "--", "true").returncode == 0
    # The other way round kazoo sees a sidecar only if it is told what to look for: docs/locks.md warns of that.
    held = subprocess.Popen(
        command(binary, sidecar, "lock", "--path", path, "--", "cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    eventually("the lock is held", lambda: locks(binary, sidecar, "--path", path)["holders"])
    theirs = Lock(fleet.tree.client, path, "kazoo", **options)
    assert theirs.acquire(blocking=False) is not bool(patterns)
    theirs.release()
    held.communicate(timeout=PATIENCE)
