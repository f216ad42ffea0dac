from __future__ import annotations

import pytest

import sidekeeper
from sidekeeper.channel import resolve_token
from tests.sidecar import FakeSidecar, serving, soon


def application(target: str, **settings: str) -> sidekeeper.Application:
    app = sidekeeper.Application(target, **settings)  # type: ignore[arg-type]

    @app.job("orderSync", sharding_total_count=6)
    async def handler(_: sidekeeper.Execution) -> None: ...

    return app


async def test_the_library_says_its_level_and_refuses_older_sidecars(sidecar: FakeSidecar) -> None:
    async with serving(application(sidecar.target)) as running:
        stream = await sidecar.request()
        assert (stream.request.api_level, stream.request.sidecar_api_level_min) == (2, 1)
        stream.attach(api_level=0)
        with pytest.raises(sidekeeper.AttachError, match="upgrade the sidecar") as raised:
            await soon(running)
        assert raised.value.code == "FAILED_PRECONDITION"
        assert "API level 0" in raised.value.details


@pytest.mark.parametrize("given", [True, False])
async def test_the_token_is_on_each_call(sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch, given: bool) -> None:
    monkeypatch.setenv("SIDEKEEPER_TOKEN", "of the environment".replace(" ", "-") if given else "open-sesame")
    app = application(sidecar.target, **({"token": "open-sesame"} if given else {}))
    async with serving(app):
        stream = await sidecar.stream()
        stream.execute(0)
        await sidecar.result()
        await sidecar.acknowledgement()
    assert {"Attach", "ReportCompletion", "AcknowledgeAssignment"} <= sidecar.tokens.keys()
    assert set(sidecar.tokens.values()) == {"Bearer open-sesame"}
    await sidekeeper.trigger_async("orderSync", endpoint=sidecar.target, token="other")
    assert sidecar.tokens["TriggerJob"] == "Bearer other"


async def test_without_one_there_is_none(sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIDEKEEPER_TOKEN", raising=False)
    async with serving(application(sidecar.target)):
        await sidecar.stream()
    assert set(sidecar.tokens.values()) == {None}


def test_a_token_that_no_header_can_have_is_refused_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("two words", "line\nbreak", "ключ"):
        with pytest.raises(ValueError, match="token") as raised:
            sidekeeper.Application(token=wrong)
        assert wrong not in str(raised.value)
    monkeypatch.setenv("SIDEKEEPER_TOKEN", "two words")
    with pytest.raises(ValueError, match="SIDEKEEPER_TOKEN"):
        resolve_token(None)
