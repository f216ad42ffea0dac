"""Triggers jobs: every instance of a job that is online fires once, now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import grpc

from sidekeeper._proto.v1 import job_service_pb2 as service_pb2
from sidekeeper._proto.v1.job_service_pb2_grpc import JobServiceStub
from sidekeeper.channel import authorized, given_endpoint, open_blocking_channel, open_channel, resolve_token
from sidekeeper.errors import TriggerError
from sidekeeper.presence import no_sidecar
from sidekeeper.reason import reason_of
from sidekeeper.trust import located

__all__ = ["TriggerResult", "trigger", "trigger_async"]

#: How long a call may take, in seconds: the sidecar writes to its registry before it answers.
DEFAULT_TIMEOUT = 30.0


@dataclass(frozen=True)
class TriggerResult:
    """Who fires, or which items are executed."""

    #: The instances that this call triggered, ascending. Together with the pending ones, all that are online; none with
    #: ``items`` or a ``parameter``.
    triggered_instance_ids: tuple[str, ...]
    #: The instances that had not taken up an earlier trigger yet, ascending; they fire once for both.
    pending_instance_ids: tuple[str, ...]
    #: With ``items`` or a ``parameter``: the items that are executed, ascending.
    triggered_items: tuple[int, ...] = ()


def trigger(
    job_name: str,
    *,
    items: Iterable[int] = (),
    parameter: str | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> TriggerResult:
    """Makes each online instance of a job fire once, now, whatever the job's schedule; also Java instances.

    Blocks until all of them have been asked, and does not wait for the executions. On an event loop, use
    ``trigger_async``. The calling process need not be an instance of the job.

    Args:
        job_name: The job.
        items: Execute only these items, each of them once. Refused for a job with Java instances or sidecars of earlier
            versions online.
        parameter: The text that these executions get as ``Execution.job_parameter``, in place of the job's own; at most
            4096 bytes. Without ``items`` for all items that are enabled. Refused as ``items``.
        endpoint: The sidecar to ask; any one of the fleet will do. Default: as for ``Application``.
        token: The sidecar's token. Default: as for ``Application``.
        timeout: How long the call may take, in seconds.

    Raises:
        TriggerError: The job was not triggered, or the outcome is unknown. With the code ``UNIMPLEMENTED``: the sidecar
            is of an earlier version, and has triggered all items with the job's own parameter.
        ValueError: The endpoint or the token cannot be read.
    """
    given, asked = resolve_token(token), given_endpoint(endpoint)
    request = service_pb2.TriggerJobRequest(job_name=job_name, items=items, parameter=parameter)
    try:
        with open_blocking_channel(located(asked, given)) as channel:
            return _result(request, authorized(JobServiceStub(channel), given).TriggerJob(request, timeout=timeout))
    except grpc.RpcError as error:
        raise _failure(job_name, error, asked) from None


async def trigger_async(
    job_name: str,
    *,
    items: Iterable[int] = (),
    parameter: str | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> TriggerResult:
    """As ``trigger``, on an event loop."""
    given, asked = resolve_token(token), given_endpoint(endpoint)
    request = service_pb2.TriggerJobRequest(job_name=job_name, items=items, parameter=parameter)
    try:
        async with open_channel(located(asked, given)) as channel:
            service = authorized(JobServiceStub(channel), given)
            return _result(request, await service.TriggerJob(request, timeout=timeout))
    except grpc.RpcError as error:
        raise _failure(job_name, error, asked) from None


def _result(request: service_pb2.TriggerJobRequest, answer: service_pb2.TriggerJobResponse) -> TriggerResult:
    if (request.items or request.HasField("parameter")) and not answer.triggered_items:
        details = "the sidecar is of an earlier version, and has triggered all items with the job's own parameter"
        raise TriggerError(request.job_name, "UNIMPLEMENTED", details, "")
    instances, pending = tuple(answer.triggered_instance_ids), tuple(answer.pending_instance_ids)
    return TriggerResult(instances, pending, tuple(answer.triggered_items))


def _failure(job_name: str, error: grpc.RpcError, endpoint: str | None) -> TriggerError:
    code, details, reason = error.code(), error.details() or "", reason_of(error)
    if code is grpc.StatusCode.UNAVAILABLE and not reason:
        details = f"{no_sidecar(endpoint)} ({details})"
    return TriggerError(job_name, code.name, details, reason)
