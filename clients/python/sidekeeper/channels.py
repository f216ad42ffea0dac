"""An application's channels to its sidecar: one, unless the sidecar moves, or the files of certificates change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidekeeper._proto.v1.participant_service_pb2_grpc import ParticipantServiceStub
from sidekeeper.channel import authorized, open_channel
from sidekeeper.tls import file_versions
from sidekeeper.trust import located

if TYPE_CHECKING:
    import grpc.aio

    from sidekeeper._proto.v1.participant_service_pb2_grpc import ParticipantServiceAsyncStub

__all__ = ["Channels"]


class Channels:
    """The channels by their endpoints and the versions of their files, each opened when it is first needed.

    Args:
        endpoint: The sidecar's endpoint. None: it is found at each use.
        token: The sidecar's token. Empty: there is none.
    """

    def __init__(self, endpoint: str | None, token: str) -> None:
        self._endpoint = endpoint
        self._token = token
        self._all: dict[Any, tuple[grpc.aio.Channel, ParticipantServiceAsyncStub]] = {}

    def stub(self) -> ParticipantServiceAsyncStub:
        """Returns the service of the sidecar. A channel connects when it is used.

        Raises:
            UntrustedError: Another user is in the sidecar's place.
            CredentialsError: A file of certificates cannot be read.
        """
        endpoint = located(self._endpoint, self._token)
        key = endpoint, file_versions(endpoint)
        if key not in self._all:
            channel = open_channel(endpoint)
            self._all[key] = channel, authorized(ParticipantServiceStub(channel), self._token)
        return self._all[key][1]

    async def close(self) -> None:
        """Closes all of them."""
        for channel, _ in self._all.values():
            await channel.close()
