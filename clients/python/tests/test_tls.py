from __future__ import annotations

from pathlib import Path

import grpc
import pytest

import sidekeeper
from sidekeeper.channel import open_blocking_channel
from sidekeeper.tls import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE, CredentialsError, file_versions

ENDPOINT = "https://sidecar.internal:7443"


def test_an_endpoint_with_tls_needs_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(CERT_VARIABLE, "cert.pem")
    with pytest.raises(ValueError, match=f"needs files in the environment: {CA_VARIABLE}, {KEY_VARIABLE}$"):
        sidekeeper.Application(ENDPOINT)


def test_a_file_that_cannot_be_read_is_a_sidecar_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in (CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    with pytest.raises(CredentialsError) as failed:
        open_blocking_channel(ENDPOINT)
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert CA_VARIABLE in failed.value.details()
    before = file_versions(ENDPOINT)
    (tmp_path / KEY_VARIABLE).write_text("key")
    assert file_versions(ENDPOINT) != before
    assert file_versions("http://127.0.0.1:7070") == ()
