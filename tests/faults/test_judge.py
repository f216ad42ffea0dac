"""The judge sees what it is there to see: each rule with something that breaks it, and with what it excuses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from faults.fenced_store import Write
from faults.judge import RECORDING, WAKE, Judge, Record, Session

#: The wall clock when the monotonic one was zero.
EPOCH = 1_000_000.0


class Journal:
    """A journal that was never written."""

    def __init__(self, slot: int, obeys: bool = True):
        self.record = Record(f"application-{slot}-0", slot, obeys, None, [], [])
        self._number = 0
        self.tell(0.0, "assignment", reason="ATTACHED", items=[])

    def tell(self, at: float, event: str, **fields: Any) -> None:
        self.record.entries.append({"event": event, "time": at, "wall": EPOCH + at, **fields})
        self.record.entries.sort(key=lambda entry: entry["time"])

    def execute(
        self,
        begin: float,
        end: float | None = None,
        token: int = 0,
        fire: float | None = None,
        source: str = "SCHEDULE",
        outcome: str = "end",
        fired: float | None = None,
        reason: str = "",
        given: tuple[float, int, int] | None = None,
        recorded: Sequence[float] = (),
    ) -> None:
        """Journals an execution; `given` is a checkpoint's instant, token and number, `recorded` when its own were."""
        self._number += 1
        name = f"{self.record.name}/{self._number}"
        fired = begin if fired is None else fired
        told = {"item": 0, "token": token or int(begin * 10), "execution": name}
        scheduled = EPOCH + (begin if fire is None else fire)
        checkpoint = given and {"item": 0, "scheduled": EPOCH + given[0], "token": given[1], "number": given[2]}
        self.tell(
            begin,
            "start",
            **told,
            source=source,
            scheduled=scheduled,
            fired=EPOCH + fired,
            checkpoint=checkpoint,
        )
        for number, at in enumerate(recorded, 1):
            self.tell(at, "checkpoint", **told, scheduled=scheduled, number=number)
        if end is not None:
            self.tell(end, outcome, **told, reason=reason)


def kinds(*journals: Journal, sessions: list[Session] | None = None) -> list[str]:
    judge = Judge([journal.record for journal in journals], [], sessions or [])
    return [problem.kind for problem in judge.always()]


def lost(*journals: Journal, fires: list[float]) -> list[float]:
    """The fires that are not settled, in seconds."""
    judge = Judge([journal.record for journal in journals])
    return [fire for fire in fires if judge.missing([0], [EPOCH + fire])]


@pytest.fixture
def first() -> Journal:
    return Journal(1)


@pytest.fixture
def second() -> Journal:
    return Journal(2)


def test_two_at_once(first: Journal, second: Journal) -> None:
    first.execute(10.0, 12.0)
    second.execute(11.0, 13.0)
    assert kinds(first, second) == ["at once"]


def test_one_that_spans_two_others_meets_both(first: Journal, second: Journal) -> None:
    first.execute(10.0, 20.0)
    second.execute(11.0, 12.0)
    second.execute(15.0, 16.0)
    assert kinds(first, second) == ["at once", "at once"]


def test_one_after_the_other(first: Journal, second: Journal) -> None:
    first.execute(10.0, 12.0, outcome="cancelled", reason="LEASE_LOST")
    second.execute(12.001, 13.0)
    assert not kinds(first, second)


def test_an_application_that_ignores_a_cancel_is_left_to_the_fence(second: Journal) -> None:
    deaf = Journal(1, obeys=False)
    deaf.execute(10.0, 14.0)
    second.execute(12.0, 13.0)
    assert not kinds(deaf, second)


def test_a_dead_application_executes_nothing(first: Journal, second: Journal) -> None:
    first.execute(10.0)
    second.execute(12.0, 13.0)
    assert kinds(first, second) == ["at once"]
    first.record.died = 11.0
    assert not kinds(first, second)


