"""Certificates for servers and clients, made by openssl(1)."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, in PEM files."""

    cert: Path
    key: Path
    #: Key and certificate in one file, as ZooKeeper's servers and clients take them.
    both: Path


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path):
        self.folder = folder
        #: Its certificate, in PEM.
        self.ca = folder / "ca.pem"
        self._key = folder / "ca.key"
        usage = "keyUsage=critical,keyCertSign,cRLSign"
        self._openssl(*_new_key(self._key), "-x509", "-out", self.ca, "-subj", "/CN=authority", "-addext", usage)

    def certify(self, subject: str, *names: str, days: int = 365) -> Identity:
        """A certificate for these names, as `DNS:localhost` or `IP:127.0.0.1`, and for so many days."""
        cert, key, both = (self.folder / f"{subject}.{end}" for end in ("crt", "key", "pem"))
        command = [
            *_new_key(key, days),
            "-x509",
            "-CA",
            self.ca,
            "-CAkey",
            self._key,
            "-out",
            cert,
            "-subj",
            f"/CN={subject}",
        ]
        command += ["-addext", "basicConstraints=critical,CA:FALSE"]
        if names:
            command += ["-addext", f"subjectAltName={','.join(names)}"]
        self._openssl(*command)
        key.chmod(0o600)
        both.write_text(key.read_text() + cert.read_text())
        both.chmod(0o600)
        return Identity(cert, key, both)

    def revoke(self, *revoked: Identity, list_file: Path, ends: str = "") -> None:
        """Writes a revocation list with these certificates, and with those of earlier calls.

        `ends` is when the next list is due, as `YYYYMMDDHHMMSSZ`; otherwise that is tomorrow.
        """
        settings, known, number = (self.folder / name for name in ("ca.conf", "known.txt", "number.txt"))
        if not settings.exists():
            known.touch()
            number.write_text("01\n")
            settings.write_text(
                f"[ca]\ndefault_ca=all\n[all]\ndatabase={known}\ncrlnumber={number}\ndefault_md=sha256\n"
                "crl_extensions=extensions\n[extensions]\nauthorityKeyIdentifier=keyid\n"
            )
        command = ["ca", "-config", settings, "-cert", self.ca, "-keyfile", self._key]
        for identity in revoked:
            self._openssl(*command, "-revoke", identity.cert)
        due = ["-crl_lastupdate", "20200101000000Z", "-crl_nextupdate", ends] if ends else ["-crldays", "1"]
        written = list_file.with_suffix(".new")
        self._openssl(*command, "-gencrl", *due, "-out", written)
        written.rename(list_file)

    @staticmethod
    def _openssl(*arguments: object) -> None:
        made = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr


def _new_key(key: Path, days: int = 365) -> list[object]:
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    return ["req", *curve, "-keyout", key, "-days", days]
