"""Sticky locks as a person sees them: the command `sticky`."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import grpc
from sidekeeper._proto.v1 import sticky_lock_service_pb2 as pb
from sidekeeper._proto.v1.sticky_lock_service_pb2_grpc import StickyLockServiceStub

from support.fleet import Fleet
from support.processes import PATIENCE, eventually


def test_the_command_shows_the_owner_its_run_and_who_waits(fleet: Fleet, binary: Path) -> None:
    sidecar = fleet.sidecar(1, "6s")

    def sticky(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(binary), "sticky", "--endpoint", f"unix://{sidecar.socket}", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)

    eventually("a session", lambda: sticky().returncode == 0)
    assert sticky().stdout == ""
    assert sticky("nightly").stdout.startswith("created  /")
    refused = sticky("a/b")
    assert (refused.returncode, "name" in refused.stderr) == (1, True)
    # The default authority of a Unix socket is a path, which the server refuses.
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(f"unix:{sidecar.socket}", options) as channel:
        stub = StickyLockServiceStub(channel)
        stream = stub.Stand(pb.StandRequest(name="nightly", instance_name="machine-1"))
        stand_id = next(stream).started.stand_id
        while not next(stream).HasField("acquired"):
            pass
        assert stub.TryRun(pb.TryRunRequest(stand_id=stand_id)).HasField("entered")
        other = stub.Stand(pb.StandRequest(name="nightly", instance_name="machine-2"))
        while not next(other).HasField("state"):
            pass
        assert sticky().stdout == "nightly\n"
        assert json.loads(sticky("--json").stdout) == {"name": "nightly"}
        eventually("it waits", lambda: json.loads(sticky("nightly", "--json").stdout)["waiting"] == ["machine-2"])
        shown = sticky("nightly").stdout
        assert re.fullmatch(
            r"owned  /\S+/sticky/nightly\n"
            r"owner  machine-1  token \d+  inside a run  since \S+Z  session 0x[0-9a-f]+  grace 10s\n"
            r"last run  began \S+Z  ended -\nwaits  machine-2\n",
            shown,
        ), shown
        stream.cancel()
        eventually("it is gone", lambda: json.loads(sticky("nightly", "--json").stdout)["state"] == "waiting")
        other.cancel()
