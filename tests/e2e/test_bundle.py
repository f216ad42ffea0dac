"""The command `bundle`, and what never leaves a sidecar: secrets, checkpoints, the environment (OP-12)."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.certificates import Authority
from support.fleet import Fleet
from support.job_nodes import EACH_SECOND, JOB, NEVER
from support.processes import PATIENCE, eventually, free_port, sidekeeper_binary
from support.zookeeper import ZooKeeperServer

#: The bundle reads the metrics twice, ten seconds apart.
LIMIT = 3 * PATIENCE


def command(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    call = [str(sidekeeper_binary()), *words]
    environment = {**os.environ, **(environment or {})}
    return subprocess.run(call, capture_output=True, text=True, timeout=LIMIT, check=False, env=environment)


def unpack(path: Path) -> dict[str, str]:
    """The files of a bundle, after a look at its mode and its manifest."""
    assert path.stat().st_mode & 0o777 == 0o600
    files = {}
    with tarfile.open(path) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            files[member.name.removeprefix("sidekeeper-bundle/")] = content.read().decode()
    manifest = json.loads(files["manifest.json"])
    told = {file["name"]: (file["bytes"], file["sha256"]) for file in manifest["files"]}
    others = {name: content.encode() for name, content in files.items() if name != "manifest.json"}
    assert told == {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in others.items()}
    return files


def forms(secret: str) -> Iterator[str]:
    """A text as it is, in base64 at each place of a longer text, and in hex."""
    yield secret
    for before in range(3):
        # The characters at both ends depend on the text around.
        coded = base64.b64encode(b"x" * before + secret.encode()).decode()
        yield coded[4 if before else 0 : -4]
    yield secret.encode().hex()


def found(secret: str, text: str) -> bool:
    """Whether a secret is in a text, also in pieces between escapes and line ends."""
    unescaped = re.sub(r"\\u00([0-9a-f]{2})", lambda code: chr(int(code[1], 16)), text)
    dense = re.sub(r"[\\\s\"']|\\n", "", unescaped)
    return any(form in text or form.upper() in text or form in dense for form in forms(secret))


def test_a_search_finds_a_secret_in_each_form() -> None:
    for leak in ("hunter2hunter2", 'hunter2\\"hunter2', "hunter2\nhunter2", "\\u0068unter2hunter2"):
        assert found("hunter2hunter2", f"so {leak} it is")
    for before in ("", "a", "ab", "abc"):
        assert found("hunter2hunter2", base64.b64encode(f"{before}hunter2hunter2!".encode()).decode())
    assert found("hunter2hunter2", b"ahunter2hunter2".hex().upper())
    assert not found("hunter2hunter2", "hunter2 hunter3")


class Secrets:
    """The canaries, by what they are."""

    def __init__(self) -> None:
        kinds = ("token", "digest", "sasl", "environment", "password", "property", "extra", "checkpoint")
        self.all = {kind: f"canary{kind}{secrets.token_hex(12)}" for kind in kinds}
        kinds = ("parameter", "itemparameter", "description")
        #: A person may see them: `--include-parameters`, and the dump command of ElasticJob.
        self.parameters = {kind: f"canary{kind}{secrets.token_hex(12)}" for kind in kinds}

    def in_text(self, text: str, of: dict[str, str]) -> list[str]:
        return [kind for kind, secret in of.items() if found(secret, text)]


JAAS = """Server {{
    org.apache.zookeeper.server.auth.DigestLoginModule required
    user_me="{}";
}};
"""


@pytest.fixture
def canaries() -> Secrets:
    return Secrets()


@pytest.fixture
def guarded(tmp_path: Path, canaries: Secrets, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """A fleet of one, on a server that knows SASL, with secrets in all places that have some."""
    jaas = tmp_path / "jaas"
    jaas.write_text(JAAS.format(canaries.all["sasl"]))
    settings = {"authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
    server = ZooKeeperServer(tmp_path, [f"-Djava.security.auth.login.config={jaas}"], settings)
    client = server.client()
    fleet = Fleet(tmp_path, server, client, "guarded")
    monkeypatch.setenv("SIDEKEEPER_TOKEN", canaries.all["token"])
    monkeypatch.setenv("SIDEKEEPER_DIGEST", f"orders:{canaries.all['digest']}")
    monkeypatch.setenv("CANARY", canaries.all["environment"])
    monkeypatch.setenv("E2E_CHECKPOINT", canaries.all["checkpoint"])
    try:
        yield fleet
    finally:
        fleet.end()
        client.stop()
        client.close()
        server.kill()


def test_op_12_no_secret_leaves_in_a_bundle_a_log_a_dump_or_an_error(
    guarded: Fleet, canaries: Secrets, tmp_path: Path
) -> None:
    sasl = tmp_path / "sasl"
    sasl.write_text(f"me:{canaries.all['sasl']}")
    sasl.chmod(0o600)
    authority = Authority(tmp_path)
    identity = authority.certify("sidecar", "DNS:localhost", "IP:127.0.0.1")
    # Each line of a key is a secret.
    for number, line in enumerate(identity.key.read_text().splitlines()[1:-1]):
        if len(line) > 40:
            canaries.all[f"key{number}"] = line
    dump, https = free_port(), free_port()
    options = ["--log-level", "trace", "--zookeeper-acl", "open", "--zookeeper-sasl-file", str(sasl)]
    options += ["--dump-listen", str(dump), "--listen", f"https://127.0.0.1:{https}", "--tls-cert", str(identity.cert)]
    options += ["--tls-key", str(identity.key), "--tls-client-ca", str(authority.ca), "--tls-allow", "localhost"]
    sidecar = guarded.sidecar(1, options=options)
    here = ["--endpoint", f"unix://{sidecar.socket}"]
    application = guarded.application(
        sidecar,
        cron=EACH_SECOND,
        sharding_total_count=2,
        job_parameter=canaries.parameters["parameter"],
        sharding_item_parameters=f"0={canaries.parameters['itemparameter']}",
        description=canaries.parameters["description"],
        props={"mail.password": canaries.all["password"], "plain.words": canaries.all["property"]},
    )
    guarded.settle(application, total=2)
    eventually("a checkpoint", lambda: len(application.events("checkpoint")) > 2)
    written = guarded.tree.get("config")
    assert written is not None
    extra = f"jobExtraConfigurations:\n- !!x.Y\n  password: {canaries.all['extra']}\n"
    guarded.tree.set("config", re.sub(r"(?m)^jobExtraConfigurations:.*\n", "", written) + extra)
    # Errors: a wrong configuration, a wrong token, a wrong digest.
    errors = []
    for wrong in (
        ["serve", "--digest", canaries.all["digest"], *here[:0]],
        ["serve", "--token", f"{canaries.all['token']} \x01"],
        ["explain", "nobody", *here],
    ):
        ended = command(*wrong, environment={"SIDEKEEPER_DIGEST": ""} if "--digest" in wrong else None)
        assert ended.returncode != 0, wrong
        errors.append(ended.stderr)
    ended = command("status", *here, environment={"SIDEKEEPER_TOKEN": canaries.all["token"] + "x"})
    assert ended.returncode == 1
    errors.append(ended.stderr)

    ended = command("bundle", "-o", str(tmp_path / "one.tar.gz"), *here)
    assert ended.returncode == 0, ended.stderr
    files = unpack(tmp_path / "one.tar.gz")
    ring = command("logs", "-n", "10000", *here).stdout
    with socket.create_connection(("127.0.0.1", dump), PATIENCE) as connection:
        connection.sendall(f"dump@{JOB}\n".encode())
        dumped = connection.makefile(encoding="utf-8", newline="\n").read()
    log = sidecar.log.read_text()
    assert "zookeeper_client" in log
    assert "shardingTotalCount" in dumped
    assert "listening" in ring

    everything = {**canaries.all, **canaries.parameters}
    for name, text in {**files, "log": log, "ring": ring, "errors": "\n".join(errors), "said": ended.stdout}.items():
        assert canaries.in_text(text, everything) == [], name
    assert [kind for kind in canaries.in_text(dumped, canaries.all) if kind != "property"] == []

    ended = command("bundle", JOB, "-o", str(tmp_path / "two.tar.gz"), "--include-parameters", *here)
    assert ended.returncode == 0, ended.stderr
    files = unpack(tmp_path / "two.tar.gz")
    assert canaries.in_text("".join(files.values()), everything) == list(canaries.parameters)


def test_a_bundle_says_what_it_has_and_hides_names_that_the_map_tells(fleet: Fleet, tmp_path: Path) -> None:
    applications = fleet.three(cron=NEVER)
    fleet.tree.create("sharding/3/disabled")
    here = ["--endpoint", f"unix://{applications[0].sidecar.socket}"]
    file, key = tmp_path / "bundle.tar.gz", tmp_path / "map"
    ended = command("bundle", "-o", str(file), "--map", str(key), *here)
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout.splitlines()
    assert said[0] == "the bundle will have:"
    assert said[-1].startswith(f"written  {file}, ")
    files = unpack(file)
    names = dict(reversed(line.split("\t")) for line in key.read_text().splitlines())
    assert key.stat().st_mode & 0o777 == 0o600
    job = names[JOB]
    announced = {line.split()[0].replace("*", job) for line in said[1:-2]}
    assert announced == set(files)
    everything = "\n".join(files.values())
    for name in (JOB, fleet.namespace, *[one.sidecar.address for one in applications], str(sidekeeper_binary().parent)):
        assert name not in everything
    explained = json.loads(files[f"explain/{job}.json"])
    assert explained["items"][3]["because"][0]["code"] == "ITEM_DISABLED"
    owners = {node["path"]: node.get("data") for node in json.loads(files[f"jobs/{job}.json"])["nodes"]}
    server, unique = applications[0].instance.split("@-@")
    assert f"{names[server]}@-@{names[unique]}" in owners.values()
    log = [json.loads(line) for line in files["log.jsonl"].splitlines()]
    assert job in {line.get("job.name") or line.get("span", {}).get("job.name") for line in log}
    assert "session opened" in {line["message"] for line in log}
    for metrics in ("metrics-1.txt", "metrics-2.txt"):
        assert f'sidekeeper_leader{{job_name="{job}"' in files[metrics] or f'job_name="{job}"' in files[metrics]
    system = json.loads(files["system.json"])
    assert system["kernel"] == os.uname().release
    assert system["boottime_clock"]
    # It is not written over.
    again = command("bundle", "-o", str(file), *here)
    assert (again.returncode, "exists already" in again.stderr) == (64, True)
    refused = command("bundle", "a/b", "-o", str(tmp_path / "none"), *here)
    assert (refused.returncode, (tmp_path / "none").exists()) == (1, False)


def test_op_5_a_bundle_of_zookeeper_needs_no_sidecar_and_changes_nothing(fleet: Fleet, tmp_path: Path) -> None:
    applications = fleet.three(cron=NEVER)

    with fleet.unchanged():
        place = ["--zookeeper", fleet.server.address, "--namespace", fleet.namespace]
        for number, where in enumerate((place, ["--endpoint", f"unix://{applications[1].sidecar.socket}"])):
            ended = command("bundle", "-o", str(tmp_path / f"{number}.tar.gz"), *where)
            assert ended.returncode == 0, ended.stderr
    files = unpack(tmp_path / "0.tar.gz")
    assert sorted(files) == [
        "configuration.json",
        "doctor.json",
        "explain/job1.json",
        "jobs/job1.json",
        "manifest.json",
        "system.json",
    ]
    assert fleet.namespace not in "".join(files.values())
    left_out = {one["what"]: one["why"] for one in json.loads(files["manifest.json"])["left_out"]}
    assert left_out["log.jsonl"] == "no sidecar was asked"
    settings = {one["key"]: one for one in json.loads(files["configuration.json"])}
    assert settings["zookeeper"]["values"] == [f"ip1:{fleet.server.port}"]
