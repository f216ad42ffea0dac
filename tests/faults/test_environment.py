"""Faults in the surroundings of a fleet: access lists, quotas, limits, disks, data, names, clocks, and operators.

Each test inflicts one fault of `docs/fault-matrix.md` that has no place among the random ones, because it takes a
server, a sidecar or a name of its own. A job fires each second meanwhile. No fire may be lost, none may be executed
twice, and no sidecar may end. The sidecars' logs name each obstacle that a person has to remove.
"""

from __future__ import annotations

import random
import re
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from kazoo.security import make_acl, make_digest_acl

from faults.ensemble import Ensemble, now
from faults.environment import (
    CLOSE_SESSION,
    FakeClock,
    NamedHost,
    OddEnsemble,
    Relay,
    Wanted,
    attach_to_session,
    damage,
    limit,
    sidecar_in,
    slow_disk,
    with_endless_lists,
)
from faults.fleet import FaultFleet, Slot
from faults.network import Link
from support.job_nodes import EACH_SECOND, JOB, NEVER
from support.processes import PATIENCE, eventually

ITEMS = 6
SESSION = 4.0

#: What everybody may do, and what only an operator may.
OPEN = [make_acl("world", "anyone", all=True)]
OPERATOR = make_digest_acl("operator", "secret", all=True)
READ_ONLY = [OPERATOR, make_acl("world", "anyone", read=True)]


def own(
    servers: int = 1, java: Sequence[str] = (), command: Callable[[], list[str]] = list, **settings: object
) -> pytest.MarkDecorator:
    """Gives a test an ensemble of its own."""
    return pytest.mark.own_ensemble(Wanted(servers, settings, java, command))


def start(fleet: FaultFleet, count: int = 2, **options: Any) -> list[Slot]:
    """Starts a fleet whose job fires each second."""
    return fleet.start(count, **{"session": SESSION, "cron": EACH_SECOND, "duration": 0.1, **options})


def executed_again(fleet: FaultFleet, timeout: float = PATIENCE) -> None:
    """Waits until each item has been executed to its end for a fire that is still to come."""
    first = time.time()

    def executed() -> bool:
        starts = [event for one in fleet.applications for event in one.events("start") if event["scheduled"] > first]
        ended = {event["execution"] for one in fleet.applications for event in one.events("end")}
        return {event["item"] for event in starts if event["execution"] in ended} == set(range(ITEMS))

    fleet.look("each item is executed again", executed, timeout)


@contextmanager
def nothing_lost(fleet: FaultFleet, timeout: float = PATIENCE) -> Iterator[None]:
    """The block loses no fire and executes none twice; afterwards the fleet has recovered."""
    executed_again(fleet)
    began = time.time()
    yield
    executed_again(fleet, timeout)
    ended = time.time()
    fleet.tree.configure(cron=NEVER)
    fleet.look(
        "nothing is executed",
        lambda: not fleet.executing() and not fleet.running(),
        timeout,
    )
    fleet.divide(timeout=timeout)
    judge = fleet.judge()
    # The fires just before the schedule's end may still have to be re-run.
    fires = [float(second) for second in range(int(began) + 1, int(ended) - 1)]
    problems = [*judge.once(), *judge.missing(range(ITEMS), fires)]
    assert not problems, "\n".join(map(str, problems))


def fires_again(fleet: FaultFleet) -> None:
    """Has the job fire each second, and waits until each item has been executed: the sidecars see the new schedule."""
    fleet.tree.configure(cron=EACH_SECOND)
    executed_again(fleet)


def stands_still(fleet: FaultFleet, seconds: float) -> None:
    """Waits for as long as nothing can be executed."""
    before = len(starts(fleet))
    time.sleep(seconds)
    assert len(starts(fleet)) - before <= ITEMS, "what should not be possible is executed"


def starts(fleet: FaultFleet) -> list[dict[str, Any]]:
    return [event for one in fleet.applications for event in one.events("start")]


