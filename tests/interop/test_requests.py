"""What a fire costs ZooKeeper, counted by itself (H21)."""

from __future__ import annotations

import statistics

import pytest
from harness import ZooKeeperServer
from requests_per_fire import measure


@pytest.mark.parametrize("failover", [False, True])
def test_a_fire_costs_few_requests(zookeeper: ZooKeeperServer, failover: bool) -> None:
    """At most four for each instance and ten more, where Java needs about a thousand."""
    instances = 3
    costs = measure(zookeeper, "ours", instances, failover, fires=3)
    assert statistics.median(costs) <= 4 * instances + 10, costs
