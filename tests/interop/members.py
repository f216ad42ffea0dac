"""Java instances beside ours: how a test starts and commands them, and what a fleet of both has executed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, Protocol

from support.application import Application
from support.fleet import Fleet
from support.job_nodes import JOB, NEVER
from support.processes import PATIENCE, ROOT, CommandedProcess, eventually, executing, free_port, sidekeeper_binary
from support.sidecar import Sidecar

#: Name of the Java job's class: what is in the job's root node.
JOB_CLASS = "sidekeeper.interop.OrderJob"

#: The kind of the job's leader, where a test depends on it.
LEADERS = ("java", "ours")

#: How long ZooKeeper keeps the session of an instance that is dead or frozen, in seconds.
SESSION = 3.0

#: After how long an item that a Java leader gave a Java instance at a fire is not executed any more for that, in seconds.
LEFT_OUT = 5.0

TOTAL = 4

_TOOLS = ROOT / ".tools" / "interop"


def _jars() -> tuple[Path, str]:
    """The folder with ElasticJob's jars, and that of the classes compiled for it."""
    given = os.environ.get("SIDEKEEPER_ELASTICJOB")
    return (Path(given).resolve(), "kernel") if given else (_TOOLS / "jars", "lite")


def jars() -> Path:
    """The folder with ElasticJob's jars."""
    return _jars()[0]


@lru_cache(maxsize=1)
def elasticjob_version() -> tuple[int, ...]:
    """The version of ElasticJob that the tests start."""
    jars, _ = _jars()
    for jar in sorted(jars.glob("elasticjob-*lifecycle-*.jar")):
        found = re.search(r"-(\d+)\.(\d+)\.(\d+)\.jar$", jar.name)
        if found:
            return tuple(map(int, found.groups()))
    raise RuntimeError(f"no ElasticJob in {jars}: run tests/interop/install.sh")


@lru_cache(maxsize=1)
def answers_dumps() -> bool:
    """Whether the sidecar that is tested has ElasticJob's dump command."""
    told = subprocess.run([sidekeeper_binary(), "serve", "--help"], capture_output=True, text=True, check=True)
    return "--dump-listen" in told.stdout