def test_a_stopped_application_executes_nothing_and_may_take_a_moment_to_wake(first: Journal, second: Journal) -> None:
    first.execute(10.0, 20.5)
    first.record.stops = [(11.0, 20.0)]
    second.execute(12.0, 13.0)
    assert not kinds(first, second)


def test_an_application_that_goes_on_after_it_has_woken_is_seen(first: Journal, second: Journal) -> None:
    first.execute(10.0, 25.0)
    first.record.stops = [(11.0, 20.0)]
    second.execute(12.0, 20.0 + 2 * WAKE)
    assert kinds(first, second) == ["at once"]


def test_a_token_that_does_not_grow(first: Journal, second: Journal) -> None:
    first.execute(10.0, 11.0, token=7)
    second.execute(12.0, 13.0, token=7)
    assert kinds(first, second) == ["token"]


def test_an_application_stopped_before_it_begins_may_have_an_old_token(first: Journal, second: Journal) -> None:
    second.execute(12.0, 13.0, token=8)
    first.execute(20.0, 21.0, token=7, fired=10.0)
    assert kinds(first, second) == ["token"]
    first.record.stops = [(9.9, 19.9)]
    assert not kinds(first, second)


def test_a_fire_that_was_executed_twice(first: Journal, second: Journal) -> None:
    first.execute(10.0, 11.0, fire=10.0)
    second.execute(12.0, 13.0, fire=10.0)
    assert kinds(first, second) == ["once"]
    # No sidecar knows it of an item whose entry in the ledger was deleted.
    records = [first.record, second.record]
    assert Judge(records, unledgered={0}).always() == []
    assert [problem.kind for problem in Judge(records, unledgered={1}).always()] == ["once"]


@pytest.mark.parametrize(
    ("asleep", "problems"),
    [
        ([], ["late"]),
        ([(5.0, 15.0)], []),
        ([(5.0, 11.9)], []),
        ([(5.0, 9.0)], ["late"]),
    ],
)
def test_an_execution_at_the_end_of_its_session_was_cancelled_late(
    first: Journal, asleep: list[tuple[float, float]], problems: list[str]
) -> None:
    first.execute(10.0, 13.0, outcome="cancelled", reason="LEASE_LOST")
    stops = [(EPOCH + stopped, EPOCH + woken) for stopped, woken in asleep]
    session = Session(1, "0x1", EPOCH, EPOCH + 12.0, stops)
    assert kinds(first, sessions=[session]) == problems


def test_an_execution_cancelled_in_time_leaves_a_margin(first: Journal) -> None:
    first.execute(10.0, 11.0, outcome="cancelled", reason="LEASE_LOST")
    # A later session, which the slot's new sidecar has, is none of its business.
    first.execute(11.5, 20.0)
    sessions = [
        Session(1, "0x1", EPOCH, EPOCH + 12.5, []),
        Session(1, "0x2", EPOCH + 11.2, None, []),
    ]
    judge = Judge([first.record], [], sessions)
    assert not judge.always()
    assert judge.margins == [pytest.approx(1.5)]


@pytest.mark.parametrize(
    ("writes", "problems"),
    [
        ([("claim", 5, True), ("commit", 5, True), ("claim", 7, True)], 0),
        ([("claim", 5, True), ("claim", 7, True), ("commit", 5, False)], 0),
        ([("claim", 5, True), ("claim", 7, True), ("commit", 5, True)], 1),
        ([("claim", 7, True), ("claim", 5, True)], 1),
        ([("claim", 7, True), ("claim", 7, True)], 1),
    ],
)
def test_the_fence(writes: list[tuple[str, int, bool]], problems: int) -> None:
    log = [
        Write(number, float(number), kind, 0, token, "somebody", accepted)
        for number, (kind, token, accepted) in enumerate(writes)
    ]
    assert len(Judge([], log).fenced()) == problems


