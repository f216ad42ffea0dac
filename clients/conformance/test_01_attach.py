from __future__ import annotations

import json

import pytest

from driver import JOB, World, eventually, items_of, job
from support.processes import free_port

pytestmark = pytest.mark.robust


def test_it_attaches_and_is_an_instance_of_all_its_jobs(world: World) -> None:
    sidecar = world.sidecar()
    application = world.application(sidecar).run(job(), job("billing", total=3))
    first = application.attached([0, 1], job=JOB)
    second = application.told("assigned", job="billing")
    # One process is the same instance in all its jobs.
    assert first["instance"] == second["instance"]
    assert first["instance"].startswith("10.0.0.1@-@")
    assert (first["total"], items_of(second)) == (2, [0, 1, 2])
    assert application.told("assignment", job=JOB)["reason"] == "ATTACHED"
    assert sidecar.instances() == sidecar.instances("billing") == [first["instance"]]


def test_what_the_configuration_says_arrives(world: World) -> None:
    sidecar = world.sidecar()
    given = {
        "sharding_item_parameters": "0=Beijing,1=Shanghai",
        "job_parameter": "all",
        "failover": True,
        "misfire": False,
        "monitor_execution": True,
        "time_zone": "Asia/Shanghai",
        "description": "orders",
        "props": {"sidekeeper.cancel-grace": "2s"},
    }
    application = world.application(sidecar).run(job(cron="0 0 0 1 1 ? 2099", configuration=given))
    told = application.attached([0, 1])
    assert [item["parameter"] for item in told["items"]] == ["Beijing", "Shanghai"]
    configuration = sidecar.status().configuration
    assert configuration.cron == "0 0 0 1 1 ? 2099"
    assert (configuration.failover, configuration.misfire, configuration.monitor_execution) == (True, False, True)
    assert (configuration.time_zone, configuration.job_parameter) == ("Asia/Shanghai", "all")
    assert configuration.description == "orders"
    assert configuration.props["sidekeeper.cancel-grace"] == "2s"


def test_a_job_can_be_attached_to_by_its_name(world: World) -> None:
    sidecar = world.sidecar()
    configured = world.application(sidecar).run(job(total=4))
    configured.attached([0, 1, 2, 3])
    by_name = world.application(sidecar).run({"name": JOB})
    by_name.attached()
    eventually("both own items", lambda: len(configured.owned()) == len(by_name.owned()) == 2)
    assert sorted([*configured.owned(), *by_name.owned()]) == [0, 1, 2, 3]


def test_a_refusal_for_good_ends_the_run(world: World) -> None:
    sidecar = world.sidecar()
    unknown = world.application(sidecar).run({"name": "nobodyKnowsIt"})
    refused = unknown.told("refused")
    assert (refused["job"], refused["code"], refused["reason"]) == ("nobodyKnowsIt", "NOT_FOUND", "JOB_NOT_CONFIGURED")
    assert unknown.exit_status() == 3
    wrong = world.application(sidecar).run(job(cron="every minute"))
    refused = wrong.told("refused")
    assert (refused["code"], refused["reason"]) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert "cron" in refused["message"]
    assert wrong.exit_status() == 3


def test_its_name_stays_its_own(world: World) -> None:
    sidecar = world.sidecar()
    application = world.application(sidecar, SIDEKEEPER_INSTANCE_NAME="worker-0").run(job())
    assert application.attached([0, 1])["instance"] == "10.0.0.1@-@worker-0"
    application.stop(for_good=True)
    assert application.exit_status() == 0
    other = world.application(sidecar).run(job(instance_name="worker-7"))
    assert other.attached([0, 1])["instance"] == "10.0.0.1@-@worker-7"
    assert items_of(other.all("assigned")[-1]) == [0, 1]


def test_addresses_have_all_these_forms(world: World) -> None:
    port = free_port()
    sidecar = world.sidecar(options=["--listen", f"127.0.0.1:{port}"]).ready()
    endpoints = [
        f"127.0.0.1:{port}",
        f"localhost:{port}",
        f"http://127.0.0.1:{port}",
        f"http://localhost:{port}",
        f"unix:{sidecar.socket}",
        f"unix://{sidecar.socket}",
    ]
    for number, endpoint in enumerate(endpoints):
        application = world.application(endpoint).run(job(f"job{number}"))
        application.told("assigned", job=f"job{number}")
        application.kill()


def test_another_form_is_refused_before_anything_is_tried(world: World) -> None:
    application = world.application("ftp://127.0.0.1:7070")
    application.say(json.dumps({"command": "run", "jobs": [job()]}))
    assert application.exit_status() == 2
    assert (
        "allowed are HOST:PORT, http://HOST:PORT, https://HOST:PORT, unix:PATH and unix:///PATH"
        in application.log.read_text()
    )
