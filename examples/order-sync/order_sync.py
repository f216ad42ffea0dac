"""Synchronises orders from a shop into a warehouse, a city an item: the instances share the cities among them.

    python order_sync.py SHOP.db WAREHOUSE.db

Start it as often as you like, beside one sidecar or several. The databases are SQLite files (see ``databases.py``).
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from databases import Shop, Warehouse

import sidekeeper

#: Which item is which city. All instances, Java ones included, see the parameter of their items.
CITIES = {0: "Beijing", 1: "Shanghai", 2: "Guangzhou", 3: "Shenzhen", 4: "Chengdu", 5: "Hangzhou"}

#: How many orders are copied at once: between two batches the handler can stop.
BATCH = 20

log = logging.getLogger("order_sync")
app = sidekeeper.Application()


@app.job(
    "orderSync",
    sharding_total_count=len(CITIES),
    cron="0/1 * * * * ?",
    sharding_item_parameters=CITIES,
    failover=True,  # what a crashed instance was doing, another one does at once
)
def sync(execution: sidekeeper.Execution) -> None:
    """Copies what is new in one city, a batch at a time."""
    assert execution.item_parameter is not None
    city, copied = execution.item_parameter, 0
    # SQLite's connections belong to one thread, and so does an execution.
    with Shop(Path(sys.argv[1])) as shop, Warehouse(Path(sys.argv[2])) as warehouse:
        while orders := shop.orders_after(city, warehouse.last_order(city), BATCH):
            # After a cancellation another instance may own the city; copied orders stay copied.
            execution.raise_if_cancelled()
            # The token goes into the store: it refuses an instance that has lost the city without knowing it.
            warehouse.store(city, orders, execution.fencing_token)
            copied += len(orders)
    log.info("%d orders of %s", copied, city)


if __name__ == "__main__":
    handler = logging.StreamHandler()
    handler.addFilter(sidekeeper.LogFilter())  # gives each record its job, item and execution
    logging.basicConfig(level=logging.INFO, format="%(job)s[%(item)s] %(message)s", handlers=[handler])
    app.run()
