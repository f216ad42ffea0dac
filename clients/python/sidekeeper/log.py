"""The library's logger and the fields of its records."""

from __future__ import annotations

import logging

from sidekeeper.execution import Execution

__all__ = ["fields", "logger"]

logger = logging.getLogger("sidekeeper")


def fields(job_name: str, execution: Execution | None = None) -> dict[str, object]:
    """Returns the ``extra`` of a record: ``job``, ``item`` and ``execution_id``, the last two None if not about one."""
    return {
        "job": job_name,
        "item": None if execution is None else execution.item,
        "execution_id": None if execution is None else execution.execution_id,
    }
