"""An application with the Python client beside a sidecar."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from support.job_nodes import JOB
from support.processes import InstanceProcess, environment_with_client
from support.sidecar import Sidecar

PROGRAM = Path(__file__).with_name("application_program.py")


class Application(InstanceProcess):
    """A process of `application_program.py`, and the events that it has reported."""

    def __init__(
        self, name: str, sidecar: Sidecar, folder: Path, configuration: dict[str, Any], collector: str | None = None
    ):
        """`collector`: where it sends its spans."""
        environment = environment_with_client(
            **({"E2E_COLLECTOR": collector} if collector else {}),
            SIDEKEEPER_ENDPOINT=f"unix://{sidecar.socket}",
            E2E_JOB=JOB,
            E2E_CONFIGURATION=json.dumps(configuration),
        )
        super().__init__(name, [sys.executable, str(PROGRAM)], folder, environment)
        self.sidecar = sidecar
