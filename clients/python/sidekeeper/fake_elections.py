"""The election service of ``sidekeeper.testing``: elections in memory, for threads and event loops alike."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import grpc

from sidekeeper._proto.v1 import election_service_pb2 as pb
from sidekeeper._proto.v1 import lock_service_pb2 as lock_pb
from sidekeeper.election import Leader
from sidekeeper.fake_call import (
    LEASE,
    QUEUE_MAX,
    WHY_LOST,
    FakeCall,
    LockLoss,
    check_application_id,
    invalid,
    lease_of,
    path_of,
    refusal,
    wrong,
)

__all__ = ["ElectionState", "FakeCandidate", "FakeElections"]

#: Where the elections with names are.
ELECTION_ROOT = "/fake-sidekeeper/@-@locks/elections"

#: The limit of a sidecar.
VALUE_BYTES_MAX = 4_096

_NO_REGISTRY = "the registry does not answer; the sidecar waits until it does"


@dataclass(frozen=True)
class ElectionState:
    """An election at one moment."""

    #: The candidate that leads. None: nobody leads.
    leader: Leader | None
    #: The candidates that wait, in their order, each as the leader that it may become.
    waiting: tuple[Leader, ...]


class FakeCampaign(FakeCall):
    """A campaign."""

    def __init__(self, elections: FakeElections, request: pb.CampaignRequest) -> None:
        super().__init__()
        #: Names it in ``Resign``.
        self.campaign_id = uuid.uuid4().hex
        self.request = pb.CampaignRequest()
        self.request.CopyFrom(request)
        self.node_name = ""
        self.term = 0
        self.leads = False
        #: Whether it makes way for the successor that the leader names.
        self.makes_way = True
        #: Its place, and the leader, as it has heard of them.
        self.told_place: int | None = None
        self.told_leader: pb.ElectionLeader | None = None
        self._elections = elections

    def message(self) -> pb.ElectionLeader:
        """The candidate, as others see it."""
        return pb.ElectionLeader(value=self.request.value, term=self.term, node_name=self.node_name)

    def left(self) -> None:
        """The application has ended the stream, which ends the campaign."""
        self._elections.leave(self)


class FakeObservation(FakeCall):
    """An observation of one election."""

    def __init__(self, elections: FakeElections) -> None:
        super().__init__()
        #: The state that it has heard of.
        self.told: pb.ObserveResponse | None = None
        self._elections = elections

    def tell(self, state: pb.ObserveResponse) -> None:
        """Tells a state, if it is another one."""
        if state != self.told:
            self.told = state
            self.send(state)

    def left(self) -> None:
        """The application observes no longer."""
        self._elections.forget(self)


class FakeCandidate:
    """A candidate of the test, which stands until it leaves."""

    def __init__(self, elections: FakeElections, campaign: FakeCampaign) -> None:
        self._elections = elections
        self._campaign = campaign

    @property
    def leads(self) -> bool:
        """Whether it leads."""
        return self._campaign.leads

    @property
    def term(self) -> int:
        """Its term, if it leads or comes to lead."""
        return self._campaign.term

    def keep_place(self) -> None:
        """It makes no way for a successor that a leader names: it is a candidate of another program than a sidecar."""
        self._campaign.makes_way = False

    def leave(self) -> None:
        """It does not stand any more."""
        self._elections.leave(self._campaign)


class FakeElections:
    """All elections, for calls on any thread. Methods with the service's names raise ``grpc.RpcError``."""

    def __init__(self) -> None:
        #: The lease of leaderships that begin or are resumed from now on.
        self.lease: timedelta = LEASE
        self._changed = threading.Condition(threading.RLock())
        #: Candidates of all elections, in their order.
        self._candidates: list[FakeCampaign] = []
        self._observations: list[FakeObservation] = []
        self._count = 0
        self._suspended = False
        self._closed = False

    # The service.

    def Campaign(self, request: pb.CampaignRequest) -> FakeCampaign:  # noqa: N802 - the service's names
        """Stands for election."""
        campaign = FakeCampaign(self, request)
        with self._changed:
            try:
                self._enter(campaign)
            except grpc.RpcError as error:
                campaign.end(error)
        return campaign

    def Resign(self, request: pb.ResignRequest) -> pb.ResignResponse:  # noqa: N802
        """Ends a campaign."""
        with self._changed:
            for campaign in self._candidates:
                if campaign.campaign_id == request.campaign_id:
                    if request.successor:
                        self._make_way(campaign, request.successor)
                    campaign.send(pb.CampaignResponse(resigned=pb.Resigned()))
                    self._end(campaign, None)
                    return pb.ResignResponse()
        text = f"this sidecar has no hold `{request.campaign_id}`: it has ended, or another sidecar has it"
        raise refusal(grpc.StatusCode.NOT_FOUND, "HOLD_UNKNOWN", text)

    def Observe(self, request: pb.ObserveRequest) -> FakeObservation:  # noqa: N802
        """Sends the leader of an election, and again after each change."""
        observation = FakeObservation(self)
        with self._changed:
            try:
                observation.path = self._read(request.election)
                self._check_open()
                self._observations.append(observation)
                observation.tell(self._state(observation.path))
            except grpc.RpcError as error:
                observation.end(error)
        return observation

    # The test's side.

    def state(self, election: lock_pb.LockId) -> pb.ObserveResponse:
        """The leader and the candidates that wait."""
        path = self._read(election)
        with self._changed:
            return self._seen(path)

    def stand(self, election: lock_pb.LockId, value: str) -> FakeCandidate:
        """Has a candidate of the test stand."""
        campaign = FakeCampaign(self, pb.CampaignRequest(election=election, value=value))
        with self._changed:
            self._enter(campaign)
        return FakeCandidate(self, campaign)

    def lose(self, election: lock_pb.LockId, loss: LockLoss) -> None:
        """Takes the leadership away."""
        path = self._read(election)
        if loss is LockLoss.HOLD_TIMEOUT:
            raise invalid([wrong("loss", loss.name, "LEASE_LOST, REVOKED or DRAINING")])
        with self._changed:
            leader = self._leader(path)
            if leader is None:
                raise refusal(grpc.StatusCode.NOT_FOUND, "LOCK_FREE", f"nobody leads the election {path}")
            reason = lock_pb.LockLossReason.Value(f"LOCK_LOSS_REASON_{loss.name}")
            leader.send(pb.CampaignResponse(lost=pb.LeadershipLost(reason=reason)))
            if loss is LockLoss.DRAINING or leader.request.ends_when_lost:
                text = f"the lock {path} is lost: {WHY_LOST[loss]}"
                self._end(leader, refusal(grpc.StatusCode.ABORTED, "LOCK_LOST", text))
            else:
                self._stand_again(leader)
                self._settle(path)

    def suspend(self) -> None:
        """The registry does not answer any more."""
        with self._changed:
            self._suspended = True
            for campaign in self._candidates:
                if campaign.leads:
                    campaign.send(pb.CampaignResponse(suspended=lease_of(self.lease)))
                else:
                    self._tell_silence(campaign)
            for observation in self._observations:
                observation.tell(pb.ObserveResponse(stale_reason=_NO_REGISTRY))

    def resume(self) -> None:
        """The registry answers again."""
        with self._changed:
            self._suspended = False
            for campaign in self._candidates:
                if campaign.leads:
                    campaign.send(pb.CampaignResponse(resumed=lease_of(self.lease)))
            for path in {one.path for one in (*self._candidates, *self._observations)}:
                self._settle(path)

    def wait_until(self, fits: Callable[[], bool], timeout: float) -> bool:
        """Waits until something holds of the elections; returns whether it does."""
        with self._changed:
            return self._changed.wait_for(fits, timeout)

    def close(self) -> None:
        """Ends all calls, as a sidecar does that stops."""
        with self._changed:
            self._closed = True
            ended = refusal(grpc.StatusCode.UNAVAILABLE, "", "the fake sidecar has ended")
            for call in (*self._candidates, *self._observations):
                call.end(ended)
            self._candidates.clear()
            self._observations.clear()
            self._changed.notify_all()

    def leave(self, campaign: FakeCampaign) -> None:
        """The campaign ends with its stream."""
        with self._changed:
            if campaign in self._candidates:
                self._end(campaign, None)

    def forget(self, observation: FakeObservation) -> None:
        """The observation has ended."""
        with self._changed:
            if observation in self._observations:
                self._observations.remove(observation)

    # All of the following is called with the mutex.

    def _enter(self, campaign: FakeCampaign) -> None:
        request = campaign.request
        campaign.path = self._check(request)
        self._check_open()
        queue = self._queue(campaign.path)
        if request.application_id and any(one.request.application_id == request.application_id for one in queue):
            text = (
                f"this application holds the lock {campaign.path} already, or waits for it: it would wait for itself; "
                "release that hold first"
            )
            raise refusal(grpc.StatusCode.FAILED_PRECONDITION, "LOCK_HELD_ALREADY", text)
        if len(queue) >= QUEUE_MAX:
            text = (
                f"the lock {campaign.path} has {len(queue)} contenders, which is the most; try later, or use several "
                "locks"
            )
            raise refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY", text)
        self._create(campaign)
        started = pb.CampaignStarted(campaign_id=campaign.campaign_id, path=campaign.path)
        campaign.send(pb.CampaignResponse(started=started))
        if self._suspended:
            self._tell_silence(campaign)
        self._settle(campaign.path)

    def _check_open(self) -> None:
        if self._closed:
            raise refusal(grpc.StatusCode.UNAVAILABLE, "SIDECAR_STOPPING", "the fake sidecar has ended")

    @staticmethod
    def _check(request: pb.CampaignRequest) -> str:
        """Refuses what a sidecar refuses. Returns the election's path."""
        errors: list[str] = []
        path = path_of("election", request.election, ELECTION_ROOT, errors)
        if len(request.value.encode()) > VALUE_BYTES_MAX:
            errors.append(wrong("value", request.value, "at most 4096 bytes"))
        check_application_id(request.application_id, errors)
        if errors:
            raise invalid(errors)
        return path

    @staticmethod
    def _read(election: lock_pb.LockId) -> str:
        errors: list[str] = []
        path = path_of("election", election, ELECTION_ROOT, errors)
        if errors:
            raise invalid(errors)
        return path

    def _create(self, campaign: FakeCampaign) -> None:
        """Gives a candidate its place at the end of the queue."""
        self._count += 1
        campaign.term = self._count
        campaign.node_name = f"_c_{uuid.uuid4()}-latch-{self._count:010}"
        campaign.told_place = None
        self._candidates.append(campaign)

    def _stand_again(self, campaign: FakeCampaign) -> None:
        self._candidates.remove(campaign)
        campaign.leads = False
        self._create(campaign)

    def _queue(self, path: str) -> list[FakeCampaign]:
        return [one for one in self._candidates if one.path == path]

    def _leader(self, path: str) -> FakeCampaign | None:
        return next((one for one in self._queue(path) if one.leads), None)

    def _seen(self, path: str) -> pb.ObserveResponse:
        """An election as the registry has it."""
        leader = self._leader(path)
        waiting = [one.message() for one in self._queue(path) if not one.leads]
        return pb.ObserveResponse(leader=leader.message() if leader else None, candidates=waiting)

    def _state(self, path: str) -> pb.ObserveResponse:
        """An election as the sidecar sees it."""
        return pb.ObserveResponse(stale_reason=_NO_REGISTRY) if self._suspended else self._seen(path)

    def _settle(self, path: str) -> None:
        """Lets the first candidate lead, and tells the others and the observers."""
        if not self._suspended:
            queue = self._queue(path)
            for position, one in enumerate(queue):
                if position == 0 and not one.leads:
                    self._lead(one)
                elif position > 0 and one.told_place != position:
                    one.told_place = position
                    one.send(pb.CampaignResponse(following=pb.Following(position=position)))
            for one in queue:
                self._tell_leader(one, queue[0].message())
            for observation in self._observations:
                if observation.path == path:
                    observation.tell(self._state(path))
        self._changed.notify_all()

    def _lead(self, campaign: FakeCampaign) -> None:
        campaign.leads = True
        node_path = f"{campaign.path}/{campaign.node_name}"
        leading = pb.Leading(term=campaign.term, node_path=node_path, lease=lease_of(self.lease))
        campaign.send(pb.CampaignResponse(leading=leading))

    @staticmethod
    def _tell_leader(campaign: FakeCampaign, leader: pb.ElectionLeader) -> None:
        if campaign.told_leader != leader:
            campaign.told_leader = leader
            campaign.send(pb.CampaignResponse(leader_changed=pb.LeaderChanged(leader=leader)))

    @staticmethod
    def _tell_silence(campaign: FakeCampaign) -> None:
        """A candidate that waits hears once that the registry does not answer."""
        campaign.told_place = None
        campaign.send(pb.CampaignResponse(following=pb.Following(reason=_NO_REGISTRY)))

    def _make_way(self, leader: FakeCampaign, successor: str) -> None:
        """Has the candidates before the successor stand again, behind it."""
        path = leader.path
        if not leader.leads:
            text = f"this candidate does not lead the election {path}, and cannot name a successor; resign without one"
            raise refusal(grpc.StatusCode.FAILED_PRECONDITION, "NOT_LEADER", text)
        if self._suspended:
            text = f"election {path}: {_NO_REGISTRY}; the leader leads on"
            raise refusal(grpc.StatusCode.UNAVAILABLE, "REGISTRY_AWAY", text)
        waiting = [one for one in self._queue(path) if not one.leads]
        named = (one for one in waiting if successor in (one.node_name, one.request.value))
        chosen = next(named, None)
        if chosen is None:
            text = (
                f"the election {path} has no candidate with the value or node name `{successor}` that waits; "
                "the leader leads on"
            )
            raise refusal(grpc.StatusCode.NOT_FOUND, "CANDIDATE_UNKNOWN", text)
        before = waiting[: waiting.index(chosen)]
        staying = next((one for one in before if not one.makes_way), None)
        for one in before:
            if one.makes_way:
                self._stand_again(one)
        if staying is not None:
            self._settle(path)
            text = (
                f"candidate `{staying.node_name}` of the election {path} stands before the successor, and has not made "
                "way; candidates of other programs than sidecars never do; the leader leads on"
            )
            raise refusal(grpc.StatusCode.FAILED_PRECONDITION, "CANDIDATE_IN_THE_WAY", text)

    def _end(self, campaign: FakeCampaign, error: grpc.RpcError | None) -> None:
        self._candidates.remove(campaign)
        campaign.leads = False
        campaign.end(error)
        self._settle(campaign.path)
