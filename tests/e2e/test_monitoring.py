"""Probes and metrics over HTTP, and a Prometheus that reads them."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from typing import Any

import pytest

from support.application import Application
from support.explain import explain
from support.fleet import Fleet
from support.job_nodes import EACH_SECOND, JOB, NEVER
from support.metrics import ALERTS, Metrics, Prometheus, get, promtool
from support.processes import PATIENCE, ROOT, eventually, free_port, sidekeeper_binary
from support.sidecar import Sidecar

DASHBOARDS = sorted((ALERTS.parent / "grafana").glob("*.json"))


def monitored(fleet: Fleet, number: int, *options: str) -> tuple[Sidecar, int]:
    """A sidecar that answers probes, and its port."""
    port = free_port()
    return fleet.sidecar(number, options=["--http-listen", str(port), *options]), port


def answers(port: int) -> bool:
    try:
        return get(port, "/startupz").status == 200
    except OSError:
        return False


def test_the_rules_of_the_alerts_are_valid_and_each_fires_and_stays_silent_when_it_should() -> None:
    checked = promtool("check", "rules", ALERTS.name)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = promtool("test", "rules", "alerts.test.yml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


def exemplars(prometheus: Prometheus, name: str) -> set[str]:
    """The traces of the exemplars of a series that this Prometheus has."""
    now = time.time()
    series = prometheus.api("query_exemplars", query=name, start=str(now - 600), end=str(now + 60))
    return {exemplar["labels"]["trace_id"] for one in series for exemplar in one["exemplars"]}


def traces_of(applications: list[Application]) -> set[str]:
    """The traces of the executions that have begun."""
    begun = [event for application in applications for event in application.events("start")]
    return {event["traceparent"].split("-")[1] for event in begun}


def test_without_traces_no_series_has_an_exemplar_and_a_scraper_that_wants_plain_text_gets_it(fleet: Fleet) -> None:
    sidecar, port = monitored(fleet, 1)
    application = fleet.application(sidecar, cron=EACH_SECOND)
    fleet.settle(application)
    eventually("executions", lambda: Metrics(port).total("executions_total", outcome="success"))
    assert Metrics(port).traces == {}
    plain = get(port, "/metrics", Accept="text/plain; version=0.0.4, */*")
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "# TYPE sidekeeper_executions_total counter\n" in plain.body
    assert "# EOF" not in plain.body


def test_a_prometheus_scrapes_the_sidecars_and_understands_the_alerts_and_the_dashboards(fleet: Fleet) -> None:
    # No collector answers: the traces have ids all the same.
    options = ["--otlp-endpoint", f"http://127.0.0.1:{free_port()}"]
    (first, one), (second, other) = monitored(fleet, 1, *options), monitored(fleet, 2, *options)
    applications = [fleet.application(sidecar, cron=EACH_SECOND) for sidecar in (first, second)]
    fleet.settle(*applications)
    prometheus = Prometheus(fleet.folder, [one, other])
    fleet.processes.append(prometheus)
    eventually("both are up", lambda: len(prometheus.query("up == 1")) == 2)
    targets = prometheus.api("targets")["activeTargets"]
    assert [target["lastError"] for target in targets] == ["", ""]
    fired = "sum(sidekeeper_executions_total{outcome='success'}) > 10"
    eventually("executions", lambda: prometheus.query(fired))
    # Each family of the page has been read, with the type of the page.
    page = (ROOT / "docs" / "metrics.md").read_text()
    families = dict(re.findall(r"^\| `(sidekeeper_[a-z_]+)` \| ([a-z]+) \|", page, re.MULTILINE))
    assert len(families) > 30
    metadata = prometheus.api("metadata")
    for name, kind in families.items():
        # Prometheus knows counters and infos by their names without the ending.
        told = metadata.get(name) or metadata.get(re.sub("_(total|info)$", "", name))
        assert [one["type"] for one in told or []] == [kind] * len(told or " "), (name, kind, told)
    # Each query of a dashboard is one that Prometheus can compute.
    for dashboard in DASHBOARDS:
        for panel in json.loads(dashboard.read_text())["panels"]:
            for target in panel["targets"]:
                expression = re.sub(r"\$(namespace|job_name|instance)", ".*", target["expr"])
                prometheus.query(expression.replace("$__rate_interval", "5s"))
    owned = prometheus.query("sum by (registry_namespace) (sidekeeper_items_owned)")
    assert [(told["metric"], told["value"][1]) for told in owned] == [({"registry_namespace": fleet.namespace}, "6")]
    # The histograms lead to the traces of executions.
    for histogram in ("trigger_lateness", "execution_duration"):
        series = f"sidekeeper_{histogram}_seconds_bucket"
        traces = eventually("exemplars", lambda: exemplars(prometheus, series))
        eventually("their executions", lambda: traces <= traces_of(applications))
    # A disabled item is a finding, and the alert waits for its time.
    fleet.tree.create("sharding/3/disabled")

    def alert() -> list[str]:
        groups = prometheus.api("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert [rule["name"] for rule in rules if rule.get("lastError")] == []
        return [rule["state"] for rule in rules if rule["name"] == "SidekeeperFinding"]

    eventually("the alert is pending", lambda: alert() == ["pending"])
    fleet.tree.delete("sharding/3/disabled")
    eventually("the alert is off", lambda: alert() == ["inactive"])


def test_op_7_the_counters_are_those_of_the_applications_journals(fleet: Fleet) -> None:
    (first, one), (second, other) = monitored(fleet, 1), monitored(fleet, 2)
    retries = {"sidekeeper.retry-max-attempts": "2", "sidekeeper.retry-backoff": "100ms"}
    options = {"cron": EACH_SECOND, "failover": True, "props": retries}
    applications = [fleet.application(sidecar, **options) for sidecar in (first, second)]
    fleet.settle(*applications)
    failing, stuck = applications[0].owned()[0], applications[1].owned()[0]
    applications[0].command(f"fail {failing}")
    applications[1].command(f"hold {stuck}")
    eventually("an execution that does not end", lambda: stuck in applications[1].executing())
    eventually("it counts", lambda: Metrics(other).values("executions_running") == [1])
    eventually("failures", lambda: len(applications[0].events("failed")) > 3)
    applications[1].kill()
    takeover = "another instance executes the item"
    eventually(takeover, lambda: [e for e in applications[0].events("end") if e["source"] == "FAILOVER"])
    applications[0].command("fail")
    eventually("fires after it", lambda: is_quiet_after(applications[0], stuck))
    applications[0].terminate()
    journal = {one: applications[0], other: applications[1]}
    for port, application in journal.items():
        metrics = Metrics(port)
        ended, failed, begun = (application.events(kind) for kind in ("end", "failed", "start"))
        for source in ("SCHEDULE", "MISFIRE", "FAILOVER", "TRIGGER"):
            for outcome, events in (("success", ended), ("failure", failed)):
                counted = metrics.total("executions_total", source=source.lower(), outcome=outcome)
                assert counted == len([event for event in events if event["source"] == source]), (source, outcome)
        unfinished = len(begun) - len(ended) - len(failed)
        assert metrics.total("executions_lost_total") == unfinished == (1 if application is applications[1] else 0)
        assert metrics.total("execution_duration_seconds_count") == len(ended) + len(failed)
        assert metrics.values("executions_running") == [0] == metrics.values("completions_pending")
        fires = {(event["item"], event["scheduled"]): event for event in begun if event["source"] == "SCHEDULE"}
        late = metrics.total("trigger_lateness_seconds_count")
        assert late == len(fires)
        again = len([event for event in begun if event["source"] == "SCHEDULE"]) - len(fires)
        assert metrics.total("retries_total") >= again
        # An application begins an execution after the sidecar has handed it over.
        first_starts: dict[tuple[int, float], float] = {}
        for event in begun:
            first_starts.setdefault((event["item"], event["scheduled"]), event["time"])
        heard = sum(first_starts[fire] - fire[1] for fire in fires)
        assert 0 < metrics.total("trigger_lateness_seconds_sum") <= heard
        assert metrics.values("job_last_fire_timestamp_seconds") in ([], [max(at for _, at in fires)])
    assert Metrics(one).total("retries_total") > 0
    assert Metrics(one).total("retries_given_up_total") > 0


def test_op_7_executions_whose_session_is_lost_count_as_cancelled_and_as_lost(fleet: Fleet) -> None:
    sidecar, port = monitored(fleet, 1)
    application = fleet.application(sidecar, cron=NEVER)
    fleet.settle(application)
    application.command("hold")
    command(sidecar, "trigger", JOB)
    eventually("all are executed", lambda: len(application.executing()) == 6)
    assert Metrics(port).values("executions_running") == [6]
    fleet.server.freeze()
    try:
        eventually("all are stopped", lambda: len(application.events("cancelled")) == 6)
        eventually("none is open", lambda: Metrics(port).values("executions_running") == [0])
        metrics = Metrics(port)
        assert metrics.values("cancels_total", reason="lease_lost") == [6]
        assert metrics.values("executions_lost_total") == [6]
        assert metrics.total("executions_total") == 0
    finally:
        fleet.server.thaw()
    fleet.settle(application)


def is_quiet_after(application: Application, item: int) -> bool:
    """Whether the application has ended an execution of the item by the schedule, and executes nothing now."""
    ended = [event for event in application.events("end") if event["item"] == item and event["source"] == "SCHEDULE"]
    return bool(ended) and not application.executing()


def test_op_10_a_sidecar_without_zookeeper_is_live_and_not_ready_and_its_metrics_say_why(fleet: Fleet) -> None:
    sidecar, port = monitored(fleet, 1)
    fleet.settle(fleet.application(sidecar, cron=NEVER))
    assert get(port, "/readyz").body == "ok\n"
    assert Metrics(port).values("session_state", state="connected") == [1]
    fleet.server.freeze()
    try:
        eventually("it is not ready", lambda: get(port, "/readyz").status == 503)
        eventually("the session is over", lambda: get(port, "/readyz/session").status == 503)
        verbose = get(port, "/readyz?verbose").body.splitlines()
        assert verbose[0] == "[-]session failed: there is no session with the registry"
        assert verbose[-1] == "readyz check failed"
        assert get(port, "/readyz?exclude=session&exclude=lease").status == 200
        assert (get(port, "/livez").status, get(port, "/startupz").status) == (200, 200)
        metrics = Metrics(port)
        assert metrics.values("session_state", state="none") == [1]
        assert metrics.values("sessions_lost_total") == [1]
        assert metrics.values("session_timeout_seconds") == []
        # A job whose nodes are not known has no state that could be old.
        assert metrics.values("job_leaders") == []
    finally:
        fleet.server.thaw()
    eventually("it is ready again", lambda: get(port, "/readyz").status == 200)
    eventually("the job is known again", lambda: Metrics(port).values("job_leaders") == [1])


def test_op_5_a_scrape_changes_no_node_and_adds_no_watch(fleet: Fleet) -> None:
    (first, one), (second, _) = monitored(fleet, 1), monitored(fleet, 2)
    fleet.settle(*[fleet.application(sidecar, cron=NEVER) for sidecar in (first, second)])

    with fleet.unchanged():
        reads = Metrics(one).total("registry_requests_total", kind="read")
        for _ in range(5):
            assert Metrics(one).values("items_owned") == [3]
            get(one, "/readyz?verbose")
    assert Metrics(one).total("registry_requests_total", kind="read") == reads


def test_the_findings_of_the_metrics_are_those_of_explain(fleet: Fleet) -> None:
    sidecar, port = monitored(fleet, 1)
    application = fleet.application(sidecar, cron=NEVER)
    fleet.settle(application)
    assert Metrics(port).findings() == {}
    fleet.tree.create("sharding/1/disabled")
    fleet.tree.create("sharding/4/disabled")
    eventually("both items", lambda: Metrics(port).findings() == {"ITEM_DISABLED": 2})
    assert Metrics(port).values("job_items", state="disabled") == [2]
    fleet.tree.set(f"servers/{sidecar.address}", "DISABLED")
    eventually("the server", lambda: "JOB_SERVERS_DISABLED" in Metrics(port).findings())
    assert sorted(Metrics(port).findings()) == sorted(set(explain(sidecar).codes()))


@pytest.mark.parametrize(
    ("request_line", "headers", "status"),
    [
        ("GET /metrics HTTP/1.1", ["Host: 127.0.0.1"], 200),
        ("HEAD /metrics HTTP/1.1", ["Host: [::1]:9464"], 200),
        ("GET /metrics HTTP/1.1", ["Host: node7.example.org:9464"], 200),
        ("GET /metrics HTTP/1.1", ["Host: evil.example.org"], 400),
        ("GET /metrics HTTP/1.1", [], 400),
        ("GET /metrics HTTP/1.1", ["Host: 127.0.0.1", "Origin: http://127.0.0.1"], 403),
        ("GET /metrics HTTP/1.1", ["Host: 127.0.0.1", "Sec-Fetch-Site: cross-site"], 403),
        ("POST /metrics HTTP/1.1", ["Host: 127.0.0.1", "Content-Length: 0"], 405),
        ("GET /metrics HTTP/1.1", ["Host: 127.0.0.1", "Content-Length: 3"], 405),
        ("OPTIONS * HTTP/1.1", ["Host: 127.0.0.1"], 405),
        ("GET http://127.0.0.1/metrics HTTP/1.1", ["Host: 127.0.0.1"], 400),
        ("GET /metrics HTTP/1.1", ["Host: 127.0.0.1", "Connection: Upgrade", "Upgrade: h2c"], 400),
        ("GET /metrics HTTP/1.1", ["Host: 127.0.0.1", f"X: {'x' * 20_000}"], 431),
    ],
)
def test_op_11_the_port_answers_probes_and_no_browser_of_another_site(
    fleet: Fleet, request_line: str, headers: list[str], status: int
) -> None:
    _, port = monitored(fleet, 1, "--http-hosts", "node7.example.org")
    eventually("it listens", lambda: answers(port))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall("\r\n".join([request_line, *headers, "", ""]).encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    assert answer.startswith(f"HTTP/1.1 {status} "), answer
    assert "access-control" not in answer.lower()


def test_op_11_http_2_is_refused_and_silent_connections_do_not_keep_others_out(fleet: Fleet) -> None:
    _, port = monitored(fleet, 1)
    eventually("it listens", lambda: answers(port))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert not connection.recv(65536).startswith(b"HTTP/1.1 200")
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
    try:
        assert get(port, "/livez").status == 200
    finally:
        for connection in silent:
            connection.close()


def test_an_address_that_others_reach_needs_two_settings(fleet: Fleet) -> None:
    port = free_port()
    refused = fleet.sidecar(1, options=["--http-listen", f"0.0.0.0:{port}"])
    assert refused.popen.wait(PATIENCE) == 64
    assert "set http_access to `anybody` as well" in refused.log.read_text()
    fleet.sidecar(2, options=["--http-listen", f"0.0.0.0:{port}", "--http-access", "anybody"])
    eventually("it listens", lambda: answers(port))


def test_jobs_beyond_the_limit_share_a_name(fleet: Fleet) -> None:
    sidecar, port = monitored(fleet, 1, "--metrics-jobs", "0")
    application = fleet.application(sidecar, cron=EACH_SECOND)
    application.wait("an execution", lambda events: [event for event in events if event["event"] == "end"])
    eventually("it counts", lambda: Metrics(port).total("executions_total", job_name="_other") > 0)
    metrics = Metrics(port)
    assert metrics.values("jobs_without_label") == [1]
    assert JOB not in metrics.text


def test_the_status_of_a_sidecar_is_shown_also_while_zookeeper_is_away(fleet: Fleet) -> None:
    sidecar, _ = monitored(fleet, 1)
    application = fleet.application(sidecar, cron=NEVER)
    fleet.settle(application)

    def status() -> dict[str, Any]:
        told: dict[str, Any] = json.loads(command(sidecar, "status", "--json").stdout)
        return told

    told = status()
    assert (told["session_state"], told["namespace"]) == ("SESSION_STATE_CONNECTED", fleet.namespace)
    assert told["instances"] == [{"job_name": JOB, "instance_id": application.instance}]
    assert told["session_timeout"] == "6s"
    words = command(sidecar, "status").stdout
    assert f"  {JOB}  {application.instance}\n" in words
    fleet.server.freeze()
    try:
        eventually("no session", lambda: status()["session_state"] == "SESSION_STATE_LOST")
        eventually("the reason", lambda: status()["trouble"])
    finally:
        fleet.server.thaw()
    eventually("a session", lambda: status()["session_state"] == "SESSION_STATE_CONNECTED")


def test_op_13_a_log_level_goes_back_by_itself_also_after_its_caller_has_died(fleet: Fleet) -> None:
    sidecar, port = monitored(fleet, 1)
    eventually("it listens", lambda: answers(port))

    def debug_lines() -> int:
        return sidecar.log.read_text().count('"level":"DEBUG"')

    assert debug_lines() == 0
    wrong = command(sidecar, "log-level", "sidekeeper=loud")
    assert (wrong.returncode, "a log filter like" in wrong.stderr) == (1, True), wrong.stderr
    assert command(sidecar, "log-level", "debug", "--for", "25h").returncode == 64
    changed = command(sidecar, "log-level", "debug", "--for", "2s")
    assert changed.stdout.startswith("log  debug, until ")
    eventually("debug lines", debug_lines)
    eventually("the setting", lambda: "is that of the setting again" in sidecar.log.read_text())
    told = json.loads(command(sidecar, "status", "--json").stdout)
    assert (told["log_filter"], told["log_filter_until"]) == ("info", None)
    before = debug_lines()
    fleet.settle(fleet.application(sidecar, cron=NEVER))
    assert debug_lines() == before
    # At once, and recorded with the caller.
    assert command(sidecar, "log-level", "debug").stdout.startswith("log  debug, until ")
    assert command(sidecar, "log-level").stdout == "log  info, as in the setting\n"
    assert sidecar.log.read_text().count('"method":"SetLogFilter"') == 4


def test_op_15_a_fire_is_one_trace_over_all_sidecars_and_another_fire_is_another_one(fleet: Fleet) -> None:
    # No collector answers: the spans exist all the same.
    options = ["--otlp-endpoint", f"http://127.0.0.1:{free_port()}"]
    sidecars = [fleet.sidecar(number, options=options) for number in (1, 2)]
    applications = [fleet.application(sidecar, cron=EACH_SECOND) for sidecar in sidecars]
    fleet.settle(*applications)

    def traces() -> dict[float, set[tuple[str, str]]]:
        """The trace of each fire that both instances have executed, and the span of each execution."""
        found: dict[float, set[tuple[str, str]]] = {}
        begun = [application.events("start") for application in applications]
        both = set.intersection(*({event["scheduled"] for event in events} for events in begun))
        for event in (event for events in begun for event in events if event["scheduled"] in both):
            _, trace, span, _ = event["traceparent"].split("-")
            found.setdefault(event["scheduled"], set()).add((trace, span))
        return found

    eventually("fires of both", lambda: sum(len(spans) == 6 for spans in traces().values()) >= 2)
    ids = [{trace for trace, _ in spans} for spans in traces().values()]
    assert [len(one) for one in ids] == [1] * len(ids)
    assert len(set.union(*ids)) == len(ids)


def test_the_last_lines_of_the_log_are_kept_also_those_that_the_filter_leaves_out(fleet: Fleet) -> None:
    sidecar = fleet.sidecar(1, options=["--log-level", "error"])
    fleet.settle(fleet.application(sidecar, cron=NEVER))
    assert sidecar.log.read_text() == ""
    lines = [json.loads(line) for line in command(sidecar, "logs", "-n", "10000").stdout.splitlines()]
    assert {"session opened", "serving"} <= {line["message"] for line in lines}
    assert len(command(sidecar, "logs", "-n", "3").stdout.splitlines()) == 3
    assert command(sidecar, "logs", "-n", "10001").returncode == 1
    call = [str(sidekeeper_binary()), "logs", "-f", "-n", "1", "--endpoint", f"unix://{sidecar.socket}"]
    following = subprocess.Popen(call, stdout=subprocess.PIPE, text=True)
    try:
        assert following.stdout is not None
        assert '"method":"TailLogs"' in following.stdout.readline()
        # The next line comes when it is logged.
        command(sidecar, "log-level", "error")
        assert '"message":"the log filter is replaced for a time"' in following.stdout.readline()
        # The stream ends with the sidecar.
        sidecar.terminate()
        following.communicate(timeout=PATIENCE)
    finally:
        following.kill()


def command(sidecar: Sidecar, *words: str) -> subprocess.CompletedProcess[str]:
    call = [str(sidekeeper_binary()), *words, "--endpoint", f"unix://{sidecar.socket}"]
    return subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE, check=False)
