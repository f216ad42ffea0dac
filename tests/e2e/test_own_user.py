"""A sidecar serves its own user, and nobody else until its configuration says so."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from support import stranger
from support.fleet import Fleet
from support.processes import PATIENCE, Process, environment_with_client, eventually, free_port
from support.sidecar import Sidecar

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can call as another user, with setpriv"
)

UID = 12_345
GID = 12_346
RACES = 10_000
STARTS = 10
#: The right to open all files: only the sidecar refuses such a user.
OPEN = "dac_override"
#: The right to read all files, of which the program is some. A socket needs the right to write.
READ = "dac_read_search"
REFLECTION = stranger.REFLECTION
DRAIN = "sidekeeper.v1.SidecarService/Drain"
#: A frame of HTTP/2 without content: the server's settings.
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


def stranger_command(*arguments: str, may: str) -> list[str]:
    """The program as another user, with this right over files."""
    command = ["setpriv", f"--reuid={UID}", f"--regid={GID}", "--clear-groups"]
    command += [f"--inh-caps=+{may}", f"--ambient-caps=+{may}"]
    return [*command, sys.executable, stranger.__file__, *arguments]


def as_stranger(*arguments: str, may: str = OPEN, call: bytes = b"") -> str:
    """Runs the program as another user."""
    ended = subprocess.run(
        stranger_command(*arguments, may=may),
        input=call,
        capture_output=True,
        timeout=4 * PATIENCE,
        env=environment_with_client(),
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout.decode()


def outcomes(address: str, may: str = OPEN) -> dict[str, tuple[str, str]]:
    told: dict[str, list[str]] = json.loads(as_stranger("calls", address, may=may))
    return {path: (code, message) for path, (code, message) in told.items()}


@pytest.fixture
def port() -> int:
    return free_port()


def serving(fleet: Fleet, port: int, *options: str) -> Sidecar:
    sidecar = fleet.sidecar(1, options=["--listen", f"127.0.0.1:{port}", *options])

    def answers() -> bool:
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", port)) == 0

    eventually("it serves", answers)
    return sidecar


def test_se_1_another_user_is_refused_before_any_call(fleet: Fleet, port: int) -> None:
    sidecar = serving(fleet, port)
    for address in (f"127.0.0.1:{port}", f"unix:{sidecar.socket}"):
        told = outcomes(address)
        assert told.pop(stranger.HEALTH) == ("OK", "")
        assert len(told) > 25
        for path, (code, message) in told.items():
            assert code == "UNAUTHENTICATED", (address, path, code, message)
            assert f"uid {UID} may not" in message, (address, path, message)
            assert f"`uid:{UID}`" in message, (address, path, message)
    eventually("the log says so", lambda: f"uid {UID} may not call this sidecar" in fleet.logs())


@pytest.mark.parametrize(
    ("allow", "drained"),
    [
        (f"uid:{UID}", "PERMISSION_DENIED"),
        (f"uid:{UID}:operate", "OK"),
        ("any-local-user", "PERMISSION_DENIED"),
        ("any-local-user:operate", "OK"),
        (f"same-user,uid:1,uid:{UID}:view,gid:{GID}", "PERMISSION_DENIED"),
    ],
)
def test_another_user_may_call_if_the_setting_says_so(fleet: Fleet, port: int, allow: str, drained: str) -> None:
    options = [word for one in allow.split(",") for word in ("--allow", one)]
    sidecar = serving(fleet, port, *options)
    for address in (f"127.0.0.1:{port}", f"unix:{sidecar.socket}"):
        told = outcomes(address)
        assert "UNAUTHENTICATED" not in {code for code, _ in told.values()}, (address, told)
        assert told[DRAIN][0] == drained
        assert told[REFLECTION][0] == "INVALID_ARGUMENT"  # its request is empty: it may call


def test_a_group_may_call_on_the_unix_socket(fleet: Fleet, port: int) -> None:
    sidecar = serving(fleet, port, "--allow", f"gid:{GID}:operate")
    assert outcomes(f"127.0.0.1:{port}")[DRAIN][0] == "UNAUTHENTICATED"
    assert outcomes(f"unix:{sidecar.socket}")[DRAIN][0] == "OK"


def recorded(path: str) -> bytes:
    """The bytes that a client of gRPC sends for a call without fields."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with grpc.insecure_channel(address) as channel:
            call = channel.unary_unary(f"/{path}").future(b"", timeout=PATIENCE)
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as received:
                connection.sendall(SETTINGS)
                sent = received.read(len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
                while True:
                    head = received.read(9)
                    sent += head + received.read(int.from_bytes(head[:3], "big"))
                    # The last frame of the request: data, and the end of the stream.
                    if head[3] == 0 and head[4] & 1:
                        break
            call.cancel()
    return sent


@contextlib.contextmanager
def own_user_comes_and_goes(port: int) -> Iterator[None]:
    """Connections of the sidecar's own user from the ports of the race."""
    over = threading.Event()

    def come_and_go() -> None:
        ports = iter(list(stranger.PORTS) * 1_000_000)
        while not over.is_set():
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError), connection:
                connection.bind(("127.0.0.1", next(ports)))
                connection.connect(("127.0.0.1", port))

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_se_1_a_call_of_another_user_never_counts_however_its_connection_ends(fleet: Fleet, port: int) -> None:
    sidecar = serving(fleet, port)
    call = recorded(DRAIN)
    with own_user_comes_and_goes(port):
        as_stranger("race", str(port), str(RACES), call=call)
    assert sidecar.popen.poll() is None
    assert "draining" not in fleet.logs()
    # The sidecar's own user sends the same bytes.
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
        connection.sendall(call)
        eventually("the sidecar drains", lambda: "draining" in fleet.logs())


def test_se_2_nobody_else_can_connect_to_the_socket_while_the_sidecar_starts(binary: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sk-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        path = folder / "s.sock"
        knocking = subprocess.Popen(
            stranger_command("knock", str(path), may=READ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment_with_client(),
        )
        assert knocking.stdout is not None
        assert knocking.stdout.readline() == b"knocking\n"
        command = ["sh", "-c", f"umask 0; exec {binary} serve --listen unix:{path}"]
        for start in range(STARTS):
            sidecar = Process(f"sidecar-{start}", command, folder, dict(os.environ), pipe=False)
            eventually("it serves", path.exists)
            eventually("its rights are set", lambda: path.stat().st_mode & 0o777 == 0o600)
            sidecar.terminate()
        assert knocking.communicate(b"over\n", PATIENCE)[0] == b"0\n"


def test_a_socket_may_be_shared_with_a_group(fleet: Fleet, port: int) -> None:
    fleet.folder.chmod(0o755)
    shared = fleet.folder / "shared.sock"
    sidecar = serving(fleet, port, "--listen", f"unix:{shared}?mode=0660&group={GID}", "--allow", f"gid:{GID}:operate")
    assert outcomes(f"unix:{sidecar.socket}", READ)[DRAIN][0] == "UNAVAILABLE"
    assert outcomes(f"unix:{shared}", READ)[DRAIN][0] == "OK"
