"""The sidecar's span becomes the parent of a span for each handler, if OpenTelemetry's API is installed.

Without it nothing happens, and nothing is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sidekeeper.execution import Execution
from sidekeeper.version import __version__

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:  # as most applications are
    INSTALLED = False
else:
    INSTALLED = True

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["INSTALLED", "span_of"]

_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()


def span_of(execution: Execution) -> AbstractContextManager[None]:
    """Returns the context of a handler: a span below the sidecar's, or nothing."""
    # Without a provider the span has no effect, and is not worth its time.
    if not INSTALLED or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return _NOTHING
    return _span(execution)


@contextlib.contextmanager
def _span(execution: Execution) -> Iterator[None]:
    carrier = {"traceparent": execution.traceparent, "tracestate": execution.tracestate}
    parent = TraceContextTextMapPropagator().extract({key: value for key, value in carrier.items() if value})
    tracer = trace.get_tracer("sidekeeper", __version__)
    # An exception that leaves the handler is recorded, and makes the span an error.
    with tracer.start_as_current_span(
        f"execute {execution.job_name}",
        context=parent,
        kind=trace.SpanKind.CONSUMER,
        attributes={
            "job.name": execution.job_name,
            "item": execution.item,
            "execution.id": execution.execution_id,
            "execution.source": execution.source.name,
            "execution.attempt": execution.attempt,
            "fencing.token": execution.fencing_token,
        },
    ):
        yield
