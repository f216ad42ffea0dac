"""The command `doctor`: faults of sidecars and of jobs, inflicted on real ones."""

from __future__ import annotations

import json
import subprocess

from support.doctor import at, checks, codes, doctor, findings, outcomes
from support.fleet import Fleet
from support.job_nodes import JOB, NEVER
from support.processes import PATIENCE, eventually, free_port, sidekeeper_binary


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
    assert codes(*here, "--skip", "jobs") == ([], 0)


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
        expected = ["REGISTRY_SERVER_AWAY", "REGISTRY_UNREACHABLE"]
        eventually("no session", lambda: codes(*at(short)) == (expected, 2))
        told = outcomes(*at(short))
        assert (told["session"], told["timeout"], told["lease"]) == ("ERROR", "SKIPPED", "SKIPPED")
    finally:
        fleet.server.thaw()
    eventually("a session again", lambda: codes(*at(short)) == ([], 0))


def test_op_4_a_server_that_does_not_serve_is_named_until_it_is_taken_out_of_the_setting(fleet: Fleet) -> None:
    fleet.three(cron=NEVER)
    here = fleet.server.address
    for away, reason in [("127.0.0.1:1", "refused"), ("no-such-host.invalid:2181", "no-such-host.invalid:2181: ")]:
        words = ["--zookeeper", f"{here},{away}", "--namespace", fleet.namespace]
        assert codes(*words) == (["REGISTRY_SERVER_AWAY"], 0)
        assert codes(*words, "--strict")[1] == 2
        [finding] = findings(*words)
        assert finding["message"].startswith(f"1 of 2 servers of the registry do not serve: {away}: ")
        assert reason in finding["message"]
    told = outcomes("--zookeeper", here, "--namespace", fleet.namespace)
    assert [told[check] for check in ("servers", "versions", "latency")] == ["OK"] * 3


def test_op_4_a_password_in_clear_and_a_sidecar_that_drains_are_named(fleet: Fleet) -> None:
    sidecar = fleet.sidecar(1, options=["--digest", "orders:secret"])
    eventually("a session", lambda: "session opened" in sidecar.log.read_text())
    assert codes(*at(sidecar)) == (["DIGEST_IN_CLEAR"], 0)
    drain = [str(sidekeeper_binary()), "drain", *at(sidecar)]
    subprocess.run(drain, check=True, timeout=PATIENCE, capture_output=True)
    assert codes(*at(sidecar)) == (["SIDECAR_DRAINING", "DIGEST_IN_CLEAR"], 0)


def test_op_4_listeners_that_are_open_to_others_are_named(fleet: Fleet) -> None:
    http = ["--http-listen", f"0.0.0.0:{free_port()}", "--http-access", "anybody"]
    sidecar = fleet.sidecar(1, options=["--allow", "any-local-user", *http])
    eventually("a session", lambda: "session opened" in sidecar.log.read_text())
    [finding] = findings(*at(sidecar))
    assert finding["code"] == "LISTENER_OPEN"
    for opened in ("any-local-user", http[1]):
        assert opened in finding["message"]
    assert codes(*at(sidecar), "--skip", "listeners", "--strict") == ([], 0)


def test_only_and_skip_choose_the_checks(fleet: Fleet) -> None:
    applications = fleet.three(cron=NEVER)
    fleet.tree.create("sharding/3/disabled")
    here = at(applications[0].sidecar)
    assert outcomes(*here, "--only", "quota,command") == {"command": "OK", "quota": "OK"}
    assert {check["category"] for check in checks(*here, "--only", "registry")} == {"registry"}
    assert codes(*here, "--only", "jobs") == (["ITEM_DISABLED"], 2)
    assert codes(*here, "--only", "registry,jobs", "--skip", "jobs") == ([], 0)
    without = outcomes(*here, "--skip", "jobs,quota")
    assert "session" in without
    assert not {"quota", JOB} & without.keys()
    # A wrong word must not look like a fleet without faults.
    for wrong in (["--only", "quotas"], ["--only", "quota", "--skip", "registry"]):
        assert doctor(*here, *wrong).returncode == 64
    zookeeper = ["--zookeeper", fleet.server.address, "--namespace", fleet.namespace]
    assert doctor(*zookeeper, "--only", "sidecar").returncode == 64
    assert codes(*zookeeper, "--only", "jobs") == (["ITEM_DISABLED"], 2)


def test_wait_checks_again_until_no_check_finds_an_error(fleet: Fleet) -> None:
    applications = fleet.three(cron=NEVER)
    fleet.tree.create("sharding/3/disabled")
    here = at(applications[0].sidecar)
    ended = doctor(*here, "--only", "jobs", "--wait", "1500ms", "--json")
    assert [json.loads(line)["findings"][0]["code"] for line in ended.stdout.splitlines()] == ["ITEM_DISABLED"]
    assert ended.returncode == 2
    call = [str(sidekeeper_binary()), "doctor", *here, "--wait", f"{PATIENCE:.0f}s"]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        assert waiting.stdout is not None
        assert waiting.stderr.readline() == "sidekeeper: 1 checks with errors, 0 with warnings; checking again\n"
        fleet.tree.delete("sharding/3/disabled")
        fleet.settle(*applications)
        assert waiting.wait(2 * PATIENCE) == 0
        lines = waiting.stdout.read().splitlines()
    assert lines[0] == "sidecar"
    assert lines.count("sidecar") == 1
    assert "ITEM_DISABLED" not in "".join(lines)


def test_wait_awaits_a_sidecar_that_is_not_there_yet(fleet: Fleet) -> None:
    sidecar = fleet.sidecar(1)
    eventually("a session", lambda: "session opened" in sidecar.log.read_text())
    sidecar.terminate()
    call = [str(sidekeeper_binary()), "doctor", *at(sidecar), "--wait", f"{PATIENCE:.0f}s"]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        assert str(sidecar.socket) in waiting.stderr.readline()
        fleet.sidecar(1)
        assert waiting.wait(2 * PATIENCE) == 0


def test_wait_ends_when_its_time_is_over_though_the_sidecar_hangs(fleet: Fleet) -> None:
    sidecar = fleet.sidecar(1, "60s")
    eventually("a session", lambda: "session opened" in sidecar.log.read_text())
    sidecar.freeze()
    try:
        # Without the time it would wait for minutes.
        ended = doctor(*at(sidecar), "--wait", "2s")
    finally:
        sidecar.thaw()
    assert (ended.returncode, ended.stdout) == (75, "")
    assert "the checks did not end within 2s" in ended.stderr


def test_op_5_the_checks_change_no_node_and_leave_no_watch(fleet: Fleet) -> None:
    applications = fleet.three(cron=NEVER)

    with fleet.unchanged():
        assert codes(*at(applications[1].sidecar)) == ([], 0)
        assert codes("--zookeeper", fleet.server.address, "--namespace", fleet.namespace) == ([], 0)
