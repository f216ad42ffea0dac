"""What needs no sidecar."""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest

import sidekeeper
from sidekeeper import outcome
from sidekeeper._proto.v1 import assignment_pb2, execution_pb2, lease_pb2
from sidekeeper.backoff import Backoff
from sidekeeper.channel import endpoint_target
from sidekeeper.configuration import JobConfiguration
from sidekeeper.job import resolve_instance_name
from sidekeeper.reason import reason_of
from tests.sidecar import error_details

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper as EnumTypeWrapper


@pytest.mark.parametrize(
    ("ours", "protocol", "prefix"),
    [
        (sidekeeper.AssignmentReason, assignment_pb2.AssignmentReason, "ASSIGNMENT_REASON_"),
        (sidekeeper.CancelReason, execution_pb2.CancelReason, "CANCEL_REASON_"),
        (sidekeeper.ExecutionSource, execution_pb2.ExecutionSource, "EXECUTION_SOURCE_"),
        (sidekeeper.SessionState, lease_pb2.SessionState, "SESSION_STATE_"),
    ],
)
def test_enums_have_what_the_protocol_has(ours: type[enum.Enum], protocol: EnumTypeWrapper[Any], prefix: str) -> None:
    # Negative values are the client's own.
    known = {f"{prefix}{member.name}": member.value for member in ours if member.value >= 0}
    assert known == dict(protocol.items())


def ignore(execution: sidekeeper.Execution) -> None: ...


@pytest.mark.parametrize(
    ("endpoint", "target"),
    [
        ("http://127.0.0.1:7070", "dns:///127.0.0.1:7070"),
        ("http://localhost:7070/", "dns:///localhost:7070"),
        ("127.0.0.1:7070", "dns:///127.0.0.1:7070"),
        ("localhost:7070", "dns:///localhost:7070"),
        ("[::1]:7070", "dns:///[::1]:7070"),
        ("http://[::1]:7070", "dns:///[::1]:7070"),
        ("https://sidecar.internal:7443", "dns:///sidecar.internal:7443"),
        ("unix:///run/sidekeeper.sock", "unix:/run/sidekeeper.sock"),
        ("unix:/run/sidekeeper.sock", "unix:/run/sidekeeper.sock"),
    ],
)
def test_endpoints(endpoint: str, target: str) -> None:
    assert endpoint_target(endpoint) == target


@pytest.mark.parametrize(
    ("given", "environment", "name"),
    [
        (None, "worker-0", "worker-0"),
        ("a.B_1", "worker-0", "a.B_1"),
        ("", "worker-0", ""),
        (None, "", ""),
        (None, None, ""),
    ],
)
def test_instance_names(monkeypatch: pytest.MonkeyPatch, given: str | None, environment: str | None, name: str) -> None:
    monkeypatch.delenv("SIDEKEEPER_INSTANCE_NAME", raising=False)
    if environment is not None:
        monkeypatch.setenv("SIDEKEEPER_INSTANCE_NAME", environment)
    assert resolve_instance_name(given) == name


@pytest.mark.parametrize("name", ["4711", "a/b", "a b", "..", "x" * 65, "a@-@b", "a\n"])
def test_instance_names_that_are_none(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(ValueError, match="instance_name: "):
        sidekeeper.Application().job("orderSync", sharding_total_count=1, instance_name=name)
    monkeypatch.setenv("SIDEKEEPER_INSTANCE_NAME", name)
    with pytest.raises(ValueError, match="SIDEKEEPER_INSTANCE_NAME: "):
        sidekeeper.Application().job("orderSync", sharding_total_count=1)


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://127.0.0.1",
        "ftp://127.0.0.1:7070",
        "127.0.0.1",
        "7070",
        ":7070",
        "http://127.0.0.1",
        "http://127.0.0.1:port",
        "http://127.0.0.1:0",
        "http://127.0.0.1:70700",
        "http://127.0.0.1:7070/path",
        "http://127.0.0.1:7070?a=b",
        "http://127.0.0.1:7070#a",
        "http://user@127.0.0.1:7070",
        "http://:7070",
        "::1:7070",
        "unix:",
        "unix:s.sock",
        "unix://s.sock",
    ],
)
def test_endpoints_that_are_none(endpoint: str) -> None:
    with pytest.raises(
        ValueError, match=r"allowed are HOST:PORT, http://HOST:PORT, https://HOST:PORT, unix:PATH and unix:///PATH"
    ):
        sidekeeper.Application(endpoint)


