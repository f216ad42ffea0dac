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

    @staticmethod
    def _openssl(*arguments: object) -> None:
        made = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr


def _new_key(key: Path, days: int = 365) -> list[object]:
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    return ["req", *curve, "-keyout", key, "-days", days]
