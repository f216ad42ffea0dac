from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest_asyncio

# Starting a process on Python 3.9 forks, and gRPC's handlers for that can stop its pollers; read when it is loaded.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

from tests.sidecar import FakeSidecar


@pytest_asyncio.fixture
async def sidecar() -> AsyncIterator[FakeSidecar]:
    fake = FakeSidecar()
    await fake.start()
    yield fake
    await fake.stop()
