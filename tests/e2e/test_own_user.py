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
from support.squatter import GID, UID, squatting

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can call as another user, with setpriv"
)

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


@pytest.mark.parametrize("fault", ["every user writes", "a folder of another user", "a link of another user"])
def test_se_2_a_sidecar_does_not_serve_where_others_could_replace_its_socket(
    binary: Path, tmp_path: Path, fault: str
) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    if fault == "every user writes":
        folder.chmod(0o777)
    else:
        os.chown(folder if fault == "a folder of another user" else link, UID, GID, follow_symlinks=False)
    command = [str(binary), "serve", "--listen", f"unix:{link}/s.sock"]
    sidecar = Process("sidecar", command, tmp_path, dict(os.environ), pipe=False)
    assert sidecar.popen.wait(PATIENCE) == 1
    assert "is not safe for a socket" in sidecar.log.read_text()


def test_a_sidecar_without_an_address_serves_on_a_socket_of_its_user(binary: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sk-") as name:
        environment = {**os.environ, "XDG_RUNTIME_DIR": name}
        folder = Path(name) / "sidekeeper"
        sidecar = Process("sidecar", [str(binary), "serve"], Path(name), environment, pipe=False)
        eventually("it serves", lambda: "serving" in sidecar.log.read_text())
        assert [path.stat().st_mode & 0o777 for path in (folder, folder / "api.sock")] == [0o700, 0o600]
        answered = subprocess.run([str(binary), "locks"], env=environment, capture_output=True, timeout=PATIENCE)
        assert answered.returncode == 0, answered.stderr
        # A second one has neither the socket nor the port.
        second = Process("second", [str(binary), "serve"], Path(name), environment, pipe=False)
        assert second.popen.wait(PATIENCE) == 1
        sidecar.terminate()
        assert not (folder / "api.sock").exists()


@pytest.mark.parametrize("place", ["the socket", "the port"])
def test_se_3_a_command_does_not_call_a_listener_of_another_user(binary: Path, place: str) -> None:
    with tempfile.TemporaryDirectory(prefix="sk-") as name:
        with squatting(Path(name), place) as (inside, environment, told):
            token = {"SIDEKEEPER_TOKEN": "t0ken"}
            called = subprocess.run(
                [*inside, str(binary), "locks"], env={**environment, **token}, capture_output=True, timeout=PATIENCE
            )
        assert called.returncode == 1
        why = "is not safe for a socket" if place == "the socket" else f"uid {UID} serves at 127.0.0.1:7070"
        assert why in called.stderr.decode()
        assert told["bytes"] == 0
