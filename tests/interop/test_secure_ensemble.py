"""One job of Java instances and ours on an ensemble that asks who they are, and that encrypts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop.members import LEADERS, MixedFleet, jars
from interop.secured import Access, attach_reshard_fail_over_and_trigger, digest_of, fleet_on, super_user
from support.certificates import Authority
from support.processes import free_port
from support.zookeeper import ZooKeeperServer

JAAS = """
Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_me="secret"; };
Client { org.apache.zookeeper.server.auth.DigestLoginModule required username="me" password="secret"; };
"""


class SecureServer(ZooKeeperServer):
    """A server with a port for TLS beside the other one, that knows users by digest, SASL and certificate."""

    def __init__(self, folder: Path):
        self.authority = Authority(folder)
        # Clients in Java look up the name of an address.
        server = self.authority.certify("server", "IP:127.0.0.1", "DNS:localhost")
        self.jaas = folder / "jaas"
        self.jaas.write_text(JAAS)
        self.secure_port = free_port()
        settings = {
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPort": self.secure_port,
            "secureClientPortAddress": "127.0.0.1",
            "ssl.keyStore.location": server.both,
            "ssl.trustStore.location": self.authority.ca,
            "ssl.clientAuth": "want",
            "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        }
        java = [
            f"-Djava.security.auth.login.config={self.jaas}",
            super_user(),
        ]
        super().__init__(folder, java, settings)


def access(kind: str, server: SecureServer, folder: Path) -> Access:
    """The settings of both sides for one kind of access."""
    password = folder / "password"
    password.write_text("me:secret\n")
    password.chmod(0o600)
    tls_java = [
        "-Dzookeeper.client.secure=true",
        "-Dzookeeper.clientCnxnSocket=org.apache.zookeeper.ClientCnxnSocketNetty",
        f"-Dzookeeper.ssl.trustStore.location={server.authority.ca}",
    ]
    tls_ours = ["--zookeeper-ca", str(server.authority.ca)]
    digest_ours = ["--digest-file", str(password)]
    digest_java = {"digest": "me:secret"}
    if kind == "none":
        return Access({"world:anyone"})
    if kind == "digest":
        return Access({digest_of("me:secret")}, False, digest_java, [], digest_ours)
    if kind == "tls":
        return Access({"world:anyone"}, True, {}, tls_java, tls_ours)
    if kind == "tls+digest":
        return Access({digest_of("me:secret")}, True, digest_java, tls_java, [*tls_ours, *digest_ours])
    if kind == "tls+certificate":
        client = server.authority.certify("client")
        java = [*tls_java, f"-Dzookeeper.ssl.keyStore.location={client.both}"]
        ours = [*tls_ours, "--zookeeper-cert", str(client.cert), "--zookeeper-key", str(client.key)]
        return Access({"world:anyone"}, True, {}, java, ours)
    assert kind == "sasl"
    # Java gives its nodes an owner only for a digest.
    java = [f"-Djava.security.auth.login.config={server.jaas}", "-Dzookeeper.fips-mode=false"]
    return Access(
        {"world:anyone"}, False, {}, java, ["--zookeeper-sasl-file", str(password), "--zookeeper-acl", "open"]
    )


@pytest.fixture(scope="module")
def server() -> Iterator[SecureServer]:
    with tempfile.TemporaryDirectory(prefix="sk-zk-") as folder:
        server = SecureServer(Path(folder))
        yield server
        server.kill()


@pytest.fixture(params=["none", "digest", "tls", "tls+digest", "tls+certificate", "sasl"])
def secure(
    request: pytest.FixtureRequest, server: SecureServer, binary: Path, has_failed: Callable[[], bool]
) -> Iterator[tuple[MixedFleet, Access]]:
    """A fleet on that server, and how its members show themselves."""
    if "tls" in request.param and not list(jars().glob("netty-handler-*.jar")):
        pytest.skip("this ElasticJob has no Netty, without which ZooKeeper's client has no TLS")
    folder = Path(tempfile.mkdtemp(prefix="sk-"))
    wanted = access(request.param, server, folder)
    server.address = f"127.0.0.1:{server.secure_port if wanted.tls else server.port}"
    with fleet_on(server, wanted, folder, request.node, has_failed) as fleet:
        yield fleet, wanted


@pytest.mark.parametrize("leader", LEADERS)
def test_se_9_attach_reshard_fail_over_and_trigger(secure: tuple[MixedFleet, Access], leader: str) -> None:
    attach_reshard_fail_over_and_trigger(*secure, leader)
