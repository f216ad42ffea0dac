"""The metrics of a sidecar, and a real Prometheus that scrapes sidecars."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support.processes import PATIENCE, ROOT, Process, eventually, free_port

#: The programs of Debian's package, which `.ci/setup monitoring` unpacks.
PROGRAMS = ROOT / ".tools" / "prometheus" / "usr" / "bin"
ALERTS = ROOT / "deploy" / "monitoring" / "alerts.yml"

#: A sample, and the trace of its exemplar: an execution that stands for its bucket.
EXEMPLAR = r' # \{trace_id="(?P<trace>[0-9a-f]{32})"\} \S+ \S+'
SAMPLE = re.compile(rf"(?P<name>[a-z_]+)(?:\{{(?P<labels>.*)\}})? (?P<value>\S+)(?:{EXEMPLAR})?")
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


class Answer(NamedTuple):
    """An answer over HTTP."""

    status: int
    headers: dict[str, str]
    body: str


def get(port: int, path: str, timeout: float = PATIENCE, **headers: str) -> Answer:
    """The answer of a port of this machine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read().decode())
    finally:
        connection.close()


class Metrics:
    """The series of one scrape, in OpenMetrics."""

    def __init__(self, port: int):
        answer = get(port, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert answer.status == 200, answer
        assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert answer.body.endswith("# EOF\n")
        self.text = answer.body
        self.samples: list[tuple[str, dict[str, str], float]] = []
        #: The traces of the exemplars, by the names of their samples.
        self.traces: dict[str, set[str]] = {}
        for line in answer.body.splitlines():
            if not line.startswith("#"):
                sample = SAMPLE.fullmatch(line)
                assert sample is not None, line
                labels = dict(LABEL.findall(sample["labels"] or ""))
                self.samples.append((sample["name"], labels, float(sample["value"])))
                if sample["trace"]:
                    self.traces.setdefault(sample["name"], set()).add(sample["trace"])

    def values(self, name: str, **labels: str) -> list[float]:
        """The values of the series with this name and these labels."""
        return [
            value
            for found, given, value in self.samples
            if found == f"sidekeeper_{name}" and labels.items() <= given.items()
        ]

    def total(self, name: str, **labels: str) -> float:
        return sum(self.values(name, **labels))

    def findings(self) -> dict[str, float]:
        """The findings by code."""
        found = [(labels, value) for name, labels, value in self.samples if name == "sidekeeper_findings"]
        return {labels["code"]: value for labels, value in found}


class Prometheus(Process):
    """A Prometheus that scrapes these ports each second, keeps exemplars, and evaluates the alerts."""

    def __init__(self, folder: Path, ports: Sequence[int]):
        self.port = free_port()
        targets = [f"127.0.0.1:{port}" for port in ports]
        settings = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [{"job_name": "sidekeeper", "static_configs": [{"targets": targets}]}],
        }
        # JSON is YAML.
        (folder / "prometheus.yml").write_text(json.dumps(settings))
        arguments = [str(PROGRAMS / "prometheus"), f"--config.file={folder}/prometheus.yml"]
        arguments += ["--enable-feature=exemplar-storage", f"--storage.tsdb.path={folder}/prometheus"]
        arguments += [f"--web.listen-address=127.0.0.1:{self.port}"]
        super().__init__("prometheus", arguments, folder, dict(os.environ), pipe=False)
        eventually("Prometheus serves", self._is_ready)

    def _is_ready(self) -> bool:
        try:
            return get(self.port, "/-/ready").status == 200
        except OSError:
            return False

    def api(self, path: str, **query: str) -> Any:
        """The data of an answer of Prometheus's API, which has to be a success."""
        answer = get(self.port, f"/api/v1/{path}?{urllib.parse.urlencode(query)}")
        told = json.loads(answer.body)
        assert told["status"] == "success", (path, query, told)
        return told["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.api("query", query=expression)["result"]
        return result


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs promtool in the folder of the alerts."""
    call = [str(PROGRAMS / "promtool"), *words]
    return subprocess.run(call, cwd=ALERTS.parent, capture_output=True, text=True, timeout=3 * PATIENCE, check=False)