def test_a_fire_without_an_execution(first: Journal) -> None:
    first.execute(10.0, 10.5)
    first.execute(14.0, 14.5)
    assert lost(first, fires=[10.0, 12.0, 14.0]) == [12.0]


def test_one_misfire_execution_covers_all_fires_missed_before_it_but_no_later_ones(
    first: Journal,
) -> None:
    first.execute(10.0, 15.0)
    first.execute(15.1, 15.5, fire=14.0, source="MISFIRE")
    first.execute(18.0, 18.5)
    assert lost(first, fires=[10.0, 12.0, 14.0, 16.0, 18.0]) == [16.0]


def test_one_misfire_execution_covers_no_fire_after_the_one_that_it_names(
    first: Journal,
) -> None:
    first.execute(10.0, 15.0)
    first.execute(15.1, 15.5, fire=12.0, source="MISFIRE")
    assert lost(first, fires=[10.0, 12.0, 14.0]) == [14.0]


def test_a_misfire_execution_that_comes_late_covers_nothing(first: Journal) -> None:
    for fire in (12.0, 14.0, 16.0):
        first.execute(fire, fire + 0.5)
    first.execute(17.0, 17.5, fire=16.0, source="MISFIRE")
    assert lost(first, fires=[10.0]) == [10.0]


def test_an_interrupted_execution_has_to_be_executed_again(first: Journal, second: Journal) -> None:
    first.execute(10.0, 10.5, outcome="cancelled", reason="LEASE_LOST")
    second.execute(12.0, 12.5)
    assert lost(first, second, fires=[10.0]) == [10.0]
    second.execute(11.0, 11.5, fire=10.0, source="FAILOVER")
    assert not lost(first, second, fires=[10.0])


def test_an_interrupted_misfire_execution_may_be_finished_by_another_application(
    first: Journal, second: Journal
) -> None:
    first.execute(8.0, 13.0)
    first.execute(13.1, fire=12.0, source="MISFIRE")
    first.record.died = 13.5
    assert lost(first, second, fires=[10.0, 12.0]) == [10.0, 12.0]
    second.execute(13.6, 14.0, fire=12.0, source="FAILOVER")
    assert not lost(first, second, fires=[10.0, 12.0])


def test_a_failover_of_an_unread_execution_may_cover_missed_fires(first: Journal, second: Journal) -> None:
    first.execute(8.0, 8.5, fire=8.0)
    second.execute(13.6, 14.0, fire=12.0, source="FAILOVER")
    assert lost(first, second, fires=[10.0, 12.0]) == [10.0], "nobody was killed"
    first.record.died = 11.0
    assert lost(first, second, fires=[10.0, 12.0]) == [10.0], "killed before there was anything to take over"
    first.record.died = 13.5
    assert lost(first, second, fires=[10.0, 12.0]) == []
    first.execute(13.4, fire=12.0)
    assert lost(first, second, fires=[10.0, 12.0]) == [10.0], "it had read it, and it made up for nothing"


def test_an_application_that_attaches_later_re_runs_no_earlier_fire(first: Journal, second: Journal) -> None:
    first.execute(8.0, 8.5)
    first.record.died = 9.0
    second.execute(14.0, 14.5)
    assert lost(first, second, fires=[10.0, 12.0]) == [10.0, 12.0]
    second.tell(11.0, "assignment", reason="ATTACHED", items=[])
    assert lost(first, second, fires=[10.0, 12.0]) == [12.0]


def interrupt(journal: Journal, begin: float, end: float, **fields: Any) -> None:
    """An execution that gets a Cancel because its session is lost."""
    journal.execute(begin, end, outcome="cancelled", reason="LEASE_LOST", **fields)


def test_a_failover_for_what_was_interrupted(first: Journal, second: Journal) -> None:
    interrupt(first, 10.0, 11.0)
    second.execute(14.0, 15.0, fire=10.0, source="FAILOVER")
    assert not kinds(first, second)
    assert not redone(first, second)


