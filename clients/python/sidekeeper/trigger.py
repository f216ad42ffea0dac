"""Triggers jobs: every instance of a job that is online fires once, now."""

from __future__ import annotations

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
    """Who fires. Both together are all instances that are online."""

    #: The instances that this call triggered, ascending.
    triggered_instance_ids: tuple[str, ...]
    #: The instances that had not taken up an earlier trigger yet, ascending; they fire once for both.
    pending_instance_ids: tuple[str, ...]


def trigger(
    job_name: str, *, endpoint: str | None = None, token: str | None = None, timeout: float = DEFAULT_TIMEOUT
) -> TriggerResult:
    """Makes each online instance of a job fire once, now, whatever the job's schedule; also Java instances.

    Blocks until all of them have been asked, and does not wait for the executions. On an event loop, use
    ``trigger_async``. The calling process need not be an instance of the job.

    Args:
        job_name: The job.
        endpoint: The sidecar to ask; any one of the fleet will do. Default: as for ``Application``.
        token: The sidecar's token. Default: as for ``Application``.
        timeout: How long the call may take, in seconds.

    Raises:
        TriggerError: The job was not triggered, or the outcome is unknown.
        ValueError: The endpoint or the token cannot be read.
    """
    given, asked = resolve_token(token), given_endpoint(endpoint)
    request = service_pb2.TriggerJobRequest(job_name=job_name)
    try:
        with open_blocking_channel(located(asked, given)) as channel:
            return _result(authorized(JobServiceStub(channel), given).TriggerJob(request, timeout=timeout))
    except grpc.RpcError as error:
        raise _failure(job_name, error, asked) from None


async def trigger_async(
    job_name: str, *, endpoint: str | None = None, token: str | None = None, timeout: float = DEFAULT_TIMEOUT
) -> TriggerResult:
    """As ``trigger``, on an event loop."""
    given, asked = resolve_token(token), given_endpoint(endpoint)
    request = service_pb2.TriggerJobRequest(job_name=job_name)
    try:
        async with open_channel(located(asked, given)) as channel:
            return _result(await authorized(JobServiceStub(channel), given).TriggerJob(request, timeout=timeout))
    except grpc.RpcError as error:
        raise _failure(job_name, error, asked) from None


def _result(answer: service_pb2.TriggerJobResponse) -> TriggerResult:
    return TriggerResult(tuple(answer.triggered_instance_ids), tuple(answer.pending_instance_ids))


def _failure(job_name: str, error: grpc.RpcError, endpoint: str | None) -> TriggerError:
    code, details, reason = error.code(), error.details() or "", reason_of(error)
    if code is grpc.StatusCode.UNAVAILABLE and not reason:
        details = f"{no_sidecar(endpoint)} ({details})"
    return TriggerError(job_name, code.name, details, reason)
