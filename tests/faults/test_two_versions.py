"""Sidecars of the previous release and of this version are one fleet, and lead by turns, as during an upgrade."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.fault_kinds import KINDS
from faults.random_faults import run


@pytest.mark.long
def test_random_faults_on_two_versions(binary: object, previous: Path) -> None:
    """Each kind of fault once, and some twice; in between the leader is deposed."""
    told: list[str] = []
    result = run(len(KINDS) + 4, 2, told.append, previous)
    print("\n".join([*told, result.summary]))
    assert not result.problems, "\n".join([*result.problems, result.summary])
