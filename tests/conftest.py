"""The fixtures of the suites e2e, interop and faults."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from faults.ensemble import Ensemble
from faults.environment import OddEnsemble
from faults.fleet import FaultFleet
from faults.network import Network
from interop.members import Lifecycle, MixedFleet, elasticjob_version
from support.fleet import Fleet, ending
from support.zookeeper import ZooKeeperServer

pytest_plugins = ["support.fixtures"]


def pytest_report_header(config: pytest.Config) -> str:
    """Names the version of ElasticJob where one is installed."""
    try:
        return "ElasticJob: {}.{}.{}".format(*elasticjob_version())
    except RuntimeError:
        return "ElasticJob: none"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest tests first: a worker that starts one at the end would run alone."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture
def fleet(request: pytest.FixtureRequest, binary: Path, has_failed: Callable[[], bool]) -> Iterator[Fleet]:
    """The fleet of the test's suite: a `Fleet`, in interop a `MixedFleet`, in faults a `FaultFleet`."""
    suite = request.path.parent.name
    start = FLEETS[suite]
    # The path is short because the path of a Unix socket has at most 107 bytes.
    fleet = start(request, Path(tempfile.mkdtemp(prefix="sk-")), f"{suite}-{uuid.uuid4().hex[:8]}")
    with ending(fleet, request.node, has_failed):
        yield fleet


def _on_the_server(kind: type[Fleet]) -> Callable[[pytest.FixtureRequest, Path, str], Fleet]:
    def start(request: pytest.FixtureRequest, folder: Path, namespace: str) -> Fleet:
        return kind(folder, request.getfixturevalue("zookeeper"), request.getfixturevalue("client"), namespace)

    return start


def _on_the_ensemble(request: pytest.FixtureRequest, folder: Path, namespace: str) -> Fleet:
    ensemble, network, client = map(request.getfixturevalue, ("ensemble", "network", "ensemble_client"))
    return FaultFleet(folder, ensemble, network, client, namespace)


FLEETS = {"e2e": _on_the_server(Fleet), "interop": _on_the_server(MixedFleet), "faults": _on_the_ensemble}


@pytest.fixture(scope="session")
def lifecycle_process(zookeeper: ZooKeeperServer) -> Iterator[Lifecycle]:
    """A JVM with ElasticJob's lifecycle API."""
    with tempfile.TemporaryDirectory(prefix="sk-lc-") as folder:
        lifecycle = Lifecycle(Path(folder), zookeeper.address)
        yield lifecycle
        lifecycle.kill()


@pytest.fixture
def lifecycle(lifecycle_process: Lifecycle, fleet: MixedFleet) -> Lifecycle:
    """ElasticJob's lifecycle API on the fleet's namespace."""
    lifecycle_process.namespace = fleet.namespace
    return lifecycle_process


@pytest.fixture(scope="session")
def previous() -> Path:
    """The sidecar of the previous release."""
    path = Path(os.environ.get("SIDEKEEPER_PREVIOUS", ""))
    if not path.is_file():
        pytest.fail(
            "no sidecar of the previous release: name what .ci/previous prints in SIDEKEEPER_PREVIOUS", pytrace=False
        )
    return path


@pytest.fixture(scope="session")
def shared_ensemble() -> Iterator[Ensemble]:
    """Three servers that all tests of this process share."""
    with tempfile.TemporaryDirectory(prefix="sk-zk-") as folder:
        ensemble = Ensemble(Path(folder))
        yield ensemble
        ensemble.kill()


@pytest.fixture
def ensemble(request: pytest.FixtureRequest) -> Iterator[Ensemble]:
    """The shared ensemble after a repair; or one of its own, for a test with the mark `own_ensemble`."""
    own = request.node.get_closest_marker("own_ensemble")
    if own is None:
        shared: Ensemble = request.getfixturevalue("shared_ensemble")
        shared.repair()
        yield shared
        return
    with tempfile.TemporaryDirectory(prefix="sk-zk-") as folder:
        odd = OddEnsemble(Path(folder), *own.args)
        yield odd
        odd.kill()


@pytest.fixture(scope="session")
def network() -> Iterator[Network]:
    """The loop of all links between sidecars and servers."""
    network = Network()
    yield network
    network.end()


@pytest.fixture
def ensemble_client(ensemble: Ensemble) -> Iterator[KazooClient]:
    """A client of the ensemble."""
    client = ensemble.client()
    yield client
    client.stop()
    client.close()
