"""The application: its jobs, and how it starts and stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Callable, TypeVar

from sidekeeper.callbacks import CallbackRegistry
from sidekeeper.channel import DEFAULT_ENDPOINT, endpoint_target, given_endpoint, resolve_token
from sidekeeper.channels import Channels
from sidekeeper.configuration import JobConfiguration, item_parameters_text
from sidekeeper.events import Assignment, ItemsChange, JobChange, Leadership, Round, SessionChange
from sidekeeper.execution import Execution
from sidekeeper.job import Callbacks, Job, resolve_instance_name
from sidekeeper.log import logger
from sidekeeper.presence import Presence
from sidekeeper.tls import check_settings
from sidekeeper.worker import LEAVE_GRACE, Worker

if TYPE_CHECKING:
    from sidekeeper._proto.v1.participant_service_pb2_grpc import ParticipantServiceAsyncStub

__all__ = ["Application"]

#: How many items of a job are executed at once in one process, unless the job says otherwise.
DEFAULT_CONCURRENCY = 8

#: How long running handlers may continue after the application is stopped, in seconds; below the 30 s after which
#: Kubernetes kills.
DEFAULT_DRAIN_TIMEOUT = 25.0

H = TypeVar("H", bound=Callable[[Execution], object])


class Application(CallbackRegistry):
    """An application that is an instance of jobs, through the sidecar beside it.

    Args:
        endpoint: Where the sidecar listens: ``http://127.0.0.1:7070`` or ``unix:///run/sidekeeper.sock``, also without
            ``http://`` or ``//``. For ``https://HOST:PORT`` the environment has to name three files: ``SIDEKEEPER_CA``,
            ``SIDEKEEPER_CERT``, ``SIDEKEEPER_KEY``. Default: the environment variable ``SIDEKEEPER_ENDPOINT``, else a
            sidecar of this user or of root, at ``$XDG_RUNTIME_DIR/sidekeeper/api.sock``,
            ``/run/sidekeeper/api.sock`` or ``127.0.0.1:7070``.
        token: The sidecar's token. Default: the environment variable ``SIDEKEEPER_TOKEN``, else nothing.
        drain_timeout: How long running handlers may continue after the application is stopped, in seconds.

    Raises:
        ValueError: The endpoint or the token cannot be read, the endpoint needs files that the environment does not
            name, or the timeout is negative.
    """

    def __init__(
        self, endpoint: str | None = None, *, token: str | None = None, drain_timeout: float = DEFAULT_DRAIN_TIMEOUT
    ) -> None:
        super().__init__()
        self._given = given_endpoint(endpoint)
        self.endpoint = self._given or DEFAULT_ENDPOINT
        endpoint_target(self.endpoint)  # complains now rather than when it runs
        check_settings(self.endpoint)
        self._token = resolve_token(token)
        if drain_timeout < 0:
            raise ValueError(f"drain_timeout: {drain_timeout} is negative")
        self.drain_timeout = drain_timeout
        self._jobs: dict[str, Job] = {}
        self._identity: tuple[int, str] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers: list[Worker] = []
        self._tasks: list[asyncio.Task[None]] = []
        #: What there is instead of a connection, in tests.
        self._connector: Callable[[], ParticipantServiceAsyncStub] | None = None
        self._stop_requested = False
        self._stop_immediately = False
        self._stop_for_good = False

    def job(
        self,
        name: str,
        *,
        sharding_total_count: int | None = None,
        cron: str = "",
        time_zone: str = "",
        sharding_item_parameters: str | Mapping[int, str] = "",
        job_parameter: str = "",
        monitor_execution: bool | None = None,
        failover: bool | None = None,
        misfire: bool | None = None,
        max_time_diff: timedelta | None = None,
        reconcile_interval: timedelta | None = None,
        job_sharding_strategy_type: str = "",
        static_sharding: bool | None = None,
        disabled: bool | None = None,
        overwrite: bool | None = None,
        job_class: str = "",
        description: str = "",
        label: str = "",
        props: Mapping[str, str] | None = None,
        job_error_handler_type: str = "",
        job_executor_thread_pool_size_provider_type: str = "",
        job_listener_types: Sequence[str] = (),
        concurrency: int = DEFAULT_CONCURRENCY,
        weight: int = 1,
        labels: Sequence[str] = (),
        instance_name: str | None = None,
        on_assignment: Callable[[Assignment], object] | None = None,
        on_assigned: Callable[[ItemsChange], object] | None = None,
        on_revoked: Callable[[ItemsChange], object] | None = None,
        on_lost: Callable[[ItemsChange], object] | None = None,
        on_leadership: Callable[[Leadership], object] | None = None,
        on_session: Callable[[SessionChange], object] | None = None,
        on_job_changed: Callable[[JobChange], object] | None = None,
        on_before_first: Callable[[Round], object] | None = None,
        on_after_last: Callable[[Round], object] | None = None,
    ) -> Callable[[H], H]:
        """Registers a job; the decorated function or coroutine function is its handler.

        The handler gets an ``Execution`` for each item of this instance, each time the job fires. A function runs on
        a thread, a coroutine function on the loop. Returning is success; ``Reject`` says that the item was not
        begun; any other exception is a failure, and is reported with its traceback.

        The configuration's fields are those of ``JobConfiguration``. Without ``sharding_total_count`` the job is
        attached to by its name, and the sidecar or the registry must have its configuration.

        Args:
            name: The job's name, the same in all its instances.
            sharding_total_count: Into how many items the job is split.
            cron: When it fires.
            time_zone: See ``JobConfiguration``.
            sharding_item_parameters: ``"0=Beijing,1=Shanghai"`` or ``{0: "Beijing", 1: "Shanghai"}``.
            job_parameter: See ``JobConfiguration``.
            monitor_execution: See ``JobConfiguration``.
            failover: See ``JobConfiguration``.
            misfire: See ``JobConfiguration``.
            max_time_diff: See ``JobConfiguration``.
            reconcile_interval: See ``JobConfiguration``.
            job_sharding_strategy_type: See ``JobConfiguration``.
            static_sharding: See ``JobConfiguration``.
            disabled: See ``JobConfiguration``.
            overwrite: See ``JobConfiguration``.
            job_class: See ``JobConfiguration``.
            description: See ``JobConfiguration``.
            label: See ``JobConfiguration``.
            props: See ``JobConfiguration``.
            job_error_handler_type: See ``JobConfiguration``.
            job_executor_thread_pool_size_provider_type: See ``JobConfiguration``.
            job_listener_types: See ``JobConfiguration``.
            concurrency: How many items are executed at once in this process; further ones wait in order.
            weight: How many items this instance gets in proportion to others, 1 to 1000, when all instances are
                sidecars'.
            labels: Labels that items may ask for (``sidekeeper.item-labels``).
            instance_name: The instance's name, the same after each restart, such as the name of a pod in a StatefulSet:
                it then owns its items again, if it is back within the job's ``sidekeeper.grace``. 1 to 64 characters of
                ``[A-Za-z0-9_.-]``, one of them a letter; no two instances of a job may have the same. Default: the
                environment variable ``SIDEKEEPER_INSTANCE_NAME``, else none.
            on_assignment: See the method of this name.
            on_assigned: See the method of this name.
            on_revoked: See the method of this name.
            on_lost: See the method of this name.
            on_leadership: Called when this instance begins or ceases to lead the job.
            on_session: Called when the sidecar's session with the registry changes.
            on_job_changed: Called when the job's configuration or its problems change.
            on_before_first: See the method of this name.
            on_after_last: See the method of this name.

        Raises:
            ValueError: The name is taken, the concurrency is not positive, the instance's name is none, or a parameter
                cannot be expressed.
        """
        if name in self._jobs:
            raise ValueError(f"job {name!r}: it is registered already")
        if concurrency < 1:
            raise ValueError(f"job {name!r}: concurrency: {concurrency} is not positive")
        called = resolve_instance_name(instance_name)
        configuration = JobConfiguration(
            sharding_total_count=sharding_total_count or 0,
            cron=cron,
            time_zone=time_zone,
            sharding_item_parameters=item_parameters_text(sharding_item_parameters),
            job_parameter=job_parameter,
            monitor_execution=monitor_execution,
            failover=failover,
            misfire=misfire,
            max_time_diff=max_time_diff,
            reconcile_interval=reconcile_interval,
            job_sharding_strategy_type=job_sharding_strategy_type,
            static_sharding=static_sharding,
            disabled=disabled,
            overwrite=overwrite,
            job_class=job_class,
            description=description,
            label=label,
            props=dict(props or {}),
            job_error_handler_type=job_error_handler_type,
            job_executor_thread_pool_size_provider_type=job_executor_thread_pool_size_provider_type,
            job_listener_types=tuple(job_listener_types),
        )
        if sharding_total_count is None and configuration != JobConfiguration(sharding_total_count=0):
            raise ValueError(
                f"job {name!r}: sharding_total_count is required with any other field of its configuration"
            )
        try:
            configuration.to_proto()
        except (TypeError, ValueError) as error:
            raise ValueError(f"job {name!r}: {error}") from error

        def register(handler: H) -> H:
            if name in self._jobs:
                raise ValueError(f"job {name!r}: it is registered already")
            callbacks = self._callbacks.setdefault(name, Callbacks())
            callbacks.assignment.extend([on_assignment] if on_assignment else [])
            callbacks.assigned.extend([on_assigned] if on_assigned else [])
            callbacks.revoked.extend([on_revoked] if on_revoked else [])
            callbacks.lost.extend([on_lost] if on_lost else [])
            callbacks.leadership.extend([on_leadership] if on_leadership else [])
            callbacks.session.extend([on_session] if on_session else [])
            callbacks.job_changed.extend([on_job_changed] if on_job_changed else [])
            callbacks.before_first.extend([on_before_first] if on_before_first else [])
            callbacks.after_last.extend([on_after_last] if on_after_last else [])
            self._jobs[name] = Job(
                name=name,
                handler=handler,
                configuration=None if sharding_total_count is None else configuration,
                concurrency=concurrency,
                weight=weight,
                labels=tuple(labels),
                instance_name=called,
                callbacks=callbacks,
            )
            return handler

        return register

    def run(self) -> None:
        """Runs the jobs until SIGTERM or SIGINT, or until ``stop`` is called.

        The first signal is a request to finish: running handlers may end within the drain timeout. The second one
        ends everything at once. Signals are only handled when this is called on the main thread.

        Raises:
            AttachError: The sidecar refuses a job.
            ValueError: No job is registered, or a callback is for a job that is not.
        """
        self._check()
        asyncio.run(self._serve(handle_signals=True))

    async def serve(self) -> None:
        """Runs the jobs on the running loop until ``stop`` is called; handles no signals.

        Cancelling it ends everything at once.

        Raises:
            AttachError: The sidecar refuses a job.
            ValueError: No job is registered, or a callback is for a job that is not.
        """
        self._check()
        await self._serve(handle_signals=False)

    def stop(self, *, immediately: bool = False, for_good: bool = False) -> None:
        """Stops the application, from any thread and also before it runs.

        Args:
            immediately: Whether running handlers are cancelled now, rather than after the drain timeout.
            for_good: Whether no instance of its ``instance_name`` will return, so that its items move at once.
                Otherwise, and after a signal, they wait for the time of the job's ``sidekeeper.grace``.
        """
        self._stop_for_good = self._stop_for_good or for_good
        self._stop_immediately = self._stop_immediately or immediately
        self._stop_requested = True
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has been closed meanwhile: stopped
                loop.call_soon_threadsafe(self._carry_out_stop)

    def _check(self) -> None:
        """Complains of an application that cannot run."""
        if not self._jobs:
            raise ValueError("the application has no job")
        unknown = sorted(self._callbacks.keys() - self._jobs.keys())
        if unknown:
            raise ValueError(f"callbacks for jobs that are not registered: {', '.join(unknown)}")
        if self._loop is not None:
            raise RuntimeError("the application is running already")

    async def _serve(self, *, handle_signals: bool) -> None:
        loop = asyncio.get_running_loop()
        channels = Channels(self._given, self._token)
        connect = self._connector or channels.stub
        presence = Presence(self.endpoint)
        self._workers = [
            Worker(job, self._application_id(), connect, self.drain_timeout, presence) for job in self._jobs.values()
        ]
        self._tasks = [loop.create_task(worker.run()) for worker in self._workers]
        self._loop = loop
        try:
            with self._signals(loop) if handle_signals else contextlib.nullcontext():
                if self._stop_requested:
                    self._carry_out_stop()
                await self._supervise()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=LEAVE_GRACE)
            await channels.close()
            self._loop = None
            self._workers, self._tasks = [], []
            self._stop_requested = self._stop_immediately = self._stop_for_good = False

    async def _supervise(self) -> None:
        """Waits for the workers; when one fails, the others finish, and its error is raised."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for worker in self._workers:
            worker.stop()
        await asyncio.wait(self._tasks)
        for task in self._tasks:
            if not task.cancelled():
                task.result()

    def _carry_out_stop(self) -> None:
        for worker in self._workers:
            worker.stop(for_good=self._stop_for_good)
        if self._stop_immediately:
            for task in self._tasks:
                task.cancel()

    @contextlib.contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Stops the application at SIGTERM and SIGINT; restores the former handlers afterwards."""
        before = {}
        for number in (signal.SIGTERM, signal.SIGINT):
            handler = signal.getsignal(number)
            try:
                loop.add_signal_handler(number, self._on_signal, number)
            except (NotImplementedError, RuntimeError, ValueError):
                continue  # not the main thread, or no such signals here
            before[number] = handler
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def _on_signal(self, number: signal.Signals) -> None:
        again = self._stop_requested
        logger.info("%s: stopping%s", number.name, " at once" if again else "")
        self.stop(immediately=again)

    def _application_id(self) -> str:
        """Returns this process's name at the sidecar: chosen once, and anew after a fork."""
        if self._identity is None or self._identity[0] != os.getpid():
            self._identity = (os.getpid(), uuid.uuid4().hex)
        return self._identity[1]