def test_the_endpoint_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIDEKEEPER_ENDPOINT", raising=False)
    assert sidekeeper.Application().endpoint == "http://127.0.0.1:7070"
    monkeypatch.setenv("SIDEKEEPER_ENDPOINT", "unix:///a")
    assert sidekeeper.Application().endpoint == "unix:///a"
    assert sidekeeper.Application("unix:///b").endpoint == "unix:///b"


def test_backoff_doubles_to_its_cap_with_jitter() -> None:
    backoff = Backoff()
    for expected in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0):
        assert expected / 2 <= backoff.next() <= expected
    backoff.reset()
    assert backoff.next() <= 0.1


def test_failure_messages_are_bounded_and_valid() -> None:
    def fail(depth: int) -> None:
        if depth:
            fail(depth - 1)
        raise ValueError("\ud800" + "ä" * 20_000)

    try:
        fail(100)
    except ValueError as error:
        message = outcome.of_exception(error).message
    assert message.startswith("ValueError: ?ää")
    assert len(message.encode()) <= 16 * 1024
    assert len(outcome.rejected("ä" * 20_000).message.encode()) <= 16 * 1024


def test_configuration_there_and_back() -> None:
    configuration = JobConfiguration(3, cron="* * * * * ?", misfire=False, props={"a": "b"}, job_listener_types=("x",))
    assert JobConfiguration.from_proto(configuration.to_proto()) == configuration


def test_wrong_jobs_are_refused_where_they_are_written() -> None:
    app = sidekeeper.Application("unix:///a")
    with pytest.raises(ValueError, match="concurrency: 0"):
        app.job("a", concurrency=0)
    with pytest.raises(ValueError, match="sharding_total_count is required"):
        app.job("a", cron="* * * * * ?")
    with pytest.raises(ValueError, match="sharding_item_parameters"):
        app.job("a", sharding_total_count=1, sharding_item_parameters={0: "a,b"})
    with pytest.raises(ValueError, match="'a'"):
        app.job("a", sharding_total_count=-1)
    app.job("a", sharding_total_count=1)(ignore)
    with pytest.raises(ValueError, match="registered already"):
        app.job("a", sharding_total_count=1)
    with pytest.raises(ValueError, match="drain_timeout"):
        sidekeeper.Application("unix:///a", drain_timeout=-1)


def test_an_application_without_sense_does_not_run() -> None:
    app = sidekeeper.Application("unix:///a")
    with pytest.raises(ValueError, match="no job"):
        app.run()
    app.job("a", sharding_total_count=1)(ignore)
    app.on_session("b")(print)
    with pytest.raises(ValueError, match="not registered: b"):
        app.run()


def test_the_version_is_the_distributions() -> None:
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    assert f'\nversion = "{sidekeeper.__version__}"\n' in text


def test_a_forked_process_is_another_client(monkeypatch: pytest.MonkeyPatch) -> None:
    app = sidekeeper.Application("unix:///a")
    first = app._application_id()
    assert app._application_id() == first
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert app._application_id() != first


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (error_details(("sidekeeper", "NO_INSTANCES")), "NO_INSTANCES"),
        (error_details(("other.example", "QUOTA"), ("sidekeeper", "TOO_MANY")), "TOO_MANY"),
        (error_details(("other.example", "QUOTA")), ""),
        (error_details(), ""),
        ((("grpc-status-details-bin", b"\xff\xff"),), ""),
        ((("grpc-status-details-bin", b""),), ""),
        ((("grpc-status", "9"),), ""),
        ((), ""),
    ],
)
def test_the_reason_is_read_from_the_details(metadata: tuple[tuple[str, str | bytes], ...], reason: str) -> None:
    trailing = grpc.aio.Metadata(*metadata)
    error = grpc.aio.AioRpcError(grpc.StatusCode.ABORTED, grpc.aio.Metadata(), trailing, "its words")
    assert reason_of(error) == reason
