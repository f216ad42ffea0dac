"""Which sidecar is called without an endpoint: only one of this user, or of root.

Another user may have taken the place before it, to get calls and tokens. The files of sockets and the kernel's table of
TCP sockets tell who listens, before anything is sent. An endpoint that was given is trusted as it is.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from sidekeeper.channel import DEFAULT_ENDPOINT, ENDPOINT_VARIABLE
from sidekeeper.tls import NotCalledError

__all__ = ["UntrustedError", "find_endpoint", "located"]

#: The variable that names the folder of a user's sockets (XDG Base Directory Specification).
RUNTIME_VARIABLE = "XDG_RUNTIME_DIR"

#: The folder of a sidecar that is a service of the system.
SYSTEM_FOLDER = Path("/run/sidekeeper")

SOCKET_NAME = "api.sock"

#: The port of the default endpoint.
DEFAULT_PORT = 7070

#: The kernel's tables of sockets, and the state of one that listens (proc_pid_net(5)).
TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
LISTENS = "0A"


class UntrustedError(NotCalledError):
    """Another user listens where the sidecar would be, or nobody knows who does."""


def located(endpoint: str | None, token: str) -> str:
    """Returns the endpoint, if there is one, else that of a sidecar of this user or of root (see ``find_endpoint``)."""
    return endpoint or find_endpoint(bool(token))


def find_endpoint(has_token: bool) -> str:
    """Returns the endpoint of a sidecar of this user or of root: a socket, else the default address.

    Args:
        has_token: Whether calls will have the sidecar's token.

    Raises:
        UntrustedError: Another user listens at the default address, or a token would go to nobody knows whom.
    """
    for socket in _sockets():
        if _is_trusted_socket(socket):
            return f"unix:{socket}"
    owners = _listeners(DEFAULT_PORT)
    if owners is None:
        if has_token:
            raise UntrustedError(f"it is not known who serves at {DEFAULT_ENDPOINT}; {_advice()}")
        return DEFAULT_ENDPOINT
    for owner in owners:
        if not _is_trusted(owner):
            raise UntrustedError(
                f"uid {owner} serves at {DEFAULT_ENDPOINT}, and not this user (uid {os.geteuid()}) or root; {_advice()}"
            )
    return DEFAULT_ENDPOINT


def _advice() -> str:
    return f"if you trust it, give its address in {ENDPOINT_VARIABLE}"


def _sockets() -> Iterator[Path]:
    """The places where a socket may be without an endpoint, the best first."""
    folder = os.environ.get(RUNTIME_VARIABLE, "")
    if os.path.isabs(folder):
        yield Path(folder) / "sidekeeper" / SOCKET_NAME
    yield SYSTEM_FOLDER / SOCKET_NAME


def _is_trusted(uid: int) -> bool:
    return uid in (os.geteuid(), 0)


def _is_trusted_socket(path: Path) -> bool:
    """Whether there is a socket that nobody but this user and root could have made."""
    try:
        socket, folder = path.lstat(), path.parent.lstat()
    except OSError:
        return False
    writable = folder.st_mode & stat.S_IWOTH and not folder.st_mode & stat.S_ISVTX
    is_ours = _is_trusted(socket.st_uid) and _is_trusted(folder.st_uid)
    return stat.S_ISSOCK(socket.st_mode) and stat.S_ISDIR(folder.st_mode) and is_ours and not writable


def _listeners(port: int) -> set[int] | None:
    """The users that listen on a port of the loopback interface. None: this system does not tell them."""
    # The local addresses that get connections to 127.0.0.1, also those of sockets that speak IPv4 through IPv6.
    local = {_table_address(bytes(address)) for address in ((127, 0, 0, 1), (0, 0, 0, 0))}
    zeros, mapped = _table_address(bytes(4)), _table_address(b"\0\0\xff\xff")
    local |= {zeros * 2 + middle + address for address in local for middle in (mapped, zeros)}
    found = set()
    for table in TABLES:
        try:
            rows = table.read_text(encoding="ascii").splitlines()[1:]
        except (OSError, UnicodeError):
            if table == TABLES[0]:
                return None
            continue  # the kernel has no IPv6
        for row in rows:
            # sl local_address rem_address st queues timer retransmits uid timeout inode
            columns = row.split()
            address, _, number = columns[1].partition(":")
            if columns[3] == LISTENS and address in local and int(number, 16) == port:
                found.add(int(columns[7]))
    return found


def _table_address(address: bytes) -> str:
    """Four bytes of an address as the kernel's table has them."""
    return f"{int.from_bytes(address, sys.byteorder):08X}"
