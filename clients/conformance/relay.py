"""A relay between an application and its sidecar, which a scenario can have change or lose messages."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, Callable, Optional

import grpc
from sidekeeper._proto.v1 import completion_pb2

from driver import Sidecar, eventually

__all__ = ["Relay"]

#: Calls at once; each stream takes one.
CALLS_MAX = 32

#: How long a call may take of a client that sets no limit, in seconds: longer than any scenario.
CALL_SECONDS_MAX = 600.0

#: The one method whose answer is a stream.
ATTACH = "/sidekeeper.v1.ParticipantService/Attach"
REPORT = "/sidekeeper.v1.ParticipantService/ReportCompletion"

Hook = Callable[[str, bytes], Optional[bytes]]


def _as_it_is(_: str, message: bytes) -> bytes:
    return message


class Relay:
    """Serves at a socket of its own what a sidecar serves at its. The hooks get the method and the message."""

    def __init__(self, sidecar: Sidecar, folder: Path):
        self.sidecar = sidecar
        #: Changes what the application sends. None: the call fails with UNAVAILABLE, and the sidecar does not see it.
        self.to_sidecar: Hook = _as_it_is
        #: Changes what the sidecar answers. None: the answer is lost, the call fails with UNAVAILABLE.
        self.to_application: Hook = _as_it_is
        #: The results that were reported through it, in order.
        self.results: list[completion_pb2.ExecutionResult] = []
        socket = folder / "relay.sock"
        self.endpoint = f"unix://{socket}"
        self._channel = grpc.insecure_channel(
            f"unix:{sidecar.socket}", options=[("grpc.default_authority", "localhost")]
        )
        self._server = grpc.server(futures.ThreadPoolExecutor(CALLS_MAX))
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        self._server.add_insecure_port(f"unix:{socket}")
        self._server.start()

    def close(self) -> None:
        """Ends all calls."""
        self._server.stop(None).wait()
        self._channel.close()

    def result(self, execution_id: str) -> completion_pb2.ExecutionResult:
        """Waits for an execution's report."""

        def reported() -> list[completion_pb2.ExecutionResult]:
            return [one for one in self.results if one.execution_id == execution_id]

        return eventually("the report", reported)[0]

    def unary(self, method: str, request: bytes, context: Any) -> bytes:
        """Passes a call on."""
        if method == REPORT:
            self.results += completion_pb2.ReportCompletionRequest.FromString(request).results
        changed = self._request(method, request, context)
        try:
            timeout = min(context.time_remaining(), CALL_SECONDS_MAX)
            answer = self._channel.unary_unary(method)(changed, metadata=_metadata(context), timeout=timeout)
        except grpc.RpcError as error:
            _fail(context, error)
        told = self.to_application(method, answer)
        if told is None:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the relay has lost the answer")
        return told  # type: ignore[return-value]  # abort raises

    def stream(self, method: str, request: bytes, context: Any) -> Iterator[bytes]:
        """Passes a stream on."""
        changed = self._request(method, request, context)
        call = self._channel.unary_stream(method)(changed, metadata=_metadata(context))
        context.add_callback(call.cancel)
        try:
            for message in call:
                told = self.to_application(method, message)
                if told is not None:
                    yield told
        except grpc.RpcError as error:
            _fail(context, error)

    def _request(self, method: str, request: bytes, context: Any) -> bytes:
        changed = self.to_sidecar(method, request)
        if changed is None:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the relay has lost the call")
        return changed  # type: ignore[return-value]  # abort raises


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        method = details.method
        if method == ATTACH:
            return grpc.unary_stream_rpc_method_handler(
                lambda request, context: self._relay.stream(method, request, context)
            )
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._relay.unary(method, request, context))


def _metadata(context: Any) -> list[tuple[str, str]]:
    return [(key, value) for key, value in context.invocation_metadata() if key == "authorization"]


def _fail(context: Any, error: Any) -> None:
    context.set_trailing_metadata(
        [(key, value) for key, value in error.trailing_metadata() or () if key.endswith("-bin")]
    )
    context.abort(error.code(), error.details())
