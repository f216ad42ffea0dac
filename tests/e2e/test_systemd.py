"""The unit for systemd, as it is shipped: its restrictions take nothing from the sidecar that it needs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from sidekeeper._proto.v1 import attach_pb2, job_pb2
from sidekeeper._proto.v1.participant_service_pb2_grpc import ParticipantServiceStub

from support import stranger
from support.application import Application
from support.fleet import Fleet
from support.job_nodes import NEVER
from support.processes import Process, environment_with_client, eventually, free_port, sidekeeper_binary
from support.squatter import READ, UID
from support.systemd import PROGRAM, UNIT, Systemd, missing, systemd

SERVICE = UNIT.name
#: The largest exposure that `systemd-analyze security` may give, times ten.
EXPOSURE = 15
TRIGGER = "sidekeeper.v1.JobService/TriggerJob"

needs_systemd = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@dataclass
class Service:
    """The sidecar as a service. Applications see its socket as that of any sidecar."""

    systemd: Systemd
    port: int
    socket: Path

    def process(self) -> int:
        return self.systemd.process_of(SERVICE)

    def status(self) -> dict[str, str]:
        lines = Path(f"/proc/{self.process()}/status").read_text().splitlines()
        return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


@pytest.fixture
def service(fleet: Fleet) -> Iterator[Service]:
    with started(fleet) as service:
        yield service


@contextmanager
def started(fleet: Fleet) -> Iterator[Service]:
    """The unit, started; with a ZooKeeper, and with a port of its own."""
    port = free_port()
    settings = {
        "SIDEKEEPER_ZOOKEEPER": fleet.server.address,
        "SIDEKEEPER_NAMESPACE": fleet.namespace,
        "SIDEKEEPER_LISTEN": f"unix:/run/sidekeeper/api.sock,127.0.0.1:{port}",
        "SIDEKEEPER_SESSION_TIMEOUT": "20s",
    }
    with systemd(sidekeeper_binary(), settings) as running:
        running.run("systemctl", "start", SERVICE)
        service = Service(running, port, running.path("/run/sidekeeper/api.sock"))
        eventually("it serves", service.socket.is_socket)
        yield service


def attached_and_session(socket: Path | str) -> tuple[attach_pb2.Attached, object]:
    """The first events of an application with a job that never fires: it is attached, and the session has a lease."""
    configuration = job_pb2.JobConfiguration(sharding_total_count=1, cron=NEVER, time_zone="Europe/Berlin")
    request = attach_pb2.AttachRequest(job_name="probe", configuration=configuration, client="test/1")
    attached, session = None, None
    with grpc.insecure_channel(f"unix:{socket}", [("grpc.default_authority", "localhost")]) as channel:
        for event in ParticipantServiceStub(channel).Attach(request, timeout=60, wait_for_ready=True):
            if event.HasField("attached"):
                attached = event.attached
            if event.HasField("session_changed") and event.session_changed.boottime_clock:
                session = event.session_changed
            if attached is not None and session is not None:
                return attached, session
    raise AssertionError(f"the stream ended: {attached}, {session}")


def test_se_12_the_unit_is_right_and_exposes_little(tmp_path: Path, binary: Path) -> None:
    unit = tmp_path / SERVICE
    unit.write_text(UNIT.read_text().replace(f"ExecStart=/{PROGRAM}", f"ExecStart={binary}"))
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    ours = [line for line in verified.stderr.splitlines() if str(SERVICE) in line]
    assert (verified.returncode, ours) == (0, []), verified.stderr
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert "Overall exposure level" in judged.stdout


@needs_systemd
def test_se_12_the_shipped_unit_has_what_a_sidecar_needs(fleet: Fleet, service: Service) -> None:
    status = service.status()
    assert int(status["Uid"].split()[0]) > 0
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    attached, session = attached_and_session(service.socket)
    # One clock with applications outside the unit (P4).
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert session.boottime_clock == f"{boot}/{os.readlink('/proc/self/ns/time')}"
    # The address that a sidecar without restrictions finds.
    assert address_of(attached.instance_id) == address_without_restrictions(fleet)
    # The user of each peer, on both listeners.
    own = int(status["Uid"].split()[0])
    assert code(f"127.0.0.1:{service.port}", own) == "INVALID_ARGUMENT"
    assert code(f"127.0.0.1:{service.port}", UID) == "UNAUTHENTICATED"
    assert oct(service.socket.stat().st_mode & 0o777) == "0o600"
    # An execution, from the fire to its record.
    application = Application("application", service, fleet.folder, {"sharding_total_count": 2, "cron": NEVER})  # type: ignore[arg-type]
    fleet.processes.append(application)
    eventually("its items", lambda: application.owned() == [0, 1])
    fleet.tree.fire_once()
    application.wait("executions", lambda events: sum(event["event"] == "end" for event in events) == 2)


@needs_systemd
def test_a_service_that_is_killed_resumes_and_one_that_is_stopped_leaves(fleet: Fleet, service: Service) -> None:
    configuration = {"sharding_total_count": 2, "cron": NEVER, "props": {"sidekeeper.grace": "15s"}}
    application = Application("application", service, fleet.folder, configuration)  # type: ignore[arg-type]
    fleet.processes.append(application)
    eventually("its items", lambda: application.owned() == [0, 1])
    node = fleet.tree.path(f"instances/{application.instance}")
    before = fleet.tree.client.exists(node)
    killed = service.process()
    os.kill(killed, signal.SIGKILL)
    application.wait(
        "its return",
        lambda events: sum(event["event"] == "assignment" and event["reason"] == "ATTACHED" for event in events) == 2,
    )
    assert service.process() != killed
    after = fleet.tree.client.exists(node)
    assert before is not None
    assert after is not None
    assert (after.czxid, after.ephemeralOwner) == (before.czxid, before.ephemeralOwner)
    application.command("hold 0")
    fleet.tree.fire_once()
    application.wait("an execution", lambda events: any(event["event"] == "start" for event in events))
    service.systemd.run("systemctl", "stop", "--no-block", SERVICE)
    eventually("it drains", lambda: service.systemd.show(SERVICE, "ActiveState") == "deactivating")
    application.command("release 0")
    eventually("it has ended", lambda: service.systemd.show(SERVICE, "ActiveState") == "inactive")
    assert service.systemd.show(SERVICE, "Result") == "success"
    assert fleet.tree.client.exists(node) is None
    assert application.events("cancelled") == []


def address_of(instance: str) -> str:
    return instance.split("@-@")[0]


def address_without_restrictions(fleet: Fleet) -> str:
    """The address in the instance id of a sidecar that finds its address by itself."""
    place = fleet.folder / "plain.sock"
    command = [str(sidekeeper_binary()), "serve", "--listen", f"unix:{place}", "--zookeeper", fleet.server.address]
    plain = Process("plain", [*command, "--namespace", fleet.namespace], fleet.folder, dict(os.environ), pipe=False)
    fleet.processes.append(plain)
    eventually("it serves", place.is_socket)
    attached, _ = attached_and_session(place)
    return address_of(attached.instance_id)


def code(address: str, uid: int) -> str:
    """The code that a user gets for a call without fields."""
    command = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    command += [f"--inh-caps=+{READ}", f"--ambient-caps=+{READ}", sys.executable, stranger.__file__]
    ended = subprocess.run(
        [*command, "calls", address, TRIGGER],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment_with_client(),
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told: dict[str, tuple[str, str]] = json.loads(ended.stdout)
    return told[TRIGGER][0]
