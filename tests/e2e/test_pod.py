"""The command `doctor --pod`: the documented pod suits a sidecar, and each fault of a manifest is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.doctor import codes, doctor, findings, outcomes
from support.processes import ROOT


def documented() -> dict[str, Any]:
    """The pod of the documentation, as a program that reads YAML has it."""
    page = (ROOT / "docs/deployment.md").read_text()
    _, _, section = page.partition("\n## Kubernetes\n")
    text = section.split("```yaml\n")[1].split("```")[0]
    return {"apiVersion": "v1", "kind": "Pod", **yaml.safe_load(text)}


@pytest.fixture
def written(tmp_path: Path) -> Callable[[object], str]:
    """Writes a manifest, and returns its file."""

    def write(manifest: object) -> str:
        file = tmp_path / "pod.json"
        file.write_text(json.dumps(manifest))
        return str(file)

    return write


def test_the_documented_pod_suits_a_sidecar_alone_and_in_a_template(written: Callable[[object], str]) -> None:
    pod = documented()
    deployment = {"kind": "Deployment", "spec": {"replicas": 2, "template": {"spec": pod["spec"]}}}
    for manifest in (pod, deployment):
        file = written(manifest)
        assert codes("--pod", file, "--strict") == ([], 0)
        assert outcomes("--pod", file) == dict.fromkeys(("native", "drain", "grace", "state"), "OK")
    shown = doctor("--pod", "-", stdin=json.dumps(pod)).stdout.splitlines()
    assert (shown[0], len(shown)) == ("kubernetes", 6)
    assert shown[-1] == "the checks above: 4 ok, 0 skipped, 0 with warnings, 0 with errors"


@pytest.mark.parametrize(
    ("code", "status", "fault"),
    [
        ("POD_NOT_NATIVE", 0, lambda spec: spec["containers"].append(spec["initContainers"].pop())),
        ("POD_NO_DRAIN", 0, lambda spec: spec["initContainers"][0].pop("lifecycle")),
        ("POD_GRACE_SHORT", 2, lambda spec: spec.pop("terminationGracePeriodSeconds")),
        ("POD_STATE_LOST", 0, lambda spec: spec["initContainers"][0]["volumeMounts"].pop()),
        (
            "POD_STATE_SHARED",
            2,
            lambda spec: spec["containers"][0]["volumeMounts"].append(spec["initContainers"][0]["volumeMounts"][1]),
        ),
    ],
)
def test_op_4_each_fault_of_a_pod_is_named(
    written: Callable[[object], str], code: str, status: int, fault: Callable[[dict[str, Any]], object]
) -> None:
    manifest = deepcopy(documented())
    fault(manifest["spec"])
    file = written(manifest)
    assert codes("--pod", file) == ([code], status)
    assert codes("--pod", file, "--strict") == ([code], 2)
    assert not any(finding["message"].endswith("...") for finding in findings("--pod", file))


def test_a_file_that_has_no_pod_is_refused_with_its_name(written: Callable[[object], str], tmp_path: Path) -> None:
    no_json = tmp_path / "pod.yaml"
    no_json.write_text("kind: Pod\n")
    for file, reason in [
        (str(tmp_path / "absent.json"), "No such file"),
        (str(no_json), "it is no JSON"),
        (written({"kind": "Service", "spec": {"ports": []}}), "it is neither a pod nor"),
    ]:
        ended = doctor("--pod", file)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert f"{file}: {reason}" in ended.stderr
    assert doctor("--pod", str(no_json), "--skip", "jobs").returncode == 64