def logged(slots: Sequence[Slot], *words: str) -> bool:
    """Whether one of these sidecars has logged a line with all of these words."""
    lines = [line for slot in slots for line in slot.sidecar.log.read_text(errors="replace").splitlines()]
    return any(all(word in line for word in words) for line in lines)


@pytest.fixture
def operator(ensemble_client: KazooClient, ensemble: Ensemble) -> Iterator[KazooClient]:
    """A client with a user of its own."""
    other = ensemble.client()
    other.add_auth("digest", "operator:secret")
    yield other
    other.stop()
    other.close()


# Access lists and quotas.


def test_nodes_without_permission_to_change_are_named_and_the_job_goes_on_later(
    fleet: FaultFleet, operator: KazooClient
) -> None:
    slots = start(fleet)
    with nothing_lost(fleet):
        closed = [fleet.tree.path(path) for path, (_, owner) in fleet.tree.nodes().items() if not owner]
        for path in closed:
            try_to(operator.set_acls, path, READ_ONLY)
        stands_still(fleet, 3.0)
        eventually(
            "the log names it",
            lambda: logged(slots, " WARN ", "no permission for", "/sharding/"),
        )
        for path in closed:
            try_to(operator.set_acls, path, OPEN)


def test_a_configuration_that_may_not_be_read_is_named_and_stays_in_force(
    fleet: FaultFleet, operator: KazooClient
) -> None:
    slots = start(fleet)
    configuration = fleet.tree.path("config")
    with nothing_lost(fleet):
        operator.set_acls(configuration, [OPERATOR])
        for slot in slots:
            slot.link.reset()
        eventually(
            "the logs name it",
            lambda: all(logged([slot], " WARN ", "may not be read", "/config") for slot in slots),
        )
        executed_again(fleet)
        operator.set_acls(configuration, OPEN)
        for slot in slots:
            slot.link.reset()


@own(enforceQuota="true")
def test_a_quota_that_is_reached_is_named_and_the_job_goes_on_without_it(
    fleet: FaultFleet, operator: KazooClient
) -> None:
    slots = start(fleet)
    quota = f"/zookeeper/quota/{fleet.namespace}"
    with nothing_lost(fleet):
        operator.create(
            f"{quota}/zookeeper_limits",
            b"count=-1,bytes=-1,byteHardLimit=-1;countHardLimit=10",
            makepath=True,
        )
        operator.create(f"{quota}/zookeeper_stats", b"count=100,bytes=10000")
        stands_still(fleet, 3.0)
        eventually("the log names it", lambda: logged(slots, " WARN ", "quota"))
        operator.delete(f"{quota}/zookeeper_limits")
        operator.delete(f"{quota}/zookeeper_stats")


# Small limits.


@own(java=["-Djute.maxbuffer=8192"])
def test_a_request_that_is_too_large_for_a_server_ends_no_instance(fleet: FaultFleet) -> None:
    """No transaction of a job with six items is that large; a resharding of three hundred items is."""
    slots = start(fleet)
    with nothing_lost(fleet):
        before = sum(slot.link.accepted for slot in slots)
        fleet.tree.configure(shardingTotalCount=300)
        # The server closes the connection at a request of that size, unless the request comes in parts.
        fleet.look(
            "it was tried",
            lambda: sum(slot.link.accepted for slot in slots) >= before + 2 or len(fleet.tree.owners()) == 300,
        )
        fleet.tree.configure(shardingTotalCount=ITEMS)
        fleet.divide()


def test_a_sidecar_without_descriptors_comes_back_when_it_has_some(
    fleet: FaultFleet,
) -> None:
    first, second = start(fleet)
    with nothing_lost(fleet, timeout=2 * PATIENCE):
        before = limit(first.sidecar, resource.RLIMIT_NOFILE, 0)
        # It can neither connect nor accept.
        first.link.reset()
        first.kill_application()
        first.start_application()
        fleet.divide([second])
        eventually("the log names it", lambda: logged([first], " WARN ", "Too many open files"))
        limit(first.sidecar, resource.RLIMIT_NOFILE, before)
        fleet.divide(timeout=2 * PATIENCE)


