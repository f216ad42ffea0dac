"""The comparison of counters with journals, on journals written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from faults.counters import Sidecar
from faults.judge import Judge, Record

STARTED = 100.0


class Counted:
    """The counters of a sidecar, by name and labels."""

    def __init__(self, **counters: float):
        self._counters = counters

    def total(self, name: str, **labels: str) -> float:
        wanted = "_".join([name, *labels.values()])
        return sum(value for key, value in self._counters.items() if key == wanted or key.startswith(f"{wanted}_"))


def start(item: int, at: float, source: str = "SCHEDULE") -> dict[str, Any]:
    fields = {"item": item, "token": item, "execution": f"{item}-{at}", "source": source, "scheduled": at}
    return {"event": "start", "time": at, "wall": at, "fired": at, **fields}


def end(item: int, began: float, at: float, event: str = "end") -> dict[str, Any]:
    return {"event": event, "time": at, "wall": at, "execution": f"{item}-{began}"}


def assignment(at: float, items: list[int], reason: str = "CHANGED") -> dict[str, Any]:
    return {"event": "assignment", "time": at, "wall": at, "items": items, "reason": reason}


#: Two items, of which one moved away and back; one execution of the former sidecar, three of this one.
ENTRIES = [
    assignment(90.0, [0, 1]),
    start(0, 95.0),
    end(0, 95.0, 96.0),
    assignment(101.0, [0, 1]),
    start(0, 110.0),
    end(0, 110.0, 111.0),
    start(1, 110.0, "FAILOVER"),
    end(1, 110.0, 112.0),
    assignment(115.0, [0]),
    assignment(116.0, [0, 1]),
    start(0, 120.0),
    end(0, 120.0, 121.0, "refused"),
]
RIGHT = {
    "executions_total_schedule_success": 1.0,
    "executions_total_failover_success": 1.0,
    "executions_total_schedule_failure": 1.0,
    "items_received_total": 3.0,
}


def problems(
    counted: dict[str, float],
    *more: dict[str, Any],
    died: float | None = None,
    stops: tuple[tuple[float, float], ...] = (),
) -> list[str]:
    record = Record("application", 1, True, died, [], sorted([*ENTRIES, *more], key=lambda entry: entry["time"]))
    executions = Judge([record]).executions
    return Sidecar("sidecar", STARTED, stops, [record], executions).problems(Counted(**counted))


def test_op_7_counters_that_are_those_of_the_journal_are_right() -> None:
    assert problems(RIGHT) == []


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("difference", [-1, 1])
def test_op_7_each_counter_that_is_one_too_small_or_too_large_is_found(name: str, difference: int) -> None:
    assert problems({**RIGHT, name: RIGHT[name] + difference})


def test_op_7_an_execution_that_is_counted_as_another_source_is_found() -> None:
    wrong = {**RIGHT, "executions_total_failover_success": 0.0, "executions_total_schedule_success": 2.0}
    assert problems(wrong) == [
        "sidecar: SCHEDULE success: counted 2, journalled 1",
        "sidecar: FAILOVER success: counted 0, journalled 1",
    ]


def test_op_7_a_report_in_doubt_may_be_lost_and_is_not_counted_twice() -> None:
    lost = {"event": "session", "time": 111.5, "wall": 111.5, "state": "LOST"}
    without = {**RIGHT, "executions_total_failover_success": 0.0}
    assert problems({**without, "executions_lost_total": 1.0}, lost) == []
    assert problems(without, lost) == ["sidecar: executions that were begun: counted 2, journalled 3"]
    assert problems({**RIGHT, "executions_lost_total": 1.0}, lost)
    # Without a reason for the doubt it is wrong.
    assert problems({**without, "executions_lost_total": 1.0})


def test_op_7_an_application_that_died_may_have_been_given_more_than_it_has_begun() -> None:
    assert problems({**RIGHT, "executions_lost_total": 2.0}, died=130.0) == []
    assert problems({**RIGHT, "executions_lost_total": 3.0}, died=130.0)
    assert problems({**RIGHT, "executions_lost_total": 2.0}, died=99.0)