def test_an_application_stops_by_itself_and_its_session_lives_on(first: Journal, second: Journal) -> None:
    interrupt(first, 10.0, 11.0)
    second.execute(14.0, 15.0, fire=12.0, source="MISFIRE")
    assert not redone(first, second, sessions=[Session(1, "0x1", EPOCH, None, [])])
    assert redone(first, second, sessions=[Session(1, "0x1", EPOCH, EPOCH + 12.5, [])]) == 1
    followed = [Session(1, "0x1", EPOCH, None, []), Session(1, "0x2", EPOCH + 11.5, None, [])]
    assert redone(first, second, sessions=followed) == 1


def test_a_failover_of_a_misfire_execution_that_was_completed(first: Journal, second: Journal) -> None:
    interrupt(first, 10.0, 11.0)
    second.execute(14.0, 15.0, fire=12.0, source="MISFIRE")
    second.execute(15.1, 16.0, fire=12.0, source="FAILOVER")
    assert kinds(first, second) == ["instant"]
    assert redone(first, second) == 1
    # The fire itself counts as covered, though no application got the interrupted execution's instant and checkpoint again.
    assert not lost(first, second, fires=[10.0, 12.0])


def test_a_second_failover_for_what_was_completed(first: Journal, second: Journal) -> None:
    interrupt(first, 10.0, 11.0)
    second.execute(14.0, 15.0, fire=10.0, source="FAILOVER")
    first.execute(16.0, 17.0, fire=10.0, source="FAILOVER")
    assert kinds(first, second) == ["instant"]


def test_a_failover_that_was_interrupted_has_to_be_executed_again(first: Journal, second: Journal) -> None:
    interrupt(first, 10.0, 11.0)
    interrupt(second, 14.0, 15.0, fire=10.0, source="FAILOVER")
    assert redone(first, second) == 1
    first.execute(18.0, 19.0, fire=10.0, source="FAILOVER")
    assert not kinds(first, second)
    assert not redone(first, second)


def test_a_misfire_execution_of_later_fires_does_not_replace_a_failover(first: Journal) -> None:
    interrupt(first, 10.0, 11.0)
    first.execute(14.0, 15.0, fire=14.0, source="MISFIRE")
    assert redone(first) == 1
    assert not lost(first, fires=[10.0])


def test_an_execution_that_the_store_refuses_was_interrupted(first: Journal, second: Journal) -> None:
    first.execute(10.0, 20.0, outcome="refused", reason="commit")
    first.record.stops = [(10.5, 19.9)]
    assert redone(first, second) == 1
    second.execute(14.0, 15.0, fire=10.0, source="FAILOVER")
    assert not redone(first, second)


@pytest.mark.parametrize("at", [11.5, 9.0])
def test_a_result_that_was_not_recorded_because_the_connection_was_lost(
    first: Journal, second: Journal, at: float
) -> None:
    first.execute(10.0, 11.0)
    second.execute(15.0, 16.0, fire=10.0, source="FAILOVER")
    assert kinds(first, second) == ["instant"]
    first.tell(at, "session", state="SUSPENDED")
    assert not kinds(first, second)


def test_a_connection_that_was_back_when_the_execution_ended_is_no_excuse(first: Journal, second: Journal) -> None:
    first.execute(10.0, 11.0)
    first.tell(10.2, "session", state="SUSPENDED")
    first.tell(10.8, "session", state="CONNECTED")
    second.execute(15.0, 16.0, fire=10.0, source="FAILOVER")
    assert kinds(first, second) == ["instant"]


def test_a_connection_that_is_lost_long_after_the_end_or_elsewhere_is_no_excuse(
    first: Journal, second: Journal
) -> None:
    first.execute(10.0, 11.0)
    first.tell(11.0 + 2 * RECORDING, "session", state="LOST")
    second.tell(11.5, "session", state="LOST")
    second.tell(12.5, "session", state="CONNECTED")
    second.execute(40.0, 41.0, fire=10.0, source="FAILOVER")
    assert kinds(first, second) == ["instant"]


