"""Asks the sidecar how long its session is surely alive, for applications that share no clock with it.

The time of an answer counts from when the request was sent. So what request and answer take makes a lease shorter, and
an answer that this process reads late gives nothing that is over by then.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Callable

import grpc.aio

from sidekeeper._proto.v1 import lease_pb2
from sidekeeper.lease import now
from sidekeeper.log import fields, logger

if TYPE_CHECKING:
    from sidekeeper._proto.v1.participant_service_pb2_grpc import ParticipantServiceAsyncStub

__all__ = ["LeaseRenewer"]

#: The shortest time between two requests, in seconds, whatever the sidecar says: a call costs both of them something.
INTERVAL_MIN = 0.05


class LeaseRenewer:
    """Asks for one attachment, one call at a time; ``run`` is to be a task for as long as the attachment lasts.

    Args:
        stub: The sidecar.
        job_name: The job.
        attachment_id: The attachment.
        interval: How often to ask, in seconds.
        renewed: Called with each answer, and when its request was sent, on the clock of ``lease.now``.
    """

    def __init__(
        self,
        stub: ParticipantServiceAsyncStub,
        job_name: str,
        attachment_id: str,
        interval: float,
        renewed: Callable[[lease_pb2.RenewLeaseResponse, float], None],
    ) -> None:
        self._stub = stub
        self._job_name = job_name
        self._request = lease_pb2.RenewLeaseRequest(attachment_id=attachment_id)
        self._interval = max(interval, INTERVAL_MIN)
        self._renewed = renewed
        self._due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._given_up = False

    def ask(self) -> None:
        """Asks now, or when the call in flight is over; and from then on each interval."""
        if not self._given_up:
            self._due.set()

    async def run(self) -> None:
        """Asks when it is to, until it is cancelled."""
        try:
            while True:
                await self._due.wait()
                self._due.clear()
                await self._renew()
        finally:
            self._again(None)

    async def _renew(self) -> None:
        self._again(self._interval)
        sent = now()
        try:
            answer = await self._stub.RenewLease(self._request, timeout=self._interval)
        except grpc.aio.AioRpcError as error:
            logger.debug("lease not renewed: %s", error.code().name, extra=fields(self._job_name))
            if error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND):
                # The sidecar is older than this call, and its stream has to do; or it does not know the attachment any
                # more, and the stream ends.
                self._given_up = True
                self._again(None)
                self._due.clear()
        else:
            self._renewed(answer, sent)

    def _again(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self.ask)
