"""Tables of what was measured: medians with their spread, and each kind beside ElasticJob in the same round."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compare.instances import KINDS, Kind
from compare.scenarios import Figures

BEGIN, END = "<!-- compare: begin -->", "<!-- compare: end -->"


@dataclass(frozen=True)
class Measure:
    """A row of a table."""

    figure: str
    text: str
    digits: int = 0
    #: Whether ElasticJob's figure is divided by the others, so that more than 1 is better.
    is_ratio: bool = True


#: The rows for a fleet that executes each fire.
STEADY = (
    Measure("p50", "from the instant to the handler, p50, ms", 1),
    Measure("p99", "the same, p99, ms", 1),
    Measure("requests", "requests to ZooKeeper for a fire"),
    Measure("processor", "processor time of all instances for 1,000 executions, s", 2),
    Measure("processor of the sidecar", "of that the sidecars, s", 2),
    Measure("memory", "resident memory of an instance, MB"),
    Measure("memory of the sidecar", "of that the sidecar, MB", 1),
)

#: The rows for events, by the event.
EVENTS = {
    "dead machine": (
        Measure(
            "taken over", "a machine dies (session 4 s): until its items are executed elsewhere, s", 2, is_ratio=False
        ),
    ),
    "join": (
        Measure("took", "a third instance joins two: until it owns its share, s", 2),
        Measure("moved", "items of 30 that move then", is_ratio=False),
    ),
    "start-up": (Measure("took", "four instances start: until the items are divided, s", 1),),
    "rolling restart": (
        Measure("not at its instant", "rolling restart of three: not executed at their instant, %", 1, is_ratio=False),
        Measure("twice", "the same: executed twice for an instant", is_ratio=False),
    ),
}

#: The figures of each kind, in the order of the rounds.
Rounds = dict[str, list[Figures]]


def spread(values: Sequence[float], digits: int) -> str:
    """The median, and in brackets the least and the most."""
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def cell(measure: Measure, rounds: Rounds, kind: Kind) -> str:
    """A kind's figure, and how much more ElasticJob needed in the same rounds."""
    values = [figures[measure.figure] for figures in rounds.get(kind.name, []) if measure.figure in figures]
    if not values:
        return "–"
    text = spread(values, measure.digits)
    java = [figures.get(measure.figure) for figures in rounds.get("java", [])]
    if kind.is_java or not measure.is_ratio or None in java or len(java) != len(values):
        return text
    if min(values) < 5 * 10**-measure.digits:
        return text  # a ratio would be of rounded figures
    ratios = [other / value for other, value in zip(java, values) if other is not None]
    return f"{text}; 1/{spread(ratios, 0 if min(ratios) >= 10 else 1)}"


def table(heading: str, measures: Sequence[Measure], rounds: Rounds) -> list[str]:
    """One table, a column for each kind."""
    kinds = [kind for kind in KINDS.values() if kind.name in rounds]
    lines = [
        f"| {heading} | {' | '.join(kind.heading for kind in kinds)} |",
        f"|---{'|---' * len(kinds)}|",
    ]
    for measure in measures:
        cells = [cell(measure, rounds, kind) for kind in kinds]
        if any(text != "–" for text in cells):
            lines.append(f"| {measure.text} | {' | '.join(cells)} |")
    return lines


def tables(steady: dict[str, Rounds], events: dict[str, Rounds]) -> str:
    """All tables."""
    parts = ["\n".join(table(heading, STEADY, rounds)) for heading, rounds in steady.items()]
    rows: list[str] = []
    for event, rounds in events.items():
        lines = table("events", EVENTS[event], rounds)
        rows += lines[2:] if rows else lines
    return "\n\n".join([*parts, *(["\n".join(rows)] if rows else [])])


def write(page: Path, text: str) -> None:
    """Puts the text between the marks of a page."""
    old = page.read_text()
    new, count = re.subn(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{text}\n{END}", old, flags=re.DOTALL)
    if count != 1:
        raise RuntimeError(f"{page} does not have the marks {BEGIN} and {END}")
    page.write_text(new)
