"""The completion of names: through the scripts of the shells, and within its time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from support.fleet import Fleet
from support.job_nodes import JOB, NEVER
from support.processes import PATIENCE, eventually, sidekeeper_binary

#: What bash does when a person presses the key: the script's function with the words of the line.
BASH = """
source "$SCRIPT"
COMP_LINE="$1"; COMP_POINT=${#1}
read -ra COMP_WORDS <<< "$1"
[[ "$1" == *' ' ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_sidekeeper_with_names sidekeeper "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def names(line: str) -> tuple[list[str], str, float]:
    """What the program offers, what it says, and how long that took."""
    begin = time.monotonic()
    call = [str(sidekeeper_binary()), "complete-names", "--", line]
    ended = subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return ended.stdout.splitlines(), ended.stderr, time.monotonic() - begin


def script(shell: str, folder: Path) -> Path:
    call = [str(sidekeeper_binary()), "completions", shell]
    file = folder / f"sidekeeper.{shell}"
    file.write_bytes(subprocess.run(call, capture_output=True, check=True, timeout=PATIENCE).stdout)
    return file


def test_names_of_jobs_and_instances_are_completed_through_the_sidecar(fleet: Fleet, tmp_path: Path) -> None:
    application = fleet.application(fleet.sidecar(1), cron=NEVER)
    fleet.settle(application)
    other = fleet.tree.path("").replace(JOB, "orders of today")
    fleet.tree.client.create(f"{other}/config", b"", makepath=True)
    at = f"--endpoint unix://{application.sidecar.socket}"
    assert names(f"sidekeeper explain {at} ")[:2] == ([JOB], "")
    assert names(f"sidekeeper explain {at} {JOB[:3]}")[:2] == ([JOB], "")
    assert names(f"sidekeeper explain {at} x")[:2] == ([], "")
    assert names(f"sidekeeper stop {JOB} {at} --instance 10.")[:2] == ([application.instance], "")
    assert names(f"sidekeeper stop nobody {at} --instance 10.")[:2] == ([], "")

    # A directory of the test's own, where the scripts find the program by its name.
    (tmp_path / "sidekeeper").symlink_to(sidekeeper_binary())
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SCRIPT": str(script("bash", tmp_path))}

    def in_bash(line: str) -> list[str]:
        call = ["bash", "--norc", "-c", BASH, "bash", line]
        ended = subprocess.run(call, capture_output=True, text=True, env=environment, timeout=PATIENCE, check=True)
        return ended.stdout.splitlines()

    assert in_bash(f"sidekeeper explain {at} ") == [JOB]
    server, unique = application.instance.split("@-@")
    # Bash completes what comes after the last `@`.
    assert in_bash(f"sidekeeper stop {JOB} {at} --instance {server}@-@") == [unique]
    # Without a name in its place the script's own words stay.
    assert "--zookeeper" in in_bash(f"sidekeeper explain {JOB} {at} --zoo")


def test_a_sidecar_that_is_away_or_hangs_costs_no_words_and_little_time(fleet: Fleet) -> None:
    assert names("sidekeeper explain --endpoint 127.0.0.1:1 ")[:2] == ([], "")
    sidecar = fleet.sidecar(1)
    at = f"--endpoint unix://{sidecar.socket}"
    eventually("it serves", lambda: "session opened" in sidecar.log.read_text())
    sidecar.popen.send_signal(signal.SIGSTOP)
    try:
        offered, said, seconds = names(f"sidekeeper explain {at} ")
    finally:
        sidecar.popen.send_signal(signal.SIGCONT)
    # The budget is 300 ms; the rest is the start of the program on a busy machine.
    assert (offered, said, seconds < 3) == ([], "", True), seconds


@pytest.mark.parametrize(("shell", "check"), [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")])
def test_the_scripts_are_correct_for_the_shells(shell: str, check: str, tmp_path: Path) -> None:
    file = script(shell, tmp_path)
    assert "complete-names" in file.read_text()
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    subprocess.run([shell, check, str(file)], check=True, timeout=PATIENCE)
