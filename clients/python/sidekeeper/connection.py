"""How locks, campaigns and observations get to their sidecar: a real one, or the one in memory of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidekeeper.channel import authorized, open_blocking_channel, open_channel

if TYPE_CHECKING:
    from sidekeeper.fake_services import FakeServices

__all__ = ["blocking_connection", "in_memory", "loop_connection", "service"]

#: The sidecars in memory, in place of real ones: ``sidekeeper.testing`` adds and removes them. The last one counts.
in_memory: list[FakeServices] = []


def blocking_connection(endpoint: str) -> Any:
    """Opens a connection for calls that block."""
    return in_memory[-1].blocking_stub if in_memory else open_blocking_channel(endpoint)


def loop_connection(endpoint: str) -> Any:
    """Opens a connection for calls on an event loop."""
    return in_memory[-1].loop_stub if in_memory else open_channel(endpoint)


def service(stub: type[Any], connection: Any, token: str) -> Any:
    """Returns the methods of a service. The connection to a sidecar in memory has them itself."""
    return connection if hasattr(connection, "Hold") else authorized(stub(connection), token)
