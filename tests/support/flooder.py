"""Another user of the machine who takes as much of a sidecar as it can (`flood`)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from support import flood
from support.processes import environment_with_client
from support.squatter import GID, READ, UID

#: The kinds of floods, each on connections of its own.
KINDS = ("connections", "streams", "resets", "large", "slow")


@contextmanager
def flooding(kind: str, port: int) -> Iterator[dict[str, int]]:
    """Another user floods a sidecar. At the end the dictionary has the counts of its actions."""
    command = ["setpriv", f"--reuid={UID}", f"--regid={GID}", "--clear-groups"]
    command += [f"--inh-caps=+{READ}", f"--ambient-caps=+{READ}", sys.executable, flood.__file__, kind, str(port)]
    flooder = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment_with_client(), text=True
    )
    assert flooder.stdout is not None
    assert flooder.stdin is not None
    assert flooder.stdout.readline() == "flooding\n"
    told: dict[str, int] = {}
    try:
        yield told
    finally:
        flooder.stdin.close()
        told.update(json.loads(flooder.stdout.read() or "{}"))
        assert flooder.wait(timeout=30) == 0
