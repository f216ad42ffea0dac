"""A job as the application registers it: its name, its handler, and who wants to hear of it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Callable

from sidekeeper.configuration import JobConfiguration
from sidekeeper.events import Assignment, ItemsChange, JobChange, Leadership, Round, SessionChange
from sidekeeper.executor import Handler

__all__ = ["INSTANCE_NAME_VARIABLE", "Callbacks", "Job", "resolve_instance_name"]

#: The environment variable that names the process's instances.
INSTANCE_NAME_VARIABLE = "SIDEKEEPER_INSTANCE_NAME"

#: One without a letter could be a process id, by which ElasticJob's own instances are known.
_INSTANCE_NAME = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9_.-]{1,64}")


def resolve_instance_name(name: str | None) -> str:
    """Returns the name given, or the environment's; empty: there is none.

    Raises:
        ValueError: It is no name.
    """
    resolved = os.environ.get(INSTANCE_NAME_VARIABLE, "") if name is None else name
    if resolved and not _INSTANCE_NAME.fullmatch(resolved):
        source = INSTANCE_NAME_VARIABLE if name is None else "instance_name"
        raise ValueError(f"{source}: {resolved!r} is not 1 to 64 characters of [A-Za-z0-9_.-], one of them a letter")
    return resolved


@dataclass
class Callbacks:
    """A job's callbacks. Functions are called on threads, coroutine functions on the loop; one at a time for a job."""

    assignment: list[Callable[[Assignment], object]] = field(default_factory=list)
    assigned: list[Callable[[ItemsChange], object]] = field(default_factory=list)
    revoked: list[Callable[[ItemsChange], object]] = field(default_factory=list)
    lost: list[Callable[[ItemsChange], object]] = field(default_factory=list)
    leadership: list[Callable[[Leadership], object]] = field(default_factory=list)
    session: list[Callable[[SessionChange], object]] = field(default_factory=list)
    job_changed: list[Callable[[JobChange], object]] = field(default_factory=list)
    before_first: list[Callable[[Round], object]] = field(default_factory=list)
    after_last: list[Callable[[Round], object]] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
    """A job of the application."""

    name: str
    handler: Handler
    #: None: the application attaches to a job that is already configured.
    configuration: JobConfiguration | None
    #: How many items are executed at once in this process.
    concurrency: int
    callbacks: Callbacks
    #: How many items this instance gets in proportion to others, when all instances are sidecars'.
    weight: int = 1
    #: Labels that items may ask for.
    labels: Sequence[str] = ()
    #: The instance's name, the same after each restart; empty: none.
    instance_name: str = ""
