"""The command `explain`."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import Any

from support.job_nodes import JOB
from support.processes import PATIENCE, sidekeeper_binary
from support.sidecar import Sidecar


@dataclass
class Explanation:
    """The answer of the command."""

    told: dict[str, Any]
    #: The exit status with `--exit-code`.
    status: int

    def codes(self) -> list[str]:
        """The codes of the job as a whole, then those of the items, each once."""
        found = [*self.told["findings"], *[one for item in self.told["items"] for one in item["because"]]]
        return list(dict.fromkeys(one["code"] for one in found))

    def verdicts(self) -> dict[int, str]:
        return {item["item"]: item["verdict"].removeprefix("ITEM_VERDICT_") for item in self.told["items"]}

    def of(self, item: int) -> list[dict[str, Any]]:
        """The findings of an item."""
        return next(one["because"] for one in self.told["items"] if one["item"] == item)


def explain(sidecar: Sidecar) -> Explanation:
    words = ["explain", JOB, "--json", "--exit-code", "--endpoint", f"unix://{sidecar.socket}"]
    ended = subprocess.run(
        [str(sidekeeper_binary()), *words], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ended.returncode in (0, 2), ended.stderr
    return Explanation(json.loads(ended.stdout), ended.returncode)


def in_words(sidecar: Sidecar) -> str:
    """The answer of the command as text."""
    words = ["explain", JOB, "--endpoint", f"unix://{sidecar.socket}"]
    return subprocess.run(
        [str(sidekeeper_binary()), *words], capture_output=True, text=True, timeout=PATIENCE, check=True
    ).stdout
