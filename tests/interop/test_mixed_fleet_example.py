"""The example of a mixed fleet, compiled and run as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from interop.members import MixedFleet, elasticjob_version, jars
from support.processes import ROOT, eventually

EXAMPLE = ROOT / "examples" / "mixed-fleet"
CITIES = {0: "Beijing", 1: "Shanghai", 2: "Guangzhou", 3: "Shenzhen", 4: "Chengdu", 5: "Hangzhou"}


#: Where 3.0.5 has moved what the example imports; the example is for the version that Maven has.
MOVED = {
    "elasticjob.api.ShardingContext": "elasticjob.spi.executor.item.param.ShardingContext",
    "elasticjob.lite.api.bootstrap.impl.": "elasticjob.bootstrap.type.",
}


def source(folder: Path) -> Path:
    """The example's source, as the ElasticJob at hand wants it."""
    text = (EXAMPLE / "OrderSync.java").read_text()
    if elasticjob_version() > (3, 0, 4):
        for before, after in MOVED.items():
            assert before in text
            text = text.replace(before, after)
    path = folder / "OrderSync.java"
    path.write_text(text)
    return path


@pytest.mark.smoke
def test_java_and_python_share_a_job_and_take_over_from_each_other(fleet: MixedFleet, tmp_path: Path) -> None:
    subprocess.run(
        ["javac", "-proc:none", "-cp", f"{jars()}/*", "-d", str(tmp_path), str(source(tmp_path))], check=True
    )
    sidecar = fleet.sidecar(1, "3s")
    library = os.pathsep.join(filter(None, [str(ROOT / "clients" / "python"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": library, "SIDEKEEPER_ENDPOINT": f"unix://{sidecar.socket}"}
    java = ["java", "-Xmx128m", "-cp", f"{tmp_path}:{jars()}/*", "OrderSync", fleet.server.address, fleet.namespace]
    commands = {"java": java, "python": [sys.executable, str(EXAMPLE / "worker.py")]}
    running: dict[str, subprocess.Popen[bytes]] = {}

    def start(kind: str) -> None:
        with (tmp_path / kind).open("ab") as told:
            running[kind] = subprocess.Popen(commands[kind], env=environment, stdout=told)

    def stop(kind: str) -> None:
        process = running.pop(kind)
        process.terminate()
        process.wait(20)

    def told(kind: str) -> list[str]:
        return [line for line in (tmp_path / kind).read_text().splitlines() if line.startswith(f"{kind} ")]

    def share() -> bool:
        owners = list(fleet.tree.owners().values())
        return sorted(map(owners.count, set(owners))) == [3, 3]

    def executes(kind: str, items: Callable[[set[int]], bool]) -> None:
        """Waits until it has executed such items from now on, with their parameters."""
        before = len(told(kind))

        def seen() -> set[int]:
            return {item for line in told(kind)[before:] for item in CITIES if line == f"{kind} {item} {CITIES[item]}"}

        eventually(f"{kind} executes", lambda: items(seen()), timeout=30)

    try:
        start("java")
        executes("java", lambda items: len(items) == 6)
        start("python")
        eventually("they share", share, timeout=30)
        executes("python", lambda items: len(items) == 3)
        executes("java", lambda items: len(items) >= 3)
        stop("java")
        executes("python", lambda items: len(items) == 6)
        start("java")
        eventually("they share again", share, timeout=30)
        stop("python")
        executes("java", lambda items: len(items) == 6)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
