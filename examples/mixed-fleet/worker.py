"""The Python half of the fleet: the same job as ``OrderSync.java``, through a sidecar."""

from __future__ import annotations

import sidekeeper

app = sidekeeper.Application()


@app.job(
    "orderSync",
    sharding_total_count=6,
    cron="0/2 * * * * ?",
    sharding_item_parameters="0=Beijing,1=Shanghai,2=Guangzhou,3=Shenzhen,4=Chengdu,5=Hangzhou",
    job_class="OrderSync",  # what the Java instances run; they refuse a job with another one
)
def sync(execution: sidekeeper.Execution) -> None:
    """Stands for synchronising a city."""
    print(f"python {execution.item} {execution.item_parameter}", flush=True)


if __name__ == "__main__":
    app.run()
