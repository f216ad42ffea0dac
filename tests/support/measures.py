"""What measurements have in common: percentiles, and what a process has used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def processor_time(pid: int) -> float:
    """The processor time that a process has used, in seconds."""
    # The name of the process is in brackets and may be anything; the fields after it have no brackets.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    """The resident memory of a process now, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
