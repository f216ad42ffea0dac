from __future__ import annotations

import time

import pytest

from driver import Application, Sidecar, World, eventually, quiet
from support.processes import PATIENCE

pytestmark = pytest.mark.complete

#: Longer than any wait of a test: a leadership that comes within it does not come because a session has ended.
LONG = PATIENCE + 10

#: The session of a sidecar that is to lose it.
SHORT = 4.0

#: The path of an election of other programs, whose nodes an operator can delete.
LATCH = "/latches/chief"


def on_zookeeper(world: World, number: int, session: float = LONG) -> Sidecar:
    """A sidecar with a session."""
    sidecar = world.sidecar(number, zookeeper=True, session=f"{session:.0f}s").ready()
    eventually(f"sidecar {number} has a session", sidecar.knows_locks)
    return sidecar


def waiting(sidecar: Sidecar, *values: str) -> None:
    """Waits until the candidates with these values wait, in this order."""
    eventually(f"{values} wait", lambda: [one.value for one in sidecar.election("chief").candidates] == list(values))


def leads(program: Application, **fields: object) -> int:
    """Has a program stand, and waits until it leads. Returns the term."""
    program.stand("chief", **fields)
    term: int = program.told("leads", election="chief")["term"]
    return term


def lost(program: Application, code: str, election: str = "chief") -> None:
    """Waits until the work of the leader has ended because of the loss, and the client has said so."""
    cancelled = program.told("leader_cancelled", election=election)
    failed = program.told("election_failed", election=election)
    assert (failed["code"], failed["reason"]) == (code, "LOCK_LOST")
    assert cancelled["time"] <= failed["time"]
    assert program.all("resigned") == []


def test_programs_lead_one_after_another_in_their_order_and_the_term_grows(world: World) -> None:
    first, second = on_zookeeper(world, 1), on_zookeeper(world, 2)
    programs = [world.application(sidecar) for sidecar in (first, second, first, second)]
    for number, program in enumerate(programs):
        program.stand("chief", value=f"program-{number}")
        waiting(first, *(f"program-{one}" for one in range(1, number + 1)))
        eventually("one leads", lambda: first.election("chief").leader.value == "program-0")

    def leading() -> list[Application]:
        return [program for program in programs if program.all("leads") and not program.all("resigned")]

    terms = []
    resigned = 0.0
    for program in programs:
        # Within a wait of the test, which no session's end is.
        begun = program.told("leads", election="chief")
        assert begun["time"] >= resigned
        terms.append(begun["term"])
        quiet("another program leads, too", lambda: len(leading()) > 1)
        eventually("the registry shows it", lambda: second.election("chief").leader.term == terms[-1])
        assert begun["node"].endswith(f"/chief/{second.election('chief').leader.node_name}")
        resigned = time.time()
        program.resign("chief")
        program.told("resigned", election="chief")
    assert terms == sorted(set(terms))
    eventually("nobody stands", lambda: not second.election("chief").HasField("leader"))
    assert not any(program.all("leader_cancelled", "election_failed") for program in programs)


def test_a_program_that_is_killed_gives_the_leadership_to_the_next_one(world: World) -> None:
    # The sessions of the embedded registry do not end by themselves: the end of the stream ends the campaign.
    sidecar = world.sidecar().ready()
    program, following = world.application(sidecar), world.application(sidecar)
    term = leads(program, value="A")
    following.stand("chief", value="B")
    waiting(sidecar, "B")
    assert following.all("leads") == []
    program.kill()
    assert following.told("leads", election="chief")["term"] > term


def test_a_program_that_is_killed_while_it_waits_does_not_stand_any_more(world: World) -> None:
    sidecar = world.sidecar().ready()
    leader, program, following = (world.application(sidecar) for _ in range(3))
    leads(leader)
    program.stand("chief", value="B")
    waiting(sidecar, "B")
    following.stand("chief", value="C")
    waiting(sidecar, "B", "C")
    program.kill()
    waiting(sidecar, "C")
    leader.resign("chief")
    following.told("leads", election="chief")


def test_the_work_ends_when_an_operator_deletes_the_leader_and_does_not_begin_by_itself(world: World) -> None:
    sidecar = world.sidecar().ready()
    program = world.application(sidecar)
    program.order("stand", path=LATCH, lingers=True)
    term = program.told("leads", election=LATCH)["term"]
    sidecar.delete_leader(LATCH)
    program.told("leader_cancelled", election=LATCH)
    # While the work ends, the sidecar would have the lost campaign stand and lead again.
    eventually("nobody leads", lambda: not sidecar.election(LATCH).HasField("leader"))
    quiet("the lost campaign leads", lambda: sidecar.election(LATCH).HasField("leader"))
    program.resign(LATCH)
    lost(program, "ABORTED", LATCH)
    assert "REVOKED" in program.told("election_failed")["message"]
    program.order("stand", path=LATCH)
    again = program.told("leads", after=1, election=LATCH)
    assert again["term"] > term
    assert len(program.all("leads")) == 2


def test_the_work_ends_when_the_sidecar_is_killed(world: World) -> None:
    sidecar = world.sidecar().ready()
    program = world.application(sidecar)
    leads(program)
    sidecar.kill()
    lost(program, "UNAVAILABLE")


