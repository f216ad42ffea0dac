"""The command `doctor`: faults of sidecars and of jobs, inflicted on real ones."""

from __future__ import annotations

import subprocess

from support.doctor import at, codes, doctor, outcomes
from support.fleet import Fleet
from support.job_nodes import JOB, NEVER
from support.processes import PATIENCE, eventually, sidekeeper_binary


def test_op_4_a_healthy_fleet_has_no_finding_and_each_fault_is_named_and_ended_by_its_remedy(fleet: Fleet) -> None:
    applications = fleet.three(cron=NEVER)
    here = at(applications[0].sidecar)
    zookeeper = ["--zookeeper", fleet.server.address, "--namespace", fleet.namespace]
    for place in (here, zookeeper):
        assert codes(*place, "--strict") == ([], 0)
    healthy = doctor(*here).stdout.splitlines()
    assert healthy[0] == "sidecar"
    assert healthy[-1].startswith("1 jobs and the checks above: ")
    assert healthy[-1].endswith("0 with warnings, 0 with errors")
    assert doctor(*here, "--short").stdout.splitlines() == healthy[-1:]
    fleet.tree.create("sharding/3/disabled")
    fleet.tree.set(f"servers/{applications[2].sidecar.address}", "DISABLED")
    fleet.settle(*applications[:2])
    for place in (here, zookeeper):
        assert codes(*place) == (["SERVER_DISABLED", "ITEM_DISABLED"], 2)
    shown = doctor(*here, "--short").stdout.splitlines()
    assert f"  FAIL  {JOB}: item 3: the item is disabled  ITEM_DISABLED" in shown
    remedies = [line.split("-> sidekeeper ")[1].split() for line in shown if "-> sidekeeper " in line]
    assert len(remedies) == 2
    for remedy in remedies:
        subprocess.run([str(sidekeeper_binary()), *remedy, *here], check=True, timeout=PATIENCE)
    fleet.settle(*applications)
    assert codes(*here, "--strict") == ([], 0)
    assert codes(*here, "--without-jobs") == ([], 0)


def test_op_4_a_session_that_is_shortened_and_one_that_is_away_are_named(fleet: Fleet) -> None:
    # The server allows 20 ticks at most.
    sidecar = fleet.sidecar(1, "10m")
    eventually("a session", lambda: "session opened" in sidecar.log.read_text())
    assert codes(*at(sidecar)) == (["SESSION_SHORTENED"], 0)
    assert codes(*at(sidecar), "--strict")[1] == 2
    short = fleet.sidecar(2, "2s")
    eventually("a session", lambda: "session opened" in short.log.read_text())
    assert outcomes(*at(short))["timeout"] == "OK"
    fleet.server.freeze()
    try:
        eventually("no session", lambda: codes(*at(short)) == (["REGISTRY_UNREACHABLE"], 2))
        told = outcomes(*at(short))
        assert (told["session"], told["timeout"], told["lease"]) == ("ERROR", "SKIPPED", "SKIPPED")
    finally:
        fleet.server.thaw()
    eventually("a session again", lambda: codes(*at(short)) == ([], 0))


def test_op_4_a_password_in_clear_and_a_sidecar_that_drains_are_named(fleet: Fleet) -> None:
    sidecar = fleet.sidecar(1, options=["--digest", "orders:secret"])
    eventually("a session", lambda: "session opened" in sidecar.log.read_text())
    assert codes(*at(sidecar)) == (["DIGEST_IN_CLEAR"], 0)
    drain = [str(sidekeeper_binary()), "drain", *at(sidecar)]
    subprocess.run(drain, check=True, timeout=PATIENCE, capture_output=True)
    assert codes(*at(sidecar)) == (["SIDECAR_DRAINING", "DIGEST_IN_CLEAR"], 0)


def test_op_5_the_checks_change_no_node_and_leave_no_watch(fleet: Fleet) -> None:
    applications = fleet.three(cron=NEVER)

    with fleet.unchanged():
        assert codes(*at(applications[1].sidecar)) == ([], 0)
        assert codes("--zookeeper", fleet.server.address, "--namespace", fleet.namespace) == ([], 0)
