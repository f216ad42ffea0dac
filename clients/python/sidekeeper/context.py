"""Which execution the code that runs now belongs to, and its fields in every log record."""

from __future__ import annotations

import logging
from contextvars import ContextVar

from sidekeeper.execution import Execution

__all__ = ["CURRENT", "LogFilter", "current_execution"]

#: The execution whose handler runs; handlers' contexts are copies, so it needs no reset.
CURRENT: ContextVar[Execution | None] = ContextVar("sidekeeper_execution", default=None)


def current_execution() -> Execution | None:
    """Returns the execution whose handler calls this code, on any thread or task; None outside of one.

    Tasks that a handler starts inherit it; threads do if they are started in a copy of its context
    (``asyncio.to_thread`` does that).
    """
    return CURRENT.get()


class LogFilter(logging.Filter):
    """Gives each record the fields ``job``, ``item`` and ``execution_id``; None where there is no execution.

    For a logging handler rather than for a logger, so that records of all loggers pass it:
    ``handler.addFilter(sidekeeper.LogFilter())``. A format may then have ``%(job)s``, ``%(item)s`` and
    ``%(execution_id)s``. Fields that a record has already stay as they are.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Adds the fields, and lets every record pass."""
        execution = CURRENT.get()
        if not hasattr(record, "job"):
            record.job = None if execution is None else execution.job_name
            record.item = None if execution is None else execution.item
            record.execution_id = None if execution is None else execution.execution_id
        else:
            for name in ("item", "execution_id"):
                if not hasattr(record, name):
                    setattr(record, name, None)
        return True
