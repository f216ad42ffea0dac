from __future__ import annotations

import pytest

from driver import JOB, World, eventually, job

pytestmark = pytest.mark.complete


def test_records_say_which_job_item_and_execution_they_are_about(world: World) -> None:
    application = world.application().run(job(), job("billing", total=1))
    application.attached([0, 1])
    application.attached([0], job="billing")
    application.behave("fail", 1, message="no luck")
    application.trigger()
    eventually("both have ended", lambda: len(application.all("ended", job=JOB)) == 2)
    executions = {one["item"]: one["execution_id"] for one in application.all("started")}
    application.stop()
    assert application.exit_status() == 0
    records = application.records()
    own = {one["item"]: one for one in records if one["message"] == "handling"}
    assert {item: (one["job"], one["execution_id"]) for item, one in own.items()} == {
        item: (JOB, execution) for item, execution in executions.items()
    }
    # What the client says of an execution has the fields, too: of the failure at least, as a warning.
    failures = [one for one in records if one["level"] == "WARNING" and one.get("execution_id") == executions[1]]
    assert any("no luck" in str(one) for one in failures), records
    # Of a job without an execution, it has the job.
    jobs = {one.get("job") for one in records if one["level"] == "INFO" and not one.get("execution_id")}
    assert {JOB, "billing"} <= jobs
    assert not [one for one in records if one["level"] == "ERROR"]
