"""What a fire costs ZooKeeper, counted by itself (H21).

The goal, four for each instance and ten more, is met on a quiet machine: `make interop-requests` shows it. Beside other
tests items end less together, and their ends travel in more transactions.
"""

from __future__ import annotations

import statistics

import pytest

from interop.requests_per_fire import ITEMS, measure
from support.zookeeper import ZooKeeperServer


@pytest.mark.parametrize("failover", [False, True])
def test_a_fire_costs_few_requests(zookeeper: ZooKeeperServer, failover: bool) -> None:
    """Fewer than one for each item, where Java needs about twenty."""
    costs = measure(zookeeper, "ours", 3, failover, fires=3)
    assert statistics.median(costs) < ITEMS, costs
