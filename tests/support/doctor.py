"""The command `doctor`."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from support.processes import PATIENCE, sidekeeper_binary
from support.sidecar import Sidecar


def doctor(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    call = [str(sidekeeper_binary()), "doctor", *words]
    return subprocess.run(call, input=stdin, capture_output=True, text=True, timeout=3 * PATIENCE, check=False)


def at(sidecar: Sidecar) -> list[str]:
    """The words that have a command ask this sidecar."""
    return ["--endpoint", f"unix://{sidecar.socket}"]


def checks(*words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in doctor(*words, "--json").stdout.splitlines()]


def findings(*words: str) -> list[dict[str, Any]]:
    """The warnings and errors of the sidecar and of all jobs."""
    return [finding for check in checks(*words) for finding in check["findings"]]


def codes(*words: str) -> tuple[list[str], int]:
    """The codes that are found, and the exit status."""
    ended = doctor(*words, "--json")
    told = [json.loads(line) for line in ended.stdout.splitlines()]
    return [finding["code"] for check in told for finding in check["findings"]], ended.returncode


def outcomes(*words: str) -> dict[str, str]:
    return {check["check"]: check["outcome"].removeprefix("CHECK_OUTCOME_") for check in checks(*words)}
