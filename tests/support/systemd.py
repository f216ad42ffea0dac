"""A systemd of a test's own, which runs a unit of this project as it is shipped."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.processes import ROOT, eventually

UNIT = ROOT / "deploy" / "systemd" / "sidekeeper.service"
#: The place of the program by the unit.
PROGRAM = "usr/bin/sidekeeper"
#: The kernel's tree of control groups, where a program may make one.
CGROUPS = [Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")]

#: Becomes a systemd on a copy of this machine's files. What it and its services write vanishes with the last of them.
BOOT = """
set -euo pipefail
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
cp "$2" usr/bin/sidekeeper
rm -rf etc/systemd/system/* run/sidekeeper
cp "$3" etc/systemd/system/
# It would empty the copy of /tmp.
ln -s /dev/null etc/systemd/system/systemd-tmpfiles-setup.service
printf '[Unit]\\nDescription=Nothing more\\n' >etc/systemd/system/nothing.target
mkdir -p etc/sidekeeper
cp "$4" etc/sidekeeper/environment
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount --rbind /dev dev
mount -t tmpfs -o mode=755 tmpfs run
exec env -i container=test PATH=/usr/sbin:/usr/bin chroot . /lib/systemd/systemd --system --unit=nothing.target \\
    --log-target=console --show-status=no
"""


class Systemd:
    """A running systemd. Its processes and files are its own; its network is this machine's."""

    def __init__(self, process: int):
        #: Its process id.
        self.process = process

    def path(self, path: str) -> Path:
        """The place, on this machine, of a file that it and its services see under `path`."""
        return Path(f"/proc/{self.process}/root", path.lstrip("/"))

    def run(self, *command: str, fails: bool = False) -> str:
        """Runs a command beside it as root; returns its output. `fails`: the command may fail."""
        beside = ["nsenter", f"--target={self.process}", "--mount", "--pid", "--root", "--wd"]
        ended = subprocess.run([*beside, *command], capture_output=True, text=True, timeout=60, check=False)
        assert fails or ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def process_of(self, unit: str) -> int:
        """The process id of a unit's service on this machine, by the number that it has beside this systemd."""
        inner = self.show(unit, "MainPID")
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
                same = os.readlink(status.with_name("ns") / "pid") == os.readlink(f"/proc/{self.process}/ns/pid")
            except OSError:
                continue  # it has ended
            if same and fields["NSpid"].split()[-1] == inner:
                return int(status.parent.name)
        raise AssertionError(f"{unit} has no process: {self.run('systemctl', 'status', unit, fails=True)}")


@contextmanager
def systemd(binary: Path, environment: dict[str, str]) -> Iterator[Systemd]:
    """Starts a systemd that has our unit, this program, and these settings."""
    folder = Path(tempfile.mkdtemp(prefix="sk-systemd-"))
    group = cgroup() / folder.name
    try:
        settings = folder / "environment"
        settings.write_text("".join(f"{name}={value}\n" for name, value in environment.items()))
        (folder / "root").mkdir()
        group.mkdir()
        with (folder / "log").open("wb") as log:
            places = [str(folder / "root"), str(binary), str(UNIT), str(settings)]
            started = subprocess.Popen(
                [sys.executable, "-c", JOIN, str(group), *NAMESPACES, "bash", "-c", BOOT, "boot", *places],
                stdout=log,
                stderr=log,
            )
        try:
            yield Systemd(eventually("systemd runs", lambda: _running(started, folder / "log")))
        finally:
            for process in _processes(group):
                # It may have ended since it was listed.
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            started.wait()
    finally:
        # A kernel removes the folders of groups from the leaves on, and only empty ones.
        eventually("its groups are gone", lambda: _removed(group))
        shutil.rmtree(folder)


#: Enters a control group, and becomes the command that follows.
JOIN = """
import os, pathlib, sys
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
os.execvp(sys.argv[2], sys.argv[2:])
"""
NAMESPACES = [
    "unshare",
    "--mount",
    "--propagation=private",
    "--pid",
    "--fork",
    "--kill-child",
    "--uts",
    "--ipc",
    "--cgroup",
]


def cgroup() -> Path:
    """The kernel's tree of control groups, version 2."""
    return next(place for place in CGROUPS if (place / "cgroup.procs").is_file())


@functools.cache
def missing() -> str | None:
    """The reason why this machine cannot run a systemd of a test's own, or nothing."""
    if os.geteuid() != 0:
        return "only root can start a systemd"
    if not all(shutil.which(program) for program in ("systemctl", "unshare", "nsenter")):
        return "no systemd is installed"
    if not any((place / "cgroup.procs").is_file() and os.access(place, os.W_OK) for place in CGROUPS):
        return "control groups cannot be made"
    return None


def _running(started: subprocess.Popen[bytes], log: Path) -> int | None:
    """The process id of the systemd, when it answers."""
    assert started.poll() is None, f"systemd ended: {log.read_text()}"
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    if not children:
        return None
    process = int(children[0])
    if Path(f"/proc/{process}/comm").read_text().strip() != "systemd":
        return None
    state = Systemd(process).run("systemctl", "is-system-running", fails=True).strip()
    return process if state in ("running", "degraded") else None


def _processes(group: Path) -> list[int]:
    found = []
    for members in group.rglob("cgroup.procs"):
        found += [int(line) for line in members.read_text().split()]
    return found


def _removed(group: Path) -> bool:
    for folder in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
        try:
            folder.rmdir()
        except OSError:
            return False
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
