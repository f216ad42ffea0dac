"""The processes of the demo: sidecars and workers, started and ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["Fleet"]

HERE = Path(__file__).resolve().parent
CLIENT = HERE.parent.parent / "clients" / "python"

#: How long a process may take to end after it was asked to, in seconds, before it is killed.
END_TIMEOUT = 8.0


class Fleet:
    """Sidecars and workers, whose files are in one folder.

    With the embedded registry all workers share one sidecar; with ZooKeeper each has its own.
    """

    def __init__(self, sidekeeper: Path, folder: Path, zookeeper: str | None, namespace: str) -> None:
        self._sidekeeper = sidekeeper
        self._folder = folder
        self._zookeeper = zookeeper
        self._namespace = namespace
        self._sidecars: dict[str, subprocess.Popen[bytes]] = {}
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self.journal = folder / "journal.jsonl"
        self.journal.touch()

    def start(self, worker: str) -> int:
        """Starts a worker, and its sidecar if need be; returns the worker's process id."""
        sidecar = "sidecar" if self._zookeeper is None else f"sidecar-of-{worker}"
        socket = self._folder / f"{sidecar}.sock"
        if sidecar not in self._sidecars:
            self._start_sidecar(sidecar, socket)
        environment = {
            **os.environ,
            "SIDEKEEPER_ENDPOINT": f"unix://{socket}",
            "DEMO_WORKER": worker,
            "DEMO_JOURNAL": str(self.journal),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(CLIENT), os.environ.get("PYTHONPATH")])),
        }
        process = self._spawn(worker, [sys.executable, str(HERE / "worker.py")], environment)
        self._workers[worker] = process
        return process.pid

    def terminate(self, worker: str) -> None:
        """Asks a worker to leave, and waits until it has."""
        self._workers[worker].terminate()
        self._wait(worker)

    def kill(self, worker: str) -> None:
        """Kills a worker."""
        process = self._workers.pop(worker)
        process.kill()
        process.wait(END_TIMEOUT)

    def terminate_workers(self) -> None:
        """Asks all workers to leave at the same time, and waits until they have."""
        for process in self._workers.values():
            process.terminate()
        for worker in list(self._workers):
            self._wait(worker)

    def check(self) -> None:
        """Complains if a process has ended that should not have."""
        for name, process in [*self._sidecars.items(), *self._workers.items()]:
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended by itself, with status {process.returncode}")

    def end(self) -> None:
        """Ends all processes, whatever state they are in: workers before sidecars."""
        for processes in (self._workers, self._sidecars):
            for process in processes.values():
                process.terminate()
            for process in processes.values():
                try:
                    process.wait(END_TIMEOUT)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            processes.clear()

    def last_words(self, lines: int = 15) -> str:
        """Returns the ends of the processes' logs."""
        words = []
        for path in sorted(self._folder.glob("*.log")):
            end = path.read_text(errors="replace").splitlines()[-lines:]
            words.append("\n".join([f"--- {path.name}", *end]))
        return "\n".join(words)

    def _wait(self, worker: str) -> None:
        status = self._workers[worker].wait(END_TIMEOUT)
        del self._workers[worker]
        if status != 0:
            raise RuntimeError(f"{worker} ended with status {status}")

    def _start_sidecar(self, sidecar: str, socket: Path) -> None:
        arguments = [str(self._sidekeeper), "serve", "--listen", f"unix:{socket}"]
        if self._zookeeper is None:
            arguments += ["--data-dir", str(self._folder / sidecar)]
        else:
            # The sidecars share this machine, but are to be servers of their own; the address is only a name.
            address = f"10.0.0.{len(self._sidecars) + 1}"
            arguments += ["--zookeeper", self._zookeeper, "--namespace", self._namespace, "--instance-ip", address]
            arguments += ["--session-timeout", "6s"]
        self._sidecars[sidecar] = self._spawn(sidecar, arguments, dict(os.environ))

    def _spawn(self, name: str, arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        """Starts a process in a session of its own, so that Ctrl-C is for the driver alone."""
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - the demo's own programs
                arguments, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
