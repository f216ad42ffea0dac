"""What callers may do: the roles of addresses, users and tokens, and the record of operators' calls."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import grpc
import pytest
from sidekeeper._proto.v1 import assignment_service_pb2
from sidekeeper._proto.v1.assignment_service_pb2_grpc import AssignmentServiceStub

from support import stranger
from support.fleet import Fleet
from support.job_nodes import JOB
from support.processes import PATIENCE, Process, eventually, free_port

#: The methods that need another role than `attach`. Those that no role is named for are for everybody.
NEEDS = {
    "grpc.health.v1.Health/Check": set(),
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo": {"view"},
    "sidekeeper.v1.AssignmentService/WatchAssignments": {"view"},
    "sidekeeper.v1.ElectionService/Observe": {"attach", "view"},
    "sidekeeper.v1.JobService/CancelExecutions": {"operate"},
    "sidekeeper.v1.JobService/TriggerJob": {"operate"},
    "sidekeeper.v1.LockService/BreakLock": {"operate"},
    "sidekeeper.v1.LockService/GetLock": {"view"},
    "sidekeeper.v1.LockService/ListLocks": {"view"},
    "sidekeeper.v1.LockService/RequestRevocation": {"operate"},
    "sidekeeper.v1.LockService/WatchLock": {"view"},
    "sidekeeper.v1.SidecarService/Drain": {"operate"},
    "sidekeeper.v1.StickyLockService/GetStickyLock": {"view"},
    "sidekeeper.v1.StickyLockService/ListStickyLocks": {"view"},
}
DRAIN = "sidekeeper.v1.SidecarService/Drain"
TRIGGER = "sidekeeper.v1.JobService/TriggerJob"
CANARY = "canary-4711"


def line(name: str, roles: str, token: str) -> str:
    return f"{name}:{roles}:sha256={hashlib.sha256(token.encode()).hexdigest()}\n"


def call(address: str, path: str, token: str = "") -> str:
    """The code of a call without fields."""
    return stranger.calls(address, token, [(path, False)])[path][0]


@pytest.mark.parametrize("roles", ["attach", "view", "attach+view", "operate"])
def test_se_4_a_caller_may_call_what_its_roles_allow_and_nothing_else(fleet: Fleet, roles: str) -> None:
    port = free_port()
    fleet.sidecar(1, options=["--listen", f"127.0.0.1:{port}?role={roles}"])
    held = {"attach", "view", "operate"} if roles == "operate" else set(roles.split("+"))
    address = f"127.0.0.1:{port}"
    eventually("it serves", lambda: call(address, stranger.HEALTH) == "OK")
    told = stranger.calls(address)
    assert len(told) > len(NEEDS) + 15
    for path, (code, message) in told.items():
        needs = NEEDS.get(path, {"attach"})
        refused = code == "PERMISSION_DENIED" and "which needs the role" in message
        assert refused == (needs != set() and not needs & held), (path, code, message)
    assert call(address, "sidekeeper.v1.SidecarService/Other") == "UNIMPLEMENTED"


def test_se_4_tokens_have_names_and_roles_and_count_until_they_are_removed(fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# of the team\n" + line("team", "operate", "s3cret") + line("board", "view", "l00k"))
    file.chmod(0o600)
    sidecar = fleet.sidecar(1, options=["--token-file", str(file)])
    address = f"unix:{sidecar.socket}"
    eventually("it serves", lambda: call(address, stranger.HEALTH) == "OK")
    assert [call(address, TRIGGER, token) for token in ("", "other", "l00k")] == [
        "UNAUTHENTICATED",
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
    ]
    assert call(address, TRIGGER, "s3cret") == "INVALID_ARGUMENT"  # the job's name is missing: it may call
    # A file that becomes wrong changes nothing.
    file.write_text("team:operate:sha256=half")
    eventually("the log says so", lambda: "cannot be read again" in fleet.logs())
    assert call(address, TRIGGER, "s3cret") == "INVALID_ARGUMENT"
    file.write_text(line("team", "operate", "n3w"))
    eventually("the new token counts", lambda: call(address, TRIGGER, "n3w") == "INVALID_ARGUMENT")
    assert call(address, TRIGGER, "s3cret") == "UNAUTHENTICATED"
    for secret in ("s3cret", "l00k", "n3w", "half"):
        assert secret not in fleet.logs()


@pytest.mark.parametrize(
    ("mode", "text", "part"),
    [
        (0o644, "t0ken", "other users may use it (mode 0644)"),
        (0o600, "", "it has 0 tokens"),
        (0o600, "team:admin:sha256=t0ken", "line 1: the roles are not"),
    ],
)
def test_a_sidecar_does_not_start_with_a_wrong_token_file(
    binary: Path, tmp_path: Path, mode: int, text: str, part: str
) -> None:
    file = tmp_path / "tokens"
    file.write_text(text)
    file.chmod(mode)
    command = [str(binary), "serve", "--listen", f"unix:{tmp_path}/s.sock", "--token-file", str(file)]
    sidecar = Process("sidecar", command, tmp_path, dict(os.environ), pipe=False)
    assert sidecar.popen.wait(PATIENCE) == 1
    told = sidecar.log.read_text()
    assert f"token file: {file}: {part}" in told
    assert "t0ken" not in told


def watched(address: str) -> assignment_service_pb2.WatchAssignmentsResponse:
    with grpc.insecure_channel(address, [("grpc.default_authority", "localhost")]) as channel:
        request = assignment_service_pb2.WatchAssignmentsRequest(job_name=JOB)
        return next(AssignmentServiceStub(channel).WatchAssignments(request, timeout=PATIENCE))


def test_se_13_who_may_only_view_never_sees_parameters(fleet: Fleet) -> None:
    viewers = fleet.folder / "viewers.sock"
    sidecar = fleet.sidecar(1, options=["--listen", f"unix:{viewers}?role=view+attach"])
    application = fleet.application(
        sidecar,
        sharding_total_count=2,
        sharding_item_parameters=f"0={CANARY},1=b",
        job_parameter=f"all {CANARY}",
        cron="0/1 * * * * ?",
    )
    application.wait("its items", lambda events: application.owned() == [0, 1])
    application.command("fail 0 1")
    operators = f"unix:{sidecar.socket}"
    eventually("a failure", lambda: "the test wants it to fail" in str(watched(operators)))
    assert str(watched(operators)).count(CANARY) == 3
    seen = watched(f"unix:{viewers}")
    assert (len(seen.items), seen.parameters_hidden) == (2, True)
    assert CANARY not in str(seen)
    assert "the test wants it to fail" not in str(seen)
    # The text of an error may quote the parameters.
    configuration = fleet.tree.get("config")
    assert configuration is not None
    fleet.tree.set("config", configuration.replace("1=b", "1=b=c"))
    eventually("a problem", lambda: watched(operators).problems)
    seen = watched(f"unix:{viewers}")
    assert [problem.path.endswith("/config") for problem in seen.problems] == [True]
    assert CANARY not in str(seen)


def test_each_call_of_an_operator_is_recorded_with_its_caller(fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(line("ana", "operate", "s3cret"))
    file.chmod(0o600)
    sidecar = fleet.sidecar(1, options=["--token-file", str(file)])
    address = f"unix:{sidecar.socket}"
    eventually("it serves", lambda: call(address, stranger.HEALTH) == "OK")
    for path in (TRIGGER, DRAIN):
        call(address, path, "s3cret")
    told = [json.loads(one) for one in fleet.logs().splitlines() if "an operator has called" in one]
    caller = f"uid {os.geteuid()} with token `ana`"
    assert [(one["method"], one["caller"], one["code"]) for one in told] == [
        ("TriggerJob", caller, "InvalidArgument"),
        ("Drain", caller, "Ok"),
    ]
