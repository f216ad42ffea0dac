"""TLS with a sidecar on another machine: the files of certificates that the environment names.

The files are read when a channel is opened. An application opens another channel when it connects again and the files
have changed, so it needs no restart for a new certificate.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Union

import grpc

__all__ = [
    "CA_VARIABLE",
    "CERT_VARIABLE",
    "KEY_VARIABLE",
    "CredentialsError",
    "NotCalledError",
    "check_settings",
    "credentials",
    "file_versions",
    "has_tls",
]

#: The environment variables that name the files, all in PEM: the authorities of sidecars' certificates, the
#: application's certificate with its chain, and its key.
CA_VARIABLE = "SIDEKEEPER_CA"
CERT_VARIABLE = "SIDEKEEPER_CERT"
KEY_VARIABLE = "SIDEKEEPER_KEY"

#: When a file was last changed, and which one it is. None: it cannot be read.
_Version = Union[tuple[int, int, int], None]


class NotCalledError(grpc.RpcError):
    """A call that was not made."""

    def __init__(self, details: str) -> None:
        super().__init__(details)
        self._details = details

    def code(self) -> grpc.StatusCode:
        """Returns UNAVAILABLE: no sidecar answers."""
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        """Says why."""
        return self._details

    def trailing_metadata(self) -> tuple[()]:
        """Returns nothing: nobody has answered."""
        return ()


class CredentialsError(NotCalledError):
    """A file of certificates cannot be read."""


def has_tls(endpoint: str) -> bool:
    """Whether connections to an endpoint are encrypted."""
    return endpoint.startswith("https://")


def check_settings(endpoint: str) -> None:
    """Checks that the environment names the files that an endpoint needs.

    Raises:
        ValueError: The endpoint has TLS, and a variable is not set.
    """
    missing = [variable for variable, path in _files() if path is None] if has_tls(endpoint) else []
    if missing:
        raise ValueError(f"endpoint {endpoint!r}: https:// needs files in the environment: {', '.join(missing)}")


def credentials(endpoint: str) -> grpc.ChannelCredentials:
    """Reads the files.

    Raises:
        ValueError: A variable is not set.
        CredentialsError: A file cannot be read.
    """
    check_settings(endpoint)
    texts = []
    for variable, path in _files():
        try:
            texts.append(Path(path or "").read_bytes())
        except OSError as error:
            raise CredentialsError(f"{variable}: {error}") from None
    authorities, certificate, key = texts
    return grpc.ssl_channel_credentials(authorities, key, certificate)


def file_versions(endpoint: str) -> tuple[_Version, ...]:
    """Returns the versions of the files of an endpoint: other ones when a file changes."""
    return tuple(_version(path) for _, path in _files()) if has_tls(endpoint) else ()


def _files() -> list[tuple[str, str | None]]:
    variables = (CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE)
    return [(variable, os.environ.get(variable) or None) for variable in variables]


def _version(path: str | None) -> _Version:
    try:
        found = os.stat(path or "")
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
