"""The commands `backup` and `restore`: a namespace moves to another one, to another server, and to a registry of a sidecar's own."""

from __future__ import annotations

import json
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.application import Application
from support.fleet import Fleet
from support.job_nodes import EACH_SECOND, JOB, NEVER
from support.processes import PATIENCE, eventually, sidekeeper_binary
from support.sidecar import EmbeddedSidecar, Sidecar
from support.znodes import children, data
from support.zookeeper import ZooKeeperServer

WAYS = ["sidecar", "zookeeper"]
LOCK = "nightly"


def place(fleet: Fleet, sidecar: Sidecar, way: str) -> list[str]:
    if way == "sidecar":
        return ["--endpoint", f"unix://{sidecar.socket}"]
    return ["--zookeeper", fleet.server.address, "--namespace", fleet.namespace]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    call = [str(sidekeeper_binary()), *words]
    return subprocess.run(call, capture_output=True, text=True, timeout=3 * PATIENCE, check=False)


def lock_token(sidecar: Sidecar) -> int:
    held = command(
        "lock", LOCK, "--endpoint", f"unix://{sidecar.socket}", "--", "sh", "-c", "echo $SIDEKEEPER_LOCK_TOKEN"
    )
    assert held.returncode == 0, held.stderr
    return int(held.stdout)


def codes(*words: str) -> tuple[list[str], int]:
    """The codes that `doctor` finds, and its exit status."""
    ended = command("doctor", *words, "--json", "--skip", "jobs")
    checks = [json.loads(line) for line in ended.stdout.splitlines()]
    return [finding["code"] for check in checks for finding in check["findings"]], ended.returncode


@contextmanager
def other(folder: Path, server: ZooKeeperServer, namespace: str) -> Iterator[Fleet]:
    """A fleet in another namespace."""
    folder.mkdir()
    client = server.client()
    fleet = Fleet(folder, server, client, namespace)
    try:
        yield fleet
    finally:
        fleet.end()
        client.stop()
        client.close()
    assert not fleet.panics()


def executed(application: Application, at_least: int) -> None:
    application.wait(
        "executions", lambda events: len([event for event in events if event["event"] == "end"]) >= at_least
    )


def fires(application: Application) -> set[tuple[int, float]]:
    return {(event["item"], event["scheduled"]) for event in application.events("start")}


@pytest.mark.parametrize("way", WAYS)
def test_a_namespace_moves_on_one_server_and_no_fire_is_lost_or_executed_twice(
    fleet: Fleet, way: str, tmp_path: Path
) -> None:
    sidecar = fleet.sidecar(1)
    application = fleet.application(sidecar, cron=EACH_SECOND, misfire=True, sharding_item_parameters="0=geheim")
    fleet.settle(application)
    executed(application, 12)
    fleet.tree.create("sharding/3/disabled")
    application.terminate()
    eventually("it has left", lambda: fleet.tree.children("instances") == [])
    fleet.tree.create("sharding/1/misfire")
    token = lock_token(sidecar)
    file = tmp_path / "namespace.backup"
    at = place(fleet, sidecar, way)
    saved = command("backup", "-o", str(file), *at)
    assert (saved.returncode, saved.stdout.startswith("saved  1 jobs, ")) == (0, True), saved.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "geheim" in file.read_text()
    again = command("backup", "-o", str(file), *at)
    assert (again.returncode, "exists already" in again.stderr) == (1, True)
    with other(tmp_path / "other", fleet.server, f"{fleet.namespace}-moved") as moved:
        new = moved.sidecar(2)
        eventually("a session", lambda: "session opened" in new.log.read_text())
        to = place(moved, new, way)
        shown = command("restore", str(file), "--dry-run", *to)
        assert (shown.returncode, ": 1 jobs, " in shown.stdout, "tokens" in shown.stdout) == (0, True, False), shown
        unasked = command("restore", str(file), *to)
        assert (unasked.returncode, "give `--yes`" in unasked.stderr) == (3, True), unasked.stderr
        assert children(moved.tree.client, moved.tree.namespace) == []
        restored = command("restore", str(file), "--yes", *to)
        assert restored.returncode == 0, restored.stderr
        assert restored.stdout.splitlines()[-1].startswith("restored  1 jobs: ")
        assert moved.tree.get("config") == fleet.tree.get("config")
        assert moved.tree.get("sharding/3/disabled") == ""
        own = f"{JOB}/fires"
        for item in children(fleet.tree.client, f"/{fleet.namespace}-sidekeeper/{own}"):
            before, after = (
                data(fleet.tree.client, f"{one.tree.namespace}-sidekeeper/{own}/{item}") for one in (fleet, moved)
            )
            assert before == after, item
        application_there = moved.application(new, cron=NEVER)
        executed(application_there, 12)
        assert not fires(application) & fires(application_there)
        # The missed fire of the backup is re-run, once. On a loaded machine later fires may be missed too.
        starts = application_there.events("start")
        first, *others = (event for event in starts if event["item"] == 1)
        assert first["source"] == "MISFIRE"
        assert first["scheduled"] not in {event["scheduled"] for event in others}
        assert not [event for event in starts if event["item"] == 3]
        assert min(event["fencing_token"] for event in starts) > max(
            event["fencing_token"] for event in application.events("start")
        )
        assert lock_token(new) > token
        assert codes(*to) == ([], 0)
        refused = command("restore", str(file), "--yes", *to)
        assert (refused.returncode, "has 1 instances online" in refused.stderr) == (1, True), refused.stderr


