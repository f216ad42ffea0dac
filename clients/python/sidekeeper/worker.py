"""Keeps one job attached: attaches, attaches again when the stream ends, and leaves when it is stopped."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Callable

import grpc.aio

from sidekeeper.attachment import Attachment, VersionError
from sidekeeper.backoff import CAP_SECONDS, Backoff
from sidekeeper.dispatcher import Dispatcher
from sidekeeper.errors import AttachError
from sidekeeper.execution import CancelReason
from sidekeeper.executor import Executor
from sidekeeper.job import Job
from sidekeeper.kept import Kept
from sidekeeper.log import fields, logger
from sidekeeper.notices import Notices
from sidekeeper.ownership import Ownership
from sidekeeper.presence import Presence
from sidekeeper.reason import reason_of
from sidekeeper.tls import NotCalledError

if TYPE_CHECKING:
    from sidekeeper._proto.v1.participant_service_pb2_grpc import ParticipantServiceAsyncStub

__all__ = ["LEAVE_GRACE", "Worker"]

#: How long cancelled handlers, and the reports after that, may take when the application stops; seconds.
LEAVE_GRACE = 5.0

#: Refusals of an attachment that trying again does not change.
FATAL = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


#: Why a stream has ended that an operator has ended. Empty: an older sidecar says it with FAILED_PRECONDITION alone.
OPERATORS_REASONS = frozenset({"STOPPED_BY_OPERATOR", "JOB_REMOVED", ""})


class Worker:
    """One job of the application; made on the loop on which ``run`` runs."""

    def __init__(
        self,
        job: Job,
        application_id: str,
        connect: Callable[[], ParticipantServiceAsyncStub],
        drain_timeout: float,
        presence: Presence,
    ) -> None:
        self._job = job
        self._application_id = application_id
        self._connect = connect
        self._drain_timeout = drain_timeout
        self._presence = presence
        self._executor = Executor(job.name, job.handler, job.concurrency)
        self._dispatcher = Dispatcher(job.name)
        self._kept = Kept(job.name, self._executor)
        self._ownership = Ownership(job.callbacks, self._dispatcher)
        self._notices = Notices(job.name)
        self._stopping = asyncio.Event()
        self._for_good = False

    def stop(self, *, for_good: bool = False) -> None:
        """Lets the job end: ``run`` returns when the executions that were started here have ended and are reported.

        Args:
            for_good: Whether nothing is to be kept for the instance's name.
        """
        self._for_good = self._for_good or for_good
        self._stopping.set()

    async def run(self) -> None:
        """Keeps the job attached until ``stop``; cancelling it ends everything at once.

        Raises:
            AttachError: The sidecar refuses the job, and would refuse it again.
        """
        dispatching = asyncio.get_running_loop().create_task(self._dispatcher.run())
        try:
            await self._stay_attached()
            await self._finish()
        finally:
            self._executor.cancel_all(CancelReason.STOPPED)
            self._executor.end()
            dispatching.cancel()
            for execution in self._executor.running():
                logger.warning("handler is left behind", extra=fields(self._job.name, execution))

    async def _stay_attached(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff()
        stopping = loop.create_task(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                try:
                    stub = self._connect()
                except NotCalledError as error:
                    self._presence.missing(self._job.name, error.details())
                    await asyncio.wait({stopping}, timeout=backoff.next())
                    continue
                attachment = Attachment(
                    self._job,
                    self._application_id,
                    stub,
                    self._executor,
                    self._dispatcher,
                    self._kept,
                    self._ownership,
                    self._notices,
                    self._presence,
                )
                began = loop.time()
                reading = loop.create_task(attachment.run())
                try:
                    await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
                    if not reading.done():
                        await self._drain(attachment, reading)
                        await attachment.leave(for_good=self._for_good)
                except asyncio.CancelledError:
                    self._executor.cancel_all(CancelReason.STOPPED)  # before the stream's end gives its own reason
                    raise
                finally:
                    await self._leave(attachment, reading)
                self._judge(attachment, reading)
                if attachment.attached and loop.time() - began > CAP_SECONDS:
                    backoff.reset()  # it was a good one; one that ends at once does not count
                await asyncio.wait({stopping}, timeout=backoff.next())
        finally:
            stopping.cancel()
            self._executor.close()
            self._kept.lapse()

    async def _drain(self, attachment: Attachment, reading: asyncio.Task[None]) -> None:
        """Lets executions end and be reported, and callbacks let go of items, while the attachment lasts.

        The sidecar hears of it first, so that it starts nothing more here. What it has started is executed. After the
        drain timeout, executions that have not begun are left to the next instance, and running ones are cancelled.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + self._drain_timeout
        is_drained = await attachment.drain(self._drain_timeout, for_good=self._for_good)
        if not is_drained or self._executor.paused:
            self._executor.close()  # for what the sidecar still starts, or what waits for a lease
        self._ownership.leave()
        answered = loop.create_task(self._let_go(attachment))
        try:
            timeout = max(0.0, end - loop.time())
            await asyncio.wait({answered, reading}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not answered.done() and not reading.done():
                self._executor.close()
                self._executor.cancel_all(CancelReason.DRAIN_TIMEOUT)
                await asyncio.wait({answered, reading}, timeout=LEAVE_GRACE, return_when=asyncio.FIRST_COMPLETED)
        finally:
            answered.cancel()

    async def _let_go(self, attachment: Attachment) -> None:
        """Waits until nothing is done with the attachment's items any more."""
        await attachment.wait_answered()
        await self._dispatcher.wait_empty()

    async def _leave(self, attachment: Attachment, reading: asyncio.Task[None]) -> None:
        """Ends the attachment, if it has not ended by itself."""
        attachment.close()
        reading.cancel()  # it may not have begun
        await asyncio.wait({reading})
        if not reading.cancelled():
            reading.exception()  # marks it as seen, also if nothing awaits it any more

    def _judge(self, attachment: Attachment, reading: asyncio.Task[None]) -> None:
        """Says why the attachment has ended.

        Raises:
            AttachError: It was refused for good.
        """
        extra = fields(self._job.name)
        error = None if reading.cancelled() else reading.exception()
        if isinstance(error, VersionError):
            code = grpc.StatusCode.FAILED_PRECONDITION
            raise AttachError(self._job.name, code.name, str(error), "SIDECAR_TOO_OLD")
        if self._stopping.is_set() and (error is None or attachment.attached):
            logger.info("detached", extra=extra)
        elif error is None:
            logger.warning("the stream has ended; attaching again", extra=extra)
        elif isinstance(error, grpc.aio.AioRpcError):
            code, details, reason = error.code(), error.details() or "", reason_of(error)
            if not attachment.heard:
                if code is grpc.StatusCode.UNAVAILABLE and not reason:
                    self._presence.missing(self._job.name, f"{code.name}: {details}")
                    return
                self._presence.answers(self._job.name)  # a refusal is an answer, too
            if attachment.attached and code is grpc.StatusCode.FAILED_PRECONDITION and reason in OPERATORS_REASONS:
                # An operator's decision, which attaching again would undo.
                logger.error("the job is stopped here: %s", details, extra=extra)
                self.stop()
                return
            if code in FATAL and (not attachment.attached or code is grpc.StatusCode.FAILED_PRECONDITION):
                raise AttachError(self._job.name, code.name, details, reason)
            logger.warning("the stream has ended: %s: %s; attaching again", code.name, details, extra=extra)
        else:
            logger.error("the stream has ended; attaching again", exc_info=error, extra=extra)

    async def _finish(self) -> None:
        """Waits for handlers that outlived their stream, and for callbacks; all of them know that it has ended."""
        loop = asyncio.get_running_loop()
        rest = {loop.create_task(self._executor.wait_idle()), loop.create_task(self._dispatcher.wait_empty())}
        try:
            await asyncio.wait(rest, timeout=LEAVE_GRACE)
        finally:
            for task in rest:
                task.cancel()
