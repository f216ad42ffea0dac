"""One job of Java instances and ours on an ensemble that asks who they are, and that encrypts."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from interop.members import LEADERS, MixedFleet, jars
from support.certificates import Authority
from support.fleet import ending
from support.job_nodes import JOB
from support.processes import PATIENCE, eventually, free_port, sidekeeper_binary
from support.zookeeper import ZooKeeperServer

SUPER = "super:secret"
JAAS = """
Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_me="secret"; };
Client { org.apache.zookeeper.server.auth.DigestLoginModule required username="me" password="secret"; };
"""


def digest_of(text: str) -> str:
    user = text.split(":")[0]
    return f"{user}:{base64.b64encode(hashlib.sha1(text.encode()).digest()).decode()}"


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
            f"-Dzookeeper.DigestAuthenticationProvider.superDigest={digest_of(SUPER)}",
        ]
        super().__init__(folder, java, settings)


@dataclass
class Access:
    """How the members of a fleet show themselves."""

    #: The entries of the access list that a Java instance gives its nodes.
    acl: set[str]
    tls: bool = False
    java_settings: dict[str, str] = field(default_factory=dict)
    java_options: list[str] = field(default_factory=list)
    sidecar_options: list[str] = field(default_factory=list)


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
    client = server.client([("digest", SUPER)])
    if "tls" in request.param and not list(jars().glob("netty-handler-*.jar")):
        pytest.skip("this ElasticJob has no Netty, without which ZooKeeper's client has no TLS")
    folder = Path(tempfile.mkdtemp(prefix="sk-"))
    wanted = access(request.param, server, folder)
    server.address = f"127.0.0.1:{server.secure_port if wanted.tls else server.port}"
    namespace = f"secure-{request.node.name.split('[')[1].rstrip(']')}"
    fleet = MixedFleet(folder, server, client, namespace)
    # The first handshake of a JVM takes seconds.
    fleet.java_settings = {"max_sleep": 5_000, **wanted.java_settings}
    fleet.java_options = wanted.java_options
    fleet.sidecar_options = wanted.sidecar_options
    with ending(fleet, request.node, has_failed):
        yield fleet, wanted
    client.stop()
    client.close()


@pytest.mark.parametrize("leader", LEADERS)
def test_se_9_attach_reshard_fail_over_and_trigger(secure: tuple[MixedFleet, Access], leader: str) -> None:
    fleet, wanted = secure
    java, ours = fleet.pair(leader, failover=True)
    fleet.assert_once(fleet.fire())
    assert owners_of_nodes(fleet) == {frozenset(wanted.acl)}
    # Another instance of ours joins.
    third = fleet.ours(2, failover=True)
    fleet.divide(java, ours, third)
    fleet.fire()
    # A trigger through the sidecar: each instance executes its items once.
    before = len(fleet.executions())
    command = [str(sidekeeper_binary()), "trigger", JOB, "--endpoint", f"unix://{ours.sidecar.socket}"]
    subprocess.run(command, check=True, timeout=PATIENCE)
    eventually("the trigger", lambda: len([one for one in fleet.executions() if one.outcome == "end"]) >= before + 4)
    # The Java instance dies, and then one of ours: the others execute what these were executing.
    for dying in (java, third):
        items = fleet.items_of(dying)
        dying.command("hold")
        fire = fleet.start_fire()
        fleet.wait_running(dying, items)
        dying.die()
        eventually("taken over", lambda fire=fire: fleet.executed(fire) == {0, 1, 2, 3})  # type: ignore[misc]
        fleet.gone(dying)
        if dying is java:
            fleet.divide(ours, third)
    assert owners_of_nodes(fleet) == {frozenset(wanted.acl)}


def owners_of_nodes(fleet: MixedFleet) -> set[frozenset[str]]:
    """The access lists of all nodes of the job, and of ours beside the namespace."""
    client, found = fleet.tree.client, set()

    def walk(path: str) -> None:
        acls, _ = client.get_acls(path)
        found.add(frozenset(_owner(acl.id.scheme, acl.id.id) for acl in acls if acl.perms == 31))
        for child in client.get_children(path):
            walk(f"{path}/{child}")

    walk(fleet.tree.root)
    walk(f"{fleet.tree.namespace}-sidekeeper")
    return found


def _owner(scheme: str, identity: str) -> str:
    return identity if scheme == "digest" else f"{scheme}:{identity}"
