"""What callers may do: the roles of addresses, users and tokens, and the record of operators' calls."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.message import Message
from sidekeeper._proto.v1 import (
    assignment_service_pb2,
    diagnostics_service_pb2,
    lock_service_pb2,
    sidecar_service_pb2,
    sticky_lock_service_pb2,
)
from sidekeeper._proto.v1.assignment_service_pb2_grpc import AssignmentServiceStub
from sidekeeper._proto.v1.diagnostics_service_pb2_grpc import DiagnosticsServiceStub
from sidekeeper._proto.v1.lock_service_pb2_grpc import LockServiceStub
from sidekeeper._proto.v1.sticky_lock_service_pb2_grpc import StickyLockServiceStub

from support import stranger
from support.fleet import Fleet
from support.job_nodes import JOB
from support.processes import PATIENCE, Process, eventually, free_port

#: The methods that need another role than `attach`. Those that no role is named for are for everybody.
NEEDS = {
    "grpc.health.v1.Health/Check": set(),
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo": {"view"},
    "sidekeeper.v1.AssignmentService/WatchAssignments": {"view"},
    "sidekeeper.v1.DiagnosticsService/CheckDeployment": {"view"},
    "sidekeeper.v1.DiagnosticsService/CollectBundle": {"operate"},
    "sidekeeper.v1.DiagnosticsService/ExplainJob": {"view"},
    "sidekeeper.v1.DiagnosticsService/PlanSharding": {"view"},
    "sidekeeper.v1.ElectionService/Observe": {"attach", "view"},
    "sidekeeper.v1.JobService/CancelExecutions": {"operate"},
    "sidekeeper.v1.JobService/DisableItems": {"operate"},
    "sidekeeper.v1.JobService/DisableServers": {"operate"},
    "sidekeeper.v1.JobService/EnableItems": {"operate"},
    "sidekeeper.v1.JobService/EnableServers": {"operate"},
    "sidekeeper.v1.JobService/GetJob": {"view"},
    "sidekeeper.v1.JobService/ListJobs": {"view"},
    "sidekeeper.v1.JobService/ListServers": {"view"},
    "sidekeeper.v1.JobService/ListTriggers": {"view"},
    "sidekeeper.v1.JobService/RemoveJob": {"operate"},
    "sidekeeper.v1.JobService/RemoveServers": {"operate"},
    "sidekeeper.v1.JobService/StopInstances": {"operate"},
    "sidekeeper.v1.JobService/TriggerJob": {"operate"},
    "sidekeeper.v1.JobService/UpdateJob": {"operate"},
    "sidekeeper.v1.LockService/BreakLock": {"operate"},
    "sidekeeper.v1.LockService/GetLock": {"view"},
    "sidekeeper.v1.LockService/ListLocks": {"view"},
    "sidekeeper.v1.LockService/RequestRevocation": {"operate"},
    "sidekeeper.v1.LockService/WatchLock": {"view"},
    "sidekeeper.v1.NamespaceService/BackupNamespace": {"operate"},
    "sidekeeper.v1.NamespaceService/RestoreNamespace": {"operate"},
    "sidekeeper.v1.SidecarService/Drain": {"operate"},
    "sidekeeper.v1.SidecarService/GetStatus": {"view"},
    "sidekeeper.v1.SidecarService/SetLogFilter": {"operate"},
    "sidekeeper.v1.SidecarService/TailLogs": {"operate"},
    "sidekeeper.v1.StickyLockService/GetStickyLock": {"view"},
    "sidekeeper.v1.StickyLockService/ListStickyLocks": {"view"},
}
DRAIN = "sidekeeper.v1.SidecarService/Drain"
TRIGGER = "sidekeeper.v1.JobService/TriggerJob"
#: The methods whose requests name a job, a lock or an election.
NAMING = {
    "AssignmentService/WatchAssignments",
    "DiagnosticsService/ExplainJob",
    "DiagnosticsService/PlanSharding",
    "ElectionService/Campaign",
    "ElectionService/Observe",
    "JobService/CancelExecutions",
    "JobService/DisableItems",
    "JobService/DisableServers",
    "JobService/EnableItems",
    "JobService/EnableServers",
    "JobService/GetJob",
    "JobService/ListTriggers",
    "JobService/RemoveJob",
    "JobService/RemoveServers",
    "JobService/StopInstances",
    "JobService/TriggerJob",
    "JobService/UpdateJob",
    "LockService/BreakLock",
    "LockService/GetLock",
    "LockService/Hold",
    "LockService/RequestRevocation",
    "LockService/WatchLock",
    "ParticipantService/Attach",
    "StickyLockService/GetStickyLock",
    "StickyLockService/Stand",
}
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
    assert "the test wants it to fail" in str(explained(operators))
    assert "the test wants it to fail" not in str(explained(f"unix:{viewers}"))
    # The text of an error may quote the parameters.
    configuration = fleet.tree.get("config")
    assert configuration is not None
    fleet.tree.set("config", configuration.replace("1=b", "1=b=c"))
    eventually("a problem", lambda: watched(operators).problems)
    seen = watched(f"unix:{viewers}")
    assert [problem.path.endswith("/config") for problem in seen.problems] == [True]
    assert CANARY not in str(seen)
    assert "JOB_PARAMETERS_UNREADABLE" in str(explained(operators))
    seen = explained(f"unix:{viewers}")
    assert "JOB_PARAMETERS_UNREADABLE" in str(seen)
    assert CANARY not in str(seen)


def explained(address: str) -> Message:
    """Why the job runs or not, as a caller at this address is told."""
    with grpc.insecure_channel(address, [("grpc.default_authority", "localhost")]) as channel:
        request = diagnostics_service_pb2.ExplainJobRequest(job_name=JOB)
        return DiagnosticsServiceStub(channel).ExplainJob(request, timeout=PATIENCE)


def naming(name: str) -> dict[str, Message]:
    """A request of each method that names a job, a lock or an election: this one."""
    found: dict[str, Message] = {}
    for method in stranger.descriptors():
        request = message_factory.GetMessageClass(method.input_type)()
        for field in method.input_type.fields:
            if field.name in ("job_name", "name"):
                setattr(request, field.name, name)
            elif field.name in ("lock", "election"):
                setattr(getattr(request, field.name), "path" if name.startswith("/") else "name", name)
            else:
                continue
            found[f"{method.containing_service.full_name}/{method.name}"] = request
    return found


def first(address: str, path: str, request: Message, token: str = "") -> tuple[str, str]:
    """The code of a call and its message: OK as soon as there is an answer."""
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with grpc.insecure_channel(address, [("grpc.default_authority", "localhost")]) as channel:
        method = channel.unary_stream(f"/{path}", request_serializer=lambda message: message.SerializeToString())
        try:
            next(method(request, timeout=PATIENCE, metadata=metadata))
        except grpc.RpcError as error:
            return error.code().name, error.details() or ""
        return "OK", ""


def test_se_13_a_caller_that_is_limited_to_some_names_learns_nothing_of_others(fleet: Fleet) -> None:
    team = fleet.folder / "team.sock"
    options = ["--listen", f"unix:{team}?jobs=team-*+/team/*", "--jobs-allowed", "*-*", "--jobs-allowed", f"{JOB}+/*"]
    sidecar = fleet.sidecar(1, options=options)
    application = fleet.application(sidecar, sharding_total_count=2)
    application.wait("its items", lambda events: application.owned() == [0, 1])
    limited, operators = f"unix:{team}", f"unix:{sidecar.socket}"
    assert {path.removeprefix("sidekeeper.v1.") for path in naming("a")} == NAMING
    refusals = set()
    for name in (JOB, "no-job", "/other/lock", "steam-a", "/teams/lock"):
        for path, request in naming(name).items():
            code, message = first(limited, path, request)
            assert (code, f"may not use the name `{name}`" in message) == ("PERMISSION_DENIED", True), (path, message)
            refusals.add(message.replace(name, "NAME"))
    assert len(refusals) == 1, "a name that exists is refused as one that does not"
    for name in ("team-a", "/team/lock"):
        for path, request in naming(name).items():
            assert "may not use the name" not in first(limited, path, request)[1], (path, name)
    # The executions of a job may hold a lock of another name.
    attach = "sidekeeper.v1.ParticipantService/Attach"
    for lock, refused in (("steam", True), ("team-b", False), ("true", False)):
        request: Any = naming("team-a")[attach]
        request.configuration.props["sidekeeper.item-lock"] = lock
        assert ("may not use the name `steam`" in first(limited, attach, request)[1]) == refused, lock
    # The limit of all callers holds for the other address, too.
    trigger = naming("settlement")[TRIGGER]
    assert first(operators, TRIGGER, trigger)[0] == "PERMISSION_DENIED"
    assert first(operators, TRIGGER, naming(JOB)[TRIGGER])[0] == "OK"
    # Whoever is limited may not end the executions of all.
    code, message = first(limited, DRAIN, sidecar_service_pb2.DrainRequest())
    assert (code, "which concerns all jobs and locks" in message) == ("PERMISSION_DENIED", True)
    assert first(operators, DRAIN, sidecar_service_pb2.DrainRequest()) == ("OK", ""), "it may use what any caller may"


def test_se_13_a_caller_that_is_limited_to_some_names_sees_these_in_lists(fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(line("all", "operate", "4ll") + line("team", "operate", "t3am").strip() + ":jobs=team-*\n")
    file.chmod(0o600)
    sidecar = fleet.sidecar(1, options=["--token-file", str(file)])
    eventually("it serves", lambda: call(f"unix:{sidecar.socket}", stranger.HEALTH) == "OK")
    with grpc.insecure_channel(f"unix:{sidecar.socket}", [("grpc.default_authority", "localhost")]) as channel:
        locks, sticky = LockServiceStub(channel), StickyLockServiceStub(channel)
        everything, some = ([("authorization", f"Bearer {token}")] for token in ("4ll", "t3am"))
        holds = []
        for name in ("bill", "team-a"):
            hold = lock_service_pb2.HoldRequest(lock=lock_service_pb2.LockId(name=name))
            holds.append(locks.Hold(hold, metadata=everything))
            next(message for message in holds[-1] if message.HasField("acquired"))
            stand = sticky_lock_service_pb2.StandRequest(name=name, instance_name="one")
            holds.append(sticky.Stand(stand, metadata=everything))
            eventually("the lock is there", lambda name=name: name in listed(sticky, everything))
        for metadata, names in ((everything, ["bill", "team-a"]), (some, ["team-a"])):
            found = locks.ListLocks(lock_service_pb2.ListLocksRequest(), timeout=PATIENCE, metadata=metadata)
            assert (list(found.names), listed(sticky, metadata)) == (names, names)
        # A line that becomes narrower counts from the next call on.
        file.write_text(line("all", "operate", "4ll") + line("team", "operate", "t3am").strip() + ":jobs=bill\n")
        eventually("it sees the other one", lambda: listed(sticky, some) == ["bill"])
        for hold in holds:
            hold.cancel()


def listed(sticky: StickyLockServiceStub, metadata: list[tuple[str, str]]) -> list[str]:
    request = sticky_lock_service_pb2.ListStickyLocksRequest()
    return list(sticky.ListStickyLocks(request, timeout=PATIENCE, metadata=metadata).names)


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


def test_a_disabling_has_the_name_of_the_callers_token_and_no_other(fleet: Fleet, binary: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(line("ana", "operate", "s3cret") + line("board", "view", "l00k"))
    file.chmod(0o600)
    sidecar = fleet.sidecar(1, options=["--token-file", str(file)])
    eventually("it serves", lambda: call(f"unix:{sidecar.socket}", stranger.HEALTH) == "OK")
    fleet.tree.create("config", f"jobName: {JOB}\nshardingTotalCount: 3\n")
    endpoint = ["--endpoint", f"unix://{sidecar.socket}"]

    def command(token: str, *words: str) -> str:
        environment = {**os.environ, "SIDEKEEPER_TOKEN": token}
        call = [str(binary), *words, *endpoint]
        ended = subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    command("s3cret", "disable", JOB, "--item", "1", "--reason", "replaying batch 881", "--yes")
    # A caller who may only view sees it, too.
    [disabling] = json.loads(command("l00k", "items", JOB, "--json"))["disablings"]
    assert disabling["author"] == f"uid {os.geteuid()} with token `ana`"
    assert (disabling["item"], disabling["reason"]) == (1, "replaying batch 881")
    assert "s3cret" not in fleet.logs()
