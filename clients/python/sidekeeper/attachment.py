"""One stream to the sidecar: this process as an instance of one job.

The instance exists while the stream is open. When the stream ends, the instance leaves: its executions are cancelled,
and their results are not reported. If the job has a reattach grace and the stream has broken, they continue, and the
next attachment may resume them (see ``kept``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Callable

import grpc.aio

from sidekeeper._proto.v1 import attach_pb2, execution_pb2, lease_pb2, listener_pb2
from sidekeeper.acknowledger import Acknowledger
from sidekeeper.dispatcher import Dispatcher
from sidekeeper.errors import SidekeeperError
from sidekeeper.events import Assignment, AssignmentReason, JobChange, Leadership, Round, SessionChange, SessionState
from sidekeeper.execution import CancelReason, Execution
from sidekeeper.executor import Executor, OpenExecution
from sidekeeper.job import Job
from sidekeeper.kept import Kept
from sidekeeper.lease import Lease, seconds, shares_clock
from sidekeeper.listener import ListenerReporter
from sidekeeper.log import fields, logger
from sidekeeper.notices import Notices
from sidekeeper.outcome import Outcome
from sidekeeper.ownership import Ownership
from sidekeeper.presence import Presence
from sidekeeper.progress import ProgressReporter
from sidekeeper.renewer import LeaseRenewer
from sidekeeper.reporter import Reporter
from sidekeeper.version import API_LEVEL, CLIENT, SIDECAR_API_LEVEL_MIN, __version__

if TYPE_CHECKING:
    from sidekeeper._proto.v1.participant_service_pb2_grpc import ParticipantServiceAsyncStub

    AttachCall = grpc.aio.UnaryStreamCall[attach_pb2.AttachRequest, attach_pb2.AttachResponse]

__all__ = ["Attachment", "ProtocolError", "VersionError"]

#: How long the sidecar may take to register the instance, or to send ``Waiting``, in seconds.
FIRST_EVENT_TIMEOUT = 60.0

#: How long the sidecar may take to answer that the application stops, or leaves, in seconds.
DETACH_TIMEOUT = 2.0

#: How long answers to reports may come after the end of the stream, in seconds.
ANSWERS_TIMEOUT = 1.0

#: How a stream ends that has broken, rather than been ended: the instance may still be there.
BROKEN = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNKNOWN,
    }
)


class ProtocolError(SidekeeperError):
    """The sidecar's stream is not as the protocol says."""


class VersionError(SidekeeperError):
    """The sidecar is too old for this library."""


