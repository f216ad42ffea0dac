"""The program of `make compare` in its short form: what sidecars send and move, and that the program works."""

from __future__ import annotations

import os
import subprocess
import sys

from support.processes import ROOT, environment_with_client


def test_a_fire_and_a_join_cost_what_they_may() -> None:
    path = os.pathsep.join(str(ROOT / folder) for folder in ("benches", "tests", "clients/python"))
    command = [sys.executable, "-m", "compare", "--short"]
    ran = subprocess.run(command, env=environment_with_client(PYTHONPATH=path), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
