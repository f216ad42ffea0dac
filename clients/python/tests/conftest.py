from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.sidecar import FakeSidecar


@pytest_asyncio.fixture
async def sidecar() -> AsyncIterator[FakeSidecar]:
    fake = FakeSidecar()
    await fake.start()
    yield fake
    await fake.stop()
