"""A Kerberos realm: its KDC, its principals, and the caches of tickets. The programs are Debian's krb5-kdc, krb5-admin-server, krb5-user."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from support.processes import Process, eventually, free_port

REALM = "TEST"


class Kdc(Process):
    """A KDC. The environment of this process, and so of all that it starts, is for its realm."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.port = free_port()
        self.configuration = folder / "krb5.conf"
        # Names are as they stand: a test needs no DNS.
        self.configuration.write_text(f"""
[libdefaults]
 default_realm = {REALM}
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 forwardable = false
[realms]
 {REALM} = {{
  kdc = 127.0.0.1:{self.port}
 }}
""")
        profile = folder / "kdc.conf"
        profile.write_text(f"""
[kdcdefaults]
 kdc_listen = 127.0.0.1:{self.port}
 kdc_tcp_listen = 127.0.0.1:{self.port}
[realms]
 {REALM} = {{
  database_name = {folder}/principals
  key_stash_file = {folder}/stash
 }}
""")
        os.environ["KRB5_CONFIG"] = str(self.configuration)
        os.environ["KRB5_KDC_PROFILE"] = str(profile)
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        self.start()

    def start(self) -> None:
        """Starts the KDC, also again."""
        super().__init__("kdc", [_program("krb5kdc"), "-n"], self.folder, dict(os.environ), pipe=False)

    def key(self, principal: str) -> Path:
        """Adds a principal; returns the file with its key."""
        keytab = self.folder / f"{principal.replace('/', '-')}.keytab"
        self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
        self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {keytab} {principal}")
        return keytab

    def take_ticket(self, keytab: Path, principal: str, cache: Path, *options: str) -> None:
        """Puts a ticket of a principal into a cache."""
        command = [_program("kinit"), "-c", str(cache), *options, "-k", "-t", str(keytab), principal]
        # The KDC may be starting.
        eventually(f"a ticket of {principal}", lambda: subprocess.run(command, check=False).returncode == 0)

    @staticmethod
    def _run(program: str, *arguments: str) -> None:
        done = subprocess.run([_program(program), *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def _program(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"]))
    assert found, f"no program {name}: run .ci/setup kerberos"
    return found
