"""The services for locks and elections of ``sidekeeper.testing``, as the client calls them."""

from __future__ import annotations

from sidekeeper._proto.v1 import election_service_pb2, lock_service_pb2
from sidekeeper.fake_call import FakeCall
from sidekeeper.fake_elections import FakeElections
from sidekeeper.fake_locks import FakeLocks

__all__ = ["FakeServices"]


class FakeServices:
    """All locks and elections of a sidecar in memory, and its connections."""

    def __init__(self) -> None:
        self.locks = FakeLocks()
        self.elections = FakeElections()
        self.blocking_stub = FakeStub(self)
        self.loop_stub = FakeLoopStub(self)

    def close(self) -> None:
        """Ends all calls, as a sidecar does that stops."""
        self.locks.close()
        self.elections.close()


class _FakeStreams:
    """The calls whose answer is a stream. They are the same on threads and on loops."""

    def __init__(self, services: FakeServices) -> None:
        self._services = services

    def Hold(self, request: lock_service_pb2.HoldRequest) -> FakeCall:  # noqa: N802 - the service's names
        """Asks for a lock."""
        return self._services.locks.Hold(request)

    def Campaign(self, request: election_service_pb2.CampaignRequest) -> FakeCall:  # noqa: N802
        """Stands for election."""
        return self._services.elections.Campaign(request)

    def Observe(self, request: election_service_pb2.ObserveRequest) -> FakeCall:  # noqa: N802
        """Sends the leaders of an election."""
        return self._services.elections.Observe(request)


class FakeStub(_FakeStreams):
    """The services as the client calls them on threads."""

    def Release(  # noqa: N802
        self, request: lock_service_pb2.ReleaseRequest, timeout: float
    ) -> lock_service_pb2.ReleaseResponse:
        """Gives a lock back."""
        return self._services.locks.Release(request)

    def Resign(  # noqa: N802
        self, request: election_service_pb2.ResignRequest, timeout: float
    ) -> election_service_pb2.ResignResponse:
        """Ends a campaign."""
        return self._services.elections.Resign(request)


class FakeLoopStub(_FakeStreams):
    """The services as the client calls them on loops."""

    async def Release(  # noqa: N802
        self, request: lock_service_pb2.ReleaseRequest, timeout: float
    ) -> lock_service_pb2.ReleaseResponse:
        """Gives a lock back."""
        return self._services.locks.Release(request)

    async def Resign(  # noqa: N802
        self, request: election_service_pb2.ResignRequest, timeout: float
    ) -> election_service_pb2.ResignResponse:
        """Ends a campaign."""
        return self._services.elections.Resign(request)
