"""An application's channels to its sidecar: one, unless the sidecar is to be found and moves to another place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidekeeper._proto.v1.participant_service_pb2_grpc import ParticipantServiceStub
from sidekeeper.channel import authorized, open_channel
from sidekeeper.trust import located

if TYPE_CHECKING:
    import grpc.aio

    from sidekeeper._proto.v1.participant_service_pb2_grpc import ParticipantServiceAsyncStub

__all__ = ["Channels"]


class Channels:
    """The channels by their endpoints, each opened when it is first needed.

    Args:
        endpoint: The sidecar's endpoint. None: it is found at each use.
        token: The sidecar's token. Empty: there is none.
    """

    def __init__(self, endpoint: str | None, token: str) -> None:
        self._endpoint = endpoint
        self._token = token
        self._all: dict[str, tuple[grpc.aio.Channel, ParticipantServiceAsyncStub]] = {}

    def stub(self) -> ParticipantServiceAsyncStub:
        """Returns the service of the sidecar. A channel connects when it is used.

        Raises:
            UntrustedError: Another user is in the sidecar's place.
        """
        endpoint = located(self._endpoint, self._token)
        if endpoint not in self._all:
            channel = open_channel(endpoint)
            self._all[endpoint] = channel, authorized(ParticipantServiceStub(channel), self._token)
        return self._all[endpoint][1]

    async def close(self) -> None:
        """Closes all of them."""
        for channel, _ in self._all.values():
            await channel.close()
