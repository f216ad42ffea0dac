"""The fixtures of the scenarios. Those that the repository's other suites have too come from `tests/support`."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from driver import LEVELS, Subject, World, belongs, prepare, subjects
from relay import Relay

pytest_plugins = ["support.fixtures"]


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
def subject(request: pytest.FixtureRequest, run_folder: Path) -> Subject:
    language, flavour = request.param
    return prepare(language, flavour, run_folder)


@pytest.fixture
def world(
    request: pytest.FixtureRequest, binary: Path, subject: Subject, has_failed: Callable[[], bool]
) -> Iterator[World]:
    """A scenario's processes; the ZooKeeper server is started for the first scenario that needs it."""
    world = World(
        subject,
        lambda: request.getfixturevalue("zookeeper"),
        lambda: request.getfixturevalue("client"),
        f"conformance-{uuid.uuid4().hex[:8]}",
    )
    yield world
    world.end()
    if has_failed():
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
