"""Operations: triggers, dumps, clocks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import sidekeeper

from support.application import Application
from support.fleet import Fleet
from support.job_nodes import JOB
from support.processes import PATIENCE, eventually, free_port
from support.sidecar import Sidecar


def items_started(applications: list[Application]) -> list[int]:
    events = [event for application in applications for event in application.events("start")]
    assert {event["source"] for event in events} <= {"TRIGGER"}
    return sorted(event["item"] for event in events)


def test_a_job_without_a_schedule_runs_when_it_is_triggered(fleet: Fleet, binary: Path) -> None:
    applications = fleet.three()
    instances = tuple(sorted(application.instance for application in applications))
    endpoint = f"unix://{applications[0].sidecar.socket}"
    result = sidekeeper.trigger(JOB, endpoint=endpoint)
    assert result == sidekeeper.TriggerResult(instances, ())
    eventually("each item once", lambda: items_started(applications) == [0, 1, 2, 3, 4, 5])
    eventually("all triggers taken up", lambda: fleet.tree.children("trigger") == [])

    # The nodes that a busy Java instance leaves, and a dead one.
    fleet.tree.create("instances/10.0.0.9@-@1", "jobInstanceId: 10.0.0.9@-@1\nserverIp: 10.0.0.9\n")
    fleet.tree.create("trigger/10.0.0.9@-@1")
    fleet.tree.create("trigger/10.0.0.8@-@1")
    command = [str(binary), "trigger", JOB, "--endpoint", endpoint, "--json"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert json.loads(told.stdout) == {
        "triggered_instance_ids": list(instances),
        "pending_instance_ids": ["10.0.0.9@-@1"],
        "triggered_items": [],
    }
    eventually("the other triggers taken up", lambda: fleet.tree.children("trigger") == ["10.0.0.9@-@1"])
    fleet.tree.delete("instances/10.0.0.9@-@1")


def test_a_dump_shows_the_nodes_without_addresses(fleet: Fleet) -> None:
    port = free_port()
    application = fleet.application(fleet.sidecar(1, options=["--dump-listen", str(port)]))
    fleet.settle(application)
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
        connection.sendall(f"dump@{JOB}\n".encode())
        text = connection.makefile(encoding="utf-8", newline="\n").read()
    instance = application.instance.replace("10.0.0.1", "ip1")
    assert text.startswith(f"/{JOB}/sharding | \n/{JOB}/sharding/5 | \n/{JOB}/sharding/5/instance | {instance}\n")
    paths = [line.split(" | ")[0] for line in text.splitlines() if line.startswith(f"/{JOB}/")]
    nodes = [path for path in fleet.tree.nodes() if path]
    assert sorted(paths) == sorted(f"/{JOB}/{path}".replace("10.0.0.1", "ip1") for path in nodes)
    assert "10.0.0.1" not in text


def test_the_registry_is_asked_for_its_time_if_the_job_wants_that(fleet: Fleet) -> None:
    application = fleet.application(fleet.sidecar(1))
    fleet.settle(application)
    assert fleet.tree.get("systemTime/current") is None
    configuration = fleet.tree.get("config") or ""
    assert "maxTimeDiffSeconds: -1" in configuration
    fleet.tree.set("config", configuration.replace("maxTimeDiffSeconds: -1", "maxTimeDiffSeconds: 5"))
    eventually("the stamp", lambda: fleet.tree.get("systemTime/current") == "")


def test_with_a_token_commands_find_it_in_the_environment(fleet: Fleet, binary: Path) -> None:
    sidecar = fleet.sidecar(1, options=["--token", "open-sesame"])
    eventually("it serves", sidecar.socket.exists)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("SIDEKEEPER_")}

    def call(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [str(binary), *words, "--endpoint", f"unix://{sidecar.socket}"]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, env={**inherited, **environment}, check=False
        )

    for words in (["trigger", JOB], ["cancel", JOB], ["drain"], ["watch", JOB]):
        for wrong in ({}, {"SIDEKEEPER_TOKEN": "open-barley"}):
            refused = call(*words, **wrong)
            assert refused.returncode != 0
            assert "Unauthenticated" in refused.stderr
            assert "sesame" not in refused.stderr
    # It gets as far as the job, which has no configuration.
    assert "NotFound" in call("trigger", JOB, SIDEKEEPER_TOKEN="open-sesame").stderr
    assert "sesame" not in sidecar.log.read_text()


def test_the_command_of_run_gets_the_token_and_no_other_secret(binary: Path, tmp_path: Path) -> None:
    settings = tmp_path / "sidekeeper.toml"
    settings.write_text('token = "open-sesame"\n')
    command = [str(binary), "run", "--config", str(settings), "--log-level", "off", "--"]
    told = subprocess.run(
        [*command, "sh", "-c", "echo $SIDEKEEPER_TOKEN $SIDEKEEPER_DIGEST."],
        capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert told.stdout == "open-sesame .\n"


def test_health_tells_a_sidecar_that_lives_from_one_that_is_ready(fleet: Fleet, binary: Path) -> None:
    ready = fleet.sidecar(1)
    # Nothing listens there.
    away = Sidecar(2, fleet.folder, "127.0.0.1:1", fleet.namespace, "6s", [])
    fleet.processes.append(away)

    def health(sidecar: Sidecar, *words: str) -> tuple[int, str]:
        call = [str(binary), "health", *words, "--endpoint", f"unix://{sidecar.socket}"]
        ended = subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE, check=False)
        return ended.returncode, ended.stdout

    eventually("ready", lambda: health(ready) == (0, "ready\n"))
    assert health(ready, "--live") == (0, "live\n")
    eventually("live", lambda: health(away, "--live") == (0, "live\n"))
    assert health(away) == (2, "not ready\n")
    subprocess.run([str(binary), "drain", "--endpoint", f"unix://{ready.socket}"], timeout=PATIENCE, check=True)
    assert health(ready) == (2, "not ready\n")
    assert health(ready, "--live") == (0, "live\n")
    ready.terminate()
    assert health(ready, "--live") == (1, "")