@own(servers=3)
def test_a_server_without_memory_is_left_for_another_one(fleet: FaultFleet, ensemble_client: KazooClient) -> None:
    assert isinstance(fleet.ensemble, OddEnsemble)
    server = fleet.ensemble.follower()
    server.kill()
    fleet.ensemble.server(server.number).more_java = [
        "-Xmx24m",
        "-XX:+ExitOnOutOfMemoryError",
    ]
    server.start()
    fleet.ensemble.wait_serving()
    start(fleet)
    with nothing_lost(fleet):
        ensemble_client.create("/large")
        for number in range(40):
            ensemble_client.create(f"/large/{number}", bytes(1_000_000))
            if server.popen.poll() is not None:
                break
        eventually("the server is out of memory", lambda: server.popen.poll() is not None)
        executed_again(fleet)
        ensemble_client.delete("/large", recursive=True)
        fleet.ensemble.server(server.number).more_java = []
        server.start()
        fleet.ensemble.wait_serving()


# Disks and data.


def test_the_disk_of_zookeepers_leader_is_full(fleet: FaultFleet) -> None:
    start(fleet)
    with nothing_lost(fleet):
        leader = fleet.ensemble.leader()
        limit(leader, resource.RLIMIT_FSIZE, 0)
        others = [server for server in fleet.ensemble.servers if server is not leader]
        eventually(
            "another one leads",
            lambda: any(server.mode == "leader" for server in others),
            3 * PATIENCE,
        )
        executed_again(fleet)
        # There is room again.
        leader.kill()
        leader.start()
        fleet.ensemble.wait_serving()


@own(servers=3, java=["-Dzookeeper.forceSync=yes"], command=lambda: slow_disk(0.2))
def test_the_disks_of_all_servers_are_slow(fleet: FaultFleet) -> None:
    start(fleet, session=6.0)
    with nothing_lost(fleet):
        executed_again(fleet)
        executed_again(fleet)
    assert not fleet.judge().cancels()


@pytest.mark.parametrize("data", ["older", "none", "damaged"])
def test_a_server_comes_back_with_other_data(fleet: FaultFleet, tmp_path: Path, data: str) -> None:
    server = fleet.ensemble.follower()
    folder = fleet.ensemble.folder / f"data-{server.number}"
    older = shutil.copytree(folder, tmp_path / "older")
    start(fleet)
    with nothing_lost(fleet):
        server.kill()
        if data == "older":
            shutil.rmtree(folder)
            shutil.copytree(older, folder)
        elif data == "none":
            shutil.rmtree(folder / "version-2")
        else:
            log = max(
                (folder / "version-2").glob("log.*"),
                key=lambda file: file.stat().st_mtime,
            )
            damage(log)
        server.start()
        if data == "damaged":
            assert server.popen.wait(PATIENCE) != 0
            executed_again(fleet)
            # An operator removes the damaged files.
            shutil.rmtree(folder / "version-2")
            server.start()
        fleet.ensemble.wait_serving()
        executed_again(fleet)


