"""The failure tour (`docs/failure-tour.md`): faults inflicted on real processes and on a real ZooKeeper, one by one.

`doctor` names exactly the fault that was inflicted. Its remedy, carried out as it stands, ends the fault.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kazoo.client import KazooClient

from faults.environment import FakeClock, OddEnsemble, Wanted, sidecar_in
from support.application import Application
from support.doctor import at, doctor, findings
from support.fleet import Fleet
from support.job_nodes import EACH_SECOND, JOB, NEVER
from support.processes import PATIENCE, ROOT, eventually, sidekeeper_binary
from support.sidecar import Sidecar
from support.zookeeper import ZooKeeperServer

#: An instance that is not there.
NOBODY = "10.0.0.99@-@4711"


def found(sidecar: Sidecar) -> list[str]:
    """The codes that `doctor` names at this sidecar, each once."""
    return sorted({finding["code"] for finding in findings(*at(sidecar))})


def named(sidecar: Sidecar, code: str, timeout: float = PATIENCE, cause: str | None = None) -> dict[str, Any]:
    """Waits until `doctor` names this fault and no other one, but its `cause`. Returns what it says of the fault."""

    def alone() -> dict[str, Any]:
        told = {finding["code"]: finding for finding in reversed(findings(*at(sidecar)))}
        return told[code] if set(told) == {code, cause or code} else {}

    return eventually(f"{code} alone; there is {found(sidecar)}", alone, timeout)


def is_well(sidecar: Sidecar, timeout: float = PATIENCE) -> None:
    eventually("the fault has ended", lambda: doctor(*at(sidecar), "--strict").returncode == 0, timeout)


def carry_out(finding: dict[str, Any], sidecar: Sidecar) -> None:
    """Runs the command that is the remedy."""
    program, *words = finding["remedy"].split()
    assert program == "sidekeeper", finding
    run(*words, *at(sidecar))


def run(*words: str) -> None:
    subprocess.run([str(sidekeeper_binary()), *words], check=True, timeout=PATIENCE, capture_output=True)


def test_op_4_the_page_of_the_tour_names_the_test_of_each_fault() -> None:
    page = (ROOT / "docs" / "failure-tour.md").read_text()
    told = re.findall(r"^\| .+ \| `([A-Z_]+)` \| .+ \| `(test_op_4_\w+)` \|$", page, re.MULTILINE)
    tests = [name for name in globals() if name.startswith("test_op_4_") and "page_of_the_tour" not in name]
    assert sorted(test for _, test in told) == sorted(set(tests) - {"test_op_4_two_faults_at_once_are_both_named"})
    assert len({code for code, _ in told}) == len(told) >= 12


# Faults of the job, in the registry.


def test_op_4_an_item_is_disabled_and_forgotten(fleet: Fleet) -> None:
    [sidecar, *_] = healthy(fleet)
    fleet.tree.create("sharding/3/disabled")
    carry_out(named(sidecar, "ITEM_DISABLED"), sidecar)
    is_well(sidecar)


def test_op_4_a_server_is_disabled(fleet: Fleet) -> None:
    [sidecar, other, _] = healthy(fleet)
    fleet.tree.set(f"servers/{other.address}", "DISABLED")
    carry_out(named(sidecar, "SERVER_DISABLED"), sidecar)
    is_well(sidecar)


def test_op_4_a_running_node_is_left_over(fleet: Fleet) -> None:
    [sidecar, *_] = healthy(fleet)
    fleet.tree.create("sharding/2/running", NOBODY)
    finding = named(sidecar, "ITEM_RUNNING_STALE")
    assert finding["remedy"].endswith("then delete the running node")
    [path] = finding["paths"]
    fleet.tree.client.delete(path)
    is_well(sidecar)


def test_op_4_a_configuration_is_garbled(fleet: Fleet) -> None:
    [sidecar, *_] = healthy(fleet)
    right = fleet.tree.get("config") or ""
    fleet.tree.set("config", right.replace("shardingTotalCount: 6", "shardingTotalCount: six"))
    finding = named(sidecar, "JOB_CONFIG_UNREADABLE")
    assert "shardingTotalCount" in finding["message"]
    assert finding["remedy"] == "correct the configuration"
    fleet.tree.set("config", right)
    is_well(sidecar)


def test_op_4_instances_take_different_time_zones(fleet: Fleet) -> None:
    [sidecar, *_] = healthy(fleet)
    # A Java instance fires by the time zone of its machine.
    ip, instance = "10.0.0.9", "10.0.0.9@-@21"
    fleet.tree.client.create(
        fleet.tree.path(f"instances/{instance}"),
        f"jobInstanceId: {instance}\nserverIp: {ip}\n".encode(),
        ephemeral=True,
    )
    fleet.tree.create(f"servers/{ip}", "ENABLED")
    finding = named(sidecar, "JOB_ZONE_DIFFERS")
    assert finding["remedy"] == "set timeZone in the configuration, to an offset such as GMT+8:00"
    file = fleet.folder / "job.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(fleet.tree.get("config") or ""), "timeZone": "GMT+8:00"}))
    run("apply", "-f", str(file), "--yes", *at(sidecar))
    is_well(sidecar)
    fleet.tree.delete(f"instances/{instance}")


# Faults of processes.


def test_op_4_the_leader_hangs(fleet: Fleet) -> None:
    applications = fleet.three("20s", cron=NEVER)
    leader = next(one for one in applications if one.instance == fleet.tree.get("leader/election/instance"))
    others = [one for one in applications if one is not leader]
    leader.sidecar.freeze()
    # Something that only the leader can do.
    fleet.tree.configure(shardingTotalCount=8)
    finding = named(others[0].sidecar, "LEADER_HUNG")
    assert finding["subject"] == {"instance_id": leader.instance}
    assert finding["remedy"].startswith(f"end the process of `{leader.instance}`")
    leader.kill()
    leader.sidecar.kill()
    is_well(others[0].sidecar, 2 * PATIENCE)
    fleet.settle(*others, total=8)


def test_op_4_an_application_never_completes(fleet: Fleet) -> None:
    application = fleet.application(fleet.sidecar(1), cron=EACH_SECOND)
    fleet.settle(application)
    application.command("hold 4")
    finding = named(application.sidecar, "ITEM_RUNNING_LONG")
    assert finding["subject"] == {"item": 4}
    remedy = f"wait, or cancel it: sidekeeper cancel {JOB} --item 4 --fleet"
    assert finding["remedy"] == remedy
    carry_out({"remedy": remedy.partition(": ")[2]}, application.sidecar)
    eventually("it is cancelled", lambda: application.events("cancelled"))
    # A program that hangs once; without this it would hang at the next fire again.
    application.command("release 4")
    is_well(application.sidecar)


def test_op_4_an_application_fails_at_every_fire(fleet: Fleet) -> None:
    application = fleet.application(fleet.sidecar(1), cron=EACH_SECOND)
    fleet.settle(application)
    application.command("fail 5")
    finding = named(application.sidecar, "ITEM_FAILING")
    assert "the test wants it to fail" in finding["message"]
    # The remedy names the place to look at, and it has the cause.
    assert finding["remedy"] == "look at the application's log"
    assert "the test wants it to fail" in application.log.read_text()
    application.command("fail")
    is_well(application.sidecar)


def test_op_4_a_clock_is_off_by_a_minute(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(fleet.folder / "clock")
    with monkeypatch.context() as patched:
        sidecar_in(patched, fleet.folder, *clock.command())
        wrong = fleet.sidecar(1)
    right = fleet.sidecar(2)
    fleet.settle(*[fleet.application(sidecar, cron=NEVER) for sidecar in (wrong, right)])
    is_well(wrong)
    for seconds, says in ((60.0, "ahead of"), (-60.0, "behind")):
        clock.set(seconds)
        finding = eventually(f"it is {says} the registry's", lambda says=says: skew(wrong, says))
        assert found(right) == []
    assert finding["remedy"].startswith("set the clocks of this machine")
    clock.set(0.0)
    is_well(wrong)


def skew(sidecar: Sidecar, side: str) -> dict[str, Any] | None:
    """The finding that the clock is a minute off, to this side, if there is no other one."""
    told = findings(*at(sidecar))
    message = rf"the clock of this machine is (59|60|61) s {side} that of the registry: .*"
    if [one["code"] for one in told] != ["CLOCK_SKEW"] or not re.fullmatch(message, told[0]["message"]):
        return None
    return told[0]


def test_op_4_a_session_timeout_is_above_the_server_s_limit(fleet: Fleet) -> None:
    def started(timeout: str) -> Sidecar:
        sidecar = fleet.sidecar(1, timeout)
        eventually("a session", lambda: "session opened" in sidecar.log.read_text())
        return sidecar

    sidecar = started("10m")
    finding = named(sidecar, "SESSION_SHORTENED")
    [granted] = re.findall(r"granted a session of (\d+s)", finding["message"])
    assert finding["remedy"].endswith("or set session_timeout to the granted time")
    sidecar.terminate()
    sidecar.log.unlink()
    is_well(started(granted))


# Faults of ZooKeeper.


@pytest.fixture
def own_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sk-zk-") as folder:
        yield Path(folder)


def beside(fleet: Fleet, address: str, **configuration: Any) -> Application:
    """An application beside a sidecar on another ZooKeeper."""
    sidecar = Sidecar(1, fleet.folder, address, fleet.namespace, "4s", [])
    fleet.processes.append(sidecar)
    application = fleet.application(sidecar, **configuration)
    eventually("its items", lambda: len(application.owned()) == 6)
    return application


def test_op_4_zookeeper_is_read_only(fleet: Fleet, own_folder: Path) -> None:
    ensemble = OddEnsemble(own_folder, Wanted(3, java=["-Dreadonlymode.enabled=true"]))
    try:
        application = beside(fleet, ensemble.address, cron=NEVER)
        is_well(application.sidecar)
        away = ensemble.servers[:2]
        for server in away:
            server.kill()
        finding = named(application.sidecar, "REGISTRY_READ_ONLY", 3 * PATIENCE, cause="REGISTRY_SERVER_AWAY")
        assert finding["message"].endswith("the servers that answer serve read-only")
        assert finding["remedy"].startswith("start the other servers of the ensemble")
        # A command without a sidecar says it, too.
        alone = doctor("--zookeeper", ensemble.address, "--namespace", fleet.namespace)
        assert (alone.returncode, "serve read-only" in alone.stderr) == (75, True), alone.stderr
        for server in away:
            server.start()
        is_well(application.sidecar, 3 * PATIENCE)
    finally:
        ensemble.kill()


def test_op_4_a_quota_is_reached(fleet: Fleet, own_folder: Path) -> None:
    server = ZooKeeperServer(own_folder, settings={"enforceQuota": "true"})
    try:
        application = beside(fleet, server.address, cron=EACH_SECOND)
        eventually("fires", lambda: len(application.events("end")) >= 6)
        client = server.client()
        set_quota, quota = quota_of(client, fleet.namespace)
        set_quota(10)
        finding = named(application.sidecar, "REGISTRY_QUOTA")
        assert re.search(rf"the quota of /{fleet.namespace} is reached: \d\d of 10 nodes", finding["message"])
        assert finding["severity"] == "FINDING_SEVERITY_ERROR"
        alone = findings("--zookeeper", server.address, "--namespace", fleet.namespace)
        assert [one["code"] for one in alone] == ["REGISTRY_QUOTA"]
        eventually("nothing more is executed", lambda: not application.executing())
        # The remedy: `delquota` deletes these nodes.
        assert finding["remedy"].startswith("raise or delete the quota (setquota, delquota")
        for node in ("zookeeper_limits", "zookeeper_stats"):
            client.delete(f"{quota}/{node}")
        is_well(application.sidecar)
        before = len(application.events("end"))
        eventually("fires again", lambda: len(application.events("end")) >= before + 6)
        # Nearly reached: a warning.
        used = sum(1 for _ in nodes_of(client, f"/{fleet.namespace}"))
        set_quota(used + 2)
        assert named(application.sidecar, "REGISTRY_QUOTA")["severity"] == "FINDING_SEVERITY_WARNING"
        client.stop()
        client.close()
    finally:
        server.kill()


def quota_of(client: KazooClient, namespace: str) -> tuple[Callable[[int], None], str]:
    """Sets a hard limit for the nodes of a namespace, as `setquota -N` does; and the node of the quota."""
    quota = f"/zookeeper/quota/{namespace}"

    def set_quota(nodes: int) -> None:
        limit = f"count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit={nodes}".encode()
        client.create(f"{quota}/zookeeper_limits", limit, makepath=True)
        client.create(f"{quota}/zookeeper_stats", b"count=0,bytes=0")

    return set_quota, quota


def nodes_of(client: KazooClient, path: str) -> Iterator[str]:
    yield path
    for child in client.get_children(path):
        yield from nodes_of(client, f"{path}/{child}")


# Two at once.


def test_op_4_two_faults_at_once_are_both_named(fleet: Fleet) -> None:
    sidecar = fleet.sidecar(1, "10m")
    application = fleet.application(sidecar, cron=EACH_SECOND)
    fleet.settle(application)
    eventually("the first one", lambda: found(sidecar) == ["SESSION_SHORTENED"])
    inflict: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "ITEM_DISABLED": (
            lambda: fleet.tree.create("sharding/1/disabled"),
            lambda: fleet.tree.delete("sharding/1/disabled"),
        ),
        "ITEM_FAILING": (lambda: application.command("fail 2"), lambda: application.command("fail")),
        "ITEM_RUNNING_LONG": (lambda: application.command("hold 3"), lambda: application.command("release")),
        "ITEM_RUNNING_STALE": (
            lambda: fleet.tree.create("sharding/1/running", NOBODY),
            lambda: fleet.tree.delete("sharding/1/running"),
        ),
    }
    for code, (begin, end) in inflict.items():
        begin()
        both = sorted([code, "SESSION_SHORTENED"])
        eventually(f"{code}, too", lambda both=both: found(sidecar) == both)
        end()
        eventually(f"not {code}", lambda: found(sidecar) == ["SESSION_SHORTENED"])


def healthy(fleet: Fleet) -> list[Sidecar]:
    """The sidecars of a fleet of three, in which nothing is wrong."""
    sidecars = [application.sidecar for application in fleet.three(cron=NEVER)]
    is_well(sidecars[0])
    return sidecars
