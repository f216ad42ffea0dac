"""Runs the suite under the restrictions of our unit for systemd: `make e2e-confined`, or with arguments for pytest.

A service of a systemd of its own runs pytest, ZooKeeper and all sidecars. Left out are the user and the directories of the unit, which
one sidecar has, and what a JVM cannot bear (`MemoryDenyWriteExecute`). `test_systemd.py` has one sidecar under all of the unit.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from support.processes import ROOT, eventually, sidekeeper_binary
from support.systemd import PROGRAM, UNIT, missing, systemd

#: How long the suite may take, in seconds.
LIMIT = 1_800.0
#: The first words of the unit's directives that are about its sidecar, not about what it may do.
OF_THE_SIDECAR = ("Type", "Exec", "Environment", "Restart", "Timeout", "DynamicUser", "User", "Runtime", "State")
#: Restrictions that the suite cannot have: its JVM writes code, its folders are in `/tmp` and in a home.
OF_THE_SUITE = ("MemoryDenyWriteExecute", "PrivateTmp", "ProtectHome", "UMask")
#: Tests that change users, start a systemd, or use compilers that write into a home.
WITHOUT = ["test_own_user.py", "test_systemd.py", "test_minimal_examples.py", "test_order_sync_example.py"]


def restrictions() -> list[str]:
    """The lines of the unit that say what its service may do."""
    service = UNIT.read_text().split("[Service]\n")[1].split("\n[")[0]
    lines = [line for line in service.splitlines() if line and not line.startswith("#")]
    # `RestrictX` is a restriction, `Restart` is not.
    return [line for line in lines if not line.startswith((*OF_THE_SIDECAR, *OF_THE_SUITE))]


def unit(arguments: list[str]) -> str:
    """The suite as a service."""
    ignored = [f"--ignore=e2e/{name}" for name in WITHOUT]
    pytest = [sys.executable, "-m", "pytest", "e2e", "-p", "no:cacheprovider", *ignored, *arguments]
    environment = {
        "SIDEKEEPER_BINARY": f"/{PROGRAM}",
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/tmp",
    }
    return "\n".join(
        [
            "[Service]",
            "Type=exec",
            f"WorkingDirectory={ROOT / 'tests'}",
            f"ExecStart={shlex.join(pytest)}",
            *(f"Environment={shlex.quote(f'{name}={value}')}" for name, value in environment.items()),
            "StandardOutput=file:/run/suite.log",
            "StandardError=file:/run/suite.log",
            "ReadWritePaths=/tmp",
            "ProtectHome=read-only",
            *restrictions(),
            "",
        ]
    )


def main() -> int:
    lacking = missing()
    if lacking is not None:
        print(f"not run: {lacking}")
        return 1
    with systemd(sidekeeper_binary(), {}) as running:
        running.path("/run/systemd/system").mkdir(parents=True, exist_ok=True)
        running.path("/run/systemd/system/suite.service").write_text(unit(sys.argv[1:]))
        running.run("systemctl", "daemon-reload")
        running.run("systemctl", "start", "suite.service")
        ended = ("inactive", "failed")
        eventually("the suite ends", lambda: running.show("suite.service", "ActiveState") in ended, LIMIT)
        print(Path(running.path("/run/suite.log")).read_text())
        return 0 if running.show("suite.service", "Result") == "success" else 1


if __name__ == "__main__":
    sys.exit(main())