def test_on_another_server_tokens_may_fall_until_an_operator_has_acted_and_a_registry_of_a_sidecar_goes_beyond_them(
    fleet: Fleet, tmp_path: Path
) -> None:
    sidecar = fleet.sidecar(1)
    application = fleet.application(sidecar, cron=EACH_SECOND)
    fleet.settle(application)
    executed(application, 6)
    token = lock_token(sidecar)
    file = str(tmp_path / "namespace.backup")
    # While it runs.
    assert command("backup", "-o", file, *place(fleet, sidecar, "sidecar")).returncode == 0
    server_folder = tmp_path / "server"
    server_folder.mkdir()
    server = ZooKeeperServer(server_folder)
    try:
        with other(tmp_path / "other", server, fleet.namespace) as moved:
            new = moved.sidecar(2)
            eventually("a session", lambda: "session opened" in new.log.read_text())
            to = place(moved, new, "zookeeper")
            shown = json.loads(command("restore", file, "--dry-run", "--json", *to).stdout)
            assert (shown["jobs"], shown["tokens_may_fall"], shown["changed_paths"]) == (1, True, [])
            restored = command("restore", file, "--yes", *to)
            assert (restored.returncode, "TOKENS_MAY_FALL" in restored.stdout) == (0, True), restored.stderr
            for way in WAYS:
                assert codes(*place(moved, new, way)) == (["TOKENS_MAY_FALL"], 2)
            # A backup of this namespace knows of the former tokens.
            second = str(tmp_path / "second.backup")
            assert command("backup", "-o", second, *to).returncode == 0
            first_end, second_end = (
                json.loads(Path(one).read_text().splitlines()[-2])["summary"]["highest_transaction"]
                for one in (file, second)
            )
            assert second_end >= first_end
            moved.tree.client.delete(f"/{moved.namespace}-sidekeeper/@-@restored")
            for way in WAYS:
                assert codes(*place(moved, new, way)) == ([], 0)
    finally:
        server.kill()
    folder = tmp_path / "embedded"
    folder.mkdir()
    embedded = EmbeddedSidecar(folder, ["--data-dir", str(folder / "data")])
    try:
        here = ["--endpoint", f"unix://{embedded.socket}"]
        eventually("a session", lambda: "session opened" in embedded.log.read_text())
        restored = command("restore", file, "--yes", "--settled-until", "now", *here)
        assert (restored.returncode, "TOKENS_MAY_FALL" in restored.stdout) == (0, False), restored.stderr
        assert lock_token(embedded) > token
        assert codes(*here) == ([], 0)
        assert JOB in command("jobs", *here).stdout
    finally:
        embedded.kill()


def test_a_restore_that_is_killed_in_the_middle_is_finished_by_a_repetition(fleet: Fleet, tmp_path: Path) -> None:
    client, jobs = fleet.tree.client, [f"job-{number:03}" for number in range(600)]
    client.ensure_path(fleet.tree.namespace)
    # So large that a restore needs several transactions.
    for job in jobs:
        configuration = f"jobName: {job}\nshardingTotalCount: 1\ndescription: {'d' * 5_000}\n"
        client.create(f"{fleet.tree.namespace}/{job}", b"")
        client.create(f"{fleet.tree.namespace}/{job}/config", configuration.encode())
    file = str(tmp_path / "namespace.backup")
    place = ["--zookeeper", fleet.server.address, "--namespace"]
    saved = command("backup", "-o", file, *place, fleet.namespace)
    assert saved.returncode == 0, saved.stderr
    for attempt in range(20):
        namespace = f"{fleet.namespace}-{attempt}"
        restore = ["restore", file, "--yes", *place, namespace]
        killed = subprocess.Popen([str(sidekeeper_binary()), *restore], stdout=subprocess.DEVNULL)
        eventually("its first jobs", lambda namespace=namespace: children(client, f"/{namespace}"))
        killed.kill()
        killed.wait()
        if len(children(client, f"/{namespace}")) < len(jobs):
            break
    else:
        pytest.fail("each restore had ended before it was killed")
    again = command(*restore)
    assert again.returncode == 0, again.stderr
    assert sorted(children(client, f"/{namespace}")) == jobs
    for job in jobs:
        before, after = (data(client, f"/{one}/{job}/config") for one in (fleet.namespace, namespace))
        assert before == after
    # A third one has nothing to do.
    shown = json.loads(command(*restore, "--json").stdout)
    assert (shown["created_nodes"], shown["changed_paths"], shown["removed_paths"]) == (0, [], []), shown
