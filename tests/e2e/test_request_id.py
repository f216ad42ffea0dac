"""OP-3: an operator's request whose answer is lost, repeated with the same `request_id`."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import pytest
from sidekeeper._proto.v1 import job_service_pb2 as pb2
from sidekeeper._proto.v1.job_service_pb2_grpc import JobServiceStub

from support.application import Application
from support.fleet import Fleet
from support.job_nodes import JOB, NEVER
from support.processes import PATIENCE, eventually, sidekeeper_binary
from support.request_proxy import RequestProxy
from support.sidecar import Sidecar


@dataclass
class Proxied:
    """Three applications, and an operator's sidecar that reaches ZooKeeper through a proxy."""

    fleet: Fleet
    proxy: RequestProxy
    sidecar: Sidecar
    applications: list[Application]

    def record(self, request_id: str) -> str:
        return f"{self.fleet.tree.namespace}-sidekeeper/{JOB}/requests/{request_id}"

    def starts(self) -> Counter[int]:
        """How often each item was started."""
        return Counter(event["item"] for one in self.applications for event in one.events("start"))

    def have_run(self, times: int) -> None:
        """Waits until each item has run so many times, and all triggers are taken up."""
        wanted = Counter(dict.fromkeys(range(6), times))
        eventually(f"each item {times} times", lambda: self.starts() == wanted)
        eventually("all triggers taken up", lambda: self.fleet.tree.children("trigger") == [])


@pytest.fixture
def proxied(fleet: Fleet) -> Iterator[Proxied]:
    applications = fleet.three(cron=NEVER)
    proxy = RequestProxy(fleet.server.port)
    sidecar = Sidecar(9, fleet.folder, proxy.address, fleet.namespace, "6s", [])
    fleet.processes.append(sidecar)
    eventually("a session", lambda: "session opened" in sidecar.log.read_text())
    try:
        yield Proxied(fleet, proxy, sidecar, applications)
    finally:
        sidecar.kill()
        proxy.end()


def trigger(sidecar: Sidecar, request_id: str) -> pb2.TriggerJobResponse:
    # gRPC for Python would name the socket as the host, which HTTP/2 does not permit.
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(f"unix:{sidecar.socket}", options) as channel:
        request = pb2.TriggerJobRequest(job_name=JOB, request_id=request_id)
        answer: pb2.TriggerJobResponse = JobServiceStub(channel).TriggerJob(
            request, timeout=PATIENCE, wait_for_ready=True
        )
        return answer


def test_op_3_a_trigger_repeated_at_another_sidecar_runs_once(proxied: Proxied) -> None:
    assert not proxied.fleet.tree.client.exists(proxied.fleet.tree.path("trigger"))
    lost = proxied.proxy.lose_reply("create", proxied.record("once"))
    with pytest.raises(grpc.RpcError) as refused:
        trigger(proxied.sidecar, "once")
    assert refused.value.code() == grpc.StatusCode.UNKNOWN, refused.value
    lost.wait()
    proxied.have_run(1)
    instances = sorted(one.instance for one in proxied.applications)
    for application in proxied.applications:
        assert list(trigger(application.sidecar, "once").triggered_instance_ids) == instances
    # A further request runs each item once more; a trigger too many would show.
    trigger(proxied.applications[0].sidecar, "again")
    proxied.have_run(2)


@pytest.mark.parametrize("way", ["sidecar", "zookeeper"])
def test_op_3_the_command_repeats_a_trigger_by_itself(proxied: Proxied, way: str) -> None:
    lost = proxied.proxy.lose_reply("create", proxied.record("by-hand"))
    through = ["--endpoint", f"unix:{proxied.sidecar.socket}"]
    if way == "zookeeper":
        through = ["--zookeeper", proxied.proxy.address, "--namespace", proxied.fleet.namespace]
    command = [str(sidekeeper_binary()), "trigger", JOB, *through, "--json"]
    ended = subprocess.run(
        [*command, "--request-id", "by-hand"], capture_output=True, text=True, timeout=3 * PATIENCE, check=False
    )
    assert ended.returncode == 0, ended.stderr
    lost.wait()
    told = json.loads(ended.stdout)
    assert told["triggered_instance_ids"] == sorted(one.instance for one in proxied.applications)
    proxied.have_run(1)
    # Without the option each command is a request of its own.
    subprocess.run(command, capture_output=True, timeout=3 * PATIENCE, check=True)
    proxied.have_run(2)


def test_op_3_the_command_repeats_a_cancel_of_the_fleet_on_zookeeper_itself(proxied: Proxied) -> None:
    for application in proxied.applications:
        application.command("hold")
    trigger(proxied.applications[0].sidecar, "busy")
    eventually("all items run", lambda: len(proxied.starts()) == 6)
    lost = proxied.proxy.lose_reply("create", f"{proxied.fleet.tree.namespace}-sidekeeper/{JOB}/fleet/cancels/by-hand")
    place = ["--zookeeper", proxied.proxy.address, "--namespace", proxied.fleet.namespace]
    command = [str(sidekeeper_binary()), "cancel", JOB, "--fleet", *place, "--request-id", "by-hand"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE, check=False)
    assert ended.returncode == 0, ended.stderr
    lost.wait()

    def cancelled() -> list[int]:
        return sorted(event["item"] for one in proxied.applications for event in one.events("cancelled"))

    eventually("all are cancelled", lambda: cancelled() == list(range(6)))
