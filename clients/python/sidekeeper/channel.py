"""How the sidecar is reached: the endpoint's text, and the settings of the gRPC channel."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import TypeVar, Union
from urllib.parse import urlsplit

import grpc
import grpc.aio

from sidekeeper.tls import credentials, has_tls

__all__ = [
    "DEFAULT_ENDPOINT",
    "ENDPOINT_VARIABLE",
    "TOKEN_VARIABLE",
    "authorized",
    "endpoint_target",
    "given_endpoint",
    "open_blocking_channel",
    "open_channel",
    "resolve_token",
]

#: The sidecar's default address.
DEFAULT_ENDPOINT = "http://127.0.0.1:7070"

#: The environment variable that names the endpoint.
ENDPOINT_VARIABLE = "SIDEKEEPER_ENDPOINT"

#: The environment variable that has the sidecar's token.
TOKEN_VARIABLE = "SIDEKEEPER_TOKEN"  # noqa: S105 - its name, not its value

#: The largest message in either direction, in bytes; an assignment of 10 000 items with parameters stays far below.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024

#: A suspended sidecar, or one that has crashed without closing its connection, is noticed after the sum of the two. A
#: ping every few seconds costs nothing on one machine; the timeout leaves room for a machine that is short of CPU.
KEEPALIVE_TIME_MS = 5_000
KEEPALIVE_TIMEOUT_MS = 5_000

#: The channel's own reconnection must not be slower than the workers', which wait 0.1 to 5 s (see ``backoff``).
INITIAL_RECONNECT_MS = 100
MAX_RECONNECT_MS = 1_000

#: How long one attempt to connect may take: a machine that is short of CPU needs its time for the first frames.
CONNECT_TIMEOUT_MS = 5_000

Options = Sequence[tuple[str, Union[str, int]]]

#: For a Unix socket gRPC would send the socket's path as the authority, which HTTP/2 servers may refuse. With TLS the
#: authority is the name that the sidecar's certificate has to have.
_AUTHORITY: Options = (("grpc.default_authority", "localhost"),)

_OPTIONS: Options = (
    # The sidecar is on this machine, or named by its address: a proxy of the environment is not meant for it.
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", INITIAL_RECONNECT_MS),
    # In spite of its name it is the least that an attempt may take; the pauses are given by the other two.
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_MS),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Applications in one process do not wait for each other's reconnections.
    ("grpc.use_local_subchannel_pool", 1),
)

S = TypeVar("S")

_ALLOWED = "allowed are HOST:PORT, http://HOST:PORT, https://HOST:PORT, unix:PATH and unix:///PATH"


def given_endpoint(endpoint: str | None) -> str | None:
    """Returns the endpoint given, or the environment's. None: the sidecar is to be found (see ``trust``)."""
    return endpoint or os.environ.get(ENDPOINT_VARIABLE) or None


def resolve_token(token: str | None) -> str:
    """Returns the token given, or the environment's; empty: there is none.

    Raises:
        ValueError: It has characters that a header cannot have. They are not repeated.
    """
    resolved = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
    if not all("!" <= character <= "~" for character in resolved):
        source = TOKEN_VARIABLE if token is None else "token"
        raise ValueError(f"{source}: it has characters other than visible ASCII ones")
    return resolved


def authorized(stub: S, token: str) -> S:
    """Returns the stub, whose calls have the token from now on, if there is one."""
    if token:
        metadata = (("authorization", f"Bearer {token}"),)
        for name, call in vars(stub).items():
            setattr(stub, name, functools.partial(call, metadata=metadata))
    return stub


def endpoint_target(endpoint: str) -> str:
    """Translates an endpoint to gRPC's name for it.

    Raises:
        ValueError: The endpoint is neither an address with a port nor a Unix socket.
    """
    if endpoint.startswith("unix:"):
        path = endpoint[len("unix:") :]
        if path.startswith("//"):
            path = path[len("//") :]
        if not path.startswith("/"):
            raise ValueError(f"endpoint {endpoint!r}: a Unix socket needs an absolute path; {_ALLOWED}")
        return f"unix:{path}"
    parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError(f"endpoint {endpoint!r}: {error}; {_ALLOWED}") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"endpoint {endpoint!r}: the scheme {parts.scheme!r} is not supported; {_ALLOWED}")
    further = parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None
    if not parts.hostname or not port or further:
        raise ValueError(f"endpoint {endpoint!r}: it must be a host and a port, and nothing else; {_ALLOWED}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"dns:///{host}:{port}"


def open_channel(endpoint: str, further: Options = ()) -> grpc.aio.Channel:
    """Opens a channel; it connects when it is first used, and again whenever the connection breaks.

    Raises:
        CredentialsError: The endpoint has TLS, and a file of certificates cannot be read.
    """
    target, options = endpoint_target(endpoint), [*_options(endpoint), *further]
    if has_tls(endpoint):
        return grpc.aio.secure_channel(target, credentials(endpoint), options=options)
    return grpc.aio.insecure_channel(target, options=options)


def open_blocking_channel(endpoint: str, further: Options = ()) -> grpc.Channel:
    """Opens the same channel for calls that block."""
    target, options = endpoint_target(endpoint), [*_options(endpoint), *further]
    if has_tls(endpoint):
        return grpc.secure_channel(target, credentials(endpoint), options=options)
    return grpc.insecure_channel(target, options=options)


def _options(endpoint: str) -> Options:
    return _OPTIONS if has_tls(endpoint) else [*_AUTHORITY, *_OPTIONS]