@pytest.mark.parametrize(
    "session",
    [
        Session(1, "0x1", EPOCH, EPOCH + 13.0, []),
        Session(1, "0x2", EPOCH + 11.2, None, []),
        Session(1, "0x1", EPOCH, None, [(EPOCH + 10.9, EPOCH + 13.0)]),
    ],
)
def test_a_result_that_was_not_recorded_because_of_its_sidecar(
    first: Journal, second: Journal, session: Session
) -> None:
    first.execute(10.0, 11.0)
    second.execute(15.0, 16.0, fire=10.0, source="FAILOVER")
    assert kinds(first, second, sessions=[replace(session, slot=2)]) == ["instant"]
    assert not kinds(first, second, sessions=[session])


def test_a_result_that_was_not_recorded_because_its_application_died_or_was_stopped(
    first: Journal, second: Journal
) -> None:
    first.execute(10.0, 11.0)
    second.execute(15.0, 16.0, fire=10.0, source="FAILOVER")
    first.record.died = 11.1
    assert not kinds(first, second)
    first.record.died = None
    first.record.stops = [(11.1, 20.0)]
    assert not kinds(first, second)


def test_a_failover_of_an_execution_that_no_application_had_begun(first: Journal, second: Journal) -> None:
    second.execute(15.0, 16.0, fire=12.0, source="FAILOVER")
    assert kinds(first, second) == ["instant"]
    assert kinds(first, second, sessions=[Session(1, "0x1", EPOCH, EPOCH + 11.0, [])]) == ["instant"]
    assert not kinds(first, second, sessions=[Session(1, "0x1", EPOCH, EPOCH + 14.0, [])])
    first.record.died = 13.0
    assert not kinds(first, second)


@pytest.mark.parametrize(("died", "problems"), [(11.4, ["instant"]), (11.6, []), (15.1, ["instant"])])
def test_a_failover_of_an_execution_whose_application_was_being_killed(
    first: Journal, second: Journal, died: float, problems: list[str]
) -> None:
    second.execute(15.0, 16.0, fire=12.0, source="FAILOVER")
    first.record.died = died
    assert kinds(first, second) == problems


def test_a_failover_of_an_execution_that_an_application_left_before_its_begin(first: Journal, second: Journal) -> None:
    second.execute(15.0, 16.0, fire=12.0, source="FAILOVER")
    first.record.left, first.record.died = 9.0, 11.9
    assert kinds(first, second) == ["instant"], "it was gone before there was anything to take over"
    first.record.left, first.record.died = 9.0, 12.5
    assert not kinds(first, second)


@pytest.mark.parametrize("previous", [0, 1, 2])
def test_a_wrong_instant_counts_only_if_no_sidecar_of_the_previous_release_had_the_item(previous: int) -> None:
    three = [Journal(slot) for slot in (1, 2, 3)]
    first, second, third = three
    interrupt(first, 10.0, 11.0, recorded=[10.1])
    second.execute(14.0, 15.0, fire=12.0, source="MISFIRE", recorded=[14.1])
    third.execute(15.1, 16.0, fire=12.0, source="FAILOVER")
    assert kinds(*three) == ["instant", "checkpoint"]
    assert redone(*three) == 1
    three[previous].record = replace(three[previous].record, previous=True)
    assert "instant" not in kinds(*three)
    assert redone(*three) == 0


def test_a_wrong_instant_does_not_count_if_a_sidecar_of_the_previous_release_owned_the_item(
    first: Journal, second: Journal
) -> None:
    owner = Journal(3)
    owner.record = replace(owner.record, previous=True)
    interrupt(first, 10.0, 11.0)
    second.execute(14.0, 15.0, fire=12.0, source="MISFIRE")
    second.execute(15.1, 16.0, fire=12.0, source="FAILOVER")
    owner.tell(7.0, "assignment", reason="DIVIDED", items=[0])
    owner.tell(9.0, "assignment", reason="DIVIDED", items=[1])
    assert kinds(first, second, owner) == ["instant"]
    assert redone(first, second, owner) == 1
    owner.tell(13.0, "assignment", reason="DIVIDED", items=[0, 1])
    assert not kinds(first, second, owner)
    assert redone(first, second, owner) == 0


