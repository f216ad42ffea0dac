"""What a fire costs ZooKeeper, counted by itself (H21)."""

from __future__ import annotations

import statistics

import pytest
from harness import ZooKeeperServer
from requests_per_fire import measure


@pytest.mark.parametrize("failover", [False, True])
def test_a_fire_costs_few_requests(zookeeper: ZooKeeperServer, failover: bool) -> None:
    """A small part of what Java needs (about a thousand): nothing is asked for item by item.

    The goal, four for each instance and ten more, is held by `make interop-requests` on a machine that does nothing else:
    how many reports travel together depends on how close together they come.
    """
    instances = 3
    costs = measure(zookeeper, "ours", instances, failover, fires=3)
    assert statistics.median(costs) <= 50, costs
