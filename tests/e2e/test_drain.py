"""A sidecar that is drained: what runs may end, nothing is left, the peers have the items."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

from support.application import Application
from support.fleet import Fleet
from support.job_nodes import NEVER
from support.processes import PATIENCE, eventually


def without_trace(fleet: Fleet, instance: str) -> bool:
    """Whether no node is, or is about, an instance."""
    return not any(instance in path or instance in data for path, (data, _) in fleet.tree.nodes().items())


def busy_fleet(fleet: Fleet) -> tuple[Application, Application, Application]:
    """Three applications, of which the second executes its items until it is let go."""
    first, second, third = fleet.three(session_timeout="30s", cron=NEVER)
    second.command("hold")
    fleet.tree.fire_once()
    second.wait("executions", lambda events: sum(event["event"] == "start" for event in events) == 2)
    for other in (first, third):
        other.wait("executions", lambda events: sum(event["event"] == "end" for event in events) == 2)
    return first, second, third


def test_a_drain_waits_for_running_items_and_returns_when_everybody_has_left(fleet: Fleet, binary: Path) -> None:
    first, second, third = busy_fleet(fleet)
    instance, items = second.instance, second.owned()
    command = [str(binary), "drain", "--json", "--endpoint", f"unix://{second.sidecar.socket}"]
    drain = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    second.command("release 99")  # items that it does not have: it has read this, and goes on
    eventually("its running items are still there", lambda: len(running(fleet, items)) == 2)
    assert drain.poll() is None
    second.command("release")
    told, _ = drain.communicate(timeout=PATIENCE)
    assert drain.returncode == 0
    assert [one["instance_id"] for one in json.loads(told)["instances"]] == [instance]
    # At that moment, not some time later.
    assert without_trace(fleet, instance)
    assert sorted(event["item"] for event in second.events("end")) == items
    assert second.events("cancelled") == []
    fleet.settle(first, third)
    # The process has stayed, and has nothing to do at SIGTERM.
    assert second.sidecar.popen.poll() is None
    began = time.monotonic()
    second.sidecar.terminate()
    assert time.monotonic() - began < 5.0


def running(fleet: Fleet, items: list[int]) -> list[int]:
    return [item for item in items if fleet.tree.get(f"sharding/{item}/running") is not None]


def test_a_second_signal_stops_what_runs_and_leaves_nothing(fleet: Fleet) -> None:
    first, second, third = busy_fleet(fleet)
    instance, items = second.instance, second.owned()
    sidecar = second.sidecar.popen
    sidecar.send_signal(signal.SIGTERM)
    # The first signal waits for what runs.
    log = second.sidecar.log
    eventually("the drain", lambda: "a second signal" in log.read_text())
    assert running(fleet, items) == items
    sidecar.send_signal(signal.SIGTERM)
    second.wait("cancels", lambda events: sum(event["event"] == "cancelled" for event in events) == 2)
    assert {event["reason"] for event in second.events("cancelled")} == {"DRAIN_TIMEOUT"}
    assert sidecar.wait(PATIENCE) == 0
    assert without_trace(fleet, instance)
    assert running(fleet, items) == []
    fleet.settle(first, third)
