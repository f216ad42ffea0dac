"""The sidecars and applications of one test, in a namespace of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from support.application import Application
from support.job_nodes import PASSING, Tree
from support.processes import PATIENCE, Process, eventually
from support.sidecar import Sidecar
from support.zookeeper import ZooKeeperServer


class Fleet:
    """The processes of one test. At its end the fixture `fleet` asks for `problems`."""

    def __init__(self, folder: Path, server: ZooKeeperServer, client: KazooClient, namespace: str):
        self.folder = folder
        self.server = server
        self.namespace = namespace
        self.tree = Tree(client, namespace)
        self.processes: list[Process] = []

    def sidecar(self, number: int, session_timeout: str = "6s", options: Sequence[str] = ()) -> Sidecar:
        sidecar = Sidecar(number, self.folder, self.server.address, self.namespace, session_timeout, options)
        self.processes.append(sidecar)
        return sidecar

    def application(self, sidecar: Sidecar, collector: str | None = None, **configuration: Any) -> Application:
        """`collector`: where it sends its spans."""
        name = f"application-{len(self.processes)}"
        configuration = {"sharding_total_count": 6, **configuration}
        application = Application(name, sidecar, self.folder, configuration, collector)
        self.processes.append(application)
        return application

    def three(self, session_timeout: str = "6s", **configuration: Any) -> list[Application]:
        """Three sidecars with one application each, two items each."""
        applications = [
            self.application(self.sidecar(number, session_timeout), **configuration) for number in (1, 2, 3)
        ]
        self.settle(*applications)
        return applications

    def settle(self, *applications: Application, total: int = 6, timeout: float = PATIENCE) -> None:
        """Waits until these applications own all items evenly, by ZooKeeper and by their assignments."""

        def are_settled() -> bool:
            # Before all nodes are read, each by a request of its own.
            if sum(len(one.owned()) for one in applications) != total:
                return False
            owners = self.tree.owners()
            return self.are_even(owners, [one.instance for one in applications], total) and all(
                one.owned() == sorted(item for item, owner in owners.items() if owner == one.instance)
                for one in applications
            )

        names = [application.name for application in applications]
        eventually(f"items evenly owned by {names}; ZooKeeper has {self.tree.owners()}", are_settled, timeout)

    def are_even(self, owners: dict[int, str], instances: Sequence[str], total: int) -> bool:
        """Whether these instances own all items, their counts differ by one at most, and no resharding is to come."""
        counts = [list(owners.values()).count(instance) for instance in instances]
        return (
            len(owners) == total == sum(counts)
            and max(counts) - min(counts) <= 1
            and self.tree.get("leader/sharding/necessary") is None
            and not self.tree.is_handing_over()
        )

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Something that only reads: within it no node that lasts changes, and no watch is left after it."""

        def nodes() -> set[tuple[str, tuple[str, int]]]:
            # A latch's folder is a container: the server removes it each minute, if it is empty.
            lasting = {path: told for path, told in self.tree.nodes().items() if not path.endswith("/latch")}
            return {(path, told) for path, told in lasting.items() if not PASSING.fullmatch(path)}

        def watches() -> str:
            [total] = [line for line in self.server.ask("wchs").splitlines() if line.startswith("Total watches")]
            return total

        before, watched = nodes(), watches()
        yield
        eventually(f"no watch is left; before: {watched}", lambda: watches() == watched)
        assert sorted(nodes() ^ before) == []

    def end(self) -> None:
        """Kills the processes that still run: applications, then sidecars."""
        for process in reversed(self.processes):
            process.kill()

    def state(self) -> str:
        """The report of a failed test, asked for while the processes still run."""
        return ""

    def problems(self) -> list[str]:
        """The reason why a test fails after all, asked for after `end`."""
        return self.panics()

    def release(self) -> None:
        """Frees what `problems` needed: the files."""
        self.remove_files()

    def panics(self) -> list[str]:
        """The panics of sidecars, from their logs. No state permits one."""
        return [
            f"{process.name}: {text[text.index('panicked at') :][:4000]}"
            for process in self.processes
            if "panicked at" in (text := process.log.read_text(errors="replace"))
        ]

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(
            "\n".join([f"--- {process.name}", *process.log.read_text(errors="replace").splitlines()[-40:]])
            for process in self.processes
        )

    def remove_files(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def ending(fleet: Fleet, node: pytest.Item, has_failed: Callable[[], bool]) -> Iterator[None]:
    """Ends the fleet after its test, reports its state and logs if the test has failed, and fails for its problems."""
    yield
    if has_failed():
        node.add_report_section("teardown", "fleet", fleet.state())
    fleet.end()
    if has_failed():
        node.add_report_section("teardown", "logs", fleet.logs())
    problems = fleet.problems()
    fleet.release()
    assert not problems, "\n".join(problems)
