"""What was interrupted is executed again for its own instant, also when other executions of the item wait beside it."""

from __future__ import annotations

import pytest

from faults.failover_instants import rounds
from faults.fleet import FaultFleet


@pytest.mark.long
def test_all_sidecars_are_cut_off_while_48_items_are_in_flight(fleet: FaultFleet) -> None:
    """Two rounds; `make failover-instants` makes twenty."""
    result = rounds(fleet, 2)
    assert not result.problems, "\n".join([*result.problems, result.summary])
    print(result.summary)
