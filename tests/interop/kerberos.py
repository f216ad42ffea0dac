"""One job of Java instances and ours on a server that asks for tickets of Kerberos (`make kerberos`): for sidecars with this feature."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from interop.members import LEADERS, MixedFleet
from interop.secured import Access, attach_reshard_fail_over_and_trigger, fleet_on, super_user
from support.kdc import REALM, Kdc
from support.processes import PATIENCE, eventually
from support.request_proxy import RequestProxy
from support.zookeeper import ZooKeeperServer

LOGIN = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true"

#: How long a sidecar waits after it was refused.
REFUSED = 30.0


@dataclass
class Realm:
    """A realm, a server in it, and the one user."""

    kdc: Kdc
    server: ZooKeeperServer
    key: Path
    #: Options of JVMs that log in with the key.
    java: list[str]

    def take_ticket(self, *options: str) -> None:
        self.kdc.take_ticket(self.key, "me", self.cache, *options)

    @property
    def cache(self) -> Path:
        """Where sidecars look for tickets."""
        return Path(os.environ["KRB5CCNAME"])


@pytest.fixture(scope="module")
def realm() -> Iterator[Realm]:
    with tempfile.TemporaryDirectory(prefix="sk-kdc-") as name:
        folder = Path(name)
        kdc = Kdc(folder)
        service, key = kdc.key("zookeeper/localhost"), kdc.key("me")
        jaas = folder / "jaas"
        jaas.write_text(
            f'Server {{ {LOGIN} keyTab="{service}" principal="zookeeper/localhost@{REALM}"; }};\n'
            f'Client {{ {LOGIN} keyTab="{key}" principal="me@{REALM}"; }};\n'
        )
        java = [
            f"-Djava.security.krb5.conf={kdc.configuration}",
            f"-Djava.security.auth.login.config={jaas}",
            "-Dzookeeper.sasl.client.canonicalize.hostname=false",
        ]
        settings = {"authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
        server = ZooKeeperServer(folder, [*java, super_user()], settings)
        yield Realm(kdc, server, key, java)
        server.kill()
        kdc.kill()


@pytest.fixture
def tickets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache for this test."""
    monkeypatch.setenv("KRB5CCNAME", str(tmp_path / "tickets"))


@pytest.fixture(params=["by-name", "shared-service"])
def fleet(
    request: pytest.FixtureRequest, realm: Realm, tickets: None, binary: Path, has_failed: Callable[[], bool]
) -> Iterator[tuple[MixedFleet, Access]]:
    """A fleet that names the server as its service does, and one that says for which service tickets are."""
    if request.param == "by-name":
        realm.server.address, service = f"localhost:{realm.server.port}", "zookeeper"
    else:
        realm.server.address, service = f"127.0.0.1:{realm.server.port}", "zookeeper/localhost"
    ours = ["--zookeeper-kerberos", service, "--zookeeper-acl", "open"]
    # Java gives its nodes an owner only for a digest.
    java = [*realm.java, f"-Dzookeeper.server.principal=zookeeper/localhost@{REALM}"]
    wanted = Access({"world:anyone"}, java_options=java, sidecar_options=ours)
    with fleet_on(realm.server, wanted, Path(tempfile.mkdtemp(prefix="sk-")), request.node, has_failed) as fleet:
        yield fleet, wanted


@pytest.mark.parametrize("leader", LEADERS)
def test_se_9_attach_reshard_fail_over_and_trigger(realm: Realm, fleet: tuple[MixedFleet, Access], leader: str) -> None:
    realm.take_ticket()
    attach_reshard_fail_over_and_trigger(*fleet, leader)


@pytest.mark.parametrize("fleet", ["by-name"], indirect=True)
def test_nodes_belong_to_the_user_of_the_ticket(realm: Realm, fleet: tuple[MixedFleet, Access]) -> None:
    realm.take_ticket()
    mixed, wanted = fleet
    mixed.sidecar_options = wanted.sidecar_options[:2]
    ours = mixed.ours(1)
    acls, _ = mixed.tree.client.get_acls(f"{mixed.tree.root}/instances/{ours.instance}")
    assert [(acl.id.scheme, acl.id.id) for acl in acls] == [("sasl", f"me@{REALM}")]


@pytest.mark.parametrize("fleet", ["by-name"], indirect=True)
def test_se_5_a_killed_sidecar_resumes_its_session_with_a_ticket(
    realm: Realm, fleet: tuple[MixedFleet, Access]
) -> None:
    realm.take_ticket()
    mixed, wanted = fleet
    mixed.sidecar_options = [*wanted.sidecar_options, "--state-dir", str(mixed.folder / "state")]
    ours = mixed.ours(1, session=10.0, props={"sidekeeper.grace": "8s"})
    state = mixed.folder / "state" / "session.json"
    eventually("the session is kept", state.is_file)
    kept = state.read_text()
    ours.sidecar.kill()
    again = mixed.sidecar(1, "10s", mixed.sidecar_options)
    eventually("it resumes the session", lambda: "resum" in again.log.read_text())
    assert state.read_text() == kept, "it opened another session"


@pytest.mark.parametrize("fleet", ["by-name"], indirect=True)
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (None, "Kerberos gives no ticket for `zookeeper@localhost`: "),
        (["-f"], "the user's ticket is forwardable"),
    ],
    ids=["no ticket", "a ticket that could be forwarded"],
)
def test_se_10_without_a_right_ticket_the_sidecar_says_so_and_goes_on_with_one(
    realm: Realm, fleet: tuple[MixedFleet, Access], options: list[str] | None, reason: str
) -> None:
    mixed, wanted = fleet
    if options is not None:
        realm.take_ticket(*options)
    before = realm.server.packets_received()
    sidecar = mixed.sidecar(1, "3s", wanted.sidecar_options)
    eventually("the reason is in the log", lambda: reason in sidecar.log.read_text())
    assert realm.server.packets_received() - before < 50, "the server is asked again and again"
    realm.take_ticket()
    eventually("a session", lambda: "session with the registry" in sidecar.log.read_text(), REFUSED + PATIENCE)
    mixed.application(sidecar)


@pytest.mark.parametrize("fleet", ["by-name"], indirect=True)
def test_a_service_that_the_realm_does_not_have_is_named(realm: Realm, fleet: tuple[MixedFleet, Access]) -> None:
    realm.take_ticket()
    mixed, _ = fleet
    sidecar = mixed.sidecar(1, "3s", ["--zookeeper-kerberos", "zoo"])
    eventually("the service is in the log", lambda: "no ticket for `zoo@localhost`" in sidecar.log.read_text())


@pytest.mark.parametrize("fleet", ["by-name"], indirect=True)
def test_while_the_kdc_is_down_a_sidecar_connects_again_with_the_ticket_that_it_has(
    realm: Realm, fleet: tuple[MixedFleet, Access]
) -> None:
    realm.take_ticket()
    mixed, _ = fleet
    proxy = RequestProxy(realm.server.port)
    realm.server.address = f"localhost:{proxy.address.split(':')[1]}"
    mixed.ours(1, session=6.0)
    mixed.assert_once(mixed.fire())
    realm.kdc.kill()
    try:
        proxy.cut()
        fire = mixed.start_fire()
        eventually("each item", lambda: mixed.executed(fire) == {0, 1, 2, 3})
        mixed.assert_once(fire)
    finally:
        realm.kdc.start()
        proxy.end()
