"""A job as the application registers it: its name, its handler, and who wants to hear of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Callable

from sidekeeper.configuration import JobConfiguration
from sidekeeper.events import Assignment, JobChange, Leadership, Round, SessionChange
from sidekeeper.executor import Handler

__all__ = ["Callbacks", "Job"]


@dataclass
class Callbacks:
    """Who is told what. Functions are called on threads, coroutine functions on the loop; one at a time for a job."""

    assignment: list[Callable[[Assignment], object]] = field(default_factory=list)
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
    #: None: the job is attached to by its name, and somebody else has configured it.
    configuration: JobConfiguration | None
    #: How many items are executed at once in this process.
    concurrency: int
    callbacks: Callbacks
    #: How many items this instance gets in proportion to others, when all instances are sidecars'.
    weight: int = 1
    #: What this instance has that items may ask for.
    labels: Sequence[str] = ()
