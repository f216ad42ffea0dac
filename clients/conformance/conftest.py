from __future__ import annotations

import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests" / "e2e"), str(HERE.parent / "python")]

from driver import LEVELS, Subject, World, belongs, prepare, subjects  # noqa: E402
from harness import ZooKeeperServer, sidekeeper_binary  # noqa: E402
from relay import Relay  # noqa: E402


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "subject" in metafunc.fixturenames:
        ids = ["-".join(filter(None, one)) for one in subjects()]
        metafunc.parametrize("subject", subjects(), ids=ids, indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the scenarios above the level that is wanted, or above the one that a language's library has."""
    wanted, left_out = [], []
    for item in items:
        levels = [mark.name for mark in item.iter_markers() if mark.name in LEVELS]
        if len(levels) != 1:
            raise pytest.UsageError(f"{item.nodeid}: give it one of the levels {', '.join(LEVELS)}; it has {levels}")
        callspec = getattr(item, "callspec", None)
        language = callspec.params["subject"][0] if callspec and "subject" in callspec.params else None
        (wanted if belongs(levels[0], language) else left_out).append(item)
    items[:] = wanted
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def build_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sk-build-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def subject(request: pytest.FixtureRequest, build_folder: Path) -> Subject:
    language, flavour = request.param
    return prepare(language, flavour, build_folder)


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[Callable[[], ZooKeeperServer]]:
    """Gives the server, which is started when somebody asks for it first."""
    servers: list[ZooKeeperServer] = []
    with tempfile.TemporaryDirectory(prefix="sk-zk-") as folder:

        def server() -> ZooKeeperServer:
            if not servers:
                servers.append(ZooKeeperServer(Path(folder)))
            return servers[0]

        yield server
        for one in servers:
            one.kill()


@pytest.fixture(scope="session")
def zookeeper_client(zookeeper: Callable[[], ZooKeeperServer]) -> Iterator[Callable[[], Any]]:
    clients: list[Any] = []

    def client() -> Any:
        if not clients:
            clients.append(zookeeper().client())
        return clients[0]

    yield client
    for one in clients:
        one.stop()
        one.close()


@pytest.fixture
def world(
    request: pytest.FixtureRequest,
    subject: Subject,
    zookeeper: Callable[[], ZooKeeperServer],
    zookeeper_client: Callable[[], Any],
) -> Iterator[World]:
    if not sidekeeper_binary().is_file():
        pytest.fail(f"no sidecar at {sidekeeper_binary()}: build it, or name it in SIDEKEEPER_BINARY", pytrace=False)
    world = World(subject, zookeeper, zookeeper_client, f"conformance-{uuid.uuid4().hex[:8]}")
    yield world
    world.end()
    if getattr(request.node, "failed", False):
        request.node.add_report_section("teardown", "logs", world.logs())
    panics = world.panics()
    shutil.rmtree(world.folder, ignore_errors=True)
    assert not panics, "\n".join(panics)


@pytest.fixture
def relay(world: World) -> Relay:
    """A relay before a sidecar, both started."""
    relay = Relay(world.sidecar().ready(), world.folder)
    world.closing.append(relay.close)
    return relay


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    if report.when == "call" and report.failed:
        item.failed = True  # type: ignore[attr-defined]
