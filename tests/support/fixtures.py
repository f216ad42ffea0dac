"""The servers and programs that the suites start for their tests. A `conftest.py` names this file in `pytest_plugins`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from support.processes import sidekeeper_binary
from support.zookeeper import ZooKeeperServer


@pytest.fixture(scope="session")
def binary() -> Path:
    """The sidecar under test."""
    path = sidekeeper_binary()
    if not path.is_file():
        pytest.fail(f"no sidecar at {path}: build it, or name it in SIDEKEEPER_BINARY", pytrace=False)
    return path


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this test run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperServer]:
    """A server that all tests of this process share, each in a namespace of its own."""
    with tempfile.TemporaryDirectory(prefix="sk-zk-") as folder:
        server = ZooKeeperServer(Path(folder))
        yield server
        server.kill()


@pytest.fixture(scope="session")
def client(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    """A client of the shared server."""
    client = zookeeper.client()
    yield client
    client.stop()
    client.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Notes on a test that it has failed: fixtures then keep its logs (fixture `has_failed`)."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.when == "call" and report.failed:
        item.failed = True  # type: ignore[attr-defined]


@pytest.fixture
def has_failed(request: pytest.FixtureRequest) -> Callable[[], bool]:
    """Says whether the test has failed."""
    return lambda: bool(getattr(request.node, "failed", False))