@pytest.mark.parametrize(
    ("reign", "problems"),
    [((0.0, 9.9), 1), ((0.0, 10.0), 0), ((12.0, 13.0), 0), ((15.1, math.inf), 0), ((15.2, math.inf), 1)],
)
def test_a_wrong_instant_does_not_count_while_a_sidecar_of_the_previous_release_leads(
    first: Journal, second: Journal, reign: tuple[float, float], problems: int
) -> None:
    interrupt(first, 10.0, 11.0)
    second.execute(14.0, 15.0, fire=12.0, source="MISFIRE")
    second.execute(15.1, 16.0, fire=12.0, source="FAILOVER")
    judge = Judge([first.record, second.record], reigns_of_previous=[reign])
    assert len(judge.instants()) == problems
    assert len(judge.redone([0])) == problems


def test_a_wrong_instant_counts_in_a_fleet_of_two_versions_too(first: Journal, second: Journal) -> None:
    other = Journal(3)
    other.record = replace(other.record, previous=True)
    other.execute(5.0, 6.0)
    interrupt(first, 10.0, 11.0)
    second.execute(14.0, 15.0, fire=12.0, source="MISFIRE")
    second.execute(15.1, 16.0, fire=12.0, source="FAILOVER")
    other.execute(20.0, 21.0)
    assert kinds(first, second, other) == ["instant"]
    assert redone(first, second, other) == 1


def test_a_failover_for_another_instant_than_that_of_what_was_interrupted(first: Journal, second: Journal) -> None:
    interrupt(first, 10.0, 11.0)
    second.execute(14.0, 15.0, fire=12.0, source="FAILOVER")
    second.execute(16.0, 17.0, fire=10.0, source="FAILOVER")
    lost_session = Session(1, "0x1", EPOCH, EPOCH + 13.0, [])
    assert kinds(first, second, sessions=[lost_session]) == ["instant"]
    assert not redone(first, second)


def test_a_failover_gets_the_last_checkpoint_that_was_recorded(first: Journal, second: Journal) -> None:
    interrupt(first, 10.0, 11.0, recorded=[10.1, 10.6])
    second.execute(14.0, 15.0, token=200, fire=10.0, source="FAILOVER", given=(10.0, 100, 2))
    assert not kinds(first, second)


@pytest.mark.parametrize("given", [None, (10.0, 100, 1)])
def test_a_failover_without_the_last_checkpoint(
    first: Journal, second: Journal, given: tuple[float, int, int] | None
) -> None:
    interrupt(first, 10.0, 11.0, recorded=[10.1, 10.6])
    second.execute(14.0, 15.0, token=200, fire=10.0, source="FAILOVER", given=given)
    assert kinds(first, second) == ["checkpoint"]


def test_a_failover_may_get_a_checkpoint_whose_answer_was_lost(first: Journal, second: Journal) -> None:
    interrupt(first, 10.0, 11.0, recorded=[10.1])
    second.execute(14.0, 15.0, token=200, fire=10.0, source="FAILOVER", given=(10.0, 100, 2))
    assert not kinds(first, second)


def test_a_second_failover_gets_the_checkpoint_of_the_first(first: Journal, second: Journal) -> None:
    interrupt(first, 10.0, 11.0, recorded=[10.1, 10.6])
    interrupt(second, 14.0, 15.0, token=200, fire=10.0, source="FAILOVER", given=(10.0, 100, 2), recorded=[14.1])
    first.execute(18.0, 19.0, token=300, fire=10.0, source="FAILOVER", given=(10.0, 100, 2))
    assert kinds(first, second) == ["checkpoint"]


