"""A job in Python: six items, fired every two seconds, divided among all instances of the application."""

import logging

import sidekeeper

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
app = sidekeeper.Application()


@app.job("orderSync", sharding_total_count=6, cron="0/2 * * * * ?")
def sync(execution: sidekeeper.Execution) -> None:
    """Handles one item; returning reports success, an exception failure."""
    logging.info("item %d, token %d", execution.item, execution.fencing_token)


app.run()
