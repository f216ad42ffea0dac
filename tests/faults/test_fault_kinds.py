"""Faults at random, a few of them; `make faults` inflicts two hundred."""

from __future__ import annotations

import pytest

from faults.fault_kinds import KINDS
from faults.random_faults import run


@pytest.mark.long
@pytest.mark.parametrize("seed", [1])
def test_random_faults(binary: object, seed: int) -> None:
    """Each kind of fault once, and some twice."""
    told: list[str] = []
    result = run(len(KINDS) + 4, seed, told.append)
    print("\n".join([*told, result.summary]))
    assert not result.problems, "\n".join([*result.problems, result.summary])