@own()
def test_all_servers_come_back_with_older_data(fleet: FaultFleet, tmp_path: Path) -> None:
    """Transaction ids go back, and fencing tokens with them: no promise holds across that, but no instance stands still."""
    assert isinstance(fleet.ensemble, OddEnsemble)
    server = fleet.ensemble.server(1)

    slots = fleet.start(2, session=SESSION)
    server.kill()
    older = shutil.copytree(server.data, tmp_path / "older")
    # With each election the ids make a leap.
    for _ in range(2):
        server.kill()
        server.start()
        fleet.ensemble.wait_serving()
    fleet.divide(timeout=2 * PATIENCE)
    fleet.tree.client.create("/latest")
    latest = fleet.tree.client.get("/latest")[1].czxid
    accepted = [slot.link.accepted for slot in slots]
    server.kill()
    shutil.rmtree(server.data)
    shutil.copytree(older, server.data)
    server.start()
    fleet.ensemble.wait_serving()
    fleet.tree.client.stop()
    fleet.tree.client = fleet.ensemble.client()
    eventually(
        "they know", lambda: all(slot.link.accepted > before for slot, before in zip(slots, accepted)), 2 * PATIENCE
    )
    fleet.divide(timeout=2 * PATIENCE)
    fleet.fire()
    executed = set(range(ITEMS))
    fleet.look("each item is executed", lambda: {event["item"] for event in starts(fleet)} == executed, 2 * PATIENCE)
    assert max(event["token"] for event in starts(fleet)) < latest
    fleet.tree.client.stop()


@pytest.mark.parametrize("disk", ["full", "slow"])
def test_the_disk_of_a_sidecar_is_full_or_slow(
    fleet: FaultFleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, disk: str
) -> None:
    """Of its log and of what it writes down for its next process."""
    # A disk that is full is no reason to end a process, as a limit is by default.
    command = ["env", "--ignore-signal=XFSZ"] if disk == "full" else slow_disk(0.5)
    sidecar_in(monkeypatch, tmp_path, *command)
    slots = []
    for number in range(2):
        options = ["--state-dir", str(tmp_path / f"state-{number}")]
        slots.append(fleet.slot(session=SESSION, cron=EACH_SECOND, duration=0.1, options=options))
    fleet.divide()
    first = slots[0]
    with nothing_lost(fleet, timeout=2 * PATIENCE):
        if disk == "full":
            before = limit(first.sidecar, resource.RLIMIT_FSIZE, 0)
        first.kill_application()
        first.start_application()
        first.link.reset()
        fleet.divide(timeout=2 * PATIENCE)
        executed_again(fleet)
        if disk == "full":
            limit(first.sidecar, resource.RLIMIT_FSIZE, before)
            first.kill_application()
            first.start_application()
            fleet.divide(timeout=2 * PATIENCE)
    assert not fleet.judge().cancels()


# The ensemble's members.


@own(servers=3, maxSessionTimeout=60_000)
def test_the_ensemble_is_restarted_server_by_server(fleet: FaultFleet) -> None:
    # A session that outlasts each election, however slow the machine is.
    start(fleet, session=30.0)
    with nothing_lost(fleet):
        for server in fleet.ensemble.servers:
            server.popen.terminate()
            server.popen.wait(PATIENCE)
            fleet.ensemble.leader()
            server.start()
            fleet.ensemble.wait_serving()
    assert not fleet.judge().cancels()
    assert len(fleet.sessions()) == 2


@own(servers=3, reconfigEnabled="true", skipACL="yes")
def test_a_server_leaves_the_ensemble_and_another_one_joins(fleet: FaultFleet, ensemble_client: KazooClient) -> None:
    assert isinstance(fleet.ensemble, OddEnsemble)
    start(fleet)
    with nothing_lost(fleet):
        # The one that leads, so that another one is elected, too.
        leader = fleet.ensemble.leader()
        with suppress(ConnectionLoss):
            ensemble_client.reconfig(joining=None, leaving=str(leader.number), new_members=None)
        left = f"server.{leader.number}=".encode()
        fleet.look("it is no member", lambda: left not in ensemble_client.get("/zookeeper/config")[0])
        leader.kill()
        fleet.ensemble.servers.remove(leader)
        fleet.ensemble.wait_serving()
        executed_again(fleet)
        joining = fleet.ensemble.add()
        place = f"server.{joining.number}={fleet.ensemble.peers[joining.number]};127.0.0.1:{joining.port}"
        ensemble_client.reconfig(joining=place, leaving=None, new_members=None)
        fleet.ensemble.wait_serving()
        executed_again(fleet)
    assert not fleet.judge().cancels()


