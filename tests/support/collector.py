"""A real OpenTelemetry Collector (`tests/e2e/collector`), and the spans that it has received."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.processes import PATIENCE, ROOT, Process, eventually, free_port

PROGRAM = Path(os.environ.get("SIDEKEEPER_COLLECTOR", ROOT / ".tools" / "bin" / "collector"))


@dataclass(frozen=True)
class Span:
    """A span as the collector prints it."""

    trace: str
    span: str
    #: Empty: it has none.
    parent: str
    name: str
    #: Those of the process, too.
    attributes: dict[str, str]
    #: The spans of the same trace that it goes on from.
    links: tuple[str, ...]


class Collector(Process):
    """A collector that receives spans by gRPC and HTTP, and prints them."""

    def __init__(self, folder: Path):
        if not PROGRAM.is_file():
            pytest.fail(f"no collector at {PROGRAM}: run `make .tools/bin/collector`", pytrace=False)
        self._printed = folder / "spans.txt"
        grpc, http = free_port(), free_port()
        #: Where sidecars send their spans.
        self.endpoint = f"http://127.0.0.1:{grpc}"
        #: Where others do, by HTTP.
        self.http = f"127.0.0.1:{http}"
        protocols = {"grpc": {"endpoint": f"127.0.0.1:{grpc}"}, "http": {"endpoint": self.http}}
        printing = {"verbosity": "detailed", "use_internal_logger": False, "output_paths": [str(self._printed)]}
        pipeline = {"receivers": ["otlp"], "exporters": ["debug"]}
        settings = {
            "receivers": {"otlp": {"protocols": protocols}},
            "exporters": {"debug": printing},
            "service": {"pipelines": {"traces": pipeline}},
        }
        configuration = folder / "collector.yaml"
        # JSON is YAML.
        configuration.write_text(json.dumps(settings))
        arguments = [str(PROGRAM), "--config", str(configuration)]
        super().__init__("collector", arguments, folder, dict(os.environ), pipe=False)
        eventually("the collector has begun", self._printed.exists, 3 * PATIENCE)

    def spans(self) -> list[Span]:
        """The spans that it has received so far."""
        found: list[Span] = []
        resource: dict[str, str] = {}
        fields: dict[str, str] = {}
        attributes: dict[str, str] = {}
        links: list[str] = []
        place = attributes
        for line in [*self._printed.read_text().splitlines(), "ResourceSpans #"]:
            if line.startswith(("ResourceSpans #", "Span #")):
                if "Trace ID" in fields:
                    ids = (fields["Trace ID"], fields["ID"], fields["Parent ID"])
                    found.append(Span(*ids, fields["Name"], {**resource, **attributes}, tuple(links)))
                fields, attributes, links = {}, {}, []
                place = attributes
                if line.startswith("ResourceSpans #"):
                    resource = place = {}
            elif attribute := re.fullmatch(r" +-> ([\w.]+): \w+\((.*)\)", line):
                place.setdefault(*attribute.groups())
            elif link := re.fullmatch(r" +-> ID: ([0-9a-f]{16})", line):
                links.append(link[1])
            elif field := re.fullmatch(r" {4}([A-Z][\w ]*?) *: (.*)", line):
                fields.setdefault(*field.groups())
        return found
