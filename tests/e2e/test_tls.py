"""TLS with callers on other machines: a certificate names the caller."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from support import stranger
from support.certificates import Authority, Identity
from support.fleet import Fleet
from support.metrics import Metrics
from support.processes import PATIENCE, eventually, free_port
from support.sidecar import Sidecar

LOCKS = "sidekeeper.v1.LockService/ListLocks"
TRIGGER = "sidekeeper.v1.JobService/TriggerJob"
WATCH = "sidekeeper.v1.AssignmentService/WatchAssignments"
#: More than handshakes that the sidecar makes at once.
SILENT = 100


class Secured:
    """Authorities, and a sidecar with an address with TLS."""

    def __init__(self, fleet: Fleet, tmp_path: Path):
        self.fleet = fleet
        for name in ("sidecars", "callers", "others"):
            (tmp_path / name).mkdir()
        self.sidecars, self.callers = Authority(tmp_path / "sidecars"), Authority(tmp_path / "callers")
        self.others = Authority(tmp_path / "others")
        self.own = self.sidecars.certify("sidecar", "DNS:localhost", "IP:127.0.0.2")
        self.port = free_port()

    def options(self, *allow: str, listen: str = "") -> list[str]:
        options = ["--listen", listen or f"https://127.0.0.2:{self.port}"]
        options += ["--tls-cert", str(self.own.cert), "--tls-key", str(self.own.key)]
        options += ["--tls-client-ca", str(self.callers.ca)]
        return options + [f"--tls-allow={name}" for name in allow]

    def sidecar(self, *allow: str, listen: str = "", further: Sequence[str] = ()) -> Sidecar:
        sidecar = self.fleet.sidecar(1, options=[*self.options(*allow, listen=listen), *further])
        eventually("it serves", lambda: f":{self.port}" in sidecar.log.read_text())
        eventually("a session", lambda: "session opened" in sidecar.log.read_text())
        return sidecar

    @contextmanager
    def channel(self, identity: Identity | None, ca: Path | None = None) -> Iterator[grpc.Channel]:
        key, cert = (identity.key.read_bytes(), identity.cert.read_bytes()) if identity else (None, None)
        credentials = grpc.ssl_channel_credentials((ca or self.sidecars.ca).read_bytes(), key, cert)
        with grpc.secure_channel(f"127.0.0.2:{self.port}", credentials) as channel:
            yield channel

    def call(self, identity: Identity | None, path: str, ca: Path | None = None) -> tuple[str, str]:
        """The code and the text of a call without fields."""
        with self.channel(identity, ca) as channel:
            try:
                channel.unary_unary(f"/{path}")(b"", timeout=stranger.LIMIT)
                return "OK", ""
            except grpc.RpcError as error:
                return error.code().name, error.details()

    def serial(self) -> bytes:
        """The certificate that the sidecar shows to a new connection."""
        context = ssl.create_default_context(cafile=str(self.sidecars.ca))
        shown = self.callers.certify("look", "DNS:look")
        context.load_cert_chain(shown.cert, shown.key)
        with (
            socket.create_connection(("127.0.0.2", self.port)) as stream,
            context.wrap_socket(stream, server_hostname="localhost") as encrypted,
        ):
            told = encrypted.getpeercert(binary_form=True)
        assert told is not None
        return told


@pytest.fixture
def secured(fleet: Fleet, tmp_path: Path) -> Secured:
    return Secured(fleet, tmp_path)


def test_a_certificate_has_the_rights_of_the_first_entry_that_it_fits(secured: Secured) -> None:
    sidecar = secured.sidecar("spiffe://prod/*?role=operate", "*.internal?role=view&jobs=team-*")
    operator = secured.callers.certify("operator", "URI:spiffe://prod/ops")
    viewer = secured.callers.certify("viewer", "DNS:board.internal")
    stranger_here = secured.callers.certify("stranger", "DNS:board.example.org", "URI:https://prod/ops")
    nameless = secured.callers.certify("spiffe")
    assert secured.call(operator, LOCKS)[0] == "OK"
    assert secured.call(operator, TRIGGER)[0] == "INVALID_ARGUMENT"
    assert secured.call(viewer, LOCKS)[0] == "OK"
    code, text = secured.call(viewer, TRIGGER)
    assert (code, "the certificate of `board.internal` may not call TriggerJob" in text) == ("PERMISSION_DENIED", True)
    for identity, name in ((stranger_here, "board.example.org"), (nameless, "no DNS name and no URI")):
        assert secured.call(identity, stranger.HEALTH)[0] == "OK"
        code, text = secured.call(identity, LOCKS)
        assert (code, name in text) == ("UNAUTHENTICATED", True), text
    # The log names the operator by its certificate.
    assert "spiffe://prod/ops" in sidecar.log.read_text()


def test_without_a_certificate_of_the_authority_nothing_is_answered(secured: Secured) -> None:
    sidecar = secured.sidecar("*.internal?role=operate")
    for identity in (None, secured.others.certify("board", "DNS:board.internal")):
        assert secured.call(identity, stranger.HEALTH)[0] == "UNAVAILABLE"
    with grpc.insecure_channel(f"127.0.0.2:{secured.port}") as channel, pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary(f"/{stranger.HEALTH}")(b"", timeout=stranger.LIMIT)
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    eventually("it says so", lambda: "the handshake with 127.0.0.1:" in sidecar.log.read_text())


def test_new_files_count_for_new_connections_and_wrong_ones_change_nothing(secured: Secured) -> None:
    sidecar = secured.sidecar("*.internal")
    caller = secured.callers.certify("board", "DNS:board.internal")
    first = secured.serial()
    with secured.channel(caller) as channel:
        call = channel.unary_unary(f"/{LOCKS}")
        call(b"", timeout=stranger.LIMIT)
        secured.own.cert.write_text("no certificate")
        # A read beside the write may find another fault first.
        fault = "it has no certificate in PEM"
        eventually("the fault is told", lambda: fault in sidecar.log.read_text())
        assert "cannot be read again" in sidecar.log.read_text()
        assert secured.serial() == first
        renewed = secured.sidecars.certify("sidecar", "DNS:localhost", "IP:127.0.0.2")
        assert renewed.cert == secured.own.cert, "the same files"
        eventually("another certificate", lambda: secured.serial() != first)
        call(b"", timeout=stranger.LIMIT)
        # From now on another authority is the right one.
        secured.callers.ca.write_bytes(secured.others.ca.read_bytes())
        eventually("another authority", lambda: secured.call(caller, LOCKS)[0] == "UNAVAILABLE")
        call(b"", timeout=stranger.LIMIT)


def test_a_certificate_in_the_revocation_list_is_refused(secured: Secured, tmp_path: Path) -> None:
    revoked = tmp_path / "revoked.pem"
    secured.callers.revoke(list_file=revoked)
    sidecar = secured.sidecar("*.internal", further=["--tls-client-crl", str(revoked)])
    board, other = (secured.callers.certify(name, f"DNS:{name}.internal") for name in ("board", "other"))
    assert secured.call(board, LOCKS)[0] == "OK"
    secured.callers.revoke(board, list_file=revoked)
    eventually("it is refused", lambda: secured.call(board, LOCKS)[0] == "UNAVAILABLE")
    assert secured.call(other, LOCKS)[0] == "OK"
    eventually("the log says why", lambda: "Revoked" in sidecar.log.read_text())
    # Nobody knows what an authority has revoked since its list was due.
    secured.callers.revoke(list_file=revoked, ends="20200102000000Z")
    eventually("the list is too old", lambda: secured.call(other, LOCKS)[0] == "UNAVAILABLE")
    # A file without a list changes nothing: the old list stays in force.
    secured.callers.revoke(list_file=revoked)
    eventually("the list is new", lambda: secured.call(other, LOCKS)[0] == "OK")
    revoked.write_text("no list")
    fault = "tls_client_crl: it has no revocation list in PEM"
    eventually("the fault is told", lambda: fault in sidecar.log.read_text())
    assert (secured.call(board, LOCKS)[0], secured.call(other, LOCKS)[0]) == ("UNAVAILABLE", "OK")


def test_without_a_revocation_list_of_its_authority_a_certificate_is_refused(secured: Secured, tmp_path: Path) -> None:
    revoked = tmp_path / "revoked.pem"
    secured.others.revoke(list_file=revoked)
    secured.sidecar("*.internal", further=["--tls-client-crl", str(revoked)])
    board = secured.callers.certify("board", "DNS:board.internal")
    assert secured.call(board, LOCKS)[0] == "UNAVAILABLE"
    secured.callers.revoke(list_file=revoked)
    eventually("it is served", lambda: secured.call(board, LOCKS)[0] == "OK")


def test_se_11_silent_connections_hold_up_no_other_handshake(secured: Secured) -> None:
    sidecar = secured.sidecar("*.internal")
    caller = secured.callers.certify("board", "DNS:board.internal")
    silent = [socket.create_connection(("127.0.0.2", secured.port)) for _ in range(SILENT)]
    assert secured.call(caller, LOCKS)[0] == "OK"
    eventually("the oldest are given up", lambda: "a handshake is given up" in sidecar.log.read_text())
    assert secured.call(caller, LOCKS)[0] == "OK"
    for connection in silent:
        connection.close()


def test_commands_speak_tls(secured: Secured, binary: Path) -> None:
    secured.sidecar("*.internal?role=operate")
    caller = secured.callers.certify("board", "DNS:board.internal")
    files = {"SIDEKEEPER_CA": str(secured.sidecars.ca), "SIDEKEEPER_CERT": str(caller.cert)}
    files["SIDEKEEPER_KEY"] = str(caller.key)

    def command(**environment: str) -> subprocess.CompletedProcess[str]:
        arguments = [str(binary), "lock", "bill", "--endpoint", f"https://127.0.0.2:{secured.port}", "--", "true"]
        inherited = {**os.environ, **environment}
        return subprocess.run(arguments, env=inherited, capture_output=True, text=True, timeout=PATIENCE, check=False)

    ended = command(**files)
    assert ended.returncode == 0, ended.stderr
    ended = command()
    assert ended.returncode == 64
    assert "needs --ca, --cert and --key" in ended.stderr
    ended = command(**{**files, "SIDEKEEPER_CA": str(secured.others.ca)})
    assert ended.returncode != 0
    assert "no sidecar answers at https://127.0.0.2" in ended.stderr
    caller.key.chmod(0o644)
    ended = command(**files)
    assert ended.returncode != 0
    assert "other users may use it" in ended.stderr


def test_se_7_the_log_names_a_certificate_that_expires_soon(secured: Secured) -> None:
    secured.own = secured.sidecars.certify("soon", "IP:127.0.0.2", days=13)
    sidecar = secured.sidecar("*.internal")
    eventually("the warning", lambda: "renew the certificate of TLS" in sidecar.log.read_text())
    [warning] = [line for line in sidecar.log.read_text().splitlines() if "renew the certificate" in line]
    assert str(secured.own.cert) in warning
    assert '"expires":"' in warning
    # A file that is valid for long, and what the sidecar has found in it.
    sidecar.terminate()
    secured.own = secured.sidecars.certify("late", "IP:127.0.0.2", days=15)
    other = secured.fleet.sidecar(2, options=secured.options("*.internal"))
    eventually("it serves", lambda: f":{secured.port}" in other.log.read_text())
    secured.sidecars.certify("late", "IP:127.0.0.2", days=15)
    eventually("it reads again", lambda: "the certificates of TLS have changed" in other.log.read_text())
    assert "renew the certificate" not in other.log.read_text()


def test_op_4_doctor_names_a_certificate_that_expires_until_it_is_renewed(secured: Secured, binary: Path) -> None:
    port = free_port()

    def days() -> list[int]:
        """How long the certificate is valid, according to the metrics."""
        ends = Metrics(port).values("certificate_expiry_timestamp_seconds", use="listener")
        return [round((end - time.time()) / 86400) for end in ends]

    def found() -> tuple[list[str], int]:
        call = [str(binary), "doctor", "--skip", "jobs", "--json", "--endpoint", f"unix://{sidecar.socket}"]
        ended = subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE, check=False)
        checks = [json.loads(line) for line in ended.stdout.splitlines()]
        assert len(checks) > 5, ended.stderr
        return [finding["code"] for check in checks for finding in check["findings"]], ended.returncode

    secured.own = secured.sidecars.certify("soon", "IP:127.0.0.2", days=29)
    sidecar = secured.sidecar("*.internal", further=["--http-listen", str(port)])
    eventually("a session", lambda: "session opened" in sidecar.log.read_text())
    assert found() == (["CERT_EXPIRES"], 0)
    assert days() == [29]
    assert Metrics(port).values("certificate_expiry_timestamp_seconds", use="registry") == []
    secured.sidecars.certify("soon", "IP:127.0.0.2", days=31)
    assert found() == ([], 0)
    eventually("the metrics know it", lambda: days() == [31])


def test_a_key_that_others_can_read_is_refused_at_the_start(secured: Secured, binary: Path) -> None:
    secured.own.key.chmod(0o644)
    ended = subprocess.run(
        [str(binary), "serve", *secured.options("*.internal")],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode != 0
    assert "tls_key" in ended.stderr
    assert "other users may use it" in ended.stderr
