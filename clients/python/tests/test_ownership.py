from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import grpc

import sidekeeper
from sidekeeper._proto.v1 import assignment_pb2, lease_pb2
from tests.sidecar import FakeSidecar, Stream, serving


class Told:
    """An application that notes what its callbacks are told."""

    def __init__(self, target: str, **job: Any) -> None:
        self.events: list[tuple[str, list[int], str]] = []
        self.app = sidekeeper.Application(target)

        @self.app.job("orderSync", sharding_total_count=6, **job)
        async def handler(_: sidekeeper.Execution) -> None: ...

        for kind in ("assigned", "revoked", "lost"):
            getattr(self.app, f"on_{kind}")("orderSync")(self.noting(kind))

        @self.app.on_assignment("orderSync")
        async def assignment(one: sidekeeper.Assignment) -> None:
            self.note("assignment", one.items, one.reason)

    def noting(self, kind: str) -> Any:
        async def note(change: sidekeeper.ItemsChange) -> None:
            self.note(kind, change.items, change.reason)

        return note

    def note(self, kind: str, items: Any, reason: sidekeeper.AssignmentReason) -> None:
        self.events.append((kind, [item.item for item in items], reason.name))

    def take(self) -> list[tuple[str, list[int], str]]:
        """What was told since the last time."""
        events, self.events = self.events, []
        return events


async def assign(sidecar: FakeSidecar, stream: Stream, generation: int, reason: str, **tokens: int) -> None:
    """Tells an assignment of items with tokens (``i0=7``), and waits for its acknowledgement."""
    items = [
        assignment_pb2.AssignedItem(item=int(name[1:]), fencing_token=token) for name, token in sorted(tokens.items())
    ]
    stream.send(
        assignment_changed=assignment_pb2.AssignmentChanged(
            assignment=assignment_pb2.Assignment(generation=generation, sharding_total_count=6, items=items),
            reason=assignment_pb2.AssignmentReason.Value(f"ASSIGNMENT_REASON_{reason}"),
        )
    )
    assert (await sidecar.acknowledgement()).generation == generation


async def test_lost_items_are_reported_before_assigned_ones(sidecar: FakeSidecar) -> None:
    told = Told(sidecar.target)
    async with serving(told.app):
        stream = await sidecar.request()
        stream.attach()
        await assign(sidecar, stream, 1, "ATTACHED")
        await assign(sidecar, stream, 2, "RESHARDED", i0=5, i1=5)
        await assign(sidecar, stream, 3, "RESHARDED", i1=5, i2=6)
        # Nothing comes or goes: the callbacks for items are not called.
        await assign(sidecar, stream, 4, "RESHARDED", i1=5, i2=6)
        # Only a token has changed.
        await assign(sidecar, stream, 5, "ITEM_CHANGED", i1=5, i2=8)
        await assign(sidecar, stream, 6, "SESSION_LOST")
    assert told.take()[:11] == [
        ("assignment", [], "ATTACHED"),
        ("assigned", [0, 1], "RESHARDED"),
        ("assignment", [0, 1], "RESHARDED"),
        ("revoked", [0], "RESHARDED"),
        ("assigned", [2], "RESHARDED"),
        ("assignment", [1, 2], "RESHARDED"),
        ("assignment", [1, 2], "RESHARDED"),
        ("assigned", [2], "ITEM_CHANGED"),
        ("assignment", [1, 2], "ITEM_CHANGED"),
        ("lost", [1, 2], "SESSION_LOST"),
        ("assignment", [], "SESSION_LOST"),
    ]


async def test_a_broken_stream_loses_and_a_new_one_assigns(sidecar: FakeSidecar) -> None:
    told = Told(sidecar.target)
    async with serving(told.app):
        stream = await sidecar.request()
        stream.attach()
        await assign(sidecar, stream, 1, "ATTACHED", i0=5)
        stream.end(grpc.StatusCode.UNAVAILABLE)
        stream = await sidecar.request()
        stream.attach()
        await assign(sidecar, stream, 1, "ATTACHED", i0=5)
        assert told.take() == [
            ("assigned", [0], "ATTACHED"),
            ("assignment", [0], "ATTACHED"),
            ("lost", [0], "DETACHED"),
            ("assignment", [], "DETACHED"),
            ("assigned", [0], "ATTACHED"),
            ("assignment", [0], "ATTACHED"),
        ]


