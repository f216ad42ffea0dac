"""Another user who serves in the place of a sidecar, to get the calls of applications."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import stranger
from support.processes import environment_with_client

#: The other user.
UID = 12_345
GID = 12_346
#: The right to read all files, of which the programs are some.
READ = "dac_read_search"

#: Brings up the loopback interface of a new network namespace, and becomes the command that follows.
LOOPBACK = """
import fcntl, os, socket, struct, sys
flags = struct.pack("16sh", b"lo", 1)
fcntl.ioctl(socket.socket(), 0x8914, flags)
os.execvp(sys.argv[1], sys.argv[1:])
"""


@contextmanager
def squatting(folder: Path, place: str) -> Iterator[tuple[list[str], dict[str, str], dict[str, int]]]:
    """Another user serves at `the socket` or at `the port` where a sidecar without configuration would.

    Gives the beginning of commands that see it, their environment, and, at the end, the number of connections and of bytes that
    it has got. Its network is of its own, so that nothing else has the port.
    """
    runtime = folder / "runtime"
    (runtime / "sidekeeper").mkdir(parents=True)
    folder.chmod(0o755)
    where = "7070"
    if place == "the socket":
        os.chown(runtime / "sidekeeper", UID, GID)
        where = str(runtime / "sidekeeper" / "api.sock")
    command = ["unshare", "--net", sys.executable, "-c", LOOPBACK]
    command += ["setpriv", f"--reuid={UID}", f"--regid={GID}", "--clear-groups"]
    command += [f"--inh-caps=+{READ}", f"--ambient-caps=+{READ}", sys.executable, stranger.__file__, "squat", where]
    squatter = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment_with_client(), text=True
    )
    told: dict[str, int] = {}
    try:
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == "squatting\n"
        inside = ["nsenter", f"--target={squatter.pid}", "--net"]
        yield inside, {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}, told
        told["connections"], told["bytes"] = json.loads(squatter.communicate("over\n", timeout=20)[0])
    finally:
        squatter.kill()
