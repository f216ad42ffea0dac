"""Tells the sidecar that an assignment has been taken note of, once no work on revoked items is left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Callable

import grpc.aio

from sidekeeper._proto.v1 import assignment_pb2
from sidekeeper.backoff import Backoff
from sidekeeper.events import Assignment
from sidekeeper.log import fields, logger
from sidekeeper.reporter import REFUSALS

if TYPE_CHECKING:
    from sidekeeper._proto.v1.participant_service_pb2_grpc import ParticipantServiceAsyncStub

__all__ = ["Acknowledger"]

#: How long one call may take, in seconds; it writes nothing but a note.
CALL_TIMEOUT = 10.0


class Acknowledger:
    """Acknowledges the assignments of one attachment. ``run`` is to be a task for as long as the attachment lasts.

    Only the last assignment matters: acknowledging it says as much of those before it.
    """

    def __init__(
        self,
        stub: ParticipantServiceAsyncStub,
        attachment_id: str,
        open_items: Callable[[], set[int]],
    ) -> None:
        self._stub = stub
        self._attachment_id = attachment_id
        self._open_items = open_items
        self._noted: Assignment | None = None
        self._wake = asyncio.Event()

    def noted(self, assignment: Assignment) -> None:
        """The callbacks for an assignment have returned."""
        self._noted = assignment
        self._wake.set()

    def execution_ended(self) -> None:
        """Work on an item has ended."""
        if self._noted is not None:
            self._wake.set()

    async def run(self) -> None:
        """Acknowledges until it is cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            assignment = self._noted
            if assignment is None or self._open_items() - {item.item for item in assignment.items}:
                continue
            self._noted = None
            await self._acknowledge(assignment)

    async def _acknowledge(self, assignment: Assignment) -> None:
        request = assignment_pb2.AcknowledgeAssignmentRequest(
            attachment_id=self._attachment_id, generation=assignment.generation
        )
        backoff = Backoff()
        while self._noted is None:  # otherwise a newer one is due, which says more
            try:
                await self._stub.AcknowledgeAssignment(request, timeout=CALL_TIMEOUT)
                return
            except grpc.aio.AioRpcError as error:
                final = error.code() in REFUSALS
                logger.warning(
                    "acknowledgement of generation %d: %s: %s; %s",
                    assignment.generation,
                    error.code().name,
                    error.details(),
                    "given up" if final else "trying again",
                    extra=fields(assignment.job_name),
                )
                if final:
                    return
            await asyncio.sleep(backoff.next())
