"""The command `explain` names faults on ZooKeeper and at processes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess

from kazoo.security import make_acl

from support.application import Application
from support.explain import explain, in_words
from support.fleet import Fleet
from support.job_nodes import EACH_SECOND, JOB, NEVER, Tree
from support.processes import PATIENCE, eventually, sidekeeper_binary
from support.sidecar import Sidecar


def test_op_4_an_item_that_is_disabled_and_forgotten_is_found_and_enabled(fleet: Fleet) -> None:
    applications = fleet.three(cron=NEVER)
    sidecar = applications[0].sidecar
    healthy = explain(sidecar)
    assert (healthy.codes(), healthy.status) == ([], 0)
    assert set(healthy.verdicts().values()) == {"RUNS"}
    fleet.tree.create("sharding/3/disabled")
    found = explain(sidecar)
    assert (found.codes(), found.status) == (["ITEM_DISABLED"], 2)
    assert [item for item, verdict in found.verdicts().items() if verdict == "BLOCKED"] == [3]
    [finding] = found.of(3)
    assert finding["paths"] == [fleet.tree.path("sharding/3/disabled")]
    since = re.sub(r"\.\d+", "", finding["since"])
    said = in_words(sidecar).splitlines()
    assert said[0].startswith("orderSync: 6 items, 3 instances (0 Java), leader 10.0.0.")
    assert said[2:] == [
        "ok  items 0 to 2",
        f"no  item 3          the item is disabled, since {since}  ITEM_DISABLED",
        f"                    {fleet.tree.path('sharding/3/disabled')}",
        "                    -> sidekeeper enable orderSync --item 3",
        "ok  items 4 to 5",
    ]
    # The remedy, as it stands.
    remedy = [str(sidekeeper_binary()), *finding["remedy"].split()[1:], "--endpoint", f"unix://{sidecar.socket}"]
    done = subprocess.run(remedy, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "enabled  item 3 of orderSync\n"
    assert explain(sidecar).codes() == []


def test_op_5_an_explanation_changes_no_node_and_leaves_no_watch(fleet: Fleet) -> None:
    applications = fleet.three(cron=NEVER)

    with fleet.unchanged():
        for _ in range(5):
            explain(applications[1].sidecar)


def test_op_4_a_server_that_hangs_and_one_that_is_disabled_are_told_apart(fleet: Fleet) -> None:
    applications = fleet.three("2s", cron=NEVER)
    first, second, third = applications
    fleet.tree.set(f"servers/{third.sidecar.address}", "DISABLED")
    fleet.settle(first, second)
    found = explain(first.sidecar)
    assert (found.codes(), found.status) == (["SERVER_DISABLED"], 0)
    assert found.told["findings"][0]["subject"] == {"server_ip": third.sidecar.address}
    fleet.tree.set(f"servers/{third.sidecar.address}", "ENABLED")
    fleet.settle(*applications)
    assert explain(first.sidecar).codes() == []


def test_op_4_an_owner_that_is_away_and_an_application_that_fails_are_found(fleet: Fleet) -> None:
    props = {"sidekeeper.grace": "30s"}
    one = fleet.application(fleet.sidecar(1), cron=EACH_SECOND, props=props, instance_name="worker-1")
    other = fleet.application(fleet.sidecar(2), cron=EACH_SECOND, props=props, instance_name="worker-2")
    fleet.settle(one, other)
    failing = one.owned()[0]
    one.command(f"fail {failing}")
    eventually("the failure", lambda: "ITEM_FAILING" in explain(one.sidecar).codes())
    # Only the sidecar of the owner knows it.
    assert "ITEM_FAILING" not in explain(other.sidecar).codes()
    away = other.owned()
    other.kill()
    other.sidecar.kill()
    eventually("the owner is away", lambda: "ITEM_OWNER_AWAY" in explain(one.sidecar).codes())
    waiting = [item for item, verdict in explain(one.sidecar).verdicts().items() if verdict == "WAITS"]
    assert waiting == away


def test_op_4_an_execution_that_waits_for_the_lock_of_its_item_is_found(fleet: Fleet) -> None:
    sidecars = []
    trees = [fleet.tree, Tree(fleet.tree.client, f"{fleet.namespace}-b")]
    for number, tree in enumerate(trees, 1):
        options = ["--lock-root", f"/{fleet.namespace}-shared"]
        address, namespace = fleet.server.address, tree.namespace.strip("/")
        sidecars.append(Sidecar(number, fleet.folder, address, namespace, "6s", options))
    fleet.processes += sidecars
    props = {"sidekeeper.item-lock": "ledger"}
    applications = [fleet.application(sidecar, cron=NEVER, sharding_total_count=1, props=props) for sidecar in sidecars]
    for application, tree in zip(applications, trees):
        application.wait("its item", lambda events: [e for e in events if e["event"] == "assignment" and e["items"]])
        application.command("hold")
        tree.fire_once()
        if application is applications[0]:
            application.wait("the start", lambda events: [e for e in events if e["event"] == "start"])
    eventually("the wait", lambda: "ITEM_WAITS_FOR_LOCK" in explain(sidecars[1]).codes())
    found = explain(sidecars[1])
    assert found.verdicts() == {0: "WAITS"}
    assert applications[0].instance in found.of(0)[0]["message"]
    for application in applications:
        application.command("release")


def test_items_and_servers_are_disabled_after_a_confirmation_and_enabled(fleet: Fleet) -> None:
    applications = fleet.three(cron=NEVER)
    endpoint = ["--endpoint", f"unix://{applications[0].sidecar.socket}"]

    def command(*words: str) -> tuple[int, str, str]:
        call = [str(sidekeeper_binary()), *words, *endpoint]
        ended = subprocess.run(
            call, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        return ended.returncode, ended.stdout, ended.stderr

    disable = ["disable", JOB, "--item", "1", "--item", "4"]
    status, told, error = command(*disable)
    assert (status, told) == (3, "")
    assert "give `--yes`" in error
    assert explain(applications[0].sidecar).codes() == []
    # On a terminal, with another answer than yes, and with yes.
    for answer, items in (("n", []), ("y", ["1", "4"])):
        leader, follower = pty.openpty()
        call = subprocess.Popen(
            [str(sidekeeper_binary()), *disable, *endpoint],
            stdin=follower,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.write(leader, f"{answer}\n".encode())
        told, asked = call.communicate(timeout=PATIENCE)
        assert "No instance will execute item 1, 4 of job orderSync until it is enabled." in asked
        assert told == "".join(f"disabled  item {item} of orderSync\n" for item in items)
        os.close(leader)
        os.close(follower)
    assert explain(applications[0].sidecar).codes() == ["ITEM_DISABLED"]
    assert command(*disable, "--yes")[:2] == (0, "nothing to do: already disabled\n")
    fleet.tree.fire_once()
    eventually("the others", lambda: ended(applications) == [0, 2, 3, 5])
    assert command("enable", JOB, "--item", "1", "--item", "4", "--json")[:2] == (0, '{"changed_items":[1,4]}\n')
    # A server, and the whole job.
    third = applications[2]
    assert command("disable", JOB, "--server", third.sidecar.address, "--yes")[0] == 0
    fleet.settle(*applications[:2])
    assert explain(applications[0].sidecar).codes() == ["SERVER_DISABLED"]
    assert command("disable", JOB, "--all-servers", "--yes")[1].count("disabled  10.0.0.") == 2
    eventually("the whole job", lambda: "JOB_SERVERS_DISABLED" in explain(applications[0].sidecar).codes())
    assert command("enable", JOB, "--all-servers")[1].count("enabled  10.0.0.") == 3
    fleet.settle(*applications)
    assert explain(applications[0].sidecar).codes() == []
    for words, says in (
        (["--item", "6"], "has no item 6; it has 6 items"),
        (["--server", "10.0.0.9"], "has no server 10.0.0.9; it has 10.0.0.1, 10.0.0.2, 10.0.0.3"),
    ):
        status, _, error = command("disable", JOB, *words, "--yes")
        assert status == 1
        assert says in error


def test_without_any_sidecar_zookeeper_itself_is_asked_and_nothing_is_registered(fleet: Fleet) -> None:
    application = fleet.application(fleet.sidecar(1), cron=NEVER)
    fleet.settle(application)

    def command(*words: str, address: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        registry = ["--zookeeper", address or fleet.server.address, "--namespace", fleet.namespace]
        call = [str(sidekeeper_binary()), *words, *registry]
        environment = {**os.environ, **environment}
        return subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)

    application.kill()
    application.sidecar.kill()
    eventually("nobody is online", lambda: fleet.tree.children("instances") == [])
    before = fleet.tree.nodes()
    told = command("explain", JOB, "--json", "--exit-code")
    assert told.returncode == 2, told.stderr
    codes = {one["code"] for one in json.loads(told.stdout)["findings"]}
    assert codes == {"JOB_NO_INSTANCES"}
    assert command("explain", JOB).stdout.startswith("orderSync: 6 items, 0 instances (0 Java), leader none\n")
    assert fleet.tree.nodes() == before
    assert command("disable", JOB, "--item", "2", "--yes").stdout == "disabled  item 2 of orderSync\n"
    assert fleet.tree.get("sharding/2/disabled") == ""
    assert command("disable", JOB, "--server", "10.0.0.1", "--yes").stdout == "disabled  10.0.0.1 for orderSync\n"
    assert command("enable", JOB, "--all-servers").stdout == "enabled  10.0.0.1 for orderSync\n"
    assert command("enable", JOB, "--item", "2", "--json").stdout == '{"changed_items":[2]}\n'
    assert fleet.tree.nodes() == before | {"servers/10.0.0.1": fleet.tree.nodes()["servers/10.0.0.1"]}
    for words, status, says in (
        (["explain", "nothing"], 1, "the registry has no nodes of job `nothing`"),
        (["explain", JOB, "--item", "6"], 1, "has no item 6"),
        (["enable", JOB, "--server", "10.0.0.9"], 1, "has no server 10.0.0.9"),
        (["explain", JOB, "--endpoint", "127.0.0.1:7070"], 64, "cannot be used with"),
    ):
        refused = command(*words)
        assert (refused.returncode, says in refused.stderr) == (status, True), refused.stderr
    away = command("explain", JOB, address="127.0.0.1:1", SIDEKEEPER_CONNECTION_TIMEOUT="200ms")
    assert away.returncode == 75, away.stderr
    assert "no session with ZooKeeper: " in away.stderr


def test_who_has_disabled_what_and_why_is_shown_until_it_is_enabled(fleet: Fleet) -> None:
    applications = fleet.three(cron=NEVER)
    sidecar = applications[0].sidecar
    us = f"uid {os.geteuid()}"
    through = ["--endpoint", f"unix://{sidecar.socket}"]
    itself = ["--zookeeper", fleet.server.address, "--namespace", fleet.namespace]

    def command(*words: str) -> str:
        call = [str(sidekeeper_binary()), *words]
        ended = subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    before = fleet.tree.nodes()
    command("disable", JOB, "--item", "3", "--reason", "replaying batch 881", "--yes", *through)
    command("disable", JOB, "--item", "4", "--yes", *itself)
    # The nodes of the job are those of ElasticJob alone.
    assert fleet.tree.nodes() == before | {"sharding/3/disabled": ("", 0), "sharding/4/disabled": ("", 0)}
    for place in (through, itself):
        shown = json.loads(command("job", JOB, "--json", *place))["disablings"]
        assert [(one["item"], one["author"], one["reason"]) for one in shown] == [
            (3, us, "replaying batch 881"),
            (4, f"{us} with `--zookeeper`", ""),
        ]
        table = command("items", JOB, *place).splitlines()
        assert table[4].endswith(f"by {us}: replaying batch 881")
        assert table[5].endswith(f"by {us} with `--zookeeper`")
        said = command("explain", JOB, *place)
        assert f"the item is disabled (by {us}: replaying batch 881), since " in said
    # The console enables the item and disables it again: nobody knows who that was.
    fleet.tree.delete("sharding/3/disabled")
    fleet.tree.create("sharding/3/disabled")
    [finding] = explain(sidecar).of(3)
    assert finding["message"] == "the item is disabled"
    third = applications[2].sidecar.address
    command("disable", JOB, "--server", third, "--reason", "disk full", "--yes", *itself)
    fleet.settle(*applications[:2])
    assert f"by {us} with `--zookeeper`: disk full" in command("servers", JOB, *through)
    command("enable", JOB, "--item", "3", "--item", "4", *through)
    command("enable", JOB, "--all-servers", *through)
    notes = f"/{fleet.namespace}-sidekeeper/{JOB}/fleet/notes"
    assert fleet.tree.client.get_children(notes) == []
    fleet.settle(*applications)
    assert explain(sidecar).codes() == []


def test_a_disabling_with_an_end_ends_then_and_who_gives_it_learns_if_nobody_keeps_it(fleet: Fleet) -> None:
    application = fleet.application(fleet.sidecar(1), cron=NEVER)
    fleet.settle(application)
    through = ["--endpoint", f"unix://{application.sidecar.socket}"]
    itself = ["--zookeeper", fleet.server.address, "--namespace", fleet.namespace]

    def disable(*words: str) -> subprocess.CompletedProcess[str]:
        call = [str(sidekeeper_binary()), "disable", JOB, "--yes", *words]
        return subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE, check=False)

    told = disable("--item", "1", "--until", "3s", *through)
    assert re.fullmatch(r"disabled  item 1 of orderSync until 20\d\d-\S+Z\n", told.stdout), told
    assert told.stderr == ""
    told = disable("--item", "2", "--until", "3s", "--reason", "repair", "--json", *itself)
    assert json.loads(told.stdout) == {"changed_items": [2], "ends_by_itself": True}
    assert disable("--item", "3", "--until", "2099-01-01T00:00:00Z", *through).returncode == 0
    assert " until 2099-01-01T00:00:00Z)" in explain(application.sidecar).of(3)[0]["message"]
    assert fleet.tree.get("sharding/1/disabled") == ""
    eventually(
        "both are enabled", lambda: [fleet.tree.get(f"sharding/{item}/disabled") for item in (1, 2)] == [None] * 2
    )
    notes = f"/{fleet.namespace}-sidekeeper/{JOB}/fleet/notes"
    assert fleet.tree.client.get_children(notes) == ["item-3"]
    # The whole job has no leader, and ends all the same.
    assert disable("--all-servers", "--until", "2s", *through).returncode == 0
    eventually("the server is enabled", lambda: fleet.tree.get("servers/10.0.0.1") == "ENABLED")
    for wrong in ("1d", "2020-01-01T00:00:00Z"):
        refused = disable("--item", "4", "--until", wrong, *through)
        assert refused.returncode in (1, 64)
        assert "until" in refused.stderr
    application.kill()
    application.sidecar.kill()
    eventually("nobody is online", lambda: fleet.tree.children("instances") == [])
    told = disable("--item", "4", "--until", "1s", *itself)
    assert (told.returncode, "nobody enables at" in told.stderr) == (0, True), told
    assert fleet.tree.get("sharding/4/disabled") == ""


def test_a_registry_that_hangs_or_refuses_a_node_is_named_and_nothing_is_changed(fleet: Fleet) -> None:
    application = fleet.application(fleet.sidecar(1, "2s"), cron=NEVER)
    fleet.settle(application)

    def command(*words: str) -> tuple[int, str]:
        call = [str(sidekeeper_binary()), *words, "--endpoint", f"unix://{application.sidecar.socket}"]
        ended = subprocess.run(call, capture_output=True, text=True, timeout=3 * PATIENCE, check=False)
        return ended.returncode, ended.stderr

    disable = ["disable", JOB, "--item", "2", "--yes"]
    fleet.server.freeze()
    try:
        for words in (["explain", JOB], disable):
            status, error = command(*words)
            assert (status, "try again" in error) == (75, True), error
    finally:
        fleet.server.thaw()
    fleet.settle(application)
    assert fleet.tree.get("sharding/2/disabled") is None
    node = fleet.tree.path("sharding/2")
    fleet.tree.client.set_acls(node, [make_acl("world", "anyone", read=True, delete=True, admin=True)])
    status, error = command(*disable)
    assert (status, f"no permission for {node}/disabled" in error) == (1, True), error
    fleet.tree.client.set_acls(node, [make_acl("world", "anyone", all=True)])
    assert command(*disable)[0] == 0
    assert explain(application.sidecar).codes() == ["ITEM_DISABLED"]


def ended(applications: list[Application]) -> list[int]:
    return sorted(event["item"] for application in applications for event in application.events("end"))