class _JavaProcess(CommandedProcess):
    """A JVM with one of the programs of this folder."""

    #: Options of the JVM: it starts soon, and needs little.
    JVM: Sequence[str] = ("-Xmx128m", "-Xshare:auto", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")

    def __init__(self, name: str, main: str, arguments: Sequence[str], folder: Path, java: Sequence[str] = ()):
        jars, flavour = _jars()
        elasticjob_version()
        options = [
            *self.JVM,
            *java,
            *("-Duser.timezone=UTC", "-Dorg.slf4j.simpleLogger.showDateTime=true"),
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
        ]
        command = ["java", *options, "-cp", f"{_TOOLS / flavour}:{jars}/*", f"sidekeeper.interop.{main}", *arguments]
        super().__init__(name, command, folder, dict(os.environ))


class LockPeer(_JavaProcess):
    """Contenders for Curator's locks, one for each mode; or, with the rounds "steps", those that lines of standard input name."""

    def __init__(self, fleet: MixedFleet, path: str, rounds: int | str, modes: Sequence[str]):
        arguments = [fleet.server.address, path, str(rounds), *modes]
        super().__init__(f"lock-peer-{len(fleet.processes)}", "LockPeer", arguments, fleet.folder)
        fleet.processes.append(self)


class GoLockPeer(CommandedProcess):
    """Contenders for the lock of go-zookeeper, as `LockPeer`. A server's address may be a proxy's."""

    def __init__(self, fleet: MixedFleet, path: str, rounds: int | str, contenders: int, address: str = ""):
        program = ROOT / ".tools" / "bin" / "lock-peer"
        if not program.is_file():
            raise RuntimeError(f"no {program}: run make interop-tools")
        arguments = [str(program), address or fleet.server.address, path, str(rounds), *["MUTEX"] * contenders]
        super().__init__(f"go-lock-peer-{len(fleet.processes)}", arguments, fleet.folder, dict(os.environ))
        fleet.processes.append(self)


class Member(Protocol):
    """An instance of the job, of either kind."""

    name: str
    address: str
    popen: subprocess.Popen[str]
    #: Where it answers ElasticJob's dump command.
    dump_port: int

    @property
    def instance(self) -> str: ...

    def events(self, *kinds: str) -> list[dict[str, Any]]: ...

    def wait(self, what: str, look: Callable[[list[dict[str, Any]]], Any], timeout: float = PATIENCE) -> Any: ...

    def command(self, command: str) -> None: ...

    def say(self, line: str) -> None: ...

    def die(self) -> None: ...

    def leave(self) -> None: ...

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def kill(self) -> None: ...


class Java(_JavaProcess):
    """An instance of ElasticJob, with further settings and with options of its JVM."""

    def __init__(
        self,
        number: int,
        name: str,
        fleet: Fleet,
        session: float,
        job: dict[str, Any],
        further: Mapping[str, Any] = MappingProxyType({}),
        options: Sequence[str] = (),
    ):
        self.address = f"10.0.1.{number}"
        self.dump_port = free_port()
        settings = {
            "zookeeper": fleet.server.address,
            "namespace": fleet.namespace,
            "session_timeout": int(session * 1000),
            "ip": self.address,
            "dump_port": self.dump_port,
            "job": _as_java(job),
            **further,
        }
        super().__init__(name, "Instance", [json.dumps(settings)], fleet.folder, options)

    @property
    def instance(self) -> str:
        """Its instance id."""
        return str(self.wait("ready", lambda events: [one for one in events if one["event"] == "ready"])[0]["instance"])

    def die(self) -> None:
        """Kills the process, as kill -9 does."""
        self.kill()

    def leave(self) -> None:
        """Ends the process, as SIGTERM does: it finishes what it executes."""
        self.say("quit")
        assert self.popen.wait(PATIENCE) == 0, f"{self.name} ended with status {self.popen.returncode}"
        self._reader.join()


class Ours(Application):
    """An application beside a sidecar, together an instance like a Java one."""

    def __init__(self, number: int, name: str, fleet: MixedFleet, session: float, job: dict[str, Any]):
        self.dump_port = free_port()
        settings = ["--dump-listen", f"127.0.0.1:{self.dump_port}"] if answers_dumps() else []
        settings += fleet.sidecar_options
        sidecar = fleet.sidecar(number, f"{int(session * 1000)}ms", settings)
        self.address = sidecar.address
        super().__init__(name, sidecar, fleet.folder, {"job_class": JOB_CLASS, **job})

    def die(self) -> None:
        """Kills both processes, as when a machine dies."""
        self.sidecar.kill()
        self.kill()

    def leave(self) -> None:
        """Ends the application, then the sidecar: it finishes what it executes."""
        self.terminate()
        self.sidecar.terminate()

    def freeze(self) -> None:
        self.sidecar.freeze()
        super().freeze()

    def thaw(self) -> None:
        super().thaw()
        self.sidecar.thaw()


class Lifecycle(_JavaProcess):
    """ElasticJob's lifecycle API, as its console calls it."""

    def __init__(self, folder: Path, zookeeper: str):
        super().__init__("lifecycle", "Lifecycle", [], folder)
        self.zookeeper = zookeeper
        self.namespace = ""

    def call(self, api: str, call: str, *arguments: Any) -> Any:
        """Calls a method of one of its interfaces, for example JobOperate, trigger; returns its result as JSON."""
        before = len(self.events("answer"))
        request = {"zookeeper": self.zookeeper, "namespace": self.namespace, "api": api, "call": call}
        self.say(json.dumps({**request, "arguments": arguments}))
        self.wait(call, lambda events: sum(event["event"] == "answer" for event in events) > before)
        answer = self.events("answer")[before]
        if "error" in answer:
            raise LifecycleError(answer["error"])
        return answer["result"]

    def operate(self, call: str, *arguments: Any) -> Any:
        return self.call("JobOperate", call, *arguments)


class LatchPeer(_JavaProcess):
    """A candidate of Curator's LeaderLatch."""

    def __init__(self, fleet: MixedFleet, path: str, value: str):
        arguments = [fleet.server.address, path, value]
        super().__init__(f"latch-peer-{len(fleet.processes)}", "LatchPeer", arguments, fleet.folder)
        fleet.processes.append(self)

    def leads(self, times: int) -> int:
        """Waits until it leads for this time, counted from one; returns its term."""
        self.wait("it leads", lambda events: sum(event["event"] in ("leads", "failed") for event in events) >= times)
        assert self.events("failed") == []
        return int(self.events("leads")[times - 1]["term"])

    def leader(self) -> tuple[str, bool]:
        """The id of the leader, as Curator reads it, and whether Curator says that it leads."""
        self.command("leader")
        told = self.events("leader")[-1]
        return told["id"], told["leads"]


class LifecycleError(Exception):
    """A call of the lifecycle API has thrown."""


@dataclass(frozen=True)
class Execution:
    """One execution of an item somewhere."""

    member: str
    java: bool
    item: int
    #: The fire that it was for, in seconds since the epoch. Java does not report it, and an instance that takes over an
    #: execution of Java's does not know it: then the latest fire before its start.
    fire: float
    #: Its source. Empty: Java does not report it.
    source: str
    started: float
    #: None: it has not ended, or its process died before.
    ended: float | None
    #: How it ended: end, failed, interrupted, cancelled. Empty: it has not.
    outcome: str


class MixedFleet(Fleet):
    """Java instances and ours, of one job."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        #: When the job was to fire, as far as `fire` did it.
        self.fires: list[float] = []
        #: The items that their Java owners did not execute at the fire of a resharding.
        self.left_out: dict[float, set[int]] = {}
        #: The interval of the schedule in seconds, for jobs that fire by themselves. 0: they do not.
        self.interval = 0.0
        #: Settings of Java instances, options of their JVMs, and flags of sidecars, besides those of each test.
        self.java_settings: dict[str, Any] = {}
        self.java_options: list[str] = []
        self.sidecar_options: list[str] = []

    def java(self, number: int = 1, session: float = SESSION, **job: Any) -> Java:
        """Starts an instance of ElasticJob, and waits until it is registered."""
        name = f"java-{number}-{len(self.processes)}"
        member = Java(number, name, self, session, _with_defaults(job), self.java_settings, self.java_options)
        self.processes.append(member)
        member.wait("ready or refused", lambda events: bool(events), timeout=3 * PATIENCE)  # a JVM starts
        return member

    def ours(self, number: int = 1, session: float = SESSION, **job: Any) -> Ours:
        """Starts an instance of ours, and waits until it is registered."""
        member = Ours(number, f"ours-{number}-{len(self.processes)}", self, session, _with_defaults(job))
        self.processes.append(member)
        eventually("registered or ended", lambda: member.events("assignment") or member.popen.poll() is not None)
        return member

    def member(self, kind: str, number: int = 1, session: float = SESSION, **job: Any) -> Member:
        """Starts an instance of a kind, `java` or `ours`."""
        return self.java(number, session, **job) if kind == "java" else self.ours(number, session, **job)

    def members(self) -> list[Member]:
        """All instances that were ever started."""
        return [process for process in self.processes if isinstance(process, (Java, Ours))]

    def pair(self, leader: str, session: float = SESSION, **job: Any) -> tuple[Member, Member]:
        """Starts one instance of each kind, the leader first; returns the Java one and ours, after the resharding."""
        members = {}
        for kind in (leader, "ours" if leader == "java" else "java"):
            members[kind] = self.member(kind, session=session, **job)
        self.assert_leads(members[leader])
        self.divide(*members.values(), total=job.get("sharding_total_count", TOTAL))
        return members["java"], members["ours"]

    def leader(self) -> str | None:
        """The leader's instance id."""
        return self.tree.get("leader/election/instance")

    def assert_leads(self, member: Member) -> None:
        eventually(f"{member.name} leads", lambda: self.leader() == member.instance)

    def divide(self, *members: Member, total: int = TOTAL) -> None:
        """Waits until these instances own the items evenly.

        A Java leader reshards only at a fire: so the job fires, unless its schedule does that.
        """
        instances = [member.instance for member in members]
        java = [member.instance for member in members if isinstance(member, Java)]
        if not self.interval and not self.evenly(instances, total):
            eventually("all registered", lambda: set(instances) <= set(self.tree.children("instances")))
            if self.leader() in set(instances) - set(java):
                # Our leader reshards at once. A Java instance may be slow to see that: so it is over before the fire.
                eventually(f"items evenly owned by {instances}", lambda: self.evenly(instances, total))
            self._fire_and_divide(members, total)

        def divided() -> bool:
            # An execution's node is deleted after the event of its end.
            if self.evenly(instances, total) and (self.interval or not self.tree.leftovers()):
                return True
            # A Java leader may ask for a resharding at any time, also after all items have been executed.
            asked = {"leader/sharding/necessary"} == {one for one in self.tree.leftovers() if "leader/" in one}
            if asked and not self.interval and self.leader() in java:
                self._fire_and_divide(members, total)
            return False

        eventually(f"items evenly owned by {instances}, nothing left over", divided)

    def _fire_and_divide(self, members: Sequence[Member], total: int) -> None:
        """Makes the job fire; and once more if a Java leader reshards at that fire, and a Java instance misses its new items.

        A Java instance reads its items from a cache, and may see the previous owner for a moment (protocol 4.3).
        """
        fire = self.start_fire()
        java = [member.instance for member in members if isinstance(member, Java)]

        def missing() -> set[int]:
            return set(range(total)) - self.executed(fire)

        def is_over() -> bool:
            owners = self.tree.owners()
            of_java = self.leader() in java and all(owners.get(item) in java for item in missing())
            return not missing() or (of_java and time.time() > fire + LEFT_OUT)

        eventually(f"items 0 to {total - 1} executed", is_over)
        if left_out := missing():
            self.left_out[fire] = left_out
            self.fire(total=total)

    def evenly(self, instances: Sequence[str], total: int = TOTAL) -> bool:
        """Whether these instances own the items evenly, and no resharding is to come."""
        return self.are_even(self.tree.owners(), instances, total)

    def items_of(self, member: Member) -> list[int]:
        return sorted(item for item, owner in self.tree.owners().items() if owner == member.instance)

    def start_fire(self) -> float:
        """Has the job fire once, and waits for nothing."""
        # A busy machine takes seconds until Java has the schedule and its items.
        fire = self.tree.fire_once(ahead=4.0)
        self.fires.append(fire)
        return fire

    def fire(self, items: Iterable[int] | None = None, total: int = TOTAL) -> float:
        """Has the job fire once, and waits until these items, or all, have been executed."""
        fire = self.start_fire()
        wanted = set(range(total) if items is None else items)
        eventually(f"items {wanted} executed", lambda: self.executed(fire) >= wanted)
        return fire

    def executions(self) -> list[Execution]:
        """All executions so far."""
        return [execution for member in self.members() for execution in self._executions_of(member)]

    def _executions_of(self, member: Member) -> list[Execution]:
        found: list[tuple[dict[str, Any], dict[str, Any] | None]] = []
        open_starts: dict[int, dict[str, Any]] = {}
        for event in member.events("start", "end", "failed", "interrupted", "cancelled"):
            if event["event"] == "start":
                open_starts[event["item"]] = event
            else:
                found.append((open_starts.pop(event["item"]), event))
        found += [(start, None) for start in open_starts.values()]
        return [
            Execution(
                member=member.name,
                java=isinstance(member, Java),
                item=start["item"],
                fire=self._fire_of(start),
                source=start.get("source", ""),
                started=start["time"],
                ended=end["time"] if end else None,
                outcome=end["event"] if end else "",
            )
            for start, end in found
        ]

    def _fire_of(self, start: dict[str, Any]) -> float:
        if "scheduled" in start and start["source"] != "FAILOVER":
            return float(start["scheduled"])
        if self.interval:
            return float(start["time"] // self.interval * self.interval)
        return max((fire for fire in self.fires if fire <= start["time"]), default=0.0)

    def executed(self, fire: float) -> set[int]:
        """The items that have been executed for a fire."""
        return {one.item for one in self.executions() if one.fire == fire and one.outcome == "end"}

    def counts(self, fire: float) -> dict[int, int]:
        """How often each item has been executed for a fire."""
        return dict(
            sorted(Counter(one.item for one in self.executions() if one.fire == fire and one.outcome == "end").items())
        )

    def assert_once(self, *fires: float, total: int = TOTAL) -> None:
        """Each item has been executed once for each of these fires, on whatever instance.

        Without fires named: for the latest one; none was lost at the earlier ones, and none executed twice by ours.
        A Java instance may execute an item at the fire at which it goes to another one: it sees the new owner late.
        """
        for fire in fires or self.fires[-1:]:
            assert self.counts(fire) == dict.fromkeys(range(total), 1), (fire, self.told(fire))
        if not fires:
            self.assert_nothing_lost(total=total)
            self.assert_none_twice()

    def assert_nothing_lost(self, *fires: float, total: int = TOTAL) -> None:
        """Each item has been executed for each of these fires, somewhere."""
        for fire in fires or self.fires:
            left_out = set() if fires else self.left_out.get(fire, set())
            assert self.executed(fire) == set(range(total)) - left_out, (fire, self.told(fire))

    def told(self, fire: float) -> list[Execution]:
        return [one for one in self.executions() if one.fire == fire]

    def assert_none_twice(self) -> None:
        """No item has been executed twice for one fire on instances of ours."""
        ours = [one for one in self.executions() if not one.java and one.outcome == "end" and one.source != "TRIGGER"]
        counts = Counter((one.fire, one.item, one.source) for one in ours)
        twice = [one for one in ours if counts[one.fire, one.item, one.source] > 1]
        assert not twice, "\n".join(map(str, twice))

    def wait_running(self, member: Member, items: Iterable[int]) -> None:
        """Waits until an instance executes these items, and ZooKeeper shows it."""
        wanted = set(items)
        member.wait(f"executing {wanted}", lambda events: executing(events) >= wanted)
        eventually("running nodes", lambda: all(self.tree.get(f"sharding/{i}/running") is not None for i in wanted))

    def wait_fires(self, count: int, total: int = TOTAL) -> list[float]:
        """Waits until a job that fires by itself has had so many whole fires from now on; returns them."""
        before = max((one.fire for one in self.executions()), default=0.0)

        def whole() -> list[float]:
            fires = sorted({one.fire for one in self.executions() if one.fire > before})
            done = [fire for fire in fires if self.executed(fire) == set(range(total))]
            return done if len(done) >= count else []

        return eventually(f"{count} more fires", whole, timeout=PATIENCE + count * self.interval)[:count]

    def gone(self, member: Member) -> None:
        """Waits until the node of an instance is deleted."""
        instance = member.instance
        eventually(f"{instance} gone", lambda: instance not in self.tree.children("instances"))

    def state(self) -> str:
        """What has been executed, and what is in ZooKeeper."""
        executions = [str(one) for one in sorted(self.executions(), key=lambda one: one.started)]
        nodes = [f"{path} = {data!r} {session:x}" for path, (data, session) in sorted(self.tree.nodes().items())]
        return "\n".join([f"fires: {self.fires}", *executions, *nodes])

    def observer(self, number: int = 3) -> Sidecar:
        """Starts a sidecar of the namespace without an application, and waits for its session."""
        sidecar = self.sidecar(number)
        eventually("a session", lambda: "session opened" in sidecar.log.read_text())
        return sidecar

    def problems(self) -> list[str]:
        try:
            self.assert_none_twice()
        except AssertionError as twice:
            return [*super().problems(), str(twice)]
        return super().problems()

    def assert_clean(self) -> None:
        """Waits until nothing is left of executions, of takeovers, of elections and of shardings."""
        eventually(f"no leftovers; there are {self.tree.leftovers()}", lambda: not self.tree.leftovers())


def command(sidecar: Sidecar, *words: str) -> str:
    """The output of a command, which has to succeed."""
    call = [str(sidekeeper_binary()), *words, "--endpoint", f"unix://{sidecar.socket}"]
    return subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout


def told(sidecar: Sidecar, *words: str) -> Any:
    """The answer of a command as JSON."""
    return json.loads(command(sidecar, *words, "--json"))


def _with_defaults(job: dict[str, Any]) -> dict[str, Any]:
    return {"sharding_total_count": TOTAL, "cron": NEVER, **job}


def _as_java(job: dict[str, Any]) -> dict[str, Any]:
    """A configuration under ElasticJob's names, with its defaults."""
    defaults = {
        "jobName": JOB,
        "monitorExecution": True,
        "misfire": True,
        "maxTimeDiffSeconds": -1,
        "reconcileIntervalMinutes": 10,
        "shardingItemParameters": "",
        "jobParameter": "",
        "description": "",
    }
    given = {re.sub(r"_(.)", lambda match: match[1].upper(), key): value for key, value in job.items()}
    given.pop("concurrency", None)
    return {**defaults, **given}