def test_the_work_ends_when_the_sidecar_stops(world: World) -> None:
    sidecar = world.sidecar(options=["--drain-timeout", "1s"]).ready()
    program = world.application(sidecar)
    leads(program)
    sidecar.popen.terminate()
    lost(program, "ABORTED")
    assert "DRAINING" in program.told("election_failed")["message"]


def test_the_work_ends_with_the_lease_of_a_silent_sidecar_before_another_program_leads(world: World) -> None:
    silent, other = on_zookeeper(world, 1, SHORT), on_zookeeper(world, 2, SHORT)
    program, following = world.application(silent), world.application(other)
    term = leads(program, value="A")
    following.stand("chief", value="B")
    waiting(other, "B")
    # A leadership outlives its first lease, because the sidecar renews it.
    quiet("the leadership is lost", lambda: program.all("leader_cancelled"), seconds=SHORT * 1.2)
    silent.freeze()
    lost(program, "DEADLINE_EXCEEDED")
    begun = following.told("leads", election="chief")
    assert begun["term"] > term
    assert program.told("leader_cancelled")["time"] < begun["time"]


def test_a_leader_knows_whether_the_registry_answers_and_leads_on(world: World) -> None:
    sidecar = on_zookeeper(world, 1)
    program, observer = world.application(sidecar), world.application(sidecar)
    leads(program, value="A")
    observer.observe("chief")
    observer.told("leader_seen", value="A")
    world.server.restart()
    program.told("leader_suspended", suspended=True)
    program.told("leader_suspended", suspended=False)
    program.resign("chief")
    program.told("resigned", election="chief")
    observer.told("leader_seen", value=None)
    assert program.all("leader_cancelled") == []
    # A registry that does not answer is no news of the leader.
    assert [one["value"] for one in observer.all("leader_seen")] == ["A", None]


def test_a_leader_names_its_successor(world: World) -> None:
    sidecar = world.sidecar().ready()
    programs = {value: world.application(sidecar) for value in "ABC"}
    first, second, third = programs.values()
    term = leads(first, value="A")
    second.stand("chief", value="B")
    waiting(sidecar, "B")
    third.stand("chief", value="C")
    waiting(sidecar, "B", "C")
    first.resign("chief", successor="nobody")
    refused = first.told("resign_failed", election="chief")
    assert (refused["code"], refused["reason"]) == ("NOT_FOUND", "CANDIDATE_UNKNOWN")
    assert first.all("resigned", "leader_cancelled", "election_failed") == []
    first.resign("chief", successor="C")
    first.told("resigned", election="chief")
    chosen = third.told("leads", election="chief")["term"]
    assert chosen > term
    assert second.all("leads") == []
    third.resign("chief")
    assert second.told("leads", election="chief")["term"] > chosen


def test_an_observer_sees_each_leader_once(world: World) -> None:
    sidecar = world.sidecar().ready()
    observer, first, second = (world.application(sidecar) for _ in range(3))
    observer.observe("chief")
    observer.told("leader_seen", value=None)
    terms = [leads(first, value="A")]
    observer.told("leader_seen", value="A")
    # A candidate more is no other leader.
    second.stand("chief", value="B")
    waiting(sidecar, "B")
    first.resign("chief")
    observer.told("leader_seen", value="B")
    terms.append(second.told("leads")["term"])
    seen = [(one["value"], one["term"]) for one in observer.all("leader_seen")]
    assert seen == [(None, None), ("A", terms[0]), ("B", terms[1])]
    sidecar.kill()
    assert observer.told("observation_failed", election="chief")["code"] == "UNAVAILABLE"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "a/b"}, "election.name: given `a/b`"),
        ({"path": "latch"}, "election.path: given `latch`"),
        ({"name": "chief", "value": "x" * 4097}, "value"),
        ({"name": "chief", "application_id": "a b"}, "application_id"),
    ],
)
def test_a_wrong_field_is_named(world: World, fields: dict[str, str], said: str) -> None:
    program = world.application(world.sidecar().ready())
    program.order("stand", **fields)
    failures = [program.told("election_failed", election=fields.get("name") or fields["path"])]
    if len(fields) == 1:
        program.order("observe", **fields)
        failures.append(program.told("observation_failed"))
    for failed in failures:
        assert (failed["code"], failed["reason"]) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
        assert failed["message"].startswith(said)
    assert program.all("leads", "leader_seen") == []


def test_a_second_campaign_of_the_same_application_is_refused(world: World) -> None:
    program = world.application(world.sidecar().ready())
    leads(program, application_id="a")
    program.stand("chief", application_id="a")
    failed = program.told("election_failed", election="chief")
    assert (failed["code"], failed["reason"]) == ("FAILED_PRECONDITION", "LOCK_HELD_ALREADY")
    assert program.all("leader_cancelled") == []


def test_without_a_sidecar_the_error_names_the_endpoint(world: World) -> None:
    endpoint = f"unix://{world.folder}/nobody.sock"
    program = world.application(endpoint)
    program.stand("chief")
    program.observe("chief")
    for event in ("election_failed", "observation_failed"):
        failed = program.told(event, election="chief")
        assert failed["code"] == "UNAVAILABLE"
        assert endpoint in failed["message"]