def test_what_was_recorded_after_the_failover_had_been_started_is_not_asked_for(
    first: Journal, second: Journal
) -> None:
    interrupt(first, 10.0, 14.2, recorded=[10.1, 14.1])
    second.execute(15.0, 16.0, token=200, fire=10.0, fired=14.0, source="FAILOVER", given=(10.0, 100, 1))
    assert not kinds(first, second)


def test_a_checkpoint_of_another_instant(first: Journal) -> None:
    first.execute(10.0, 11.0, recorded=[10.1])
    first.execute(12.0, 13.0, given=(10.0, 100, 1))
    assert kinds(first) == ["checkpoint"]


def redone(*journals: Journal, sessions: list[Session] | None = None) -> int:
    """How many executions were interrupted and not executed again."""
    return len(Judge([journal.record for journal in journals], [], sessions or []).redone([0]))


def surplus(*journals: Journal, fires: list[float]) -> int:
    judge = Judge([journal.record for journal in journals])
    return len(judge.surplus([0], [EPOCH + fire for fire in fires]))


def test_a_misfire_execution_for_a_fire_that_was_executed(first: Journal) -> None:
    first.execute(10.0, 10.5)
    first.execute(12.0, 13.0)
    first.execute(13.1, 13.5, fire=12.0, source="MISFIRE")
    assert surplus(first, fires=[10.0, 12.0]) == 1


def test_a_misfire_execution_for_fires_that_were_covered(first: Journal, second: Journal) -> None:
    first.execute(10.0, 15.0)
    first.execute(15.1, 15.5, fire=14.0, source="MISFIRE")
    fires = [10.0, 12.0, 14.0, 16.0]
    assert surplus(first, second, fires=fires) == 0
    second.execute(15.6, 16.0, fire=12.0, source="MISFIRE")
    second.execute(16.1, 16.5, fire=14.0, source="MISFIRE")
    assert surplus(first, second, fires=fires) == 2
    second.execute(17.5, 18.0, fire=16.0, source="MISFIRE")
    assert surplus(first, second, fires=fires) == 2


def test_a_misfire_execution_for_no_fire(first: Journal) -> None:
    first.execute(10.0, 10.5)
    first.execute(12.5, 13.0, fire=12.1, source="MISFIRE")
    assert surplus(first, fires=[10.0, 12.0]) == 1
    first.execute(13.5, 13.9, fire=14.0, source="MISFIRE")
    assert surplus(first, fires=[10.0, 12.0, 14.0]) == 2


@pytest.mark.parametrize("previous", [0, 1])
def test_a_surplus_re_run_counts_only_if_no_sidecar_of_the_previous_release_had_the_item(previous: int) -> None:
    two = [Journal(slot) for slot in (1, 2)]
    two[0].execute(12.0, 13.0, source="FAILOVER", fire=10.0)
    two[1].execute(14.0, 15.0, source="MISFIRE", fire=10.0)
    assert surplus(*two, fires=[10.0]) == 1
    two[previous].record = replace(two[previous].record, previous=True)
    assert surplus(*two, fires=[10.0]) == 0


@pytest.mark.parametrize(
    ("item", "at", "problems"),
    [(0, 11.2, 0), (1, 11.2, 2), (0, 9.0, 2), (0, 12.5, 2)],
    ids=["meanwhile", "of another item", "before the interruption", "after the item was executed again"],
)
def test_an_interruption_is_excused_only_if_the_previous_release_has_deleted_its_flag(
    item: int, at: float, problems: int
) -> None:
    one, other = Journal(1), Journal(2)
    one.execute(10.0)
    one.record.died = 11.0
    other.execute(12.0, 13.0)
    judge = Judge([one.record, other.record], dropped_flags=[(item, EPOCH + at)])
    assert len([*judge.redone([0]), *judge.missing([0], [EPOCH + 10.0])]) == problems