async def test_a_grace_bridges_the_gap_and_changes_are_reported_afterwards(sidecar: FakeSidecar) -> None:
    sidecar.grace = 30.0
    told = Told(sidecar.target)
    async with serving(told.app):
        stream = await sidecar.request()
        stream.attach()
        await assign(sidecar, stream, 1, "ATTACHED", i0=5, i1=5, i2=5)
        told.take()
        stream.end(grpc.StatusCode.UNAVAILABLE)
        # An attempt that fails does not end the grace.
        (await sidecar.request()).end(grpc.StatusCode.UNAVAILABLE)
        stream = await sidecar.request()
        stream.attach()
        # Item 0 is as before, item 1 has had another owner meanwhile, item 2 has one.
        await assign(sidecar, stream, 2, "ATTACHED", i0=5, i1=7)
        assert told.take() == [
            ("lost", [1, 2], "ATTACHED"),
            ("assigned", [1], "ATTACHED"),
            ("assignment", [0, 1], "ATTACHED"),
        ]


async def test_silence_loses_and_a_renewed_lease_gives_back(sidecar: FakeSidecar) -> None:
    told = Told(sidecar.target)
    states: list[str] = []
    told.app.on_session("orderSync")(lambda change: states.append(change.state.name))
    async with serving(told.app):
        stream = await sidecar.request()
        stream.attach()
        await assign(sidecar, stream, 1, "ATTACHED", i0=5)
        told.take()
        lease(stream, timedelta(milliseconds=50))
        while not states:
            await sidecar_turn()
        lease(stream, timedelta(minutes=1))
        while len(states) < 2:
            await sidecar_turn()
        assert told.take() == [("lost", [0], "SILENT"), ("assigned", [0], "ATTACHED")]
        assert states == ["SILENT", "CONNECTED"]


def lease(stream: Stream, remaining: timedelta) -> None:
    change = lease_pb2.SessionChanged(state=lease_pb2.SESSION_STATE_CONNECTED)
    change.remaining_lease.FromTimedelta(remaining)
    stream.send(session_changed=change)


async def sidecar_turn() -> None:
    await asyncio.sleep(0.005)


async def test_a_stop_revokes_items_while_the_stream_is_open(sidecar: FakeSidecar) -> None:
    told = Told(sidecar.target)
    async with serving(told.app) as running:
        stream = await sidecar.request()
        stream.attach()
        await assign(sidecar, stream, 1, "ATTACHED", i0=5)
        told.take()
        open_then: list[bool] = []
        told.app._callbacks["orderSync"].revoked.append(lambda _: open_then.append(not stream.closed.is_set()))
        told.app.stop()
        await running
        assert open_then == [True]
        assert told.take() == [("revoked", [0], "DETACHED"), ("assignment", [], "DETACHED")]


async def test_a_callback_that_fails_does_not_keep_the_others_from_being_called(sidecar: FakeSidecar) -> None:
    told = Told(sidecar.target)

    def fail(_: sidekeeper.ItemsChange) -> None:
        raise RuntimeError("on purpose")

    told.app._callbacks["orderSync"].revoked.insert(0, fail)
    async with serving(told.app):
        stream = await sidecar.request()
        stream.attach()
        await assign(sidecar, stream, 1, "ATTACHED", i0=5)
        told.take()
        items = [assignment_pb2.AssignedItem(item=1, fencing_token=6)]
        stream.send(
            assignment_changed=assignment_pb2.AssignmentChanged(
                assignment=assignment_pb2.Assignment(generation=2, sharding_total_count=6, items=items),
                reason=assignment_pb2.ASSIGNMENT_REASON_RESHARDED,
            )
        )
        while len(told.events) < 3:
            await sidecar_turn()
        assert [event[0] for event in told.take()] == ["revoked", "assigned", "assignment"]
        # Only released items are acknowledged.
        assert sidecar.no_acknowledgement()