class Attachment:
    """One attachment of one job; ``run`` attaches, and returns when the stream has ended."""

    def __init__(
        self,
        job: Job,
        application_id: str,
        stub: ParticipantServiceAsyncStub,
        executor: Executor,
        dispatcher: Dispatcher,
        kept: Kept,
        ownership: Ownership,
        notices: Notices,
        presence: Presence,
    ) -> None:
        self._job = job
        self._application_id = application_id
        self._stub = stub
        self._executor = executor
        self._dispatcher = dispatcher
        self._kept = kept
        self._ownership = ownership
        self._notices = notices
        self._presence = presence
        #: Whether the sidecar has sent anything.
        self.heard = False
        self._grace = 0.0
        self._open: dict[str, OpenExecution] = {}
        #: Executions that are left unanswered while the application ends. A Cancel is answered.
        self._left: dict[str, OpenExecution] = {}
        self._answered = asyncio.Event()
        self._answered.set()
        #: No execution follows on this stream.
        self._drained = asyncio.Event()
        #: The lease has ended, and no newer one has come.
        self._silent = asyncio.Event()
        self._reporter: Reporter | None = None
        self._acknowledger: Acknowledger | None = None
        self._listener: ListenerReporter | None = None
        self._progress: ProgressReporter | None = None
        self._renewer: LeaseRenewer | None = None
        self._helpers: list[asyncio.Task[None]] = []
        self._lease = Lease(self._on_silence)
        self._session = SessionState.CONNECTED
        self._instance_id = ""
        self._call: AttachCall | None = None
        self._given_up = False
        self._ended = False
        self._broken = False

    @property
    def attached(self) -> bool:
        """Whether the instance has been registered."""
        return self._reporter is not None

    async def run(self) -> None:
        """Attaches, and reads the stream until it ends.

        Raises:
            grpc.aio.AioRpcError: The call failed, or the stream broke.
            ProtocolError: The sidecar sent something that it must not.
        """
        self._call = self._stub.Attach(self._request())
        try:
            await self._read(self._call)
        except grpc.aio.AioRpcError as error:
            self._broken = error.code() in BROKEN
            raise
        finally:
            self._call.cancel()
            self._end()

    async def drain(self, timeout: float, *, for_good: bool) -> bool:
        """Has the sidecar start nothing more here. False: it may still start executions.

        A sidecar that falls silent is not waited for longer than the lease: what it sends later does not begin here.

        Args:
            timeout: How long executions that it is starting may take to come, in seconds.
            for_good: Whether no instance with this name will return.
        """
        if self._reporter is None or self._ended:
            return False
        request = attach_pb2.DrainAttachmentRequest(attachment_id=self._reporter.attachment_id, for_good=for_good)
        try:
            await self._stub.DrainAttachment(request, timeout=DETACH_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            level = logging.DEBUG if error.code() is grpc.StatusCode.UNIMPLEMENTED else logging.WARNING
            name = error.code().name
            logger.log(level, "the sidecar may start more executions here: %s", name, extra=fields(self._job.name))
            return False
        loop = asyncio.get_running_loop()
        over = {loop.create_task(event.wait()) for event in (self._drained, self._silent)}
        try:
            await asyncio.wait(over, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in over:
                task.cancel()
        return self._drained.is_set()

    async def leave(self, *, for_good: bool) -> None:
        """Detaches for good, if the sidecar would wait for the application; then ends the stream.

        Args:
            for_good: Whether no instance with this name will return.
        """
        if self._reporter is not None and self._grace and not self._ended:
            request = attach_pb2.DetachRequest(attachment_id=self._reporter.attachment_id, for_good=for_good)
            try:
                await self._stub.Detach(request, timeout=DETACH_TIMEOUT)
            except grpc.aio.AioRpcError as error:
                extra = fields(self._job.name)
                logger.warning("the sidecar did not answer that the job leaves: %s", error.code().name, extra=extra)
        self.close()

    def close(self) -> None:
        """Ends the stream; ``run`` ends with it, cancelled."""
        if self._call is not None:
            self._call.cancel()

    async def wait_answered(self) -> None:
        """Waits until each execution of the stream has ended or is left, and the sidecar has the results."""
        while self._open:
            await self._answered.wait()
        if self._reporter is not None:
            await self._reporter.wait_flushed()

    def _request(self) -> attach_pb2.AttachRequest:
        configuration = self._job.configuration
        return attach_pb2.AttachRequest(
            job_name=self._job.name,
            configuration=None if configuration is None else configuration.to_proto(),
            application_id=self._application_id,
            client=CLIENT,
            api_level=API_LEVEL,
            sidecar_api_level_min=SIDECAR_API_LEVEL_MIN,
            weight=self._job.weight,
            labels=self._job.labels,
            instance_name=self._job.instance_name,
            open_executions=self._kept.open_executions(),
        )

    async def _read(self, call: AttachCall) -> None:
        # Not asyncio.wait_for: before Python 3.12 it can swallow a cancellation.
        timer = asyncio.get_running_loop().call_later(FIRST_EVENT_TIMEOUT, self._give_up, call)
        try:
            attached = await self._first(call, timer)
        except asyncio.CancelledError:
            if self._given_up:
                raise ProtocolError(f"no instance was registered within {FIRST_EVENT_TIMEOUT:.0f} s") from None
            raise
        finally:
            timer.cancel()
        self._on_attached(attached)
        while True:
            await self._dispatcher.wait_room()
            event = await call.read()
            if not isinstance(event, attach_pb2.AttachResponse):
                await self._take_answers()
                return
            try:
                self._receive(event)
            except (ValueError, OverflowError) as error:  # a time that Python cannot express, and the like
                raise ProtocolError(f"event {event.WhichOneof('event')!r}: {error}") from error

    async def _take_answers(self) -> None:
        """The sidecar has ended the stream in good order: answers to reports may come just behind its end."""
        if self._reporter is None or self._open:
            return  # another instance may have the item: its handler has to stop at once
        flushed = asyncio.get_running_loop().create_task(self._reporter.wait_flushed())
        try:
            await asyncio.wait({flushed}, timeout=ANSWERS_TIMEOUT)
        finally:
            flushed.cancel()

    async def _first(self, call: AttachCall, timer: asyncio.TimerHandle) -> attach_pb2.Attached:
        """Reads until the instance is registered."""
        while True:
            event = await call.read()
            if not isinstance(event, attach_pb2.AttachResponse):
                raise ProtocolError("the stream ended before its first event")
            self.heard = True
            self._presence.answers(self._job.name)
            kind = event.WhichOneof("event")
            if kind == "attached":
                return event.attached
            if kind == "waiting":
                timer.cancel()  # it lives, and waits for as long as it takes
                self._notices.waiting(event.waiting.reason)
            elif kind is not None:  # None: of a newer sidecar
                raise ProtocolError(f"the first event is {kind!r} instead of 'attached'")

    def _give_up(self, call: AttachCall) -> None:
        self._given_up = True
        call.cancel()

    def _on_attached(self, attached: attach_pb2.Attached) -> None:
        if attached.api_level < SIDECAR_API_LEVEL_MIN:
            # One that knows levels has refused the attachment itself; this is for those before.
            raise VersionError(
                f"sidecar {attached.sidecar_version} is too old for {CLIENT}: it has API level {attached.api_level}, "
                f"and the client needs at least {SIDECAR_API_LEVEL_MIN}; upgrade the sidecar to {__version__}"
            )
        self._notices.attached()
        self._instance_id = attached.instance_id
        self._grace = seconds(attached.grace)
        self._kept.attached(frozenset(attached.resumed_execution_ids))
        self._reporter = Reporter(
            self._stub,
            self._job.name,
            attached.attachment_id,
            self._not_reported,
            lambda: bool(self._open),
            attached.api_level,
        )
        self._acknowledger = Acknowledger(
            self._stub, attached.attachment_id, lambda: {one.execution.item for one in self._open.values()}
        )
        loop = asyncio.get_running_loop()
        self._listener = ListenerReporter(self._stub, self._job.name, attached.attachment_id)
        self._progress = ProgressReporter(self._stub, attached.attachment_id)
        running = [self._reporter.run(), self._acknowledger.run(), self._listener.run()]
        if interval := seconds(attached.lease_renewal_interval):
            self._renewer = LeaseRenewer(
                self._stub, self._job.name, attached.attachment_id, interval, self._on_lease_renewed
            )
            running.append(self._renewer.run())
        self._helpers = [loop.create_task(helper) for helper in running]
        for helper in self._helpers:
            helper.add_done_callback(self._helper_ended)
        logger.info(
            "attached as instance %s (sidecar %s)",
            attached.instance_id,
            attached.sidecar_version,
            extra=fields(self._job.name),
        )

    def _helper_ended(self, helper: asyncio.Task[None]) -> None:
        """Without its helpers an attachment would look alive and report nothing: it ends with them."""
        if not helper.cancelled() and self._call is not None:
            logger.error("internal error", exc_info=helper.exception(), extra=fields(self._job.name))
            self._call.cancel()

    def _receive(self, event: attach_pb2.AttachResponse) -> None:
        name, callbacks = self._job.name, self._job.callbacks
        kind = event.WhichOneof("event")
        if kind == "execute":
            self._on_execute(event.execute)
        elif kind == "cancel":
            self._on_cancel(event.cancel)
        elif kind == "assignment_changed":
            self._on_assignment(Assignment.from_proto(name, self._instance_id, event.assignment_changed))
        elif kind == "leadership_changed":
            told = event.leadership_changed
            leadership = Leadership(name, self._instance_id, told.leader, told.term)
            logger.info("leader: %s", leadership.leader, extra=fields(name))
            self._dispatcher.call(callbacks.leadership, leadership)
        elif kind == "session_changed":
            self._on_session_changed(event.session_changed)
        elif kind == "job_changed":
            change = JobChange.from_proto(name, event.job_changed)
            self._grace = seconds(event.job_changed.grace)
            self._notices.problems(change.problems)
            self._dispatcher.call(callbacks.job_changed, change)
        elif kind == "before_first":
            self._on_call(callbacks.before_first, event.before_first)
        elif kind == "after_last":
            self._on_call(callbacks.after_last, event.after_last)
        elif kind == "draining":
            self._drained.set()
            why = "the sidecar is stopping: it" if event.draining.HasField("deadline") else "the sidecar"
            logger.info("%s starts no more executions here", why, extra=fields(name))
        # Anything else is of a newer sidecar, and does not concern this client.

    def _on_session_changed(self, message: lease_pb2.SessionChanged) -> None:
        session = SessionChange.from_proto(self._job.name, message)
        remaining = session.remaining_lease
        renewer = None if remaining is None or shares_clock(message) else self._renewer
        lasts = self._lease.told(remaining, sure=renewer is None)
        if renewer is not None and not (lasts and self._lease.is_proven):
            renewer.ask()  # the stream's lease counts only until there is an answer
        if lasts:
            self._on_word(session)

    def _on_lease_renewed(self, answer: lease_pb2.RenewLeaseResponse, sent: float) -> None:
        remaining = seconds(answer.remaining_lease) if answer.HasField("remaining_lease") else None
        self._lease.look()
        was_over = self._lease.over
        if self._lease.proven(remaining, sent) and was_over:
            left = self._lease.left()
            lease = None if left is None else timedelta(seconds=left)
            self._on_word(SessionChange(self._job.name, SessionState(answer.state), lease))

    def _on_word(self, session: SessionChange) -> None:
        """The sidecar has sent the session's state, and the lease, if there is one, has not ended."""
        self._silent.clear()
        if session.state is SessionState.CONNECTED:
            self._ownership.still_there()
            if self._executor.paused:
                self._dispatcher.begin(self._go_on)
        self._on_session(session)

    def _go_on(self) -> None:
        if not self._ended and not self._lease.look():
            self._executor.go_on()

    def _on_session(self, session: SessionChange) -> None:
        if session.state is self._session:
            return  # the lease was renewed, nothing else
        self._session = session.state
        logger.info("session with the registry: %s", session.state.name, extra=fields(self._job.name))
        self._dispatcher.call(self._job.callbacks.session, session)

    def _on_silence(self) -> None:
        """The lease has ended, and the sidecar is silent: another instance may own the items now."""
        logger.warning(
            "the lease has ended without a newer one: the sidecar may be suspended, or this process was",
            extra=fields(self._job.name),
        )
        self._silent.set()
        # Executions that have not begun wait: a living sidecar soon sends a new lease, or cancels them.
        self._executor.pause()
        for opened in list(self._open.values()):
            if opened.run is not None:
                self._executor.cancel(opened, CancelReason.LEASE_LOST)
        self._ownership.lost(AssignmentReason.SILENT)
        self._on_session(SessionChange(self._job.name, SessionState.SILENT, None))

    def _on_call(
        self,
        callbacks: Sequence[Callable[[Round], object]],
        message: listener_pb2.BeforeFirst | listener_pb2.AfterLast,
    ) -> None:
        """Acts once for the whole job; without a callback the call has succeeded."""

        def answer(error: BaseException | None) -> None:
            if self._listener is not None and not self._ended:
                self._listener.add(message.call_id, error)

        self._dispatcher.call_and_answer(
            callbacks, Round.from_proto(self._job.name, self._instance_id, message), answer
        )

    def _on_assignment(self, assignment: Assignment) -> None:
        logger.info(
            "generation %d: items %s of %d (%s)",
            assignment.generation,
            [item.item for item in assignment.items],
            assignment.sharding_total_count,
            assignment.reason.name,
            extra=fields(self._job.name),
        )
        self._ownership.changed(assignment, self._noted(assignment))

    def _noted(self, assignment: Assignment) -> Callable[[], None]:
        def noted() -> None:
            if self._acknowledger is not None:
                self._acknowledger.noted(assignment)

        return noted

    def _on_execute(self, message: execution_pb2.Execute) -> None:
        self._lease.look()
        if message.resumed and self._resume(message.execution_id):
            return
        opened = OpenExecution(Execution.from_proto(message, self._progress), self._answer)
        if opened.execution.execution_id in self._open:
            raise ProtocolError(f"execution {opened.execution.execution_id!r} was sent twice")
        self._open[opened.execution.execution_id] = opened
        self._answered.clear()
        self._dispatcher.begin(lambda: self._begin(opened))

    def _begin(self, opened: OpenExecution) -> None:
        self._lease.look()
        self._executor.submit(opened)

    def _resume(self, execution_id: str) -> bool:
        """Goes on with an execution of an earlier stream. False: it is not known, so it is to be executed."""
        kept = self._kept.take(execution_id)
        if isinstance(kept, OpenExecution):
            kept.answer = self._answer
            if self._progress is not None and self._reporter is not None:
                kept.execution._goes_on(self._progress, self._reporter.attachment_id)
            self._open[execution_id] = kept
            self._answered.clear()
            logger.info("execution continues with this stream", extra=fields(self._job.name, kept.execution))
            if self._lease.over and kept.run is not None:
                self._executor.cancel(kept, CancelReason.LEASE_LOST)
        elif kept is not None and self._reporter is not None:
            self._reporter.add(*kept)
        return kept is not None

    def _not_reported(self, execution: Execution, outcome: Outcome) -> None:
        """A result that the stream's end has overtaken."""
        if self._broken and self._grace:
            self._kept.keep_result(execution, outcome)
        else:
            logger.warning("result dropped: the attachment has ended", extra=fields(self._job.name, execution))

    def _on_cancel(self, message: execution_pb2.Cancel) -> None:
        opened = self._open.get(message.execution_id) or self._left.get(message.execution_id)
        if opened is None:
            return  # it ended meanwhile, and its result is on its way
        reason = CancelReason(message.reason)
        logger.warning("execution is to stop: %s", reason.name, extra=fields(self._job.name, opened.execution))
        self._executor.cancel(opened, reason)

    def _answer(self, opened: OpenExecution, outcome: Outcome | None) -> None:
        execution_id = opened.execution.execution_id
        self._open.pop(execution_id, None)
        if outcome is None:
            self._left[execution_id] = opened
        else:
            self._left.pop(execution_id, None)
        self._lease.look()  # an execution that has waited for this process does not begin after the lease
        if not self._open:
            self._answered.set()
        if self._ended or self._reporter is None:
            logger.info("result not reported: its attachment has ended", extra=fields(self._job.name, opened.execution))
            return
        if outcome is not None:
            self._reporter.add(opened.execution, outcome)
        if self._acknowledger is not None:
            self._acknowledger.execution_ended()

    def _end(self) -> None:
        """The instance has left, or is detached for its reattach grace."""
        self._ended = True
        self._drained.set()
        lease = self._lease.left()
        if self._lease.over:
            for opened in list(self._open.values()):  # also those that wait
                self._executor.cancel(opened, CancelReason.LEASE_LOST)
        self._lease.close()
        self._executor.go_on()
        for helper in self._helpers:
            helper.cancel()
        if self._broken and self._grace:
            self._kept.keep(list(self._open.values()), self._grace, lease, self._ownership.ended)
            self._open.clear()
            self._answered.set()
            return
        if self._progress is not None:
            self._progress.end()
        for opened in list(self._open.values()):
            self._executor.cancel(opened, CancelReason.DETACHED)
        if self.attached:  # otherwise a grace may run, of the stream before
            self._kept.lapse()  # what this stream was still to take over
            self._ownership.ended()
