"""Elections: the command that runs while its candidate leads."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.test_locks import command, run, serving
from support.fleet import Fleet
from support.processes import eventually
from support.sidecar import Sidecar


def election(binary: Path, sidecar: Sidecar) -> dict[str, object]:
    told = run(binary, sidecar, "election", "chief", "--json")
    assert told.returncode == 0, told.stderr
    return dict(json.loads(told.stdout))


def values(state: dict[str, object]) -> tuple[str | None, list[str]]:
    leader, candidates = state["leader"], state["candidates"]
    assert isinstance(candidates, list)
    assert leader is None or isinstance(leader, dict)
    return (leader and str(leader["value"]), [str(one["value"]) for one in candidates])


@contextmanager
def standing(binary: Path, sidecar: Sidecar, value: str) -> Iterator[subprocess.Popen[str]]:
    """A program that stands for election; its command prints its term, and runs until it is told to end."""
    script = "sleep 1000 & trap 'kill $!; exit 3' TERM; echo $SIDEKEEPER_ELECTION_TERM; wait $!"
    process = subprocess.Popen(
        command(binary, sidecar, "election", "chief", "--value", value, "--", "sh", "-c", script),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def term(process: subprocess.Popen[str]) -> int:
    """Waits until the candidate leads."""
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_a_command_runs_while_its_candidate_leads_and_the_next_one_follows(fleet: Fleet, binary: Path) -> None:
    one, two = (serving(fleet, binary, number) for number in (1, 2))
    assert run(binary, one, "election", "chief").stdout == "nobody leads\n"
    with standing(binary, one, "A") as first:
        first_term = term(first)
        with standing(binary, two, "B") as second:
            eventually("the second one waits", lambda: values(election(binary, one)) == ("A", ["B"]))
            first.terminate()
            assert first.wait() == 3
            assert term(second) > first_term
            assert values(election(binary, one)) == ("B", [])
    eventually("nobody leads", lambda: values(election(binary, two)) == (None, []))


def test_the_command_of_a_killed_sidecar_is_stopped_and_the_next_candidate_leads_after_the_session(
    fleet: Fleet, binary: Path
) -> None:
    one, two = (serving(fleet, binary, number) for number in (1, 2))
    with standing(binary, one, "A") as first:
        first_term = term(first)
        with standing(binary, two, "B") as second:
            one.kill()
            _, told = first.communicate()
            assert first.returncode == 124, told
            assert "; the command was stopped" in told
            assert term(second) > first_term
