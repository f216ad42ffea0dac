"""Exports an application's spans to a collector, by OTLP over HTTP as JSON."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult


class JsonExporter(SpanExporter):
    """Sends each span at once."""

    def __init__(self, address: str):
        self._url = f"http://{address}/v1/traces"

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "orders"}}]}
        scopes = [{"spans": [in_json(span) for span in spans]}]
        body = json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10):
            return SpanExportResult.SUCCESS


def in_json(span: ReadableSpan) -> dict[str, object]:
    context, parent = span.get_span_context(), span.parent
    return {
        "traceId": f"{context.trace_id:032x}",
        "spanId": f"{context.span_id:016x}",
        "parentSpanId": f"{parent.span_id:016x}" if parent else "",
        "name": span.name,
        "kind": span.kind.value + 1,
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
    }


def export_to(address: str) -> None:
    """Has the process export its spans from now on."""
    provider = TracerProvider(resource=Resource.create())
    provider.add_span_processor(SimpleSpanProcessor(JsonExporter(address)))
    trace.set_tracer_provider(provider)
