from __future__ import annotations

import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]

from harness import ZooKeeperServer, sidekeeper_binary  # noqa: E402
from peers import Lifecycle, MixedFleet, elasticjob_version  # noqa: E402


def pytest_report_header() -> str:
    return f"ElasticJob: {elasticjob_version()}"


@pytest.fixture(scope="session")
def binary() -> Path:
    path = sidekeeper_binary()
    if not path.is_file():
        pytest.fail(f"no sidecar at {path}: build it, or name it in SIDEKEEPER_BINARY", pytrace=False)
    return path


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperServer]:
    with tempfile.TemporaryDirectory(prefix="sk-zk-") as folder:
        server = ZooKeeperServer(Path(folder))
        yield server
        server.kill()


@pytest.fixture(scope="session")
def client(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    client = zookeeper.client()
    yield client
    client.stop()
    client.close()


@pytest.fixture(scope="session")
def lifecycle_process(zookeeper: ZooKeeperServer) -> Iterator[Lifecycle]:
    with tempfile.TemporaryDirectory(prefix="sk-lc-") as folder:
        lifecycle = Lifecycle(Path(folder), zookeeper.address)
        yield lifecycle
        lifecycle.kill()


@pytest.fixture
def fleet(
    request: pytest.FixtureRequest, binary: Path, zookeeper: ZooKeeperServer, client: KazooClient
) -> Iterator[MixedFleet]:
    # The path is short because that of a Unix socket has at most 107 bytes.
    fleet = MixedFleet(Path(tempfile.mkdtemp(prefix="sk-")), zookeeper, client, f"interop-{uuid.uuid4().hex[:8]}")
    yield fleet
    failed = getattr(request.node, "failed", False)
    if failed:
        request.node.add_report_section("teardown", "fleet", fleet.state())
    fleet.end()
    if failed:
        request.node.add_report_section("teardown", "logs", fleet.logs())
    panics = fleet.panics()
    fleet.remove_files()
    assert not panics, "\n".join(panics)
    fleet.assert_none_twice()


@pytest.fixture
def lifecycle(lifecycle_process: Lifecycle, fleet: MixedFleet) -> Lifecycle:
    """ElasticJob's lifecycle API on the fleet's namespace."""
    lifecycle_process.namespace = fleet.namespace
    return lifecycle_process


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    if report.when == "call" and report.failed:
        item.failed = True  # type: ignore[attr-defined]
