"""Client of the Sidekeeper coordination sidecar: run ElasticJob jobs in Python.

import sidekeeper

app = sidekeeper.Application()

@app.job("orderSync", sharding_total_count=6, cron="0/2 * * * * ?")
def sync(execution: sidekeeper.Execution) -> None:
    print(execution.item, execution.item_parameter)

app.run()
"""

from __future__ import annotations

from sidekeeper.application import Application
from sidekeeper.configuration import JobConfiguration, Problem
from sidekeeper.context import LogFilter, current_execution
from sidekeeper.election import Campaign, Leader, LeaderObservation, leader, observe_leader
from sidekeeper.errors import (
    AttachError,
    Cancelled,
    ElectionError,
    LockError,
    ProgressError,
    Reject,
    SidekeeperError,
    TriggerError,
)
from sidekeeper.events import (
    AssignedItem,
    Assignment,
    AssignmentReason,
    ItemsChange,
    JobChange,
    Leadership,
    Round,
    SessionChange,
    SessionState,
)
from sidekeeper.execution import Cancellation, CancelReason, Execution, ExecutionSource
from sidekeeper.lock import Lock, LockMode, lock
from sidekeeper.progress import Progress
from sidekeeper.trigger import TriggerResult, trigger, trigger_async
from sidekeeper.version import __version__

__all__ = [
    "Application",
    "AssignedItem",
    "Assignment",
    "AssignmentReason",
    "AttachError",
    "Campaign",
    "CancelReason",
    "Cancellation",
    "Cancelled",
    "ElectionError",
    "Execution",
    "ExecutionSource",
    "ItemsChange",
    "JobChange",
    "JobConfiguration",
    "Leader",
    "LeaderObservation",
    "Leadership",
    "Lock",
    "LockError",
    "LockMode",
    "LogFilter",
    "Problem",
    "Progress",
    "ProgressError",
    "Reject",
    "Round",
    "SessionChange",
    "SessionState",
    "SidekeeperError",
    "TriggerError",
    "TriggerResult",
    "__version__",
    "current_execution",
    "leader",
    "lock",
    "observe_leader",
    "trigger",
    "trigger_async",
]
