"""The commands `diff`, `apply` and `remove`, through a sidecar and on ZooKeeper itself."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from support.fleet import Fleet
from support.job_nodes import EACH_SECOND, JOB, NEVER
from support.processes import PATIENCE, eventually, sidekeeper_binary
from support.sidecar import Sidecar
from support.znodes import children

WAYS = ["sidecar", "zookeeper"]


def place(fleet: Fleet, sidecar: Sidecar, way: str) -> list[str]:
    if way == "sidecar":
        return ["--endpoint", f"unix://{sidecar.socket}"]
    return ["--zookeeper", fleet.server.address, "--namespace", fleet.namespace]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    call = [str(sidekeeper_binary()), *words]
    return subprocess.run(call, capture_output=True, text=True, timeout=3 * PATIENCE, check=False)


def document(fleet: Fleet, **keys: object) -> Path:
    """A file with the configuration of the job."""
    path = fleet.folder / "job.yaml"
    lines = [f"{key}: {value}" for key, value in {"jobName": JOB, **keys}.items()]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("way", WAYS)
def test_a_file_creates_a_job_changes_it_while_it_runs_and_the_job_is_removed(fleet: Fleet, way: str) -> None:
    sidecar = fleet.sidecar(1)
    eventually("a session", lambda: "session opened" in sidecar.log.read_text())
    at = place(fleet, sidecar, way)
    file = str(document(fleet, cron=f"'{NEVER}'", shardingTotalCount=4, monitorExecution="true"))
    assert command("diff", file, *at).returncode == 2
    created = command("apply", "-f", file, "--yes", *at)
    assert created.returncode == 0, created.stderr
    assert created.stdout.startswith(f"{JOB}: a new job\n")
    assert created.stdout.endswith(f"applied  {JOB}\n")
    assert command("diff", file, *at).stdout == f"{JOB}: as in the file\n"
    # An application without `overwrite` gets the configuration of the registry.
    application = fleet.application(sidecar, cron=NEVER, sharding_total_count=2)
    fleet.settle(application, total=4)
    file = str(document(fleet, cron=f"'{EACH_SECOND}'", shardingTotalCount=6, monitorExecution="true"))
    differs = command("diff", file, *at)
    assert (differs.returncode, differs.stdout.splitlines()[0]) == (2, f"{JOB}: cron, sharding_total_count")
    assert f"  + cron: '{EACH_SECOND}'" in differs.stdout.splitlines()
    assert command("apply", "-f", file, "--yes", *at).returncode == 0
    fleet.settle(application, total=6)
    application.wait("an execution", lambda events: [event for event in events if event["event"] == "end"])
    # A running job is removed only by force, and after its executions.
    refused = command("remove", JOB, "--yes", *at)
    assert (refused.returncode, "stop its applications first" in refused.stderr) == (1, True), refused.stderr
    removed = command("remove", JOB, "--yes", "--force", *at)
    assert removed.returncode == 0, removed.stderr
    assert removed.stdout.startswith(f"removed  {JOB}, ")
    begun = {event["execution_id"] for event in application.events("start")}
    eventually("all have ended", lambda: begun == {event["execution_id"] for event in application.events("end")})
    client = fleet.tree.client
    eventually("no node is left", lambda: children(client, f"/{fleet.namespace}") == [])
    assert JOB not in children(client, f"/{fleet.namespace}-sidekeeper")


def test_a_directory_is_compared_and_applied_as_a_whole_or_not_at_all(fleet: Fleet) -> None:
    sidecar = fleet.sidecar(1)
    eventually("a session", lambda: "session opened" in sidecar.log.read_text())
    at = place(fleet, sidecar, "sidecar")
    folder = fleet.folder / "jobs"
    folder.mkdir()
    nothing = command("diff", str(folder), *at)
    assert (nothing.returncode, "there is no `*.yaml`" in nothing.stderr) == (64, True), nothing.stderr
    for name in ("one", "two"):
        (folder / f"{name}.yaml").write_text(f"jobName: {name}\ncron: '{NEVER}'\nshardingTotalCount: 1\n")
    (folder / "README.md").write_text("not a job")
    assert command("diff", str(folder), *at).returncode == 2
    (folder / "wrong.yml").write_text("jobName: three\n")
    refused = command("apply", "-f", str(folder), "--yes", *at)
    assert (refused.returncode, "wrong.yml" in refused.stderr) == (64, True), refused.stderr
    client = fleet.tree.client
    assert children(client, f"/{fleet.namespace}") == []
    (folder / "wrong.yml").unlink()
    applied = command("apply", "-f", str(folder), "--yes", *at)
    assert applied.returncode == 0, applied.stderr
    assert sorted(children(client, f"/{fleet.namespace}")) == ["one", "two"]
    assert command("diff", str(folder), *at).returncode == 0


@pytest.mark.parametrize("way", WAYS)
def test_op_14_a_job_that_changes_between_the_question_and_the_answer_stays(fleet: Fleet, way: str) -> None:
    application = fleet.application(fleet.sidecar(1), cron=NEVER)
    fleet.settle(application)
    at = place(fleet, application.sidecar, way)
    file = document(fleet, cron=f"'{NEVER}'", shardingTotalCount=3, monitorExecution="true")
    for words in (["apply", "-f", str(file)], ["remove", JOB, "--force"]):
        unasked = command(*words, *at)
        assert (unasked.returncode, "give `--yes`" in unasked.stderr) == (3, True), unasked.stderr
        terminal, end = pty.openpty()
        asked = subprocess.Popen(
            [str(sidekeeper_binary()), *words, *at],
            stdin=end,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(end)
        assert asked.stderr is not None
        question = iter(lambda: asked.stderr.read(1), "")  # type: ignore[union-attr]
        seen = ""
        while not seen.endswith("[y/N] "):
            seen += next(question)
        changed = str(fleet.tree.get("config")).replace("description: ''", f"description: '{words[0]}'")
        assert words[0] in changed
        fleet.tree.set("config", changed)
        os.write(terminal, b"y\n")
        output, error = asked.communicate(timeout=3 * PATIENCE)
        os.close(terminal)
        assert (asked.returncode, "has changed since it was read" in error) == (75, True), (output, error)
        assert fleet.tree.get("config") == changed
        fleet.tree.set("config", changed.replace(f"'{words[0]}'", "''"))
    fleet.settle(application)
