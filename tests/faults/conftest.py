from __future__ import annotations

import os
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
sys.path[:0] = [str(HERE), str(TESTS / "e2e"), str(TESTS / "interop"), str(TESTS.parent / "clients" / "python")]

from ensemble import Ensemble  # noqa: E402
from fleet import FaultFleet  # noqa: E402
from harness import sidekeeper_binary  # noqa: E402
from proxy import Network  # noqa: E402


@pytest.fixture(scope="session")
def binary() -> Path:
    path = sidekeeper_binary()
    if not path.is_file():
        pytest.fail(f"no sidecar at {path}: build it, or name it in SIDEKEEPER_BINARY", pytrace=False)
    return path


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
    with tempfile.TemporaryDirectory(prefix="sk-zk-") as folder:
        ensemble = Ensemble(Path(folder))
        yield ensemble
        ensemble.kill()


@pytest.fixture
def ensemble(shared_ensemble: Ensemble) -> Ensemble:
    """The ensemble with all its servers serving, whatever the test before did to it."""
    shared_ensemble.repair()
    return shared_ensemble


@pytest.fixture(scope="session")
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.end()


@pytest.fixture
def client(ensemble: Ensemble) -> Iterator[KazooClient]:
    client = ensemble.client()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def fleet(
    request: pytest.FixtureRequest, binary: Path, ensemble: Ensemble, network: Network, client: KazooClient
) -> Iterator[FaultFleet]:
    # The path is short because that of a Unix socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="sk-"))
    fleet = FaultFleet(folder, ensemble, network, client, f"faults-{uuid.uuid4().hex[:8]}")
    yield fleet
    alone = fleet.ended_by_themselves()
    fleet.end()
    if getattr(request.node, "failed", False):
        request.node.add_report_section("teardown", "logs", fleet.logs())
    problems = fleet.panics() + alone
    problems += [str(problem) for problem in fleet.judge().always()]
    fleet.store.end()
    fleet.remove_files()
    assert not problems, "\n".join(problems)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    if report.when == "call" and report.failed:
        item.failed = True  # type: ignore[attr-defined]
