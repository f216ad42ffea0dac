"""Tells the sidecar how the callbacks that act once for the whole job have ended."""

from __future__ import annotations

import asyncio
import traceback
from typing import TYPE_CHECKING

import grpc.aio

from sidekeeper._proto.v1 import listener_pb2
from sidekeeper.backoff import Backoff
from sidekeeper.log import fields, logger
from sidekeeper.reporter import REFUSALS

if TYPE_CHECKING:
    from sidekeeper._proto.v1.participant_service_pb2_grpc import ParticipantServiceAsyncStub

__all__ = ["ListenerReporter"]

#: How long one call may take, in seconds; it writes nothing but a note.
CALL_TIMEOUT = 10.0
#: The longest failure message that the sidecar takes, in bytes.
MESSAGE_BYTES_MAX = 16 * 1024


class ListenerReporter:
    """Reports the outcomes of one attachment. ``run`` is to be a task for as long as the attachment lasts."""

    def __init__(self, stub: ParticipantServiceAsyncStub, job_name: str, attachment_id: str) -> None:
        self._stub = stub
        self._job_name = job_name
        self._attachment_id = attachment_id
        # At most one call is open at a time, so this stays short.
        self._ended: asyncio.Queue[listener_pb2.ReportListenerRequest] = asyncio.Queue()

    def add(self, call_id: str, error: BaseException | None) -> None:
        """A call has ended, with the exception that it raised."""
        outcome = listener_pb2.LISTENER_OUTCOME_SUCCESS if error is None else listener_pb2.LISTENER_OUTCOME_FAILURE
        self._ended.put_nowait(
            listener_pb2.ReportListenerRequest(
                attachment_id=self._attachment_id,
                call_id=call_id,
                outcome=outcome,
                failure_message="" if error is None else _message(error),
            )
        )

    async def run(self) -> None:
        """Reports until it is cancelled."""
        while True:
            await self._report(await self._ended.get())

    async def _report(self, request: listener_pb2.ReportListenerRequest) -> None:
        backoff = Backoff()
        while True:
            try:
                response = await self._stub.ReportListener(request, timeout=CALL_TIMEOUT)
                if not response.in_time:
                    logger.warning("call %s was answered too late", request.call_id, extra=fields(self._job_name))
                return
            except grpc.aio.AioRpcError as error:
                final = error.code() in REFUSALS
                logger.warning(
                    "outcome of call %s: %s: %s; %s",
                    request.call_id,
                    error.code().name,
                    error.details(),
                    "given up" if final else "trying again",
                    extra=fields(self._job_name),
                )
                if final:
                    return
            await asyncio.sleep(backoff.next())


def _message(error: BaseException) -> str:
    """Returns what went wrong, its last line first to be lost."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    return text.encode(errors="replace")[:MESSAGE_BYTES_MAX].decode(errors="ignore")
