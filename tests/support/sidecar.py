"""Sidecars on ZooKeeper."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from support.processes import Process, sidekeeper_binary


class Sidecar(Process):
    """A sidecar with a Unix socket."""

    def __init__(
        self,
        number: int,
        folder: Path,
        zookeeper: str,
        namespace: str,
        session_timeout: str,
        options: Sequence[str],
        binary: Path | None = None,
    ):
        self.address = f"10.0.0.{number}"
        self.socket = folder / f"{number}.sock"
        arguments = [str(binary or sidekeeper_binary()), "serve"]
        arguments += ["--listen", f"unix:{self.socket}", "--zookeeper", zookeeper, "--namespace", namespace]
        arguments += ["--instance-ip", self.address, "--session-timeout", session_timeout, *options]
        super().__init__(f"sidecar-{number}", arguments, folder, dict(os.environ), pipe=False)


class EmbeddedSidecar(Sidecar):
    """A sidecar with a Unix socket, and with a registry of its own in place of ZooKeeper."""

    def __init__(self, folder: Path, options: Sequence[str]):
        self.address = "10.0.0.1"
        self.socket = folder / "1.sock"
        arguments = [str(sidekeeper_binary()), "serve", "--listen", f"unix:{self.socket}", *options]
        Process.__init__(self, "sidecar-1", arguments, folder, dict(os.environ), pipe=False)
