"""The items of a job that this process owns, and the callbacks for their changes.

It outlives the job's attachments: after a gap within the reattach grace, the new stream's assignment is compared with
the items before the gap.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Callable

from sidekeeper.dispatcher import Dispatcher
from sidekeeper.events import AssignedItem, Assignment, AssignmentReason, ItemsChange
from sidekeeper.job import Callbacks

__all__ = ["Ownership"]


@dataclass(frozen=True)
class _Difference:
    """The changes of one assignment."""

    lost: list[AssignedItem]
    revoked: list[AssignedItem]
    assigned: list[AssignedItem]


class Ownership:
    """The items of one job, and its callbacks for them; used on the loop only."""

    def __init__(self, callbacks: Callbacks, dispatcher: Dispatcher) -> None:
        self._callbacks = callbacks
        self._dispatcher = dispatcher
        self._owned: dict[int, AssignedItem] = {}
        #: The stream's last assignment. None: there was none, or the stream has ended.
        self._told: Assignment | None = None
        self._leaving = False

    def changed(self, assignment: Assignment, noted: Callable[[], None]) -> None:
        """The sidecar has sent an assignment; ``noted`` is called when all callbacks have returned."""
        if self._leaving:
            self._dispatcher.call_all([], noted)  # it owns no item any more, although messages still come
            return
        difference = self._difference(assignment)
        self._told = assignment
        self._owned = {item.item: item for item in assignment.items}
        self._dispatcher.call_all(
            [
                *self._calls(assignment, difference),
                *((callback, assignment) for callback in self._callbacks.assignment),
            ],
            noted,
        )

    def lost(self, reason: AssignmentReason) -> None:
        """The items are lost; the sidecar's last assignment stays known."""
        if self._told is not None:
            lost = list(self._owned.values())
            self._owned = {}
            self._dispatcher.call_all(self._calls(self._told, _Difference(lost, [], []), reason))

    def still_there(self) -> None:
        """The sidecar has sent a new lease, and the items are not lost."""
        if self._told is not None and not self._owned:
            self._owned = {item.item: item for item in self._told.items}
            self._dispatcher.call_all(self._calls(self._told, _Difference([], [], list(self._told.items))))

    def leave(self) -> None:
        """The application leaves in good order: its callbacks let go of everything while the stream is still open."""
        self._leaving = True
        self._end(revoked=True)

    def ended(self) -> None:
        """The stream has ended, and the instance with it."""
        self._end(revoked=False)

    def _end(self, *, revoked: bool) -> None:
        told, self._told = self._told, None
        gone, self._owned = list(self._owned.values()), {}
        if told is None:
            return
        difference = _Difference([], gone, []) if revoked else _Difference(gone, [], [])
        detached = told.detached()
        self._dispatcher.call_all(
            [*self._calls(detached, difference), *((callback, detached) for callback in self._callbacks.assignment)]
        )

    def _difference(self, assignment: Assignment) -> _Difference:
        items = {item.item: item for item in assignment.items}
        gone = [item for number, item in self._owned.items() if number not in items]
        assigned = [item for number, item in items.items() if self._owned.get(number) != item]
        if assignment.reason is AssignmentReason.SESSION_LOST:
            return _Difference(gone, [], assigned)
        if assignment.reason is AssignmentReason.ATTACHED:
            # After a gap: an item with another token had another owner, or none, meanwhile.
            renewed = {item.item for item in assigned}
            gone += [item for number, item in self._owned.items() if number in renewed and _is_other(item, items)]
            return _Difference(gone, [], assigned)
        return _Difference([], gone, assigned)

    def _calls(
        self, assignment: Assignment, difference: _Difference, reason: AssignmentReason | None = None
    ) -> list[tuple[Callable[[ItemsChange], object], ItemsChange]]:
        calls: list[tuple[Callable[[ItemsChange], object], ItemsChange]] = []
        for callbacks, items in (
            (self._callbacks.lost, difference.lost),
            (self._callbacks.revoked, difference.revoked),
            (self._callbacks.assigned, difference.assigned),
        ):
            if items:
                change = _change(assignment, items, reason or assignment.reason)
                calls += [(callback, change) for callback in callbacks]
        return calls


def _is_other(item: AssignedItem, items: dict[int, AssignedItem]) -> bool:
    return items[item.item].fencing_token != item.fencing_token


def _change(assignment: Assignment, items: Iterable[AssignedItem], reason: AssignmentReason) -> ItemsChange:
    return ItemsChange(
        job_name=assignment.job_name,
        instance_id=assignment.instance_id,
        generation=assignment.generation,
        sharding_total_count=assignment.sharding_total_count,
        items=tuple(sorted(items, key=lambda item: item.item)),
        reason=reason,
    )
