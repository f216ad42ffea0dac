"""The commands `jobs`, `job`, `items`, `instances` and `servers`, through a sidecar and on ZooKeeper itself; and `jobs --watch`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from support.fleet import Fleet
from support.job_nodes import JOB, NEVER
from support.processes import PATIENCE, eventually, sidekeeper_binary
from support.sidecar import Sidecar


def command(*words: str) -> subprocess.CompletedProcess[str]:
    call = [str(sidekeeper_binary()), *words]
    return subprocess.run(call, capture_output=True, text=True, timeout=3 * PATIENCE, check=False)


def places(fleet: Fleet, sidecar: Sidecar) -> list[list[str]]:
    """The ways to ask: a sidecar, and ZooKeeper."""
    through = ["--endpoint", f"unix://{sidecar.socket}"]
    return [through, ["--zookeeper", fleet.server.address, "--namespace", fleet.namespace]]


def told(*words: str) -> Any:
    ended = command(*words, "--json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_jobs_and_their_parts_are_shown_by_a_sidecar_and_by_zookeeper_alike(fleet: Fleet) -> None:
    applications = fleet.three(cron=NEVER, description="at night")
    fleet.tree.create("sharding/3/disabled")
    fleet.tree.set(f"servers/{applications[2].sidecar.address}", "DISABLED")
    fleet.settle(*applications[:2])
    for place in places(fleet, applications[0].sidecar):
        [summary] = told("jobs", *place)["jobs"]
        assert (summary["job_name"], summary["state"], summary["description"]) == (JOB, "JOB_STATE_OK", "at night")
        assert (summary["sharding_total_count"], summary["instance_count"]) == (6, 3)
        job = told("job", JOB, *place)
        assert job["configuration"]["cron"] == NEVER
        assert f"cron: {NEVER}" in job["document"] or NEVER in job["document"]
        assert job["etag"].strip('"')
        items = told("items", JOB, *place)["items"]
        assert {item["item"]: item["instance_id"] for item in items} == fleet.tree.owners()
        assert [item["item"] for item in items if item["disabled"]] == [3]
        instances = told("instances", JOB, *place)["instances"]
        assert {one["instance_id"] for one in instances} == {application.instance for application in applications}
        servers = told("servers", JOB, *place)["servers"]
        assert [server["server_ip"] for server in servers if server["disabled"]] == ["10.0.0.3"]
        table = command("jobs", *place).stdout.splitlines()
        assert table[1].split()[:4] == [JOB, "ok", "6", "3"]
        assert f"{JOB}, next fire 2099-01-01T00:00:00Z" in command("job", JOB, *place).stdout
        unknown = command("job", "nobody", *place)
        assert (unknown.returncode, "no nodes of job `nobody`" in unknown.stderr) == (1, True), unknown.stderr


@pytest.mark.parametrize("number", [0, 1])
def test_op_5_commands_that_look_change_no_node_and_leave_no_watch(fleet: Fleet, number: int) -> None:
    applications = fleet.three(cron=NEVER)
    place = places(fleet, applications[1].sidecar)[number]

    with fleet.unchanged():
        for words in (
            ["jobs"],
            ["job", JOB],
            ["items", JOB],
            ["instances", JOB],
            ["servers", JOB],
            ["servers"],
            ["triggers", JOB],
        ):
            told(*words, *place)


@pytest.mark.parametrize("number", [0, 1])
def test_a_server_is_disabled_stopped_and_removed_in_every_job_that_has_it(fleet: Fleet, number: int) -> None:
    applications = fleet.three(cron=NEVER)
    place = places(fleet, applications[0].sidecar)[number]
    [gone, other] = [application.sidecar.address for application in applications[1:]]
    # Jobs that only Java instances run, in another state each.
    java = f"{gone}@-@1"
    for job, servers in {"bills": {gone: "ENABLED"}, "mails": {gone: "DISABLED"}, "night": {other: "ENABLED"}}.items():
        for server, status in servers.items():
            fleet.tree.client.create(f"{fleet.tree.namespace}/{job}/servers/{server}", status.encode(), makepath=True)
    fleet.tree.client.create(f"{fleet.tree.namespace}/bills/instances/{java}", b"", makepath=True)

    def states() -> dict[str, list[tuple[str, bool, int]]]:
        return {
            one["server_ip"]: [(job["job_name"], job["disabled"], job["instance_count"]) for job in one["jobs"]]
            for one in told("servers", *place)["servers"]
        }

    def each(*words: str) -> dict[str, Any]:
        lines = command(*words, "--server", gone, "--every-job", "--json", *place)
        assert lines.returncode == 0, lines.stderr
        answers = [json.loads(line) for line in lines.stdout.splitlines()]
        return {answer.pop("job_name"): answer for answer in answers}

    assert states()[gone] == [("bills", False, 1), ("mails", True, 0), (JOB, False, 1)]
    assert states()[other] == [("night", False, 0), (JOB, False, 1)]
    table = [line.split() for line in command("servers", *place).stdout.splitlines()]
    assert table[2:] == [[gone, "3", "1", "2"], [other, "2", "1"]]
    nobody = command("disable", "--server", "10.9.9.9", "--every-job", "--yes", *place)
    assert (nobody.returncode, "no job has had an instance on 10.9.9.9" in nobody.stderr) == (1, True), nobody.stderr
    changed = {
        job: answer["changed_server_ips"] for job, answer in each("disable", "--yes", "--reason", "broken fan").items()
    }
    assert changed == {"bills": [gone], "mails": [], JOB: [gone]}
    assert states()[gone] == [("bills", True, 1), ("mails", True, 0), (JOB, True, 1)]
    fleet.settle(applications[0], applications[2])
    # A job with an instance on it keeps the server, and the others lose it.
    kept = command("remove", "--server", gone, "--every-job", "--yes", *place)
    assert (kept.returncode, kept.stdout) == (1, f"removed  {gone} of mails\n"), kept.stderr
    assert [line.partition(":")[0] for line in kept.stderr.splitlines()[:2]] == ["bills", JOB]
    stopped = {job: answer["stopped_instance_ids"] for job, answer in each("stop", "--yes").items()}
    assert stopped == {"bills": [java], JOB: [applications[1].instance]}
    assert each("enable") == {"bills": {"changed_server_ips": [gone]}, JOB: {"changed_server_ips": [gone]}}
    eventually("it has left", lambda: all(count == 0 for _, _, count in states()[gone]))
    assert set(each("remove", "--yes")) == {"bills", JOB}
    assert gone not in states()


def test_triggers_are_shown_by_a_sidecar_and_by_zookeeper_alike(fleet: Fleet) -> None:
    applications = fleet.three(cron=NEVER)
    through, zookeeper = places(fleet, applications[0].sidecar)
    # A Java instance that is busy with another item.
    java = "10.0.0.9@-@1"
    fleet.tree.create("servers/10.0.0.9", "ENABLED")
    fleet.tree.create(f"instances/{java}", f"jobInstanceId: {java}\nserverIp: 10.0.0.9\n")
    assert "no triggers are known" in command("triggers", JOB, *zookeeper).stdout
    told("trigger", JOB, *through, "--request-id", "mine")
    instances = {application.instance for application in applications}

    def done() -> bool:
        states = {one["instance_id"]: one["state"] for one in told("triggers", JOB, *zookeeper)["triggers"]}
        wanted = dict.fromkeys(instances, "TRIGGER_STATE_DONE")
        return bool(states == {**wanted, java: "TRIGGER_STATE_PENDING"})

    eventually("the triggers of the sidecars are done", done)
    listed = [told("triggers", JOB, *place) for place in (through, zookeeper)]
    assert listed[0] == listed[1]
    assert {one["request_id"] for one in listed[0]["triggers"]} == {"mine"}
    rows = [line.split() for line in command("triggers", JOB, *through).stdout.splitlines()]
    assert [row[1] for row in rows if row[0] == java] == ["pending"]
    unknown = command("triggers", "nobody", *zookeeper)
    assert (unknown.returncode, "no nodes of job `nobody`" in unknown.stderr) == (1, True), unknown.stderr
    fleet.tree.delete(f"instances/{java}")


class Watch:
    """The command `jobs --watch --json`."""

    def __init__(self, fleet: Fleet, sidecar: Sidecar, *names: str):
        self.file = fleet.folder / f"watch-{len(list(fleet.folder.glob('watch-*')))}"
        call = [str(sidekeeper_binary()), "jobs", *names, "--watch", "--json", "--endpoint", f"unix://{sidecar.socket}"]
        self.complaints = self.file.with_suffix(".err")
        with self.file.open("w") as output, self.complaints.open("w") as complaints:
            self.popen = subprocess.Popen(call, stdout=output, stderr=complaints, start_new_session=True)

    def events(self) -> list[dict[str, Any]]:
        whole, _, _ = self.file.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def last(self, job: str) -> dict[str, Any] | None:
        """The last state of a job that was told. None: none, or the job was removed."""
        told = [
            one for one in self.events() if job in (one.get("job", {}).get("job_name"), one.get("removed_job_name"))
        ]
        return told[-1].get("job") if told else None


@contextmanager
def watching(fleet: Fleet, sidecar: Sidecar, *names: str) -> Iterator[Watch]:
    watch = Watch(fleet, sidecar, *names)
    try:
        eventually("the first round", lambda: {"synced": {}} in watch.events())
        yield watch
        watch.popen.terminate()
        assert watch.popen.wait(PATIENCE) == 0
    finally:
        watch.popen.kill()
        watch.popen.wait()


def test_op_5_a_watch_of_jobs_tells_each_change_also_of_java_jobs_and_changes_no_node(fleet: Fleet) -> None:
    applications = fleet.three(cron=NEVER)
    client, java = fleet.tree.client, f"/{fleet.namespace}/javaJob"

    def own() -> list[str]:
        """The jobs for which sidecars have nodes of their own."""
        return sorted(client.get_children(f"/{fleet.namespace}-sidekeeper"))

    before = own()
    sidecars = [application.sidecar for application in applications[:2]]
    with fleet.unchanged(), watching(fleet, sidecars[0]) as one, watching(fleet, sidecars[1], "java*") as other:
        assert one.last(JOB) == {**told("jobs", *places(fleet, sidecars[0])[0])["jobs"][0]}
        assert [event for event in other.events() if "job" in event] == []
        # A job that only Java instances have.
        client.create(f"{java}/config", b"jobName: javaJob\nshardingTotalCount: 3\n", makepath=True)
        client.create(f"{java}/servers/10.0.0.9", b"ENABLED", makepath=True)
        client.create(f"{java}/instances/10.0.0.9@-@1", b"jobInstanceId: 10.0.0.9@-@1\n", makepath=True)
        for watch in (one, other):
            eventually("the job", lambda: (watch.last("javaJob") or {}).get("java_instance_count") == 1)
            assert (watch.last("javaJob") or {})["state"] == "JOB_STATE_OK"
        client.set(f"{java}/servers/10.0.0.9", b"DISABLED")
        for watch in (one, other):
            eventually("disabled", lambda: (watch.last("javaJob") or {}).get("state") == "JOB_STATE_DISABLED")
        client.delete(java, recursive=True)
        for watch in (one, other):
            eventually("removed", lambda: {"removed_job_name": "javaJob"} in watch.events())
        # Nothing is told twice, nor anything of another job.
        assert len([event for event in one.events() if event.get("job", {}).get("job_name") == JOB]) == 1
        assert {(event.get("job") or {}).get("job_name", "javaJob") for event in other.events()} == {"javaJob"}
    assert own() == before


def test_a_watch_of_jobs_goes_on_when_its_sidecar_is_back(fleet: Fleet) -> None:
    application = fleet.application(fleet.sidecar(1), cron=NEVER)
    fleet.settle(application)
    watched = fleet.sidecar(2)
    eventually("a session", lambda: "session opened" in watched.log.read_text())
    with watching(fleet, watched) as watch:
        watched.terminate()
        fleet.tree.configure(description="meanwhile")
        fleet.sidecar(2)
        eventually("a second round", lambda: watch.events().count({"synced": {}}) == 2)
        assert (watch.last(JOB) or {})["description"] == "meanwhile"


def test_a_watch_of_jobs_goes_on_when_the_registry_is_back_and_tells_what_has_changed_meanwhile(fleet: Fleet) -> None:
    sidecar = fleet.sidecar(1)
    fleet.settle(fleet.application(sidecar, cron=NEVER, description="before"))
    with watching(fleet, sidecar) as watch:
        assert (watch.last(JOB) or {})["description"] == "before"
        fleet.server.freeze()
        try:
            eventually("it says so", lambda: "trying again" in watch.complaints.read_text(), 3 * PATIENCE)
        finally:
            fleet.server.thaw()
        fleet.tree.configure(description="after")
        eventually("the change", lambda: (watch.last(JOB) or {}).get("description") == "after", 3 * PATIENCE)
        # The jobs of a round come before its end.
        eventually("the end of a second round", lambda: watch.events().count({"synced": {}}) > 1)
