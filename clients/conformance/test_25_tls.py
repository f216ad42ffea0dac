from __future__ import annotations

from pathlib import Path

import pytest

from driver import JOB, Application, Sidecar, World, eventually, quiet
from support.certificates import Authority, Identity
from support.processes import free_port

pytestmark = pytest.mark.complete

CALLER = "spiffe://prod/billing"


class Secured:
    """A sidecar with TLS, and an application with a certificate."""

    def __init__(self, world: World):
        self.world = world
        #: It signs the certificates of callers, and another one that of the sidecar.
        self.callers, self.sidecars = (self.authority(name) for name in ("callers", "sidecars"))
        self.port = free_port()
        self.endpoint = f"https://127.0.0.1:{self.port}"
        self.client_ca = self.folder("settings") / "client-ca.pem"
        self.client_ca.write_bytes(self.callers.ca.read_bytes())

    def folder(self, name: str) -> Path:
        folder = self.world.folder / name
        folder.mkdir(exist_ok=True)
        return folder

    def authority(self, name: str) -> Authority:
        return Authority(self.folder(name))

    def sidecar(self, *further: str) -> Sidecar:
        own = self.sidecars.certify("sidecar", "IP:127.0.0.1")
        options = ["--tls-cert", str(own.cert), "--tls-key", str(own.key), "--tls-client-ca", str(self.client_ca)]
        listen = ["--listen", self.endpoint, "--tls-allow", f"{CALLER}?role=operate"]
        return self.world.sidecar(options=[*listen, *options, *further]).ready()

    def application(self, identity: Identity, ca: Path | None = None, endpoint: str = "") -> Application:
        return self.world.application(
            endpoint or self.endpoint,
            SIDEKEEPER_CA=str(ca or self.sidecars.ca),
            SIDEKEEPER_CERT=str(identity.cert),
            SIDEKEEPER_KEY=str(identity.key),
        )


@pytest.fixture
def secured(world: World) -> Secured:
    return Secured(world)


def test_an_application_with_a_certificate_does_everything(secured: Secured) -> None:
    secured.sidecar()
    application = secured.application(secured.callers.certify("billing", f"URI:{CALLER}")).run()
    application.attached([0, 1])
    application.trigger()
    eventually("both have ended", lambda: len(application.all("ended", outcome="success")) == 2)
    application.lock("bill")
    application.told("lock_held", lock="bill")
    application.stop()
    assert application.exit_status() == 0


def test_a_new_certificate_needs_no_restart(secured: Secured) -> None:
    sidecar = secured.sidecar()
    identity = secured.callers.certify("billing", f"URI:{CALLER}")
    application = secured.application(identity).run()
    application.attached([0, 1])
    told = len(application.all("assigned"))
    # From now on only certificates of another authority are good.
    other = secured.authority("others")
    secured.client_ca.write_bytes(other.ca.read_bytes())
    renewed = other.certify("billing", f"URI:{CALLER}")
    for old, new in ((identity.cert, renewed.cert), (identity.key, renewed.key)):
        old.write_bytes(new.read_bytes())
    sidecar.kill()
    secured.sidecar()
    application.told("assigned", after=told)
    application.trigger()
    eventually("both have ended", lambda: len(application.all("ended", outcome="success")) == 2)


def test_a_certificate_without_a_right_is_refused_for_good(secured: Secured) -> None:
    secured.sidecar()
    application = secured.application(secured.callers.certify("other", "URI:spiffe://prod/other")).run()
    refused = application.told("refused")
    assert (refused["job"], refused["code"]) == (JOB, "UNAUTHENTICATED")
    assert "spiffe://prod/other" in refused["message"]


@pytest.mark.parametrize("what", ["authority", "name"])
def test_a_sidecar_whose_certificate_is_wrong_gets_nothing(secured: Secured, what: str) -> None:
    sidecar = secured.sidecar()
    identity = secured.callers.certify("billing", f"URI:{CALLER}")
    if what == "authority":
        application = secured.application(identity, ca=secured.callers.ca)
    else:
        application = secured.application(identity, endpoint=f"https://localhost:{secured.port}")
    application.run()
    eventually("it says so", lambda: "no sidecar answers" in application.log.read_text())
    quiet("it attaches", lambda: sidecar.instances(), seconds=0.5)
