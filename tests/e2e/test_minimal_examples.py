"""The minimal workers: clients without a library, as their README says how to run them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from support.fleet import Fleet
from support.processes import PATIENCE, ROOT, Process, eventually, once_in_a_run, sidekeeper_binary
from support.sidecar import Sidecar

EXAMPLE = ROOT / "examples" / "minimal"

#: How long installing and compiling may take, in seconds: what a worker needs comes from its language's registry.
INSTALL_TIMEOUT = 240

#: The items of the workers' job.
ITEMS = {0, 1, 2, 3}


class Line(NamedTuple):
    """What a worker says of an execution."""

    item: int
    #: For which instant it is, in seconds since 1970.
    scheduled: int
    what: str
    #: Zero: not said.
    token: int


class Worker(Process):
    """A minimal worker beside a sidecar."""

    def __init__(self, name: str, command: list[str], sidecar: Sidecar, folder: Path):
        environment = {**os.environ, "SIDEKEEPER_ENDPOINT": f"unix://{sidecar.socket}"}
        super().__init__(name, command, folder, environment, pipe=False)

    def lines(self, what: str) -> list[Line]:
        """What it has said of executions that begin or end, so far."""
        found = re.findall(rf"^item (\d+) of (\d+) ({what})(?:, token (\d+))?$", self.log.read_text(), re.MULTILINE)
        return [Line(int(item), int(scheduled), what, int(token or 0)) for item, scheduled, what, token in found]

    def executed(self, fires: int) -> None:
        """Waits until it has executed that many fires of all items from begin to end."""
        wanted = fires * len(ITEMS)
        eventually(f"{self.name} executes", lambda: len(self.lines("begins")) >= wanted <= len(self.lines("ends")))

    def begins(self) -> None:
        """Waits until it begins a further fire: its executions then have most of their second before them."""
        before = len(self.lines("begins"))
        eventually(f"{self.name} begins", lambda: len(self.lines("begins")) > before)


def run(*words: str, folder: Path) -> None:
    subprocess.run(words, cwd=folder, check=True, timeout=INSTALL_TIMEOUT)


def typescript(run_folder: Path) -> list[str]:
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("Node is not installed: `.ci/setup node` installs it")
    with once_in_a_run(run_folder, "typescript") as first:
        if first:
            run("npm", "ci", "--no-audit", "--no-fund", "--loglevel=error", folder=EXAMPLE / "typescript")
    return ["node", str(EXAMPLE / "typescript" / "build" / "worker.js")]


def ruby(run_folder: Path) -> list[str]:
    if not shutil.which("ruby") or not shutil.which("rake"):
        pytest.skip("Ruby is not installed (Debian: ruby-grpc ruby-grpc-tools libprotobuf-dev rake)")
    folder = EXAMPLE / "ruby"

    def succeeds(*words: str) -> bool:
        there = shutil.which(words[0]) is not None
        return there and subprocess.run(words, cwd=folder, capture_output=True).returncode == 0

    if succeeds("bundle", "check"):
        start = ["env", f"BUNDLE_GEMFILE={folder / 'Gemfile'}", "bundle", "exec"]
    elif succeeds("ruby", "-e", "require 'grpc'") and shutil.which("grpc_tools_ruby_protoc"):
        start = []
    else:
        pytest.skip("Ruby has no gRPC: `bundle install` in examples/minimal/ruby, or Debian's packages (its README)")
    with once_in_a_run(run_folder, "ruby") as first:
        if first:
            run(*start, "rake", "stubs", folder=folder)
    return [*start, "ruby", str(folder / "worker.rb")]


@pytest.fixture(scope="session", params=[typescript, ruby], ids=["typescript", "ruby"])
def command(request: pytest.FixtureRequest, run_folder: Path) -> list[str]:
    """How a worker of a language is started."""
    words: list[str] = request.param(run_folder)
    return words


class Workers:
    """Sidecars of one fleet with a worker each."""

    def __init__(self, fleet: Fleet, command: list[str]):
        self.fleet = fleet
        self.command = command

    def sidecar(self, number: int, session: str = "6s") -> Sidecar:
        sidecar = self.fleet.sidecar(number, session)
        eventually("a session", lambda: "session opened" in sidecar.log.read_text())
        return sidecar

    def start(self, number: int, sidecar: Sidecar) -> Worker:
        worker = Worker(f"worker-{number}", self.command, sidecar, self.fleet.folder)
        self.fleet.processes.append(worker)
        return worker


@pytest.fixture
def workers(fleet: Fleet, command: list[str]) -> Workers:
    return Workers(fleet, command)


def running(fleet: Fleet) -> list[int]:
    """The items that the registry has as being executed."""
    return [item for item in ITEMS if fleet.tree.get(f"sharding/{item}/running") is not None]


def test_it_executes_and_reports_and_ends_with_sigterm(fleet: Fleet, workers: Workers) -> None:
    worker = workers.start(1, workers.sidecar(1))
    # A second fire of an item begins only when the first one was reported.
    worker.executed(fires=2)
    begun = worker.lines("begins")
    assert {line.item for line in begun} == ITEMS
    assert len({(line.item, line.scheduled) for line in begun}) == len(begun)
    eventually("all is reported", lambda: running(fleet) == [])
    worker.terminate()
    eventually("the instance has gone", lambda: fleet.tree.children("instances") == [])


def test_a_cancel_stops_the_work_and_no_more(fleet: Fleet, workers: Workers) -> None:
    sidecar = workers.sidecar(1)
    worker = workers.start(1, sidecar)
    worker.begins()
    eventually("all begin", lambda: len(worker.lines("begins")) == len(ITEMS))
    cancel = [str(sidekeeper_binary()), "cancel", "orderSync", "--item", "2", "--endpoint", f"unix://{sidecar.socket}"]
    subprocess.run(cancel, check=True, timeout=PATIENCE, capture_output=True)
    worker.begins()
    first = min(line.scheduled for line in worker.lines("begins"))
    assert {line.item for line in worker.lines("ends") if line.scheduled == first} == ITEMS - {2}
    eventually("item 2 is executed again", lambda: 2 in {line.item for line in worker.lines("ends")})


def test_two_of_them_execute_no_item_twice(fleet: Fleet, workers: Workers) -> None:
    first = workers.start(1, workers.sidecar(1))
    first.executed(fires=1)
    second = workers.start(2, workers.sidecar(2))
    eventually("the second one executes two items", lambda: len({line.item for line in second.lines("ends")}) == 2)
    first.begins()
    second.begins()
    begun = [*first.lines("begins"), *second.lines("begins")]
    assert len({(line.item, line.scheduled) for line in begun}) == len(begun), "an item was executed twice"
    for item in ITEMS:
        lines = sorted((line for line in begun if line.item == item), key=lambda line: line.scheduled)
        tokens = [line.token for line in lines]
        assert tokens == sorted(set(tokens)), f"the tokens of item {item} do not grow: {lines}"
    # The first one owns all items again when the second one has left.
    second.terminate()
    eventually("the first one owns all", lambda: len(set(fleet.tree.owners().values())) == 1)


def test_it_stops_what_it_executes_when_its_sidecar_dies(workers: Workers) -> None:
    sidecar = workers.sidecar(1)
    worker = workers.start(1, sidecar)
    worker.executed(fires=1)
    worker.begins()
    sidecar.kill()
    assert worker.popen.wait(PATIENCE) == 1
    unfinished = {line[:2] for line in worker.lines("begins")} - {line[:2] for line in worker.lines("ends")}
    assert unfinished, "it went on without its sidecar"


def test_it_stops_before_the_session_ends_when_its_sidecar_falls_silent(workers: Workers) -> None:
    sidecar = workers.sidecar(1, session="4s")
    worker = workers.start(1, sidecar)
    worker.executed(fires=1)
    worker.begins()
    sidecar.freeze()
    frozen = time.monotonic()
    assert worker.popen.wait(PATIENCE) == 1
    assert time.monotonic() < frozen + 4.0, "the session could have ended before"
    assert "stops: the lease is over" in worker.log.read_text()
    sidecar.thaw()
