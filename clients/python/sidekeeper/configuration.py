"""A job's configuration: ElasticJob's fields in Python's types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType

from sidekeeper._proto.v1 import job_pb2

__all__ = ["JobConfiguration", "Problem", "item_parameters_text"]


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True)
class JobConfiguration:
    """A job's configuration. It is in the registry, where all instances of the job share it.

    ``None`` and empty texts mean the sidecar's defaults, which are ElasticJob's.
    """

    #: Into how many items the job is split: 1 to 10000.
    sharding_total_count: int
    #: A Quartz cron expression, seconds first: ``0/5 * * * * ?``. Empty: the job only runs when it is triggered.
    cron: str = ""
    #: The time zone of ``cron``: ``Europe/Berlin`` or ``GMT+8:00``. Empty: UTC.
    time_zone: str = ""
    #: One parameter for each item, as text: ``0=Beijing,1=Shanghai``.
    sharding_item_parameters: str = ""
    #: A parameter for the whole job, handed to each execution.
    job_parameter: str = ""
    #: Whether the registry shows running executions. Default: true.
    monitor_execution: bool | None = None
    #: Whether the items that a crashed instance was executing are executed by another one. Default: false.
    failover: bool | None = None
    #: Whether missed fires of an item are followed by one misfire re-run. Default: true.
    misfire: bool | None = None
    #: How far clocks may differ before it is reported; whole seconds. Default: no check.
    max_time_diff: timedelta | None = None
    #: How often the assignment is compared with the instances online; whole minutes. Default: 10 minutes.
    reconcile_interval: timedelta | None = None
    #: How items are assigned: ``AVG_ALLOCATION`` (default), ``ODEVITY``, ``ROUND_ROBIN``, ``CONSISTENT_HASH``.
    job_sharding_strategy_type: str = ""
    #: Whether the first assignment stays for good. Default: false.
    static_sharding: bool | None = None
    #: Whether the server is registered as disabled when it does not exist yet. Default: false.
    disabled: bool | None = None
    #: Whether this configuration replaces the registry's. Default: false, the registry's is used.
    overwrite: bool | None = None
    #: The Java class or job type that Java instances of this job use. Empty: the registry's.
    job_class: str = ""
    #: The job's purpose.
    description: str = ""
    #: A label, stored only.
    label: str = ""
    #: Further settings; those of Sidekeeper begin with ``sidekeeper.``.
    props: Mapping[str, str] = field(default_factory=_nothing)
    #: The Java error handler's type, stored only.
    job_error_handler_type: str = ""
    #: The Java thread pool's type, stored only.
    job_executor_thread_pool_size_provider_type: str = ""
    #: The types of the Java job listeners, stored only.
    job_listener_types: Sequence[str] = ()

    def to_proto(self) -> job_pb2.JobConfiguration:
        """Returns the message for the sidecar."""
        message = job_pb2.JobConfiguration(
            sharding_total_count=self.sharding_total_count,
            cron=self.cron,
            time_zone=self.time_zone,
            sharding_item_parameters=self.sharding_item_parameters,
            job_parameter=self.job_parameter,
            monitor_execution=self.monitor_execution,
            failover=self.failover,
            misfire=self.misfire,
            job_sharding_strategy_type=self.job_sharding_strategy_type,
            static_sharding=self.static_sharding,
            disabled=self.disabled,
            overwrite=self.overwrite,
            job_class=self.job_class,
            description=self.description,
            label=self.label,
            props=dict(self.props),
            job_error_handler_type=self.job_error_handler_type,
            job_executor_thread_pool_size_provider_type=self.job_executor_thread_pool_size_provider_type,
            job_listener_types=self.job_listener_types,
        )
        if self.max_time_diff is not None:
            message.max_time_diff.FromTimedelta(self.max_time_diff)
        if self.reconcile_interval is not None:
            message.reconcile_interval.FromTimedelta(self.reconcile_interval)
        return message

    @classmethod
    def from_proto(cls, message: job_pb2.JobConfiguration) -> JobConfiguration:
        """Returns the configuration of a message."""

        def told(name: str) -> bool | None:
            return bool(getattr(message, name)) if message.HasField(name) else None  # type: ignore[arg-type]

        return cls(
            sharding_total_count=message.sharding_total_count,
            cron=message.cron,
            time_zone=message.time_zone,
            sharding_item_parameters=message.sharding_item_parameters,
            job_parameter=message.job_parameter,
            monitor_execution=told("monitor_execution"),
            failover=told("failover"),
            misfire=told("misfire"),
            max_time_diff=message.max_time_diff.ToTimedelta() if message.HasField("max_time_diff") else None,
            reconcile_interval=(
                message.reconcile_interval.ToTimedelta() if message.HasField("reconcile_interval") else None
            ),
            job_sharding_strategy_type=message.job_sharding_strategy_type,
            static_sharding=told("static_sharding"),
            disabled=told("disabled"),
            overwrite=told("overwrite"),
            job_class=message.job_class,
            description=message.description,
            label=message.label,
            props=MappingProxyType(dict(message.props)),
            job_error_handler_type=message.job_error_handler_type,
            job_executor_thread_pool_size_provider_type=message.job_executor_thread_pool_size_provider_type,
            job_listener_types=tuple(message.job_listener_types),
        )


@dataclass(frozen=True)
class Problem:
    """Something wrong that does not stop the job, found in the registry or on the way to it."""

    #: The node concerned, from the namespace on. Empty: not about one node.
    path: str
    #: The error and its remedy.
    message: str
    #: For programs: the entry of the catalogue in docs/operations.md, for example ``NODE_UNREADABLE``. Empty: the
    #: sidecar is of an earlier version.
    code: str = ""


def item_parameters_text(parameters: str | Mapping[int, str]) -> str:
    """Returns item parameters in ElasticJob's form, ``0=Beijing,1=Shanghai``.

    Raises:
        ValueError: A parameter contains ``,`` or ``=``, which the form cannot express.
    """
    if isinstance(parameters, str):
        return parameters
    for item, parameter in parameters.items():
        if "," in parameter or "=" in parameter:
            raise ValueError(f"sharding_item_parameters[{item}]: {parameter!r} contains ',' or '='")
    return ",".join(f"{item}={parameter}" for item, parameter in sorted(parameters.items()))
