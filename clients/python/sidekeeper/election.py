"""Elections: one program leads, of any language, on any machine.

``docs/elections.md`` says what an election promises and what it cannot. A program that loses the leadership stops what
only the leader does; the store refuses its late writes by the term.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from sidekeeper._proto.v1 import election_service_pb2 as pb
from sidekeeper._proto.v1.election_service_pb2_grpc import ElectionServiceStub
from sidekeeper.channel import given_endpoint, resolve_token
from sidekeeper.connection import Connection, blocking_connection, loop_connection, service
from sidekeeper.contender import RELEASE_TIMEOUT, Contender, connected, lock_id, refusal
from sidekeeper.errors import ElectionError

__all__ = ["Campaign", "Leader", "LeaderObservation", "leader", "observe_leader"]


@dataclass(frozen=True)
class Leader:
    """The leader of an election, as the registry shows it."""

    #: Its value, often its address.
    value: str
    #: Its term: greater than that of each earlier leader.
    term: int
    #: The name of its node.
    node_name: str


class Campaign(Contender):
    """A candidate that leads in a ``with`` or ``async with`` block. Made by ``leader``; each object leads once.

    Attributes:
        term: The fencing token: greater than the term of each earlier leader. 0: this candidate has not led.
        node_path: The node that proves the leadership, for a check in a ZooKeeper transaction.
        suspended: Whether the registry does not answer. The candidate leads until its lease ends.
    """

    _turn = "leadership"
    _maker = "leader"

    def __init__(self, request: pb.CampaignRequest, endpoint: str | None, token: str | None) -> None:
        super().__init__(request.election, endpoint, token)
        self._request = request
        self.term = 0

    def resign(self, *, successor: str = "") -> None:
        """Ends the leadership before the end of a ``with`` block. Returns when the node is deleted.

        Args:
            successor: The value, or the name of the node, of the candidate that leads next. Default: the next one in
                the order.

        Raises:
            ElectionError: The leadership was lost before, or the successor cannot lead next: the reason
                ``CANDIDATE_UNKNOWN`` or ``CANDIDATE_IN_THE_WAY``. Then the leader leads on.
        """
        channel = self._channel
        if channel is None:
            raise RuntimeError(f"leader {self._what!r}: resign works in the `with` block, and resign_async on a loop")
        if not self._given_back:
            self.raise_if_lost()
            try:
                self._leave(channel, successor)
            except grpc.RpcError as error:
                raise self._failure(error) from None
            self._give_back()

    async def resign_async(self, *, successor: str = "") -> None:
        """Does the same in an ``async with`` block."""
        channel = self._aio_channel
        if channel is None:
            raise RuntimeError(f"leader {self._what!r}: resign_async works in the `async with` block")
        if not self._given_back:
            self.raise_if_lost()
            try:
                await self._leave(channel, successor)
            except grpc.RpcError as error:
                raise self._failure(error) from None
            self._give_back()

    def _open(self, channel: Any) -> Any:
        return service(ElectionServiceStub, channel, self._token).Campaign(self._request)

    def _leave(self, channel: Any, successor: str = "") -> Any:
        request = pb.ResignRequest(campaign_id=self._id, successor=successor)
        return service(ElectionServiceStub, channel, self._token).Resign(request, timeout=RELEASE_TIMEOUT)

    def _hear(self, event: pb.CampaignResponse) -> bool:
        kind = event.WhichOneof("event")
        if kind == "started":
            self._id = event.started.campaign_id
        elif kind == "leading":
            self.term, self.node_path = event.leading.term, event.leading.node_path
            self._renew(event.leading.lease)
        elif kind == "resigned":
            self._give_back()
        return kind == "leading"

    def _error(self, code: str, details: str, reason: str) -> ElectionError:
        return ElectionError(self._what, code, details, reason)


class LeaderObservation:
    """The leaders of an election from now on, for a ``for`` or an ``async for`` loop. Made by ``observe_leader``."""

    def __init__(self, request: pb.ObserveRequest, endpoint: str | None, token: str | None) -> None:
        self._request = request
        self._what = request.election.name or request.election.path
        self._endpoint = given_endpoint(endpoint)
        self._token = resolve_token(token)

    def __iter__(self) -> Iterator[Leader | None]:
        seen = _Seen()
        again = True
        while again:
            connection = connected(blocking_connection, self._endpoint, self._token, self._failure)
            states = self._observe(connection)
            try:
                for state in states:
                    connection.answers()
                    if seen.changes(state):
                        yield seen.leader
                raise self._ended()
            except grpc.RpcError as error:
                again = connection.failed(error) and not seen.any
                if not again:
                    raise self._failure(error) from None
            finally:
                states.cancel()
                connection.close()

    async def __aiter__(self) -> AsyncIterator[Leader | None]:
        seen = _Seen()
        again = True
        while again:
            connection = connected(loop_connection, self._endpoint, self._token, self._failure)
            states = self._observe(connection)
            try:
                async for state in states:
                    connection.answers()
                    if seen.changes(state):
                        yield seen.leader
                raise self._ended()
            except grpc.RpcError as error:
                again = connection.failed(error) and not seen.any
                if not again:
                    raise self._failure(error) from None
            finally:
                states.cancel()
                await connection.close_async()

    def _observe(self, connection: Connection) -> Any:
        return service(ElectionServiceStub, connection.channel, self._token).Observe(self._request)

    def _ended(self) -> ElectionError:
        return ElectionError(self._what, "UNAVAILABLE", "the sidecar has ended the stream of the election")

    def _failure(self, error: grpc.RpcError) -> ElectionError:
        return ElectionError(self._what, *refusal(error, self._endpoint))


class _Seen:
    """The leader that was seen last."""

    def __init__(self) -> None:
        self.leader: Leader | None = None
        #: Whether there was any.
        self.any = False

    def changes(self, state: pb.ObserveResponse) -> bool:
        """Takes a state. Returns whether it has another leader."""
        if state.stale_reason:
            return False  # the same as before, or less
        found = state.leader
        leader = Leader(found.value, found.term, found.node_name) if state.HasField("leader") else None
        changed = not self.any or leader != self.leader
        self.leader, self.any = leader, True
        return changed


def leader(
    name: str = "",
    *,
    path: str = "",
    value: str = "",
    application_id: str = "",
    endpoint: str | None = None,
    token: str | None = None,
) -> Campaign:
    """Stands for election in a ``with`` or an ``async with`` block.

        with sidekeeper.leader("chief", value="10.0.0.1:80") as leadership:
            plan(term=leadership.term)

    The block begins when this program leads, and its end gives the leadership to the next candidate. In a ``with``
    block check ``leadership.lost`` (or ``raise_if_lost``) between two steps: a thread cannot be stopped from outside.
    An ``async with`` block is cancelled when the leadership is lost. Both raise ``ElectionError`` at their end if the
    leadership was lost in between. A program that wants to lead again stands again with another block.

    Args:
        name: The election's name. This or ``path`` is required.
        path: The path of an election that other programs use, with Curator's ``LeaderLatch``.
        value: The text that others see of this candidate, usually its address: at most 4096 bytes.
        application_id: A second campaign of the same election by the same id is refused.
        endpoint: The sidecar. Default: as for ``Application``.
        token: The sidecar's token. Default: as for ``Application``.

    Raises:
        ValueError: Neither a name nor a path is given, or both; the endpoint or the token cannot be read.
    """
    election = lock_id("leader", name, path)
    request = pb.CampaignRequest(election=election, value=value, application_id=application_id, ends_when_lost=True)
    return Campaign(request, endpoint, token)


def observe_leader(
    name: str = "", *, path: str = "", endpoint: str | None = None, token: str | None = None
) -> LeaderObservation:
    """Tells the leaders of an election, without standing for it: the one of now first, and then each other one.

        for leader in sidekeeper.observe_leader("chief"):
            print(leader.value if leader else "nobody")

    None: nobody leads. The same leader comes once. Leaders that follow one another quickly may be left out, and terms
    never go back. While the registry does not answer, the last leader stands. The loop ends with ``ElectionError`` when
    the sidecar does not answer or stops; then observe again.

    Args:
        name: The election's name. This or ``path`` is required.
        path: The path of an election that other programs use, with Curator's ``LeaderLatch``.
        endpoint: The sidecar. Default: as for ``Application``.
        token: The sidecar's token. Default: as for ``Application``.

    Raises:
        ValueError: Neither a name nor a path is given, or both; the endpoint or the token cannot be read.
    """
    return LeaderObservation(pb.ObserveRequest(election=lock_id("observe_leader", name, path)), endpoint, token)
