"""The API without a client library: a gRPC channel and the generated stubs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from sidekeeper._proto.v1 import assignment_pb2, attach_pb2, completion_pb2, job_pb2
from sidekeeper._proto.v1 import assignment_service_pb2 as watch_pb2
from sidekeeper._proto.v1.assignment_service_pb2_grpc import AssignmentServiceStub
from sidekeeper._proto.v1.participant_service_pb2_grpc import ParticipantServiceStub

from support.fleet import Fleet
from support.job_nodes import EACH_SECOND, JOB, NEVER
from support.processes import PATIENCE, eventually
from support.sidecar import Sidecar


@pytest.fixture
def sidecar(fleet: Fleet) -> Sidecar:
    """A sidecar that has a session: until then it answers calls with UNAVAILABLE."""
    sidecar = fleet.sidecar(1)
    eventually("a session", lambda: "session opened" in sidecar.log.read_text())
    return sidecar


@pytest.fixture
def channel(sidecar: Sidecar) -> Iterator[grpc.Channel]:
    options = [("grpc.default_authority", "localhost"), ("grpc.initial_reconnect_backoff_ms", 100)]
    with grpc.insecure_channel(f"unix:{sidecar.socket}", options=options) as channel:
        grpc.channel_ready_future(channel).result(PATIENCE)
        yield channel


def attach(stub: Any, name: str = JOB, cron: str = NEVER, total: int = 2) -> Any:
    configuration = job_pb2.JobConfiguration(sharding_total_count=total, cron=cron)
    request = attach_pb2.AttachRequest(job_name=name, configuration=configuration, client="test/1")
    return stub.Attach(request, timeout=60, wait_for_ready=True)


def until(call: Any, kind: str) -> Any:
    """Returns the next event of a kind."""
    for event in call:
        if event.WhichOneof("event") == kind:
            return getattr(event, kind)
    raise AssertionError(f"the stream ended without {kind}")


def test_a_job_from_attachment_to_report(fleet: Fleet, channel: grpc.Channel) -> None:
    stub = ParticipantServiceStub(channel)
    call = attach(stub, cron=EACH_SECOND, total=1)
    attached = next(call).attached
    assert attached.job_name == JOB
    assert attached.configuration.sharding_total_count == 1
    first = next(call).assignment_changed
    assert first.assignment is not None
    execute = until(call, "execute")
    assert (execute.item, execute.job_name, execute.sharding_total_count) == (0, JOB, 1)
    assert fleet.tree.get("sharding/0/running") == attached.instance_id
    result = completion_pb2.ExecutionResult(
        execution_id=execute.execution_id,
        outcome=completion_pb2.EXECUTION_OUTCOME_FAILURE,
        failure_message="on purpose",
    )
    request = completion_pb2.ReportCompletionRequest(attachment_id=attached.attachment_id, results=[result])
    response = stub.ReportCompletion(request, timeout=PATIENCE)
    assert [(r.execution_id, r.status) for r in response.records] == [
        (execute.execution_id, completion_pb2.COMPLETION_STATUS_RECORDED)
    ]
    response = stub.ReportCompletion(request, timeout=PATIENCE)
    assert [r.status for r in response.records] == [completion_pb2.COMPLETION_STATUS_ALREADY_RECORDED]
    again = until(call, "execute")
    assert again.execution_id != execute.execution_id
    assert again.fencing_token > execute.fencing_token
    assert again.scheduled_time.seconds > execute.scheduled_time.seconds
    call.cancel()
    eventually("the instance gone", lambda: fleet.tree.get(f"instances/{attached.instance_id}") is None, timeout=1.0)
    assert fleet.tree.get("sharding/0/running") is None


def test_acknowledgements_and_the_watch(fleet: Fleet, channel: grpc.Channel) -> None:
    stub = ParticipantServiceStub(channel)
    request = watch_pb2.WatchAssignmentsRequest(job_name=JOB, wait_for_job=True)
    watch = AssignmentServiceStub(channel).WatchAssignments(request, timeout=60)
    assert list(next(watch).instances) == []
    call = attach(stub)
    attached = next(call).attached
    generation = 0
    while True:
        assignment = until(call, "assignment_changed").assignment
        assert assignment.generation >= generation
        generation = assignment.generation
        if [item.item for item in assignment.items] == [0, 1]:
            break
    stub.AcknowledgeAssignment(
        assignment_pb2.AcknowledgeAssignmentRequest(attachment_id=attached.attachment_id, generation=generation),
        timeout=PATIENCE,
    )
    end = time.monotonic() + PATIENCE
    for state in watch:
        assert time.monotonic() < end, state
        if [item.instance_id for item in state.items] == [attached.instance_id] * 2:
            break
    assert [(i.instance_id, i.enabled, i.leader) for i in state.instances] == [(attached.instance_id, True, True)]
    assert state.generation == generation
    for attachment, wrong, code in (
        ("unknown", generation, grpc.StatusCode.NOT_FOUND),
        (attached.attachment_id, generation + 1, grpc.StatusCode.INVALID_ARGUMENT),
    ):
        request = assignment_pb2.AcknowledgeAssignmentRequest(attachment_id=attachment, generation=wrong)
        with pytest.raises(grpc.RpcError) as caught:
            stub.AcknowledgeAssignment(request, timeout=PATIENCE)
        assert caught.value.code() is code
    call.cancel()
    watch.cancel()


@pytest.mark.parametrize(
    ("name", "configuration", "code", "named"),
    [
        ("a/b", {"sharding_total_count": 1}, grpc.StatusCode.INVALID_ARGUMENT, "job_name"),
        ("a", {"sharding_total_count": 0}, grpc.StatusCode.INVALID_ARGUMENT, "sharding_total_count"),
        ("a", {"sharding_total_count": 1, "cron": "x"}, grpc.StatusCode.INVALID_ARGUMENT, "cron"),
        ("nobody", None, grpc.StatusCode.NOT_FOUND, "nobody"),
    ],
)
def test_what_cannot_be_attached(
    fleet: Fleet,
    channel: grpc.Channel,
    name: str,
    configuration: dict[str, Any] | None,
    code: grpc.StatusCode,
    named: str,
) -> None:
    message = None if configuration is None else job_pb2.JobConfiguration(**configuration)
    call = ParticipantServiceStub(channel).Attach(
        attach_pb2.AttachRequest(job_name=name, configuration=message), timeout=PATIENCE
    )
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    assert caught.value.code() is code
    assert named in caught.value.details()
    assert fleet.tree.client.exists(f"{fleet.tree.namespace}/{name}") is None


def test_reports_of_unknown_executions_are_refused(channel: grpc.Channel) -> None:
    stub = ParticipantServiceStub(channel)
    call = attach(stub)
    attached = next(call).attached
    success = completion_pb2.EXECUTION_OUTCOME_SUCCESS
    for attachment, execution, outcome, code in (
        ("unknown", "x", success, grpc.StatusCode.NOT_FOUND),
        (attached.attachment_id, "x", success, grpc.StatusCode.NOT_FOUND),
        (attached.attachment_id, "x", completion_pb2.EXECUTION_OUTCOME_UNSPECIFIED, grpc.StatusCode.INVALID_ARGUMENT),
    ):
        result = completion_pb2.ExecutionResult(execution_id=execution, outcome=outcome)
        request = completion_pb2.ReportCompletionRequest(attachment_id=attachment, results=[result])
        with pytest.raises(grpc.RpcError) as caught:
            stub.ReportCompletion(request, timeout=PATIENCE)
        assert caught.value.code() is code, (attachment, execution, outcome, caught.value.details())
    call.cancel()