# Names, connections, clocks.


@own()
def test_the_name_of_the_ensemble_leads_to_another_address(
    fleet: FaultFleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = NamedHost(tmp_path / "hosts", "zookeeper.test", "127.0.0.1")
    server = fleet.ensemble.ports[0]
    first = Relay("127.0.0.1", 0, server)
    sidecar_in(monkeypatch, tmp_path, *host.command)
    monkeypatch.setattr(Link, "address", f"zookeeper.test:{first.port}")
    start(fleet)
    with nothing_lost(fleet):
        second = Relay("127.0.0.2", first.port, server)
        first.end()
        host.lead_to("127.0.0.2")
        executed_again(fleet)
    second.end()
    assert len(fleet.sessions()) == 2


@own()
def test_bytes_that_change_on_the_way_stop_no_instance_for_good(
    fleet: FaultFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where TCP's checksum does not see it. Nothing is executed meanwhile, because tokens are changed, too."""
    chance = random.Random(3)
    relay = Relay("127.0.0.1", 0, fleet.ensemble.ports[0])
    monkeypatch.setattr(Link, "address", f"127.0.0.1:{relay.port}")
    slots = fleet.start(2, session=SESSION)
    changed: list[int] = []

    def change(data: bytes) -> bytes:
        if chance.random() < 0.7:
            return data
        at = chance.randrange(len(data))
        changed.append(at)
        return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]

    relay.edit = change
    until = now() + 6.0
    while now() < until:
        fleet.tree.configure(jobParameter=str(chance.random()))
        time.sleep(0.05)
    assert len(changed) > 20, changed
    relay.edit = bytes
    relay.reset()
    time.sleep(SESSION)
    # A changed answer can say that an operator has deleted an instance's node: then its application has ended well.
    for slot in slots:
        if slot.application.popen.poll() == 0 and logged([slot], "STOPPED_BY_OPERATOR"):
            fleet.ended.append(slot.application)
            slot.start_application()
    fleet.divide(timeout=2 * PATIENCE)
    fires_again(fleet)
    relay.end()


@own()
def test_a_list_whose_length_changes_on_the_way_ends_no_sidecar(
    fleet: FaultFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ZooKeeper client allocates by the length of a list, 48 GiB here, before it reads the list."""
    relay = Relay("127.0.0.1", 0, fleet.ensemble.ports[0])
    monkeypatch.setattr(Link, "address", f"127.0.0.1:{relay.port}")
    (slot,) = fleet.start(1, session=SESSION)
    fleet.divide()
    changed: list[int] = []

    def change(data: bytes) -> bytes:
        edited, lists = with_endless_lists(data)
        changed.append(lists)
        return edited

    relay.edit = change
    relay.reset()
    fleet.look("changed lists", lambda: sum(changed) >= 3 or slot.sidecar.popen.poll() is not None)
    relay.edit = bytes
    relay.reset()
    fleet.divide(timeout=2 * PATIENCE)
    fires_again(fleet)
    relay.end()


def test_a_second_connection_takes_the_session_for_a_moment(fleet: FaultFleet, tmp_path: Path) -> None:
    """As when a network delivers a connection twice: the sidecar takes its session back, and no execution notices."""
    state = tmp_path / "state"
    first = fleet.slot(
        session=SESSION,
        cron=EACH_SECOND,
        duration=0.1,
        options=["--state-dir", str(state)],
    )
    fleet.slot(session=SESSION, cron=EACH_SECOND, duration=0.1)
    fleet.divide()
    with nothing_lost(fleet):
        for server in fleet.ensemble.servers:
            before = first.link.accepted
            with attach_to_session(server.port, state / "session.json"):
                connected_anew(first.link, before)
            executed_again(fleet)
    assert not fleet.judge().cancels()
    assert len(fleet.sessions()) == 2


def test_another_client_closes_the_session(fleet: FaultFleet, tmp_path: Path) -> None:
    """The session is lost, and the instance is not stopped, whichever server the other client is connected with."""
    state = tmp_path / "state"
    options = ["--state-dir", str(state)]
    first = fleet.slot(session=SESSION, cron=EACH_SECOND, duration=0.1, options=options)
    fleet.slot(session=SESSION, cron=EACH_SECOND, duration=0.1)
    fleet.divide()
    for server in fleet.ensemble.servers:
        known = len(first.sessions())
        with attach_to_session(server.port, state / "session.json", then=CLOSE_SESSION):
            fleet.look("another session", lambda: len(first.sessions()) > known)
        fleet.divide(timeout=2 * PATIENCE)
        executed_again(fleet)
    assert len(fleet.applications) == 2
    assert "STOPPED_BY_OPERATOR" not in first.sidecar.log.read_text(errors="replace")


def connected_anew(link: Link, before: int) -> None:
    """Waits until a sidecar has made more connections than so many."""
    eventually("it has connected anew", lambda: link.accepted > before)


def test_the_clock_of_a_sidecar_jumps_and_drifts(
    fleet: FaultFleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = FakeClock(tmp_path / "clock")
    with monkeypatch.context() as patch:
        sidecar_in(patch, tmp_path, *clock.command())
        fleet.slot(session=SESSION, cron=EACH_SECOND, duration=0.1)
    fleet.slot(session=SESSION, cron=EACH_SECOND, duration=0.1)
    fleet.divide()
    with nothing_lost(fleet):
        for ahead in (2.5, 0.0, -2.5, 0.0):
            clock.set(ahead)
            executed_again(fleet)
        # A twentieth too fast, then as much too slow.
        for step in [*range(60), *range(60, 0, -1)]:
            clock.set(step * 0.0025)
            time.sleep(0.05)
        clock.set(0.0)
    assert not fleet.judge().cancels()
    assert len(fleet.sessions()) == 2


@own()
def test_the_clocks_of_servers_jump(fleet: FaultFleet, tmp_path: Path) -> None:
    assert isinstance(fleet.ensemble, OddEnsemble)
    clock = FakeClock(tmp_path / "clock")
    server = fleet.ensemble.server(1)
    server.kill()
    server.command = clock.command()
    server.start()
    fleet.ensemble.wait_serving()
    start(fleet)
    with nothing_lost(fleet):
        for ahead in (3600.0, -3600.0, 0.0):
            clock.set(ahead)
            executed_again(fleet)
    assert not fleet.judge().cancels()
    assert len(fleet.sessions()) == 2


# Operators.


def try_to(write: Callable[..., object], *arguments: object) -> bool:
    """Writes, unless another client has changed the node."""
    try:
        write(*arguments)
    except (BadVersionError, NoNodeError, NodeExistsError, NotEmptyError):
        return False
    return True


class Operator:
    """Random calls of ElasticJob's lifecycle API, as it writes to ZooKeeper."""

    def __init__(self, fleet: FaultFleet, chance: random.Random):
        self.fleet = fleet
        self.tree = fleet.tree
        self.chance = chance

    def act(self) -> str:
        acts = [
            self.switch_server,
            self.switch_item,
            self.trigger,
            self.shut_down,
            self.configure,
            self.remove_server,
        ]
        act = self.chance.choice(acts)
        act()
        return act.__name__

    def slot(self) -> Slot:
        return self.chance.choice(self.fleet.slots)

    def pause(self) -> None:
        time.sleep(self.chance.uniform(0.0, 0.8))

    def switch_server(self) -> None:
        server = f"servers/{self.slot().sidecar.address}"
        try_to(self.tree.set, server, "DISABLED")
        self.pause()
        try_to(self.tree.set, server, "ENABLED")

    def switch_item(self) -> None:
        disabled = f"sharding/{self.chance.randrange(ITEMS)}/disabled"
        try_to(self.tree.create, disabled)
        self.pause()
        try_to(self.tree.delete, disabled)

    def trigger(self) -> None:
        for instance in self.tree.children("instances"):
            try_to(self.tree.create, f"trigger/{instance}")

    def shut_down(self) -> None:
        slot = self.slot()
        try_to(self.tree.delete, f"instances/{slot.application.instance}")
        self.pause()
        restart(slot)

    def configure(self) -> None:
        total = self.chance.choice([ITEMS - 2, ITEMS, ITEMS + 3])
        cron = self.chance.choice([EACH_SECOND, "0/2 * * * * ?"])
        self.tree.configure(shardingTotalCount=total, cron=cron, jobParameter=str(self.chance.random()))
        self.pause()
        self.tree.configure(shardingTotalCount=ITEMS, cron=EACH_SECOND)

    def remove_server(self) -> None:
        slot = self.slot()
        try_to(self.tree.delete, f"servers/{slot.sidecar.address}")
        self.pause()
        restart(slot)


def restart(slot: Slot) -> None:
    """Starts an application again that an operator has stopped, as its deployment does."""
    slot.kill_application()
    slot.start_application()
    assert slot.application.instance


def test_an_operator_does_everything_at_any_moment(fleet: FaultFleet) -> None:
    start(fleet, 3, duration=0.3)
    operator = Operator(fleet, random.Random(7))
    done: set[str] = set()
    until = now() + 12.0
    while now() < until or len(done) < 6:
        done.add(operator.act())
        operator.pause()
    fleet.divide(timeout=2 * PATIENCE)
    with nothing_lost(fleet):
        executed_again(fleet)
    assert not [path for path in fleet.tree.leftovers() if "misfire" not in path]


#: The nodes that an operator deletes: below the job's root, and below the sidecars' own.
KINDS = (
    r"instances/.+",
    r"leader/election/instance",
    r"servers/.+",
    r"sharding/\d+/instance",
    r"sharding/\d+/running",
    r"fleet/members/.+",
    r"fires/\d+",
)


def test_an_operator_deletes_any_node_at_any_moment(fleet: FaultFleet) -> None:
    """Also the nodes of owners and executions: then only the fence protects. The fleet recovers by itself."""
    slots = start(fleet, 3, duration=0.3)
    chance = random.Random(11)
    ours = f"{fleet.tree.namespace}-sidekeeper/{JOB}"
    client = fleet.tree.client

    def found(kind: str) -> list[str]:
        paths = [fleet.tree.path(path) for path in fleet.tree.nodes()] + below(client, ours)
        return [path for path in paths if re.fullmatch(f"({fleet.tree.root}|{ours})/{kind}", path)]

    for kind in chance.sample(KINDS, len(KINDS)) * 2:
        path = chance.choice(fleet.look(kind, lambda kind=kind: found(kind)))  # type: ignore[misc]
        if "/fires/" in path:
            fleet.unledgered.add(int(path.rsplit("/", 1)[1]))
        try_to(client.delete, path)
        time.sleep(chance.uniform(0.05, 0.5))
        for slot in slots:
            # Without its instance's node an application is stopped, as by the lifecycle API.
            if path.endswith(f"instances/{slot.application.instance}"):
                restart(slot)
    fleet.divide(timeout=2 * PATIENCE)
    judge = fleet.judge()
    assert not [*map(str, judge.fenced()), *map(str, judge.tokens())]
    with nothing_lost(fleet):
        executed_again(fleet)


def below(client: KazooClient, path: str) -> list[str]:
    """All nodes below a node."""
    found: list[str] = []
    with suppress(NoNodeError):
        for child in client.get_children(path):
            found += [f"{path}/{child}", *below(client, f"{path}/{child}")]
    return found
