"""Campaigns of sidecars and Curator's LeaderLatch in one election."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import sidekeeper

from interop.members import LatchPeer, MixedFleet
from support.job_nodes import JOB
from support.processes import PATIENCE, eventually

#: How often the leadership goes from one kind to the other.
ROUNDS = int(os.environ.get("ELECTION_ROUNDS", "30"))


def serving(fleet: MixedFleet, binary: Path, number: int) -> str:
    """The endpoint of a sidecar with a session."""
    endpoint = f"unix://{fleet.sidecar(number).socket}"
    command = [str(binary), "locks", "--endpoint", endpoint]
    eventually("a session", lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0)
    return endpoint


def hears(leaders: Iterator[sidekeeper.Leader | None], value: str, term: int) -> None:
    """Waits until an observer is told of this leader. It hears of no later one before."""
    for leader in leaders:
        assert leader is None or leader.term <= term, (leader, value, term)
        if leader is not None and leader.term == term:
            assert leader.value == value
            return


def test_s11_a_leader_latch_of_curator_and_a_campaign_lead_by_turns(fleet: MixedFleet, binary: Path) -> None:
    path = f"/{fleet.namespace}-elections/chief"
    endpoints = [serving(fleet, binary, number) for number in (1, 2)]
    peer = LatchPeer(fleet, path, "java:é")
    terms = []
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        # A test that fails ends the other leader, so that the thread's turn comes.
        stack.callback(peer.kill)
        peer.command("stand")
        for turn in range(1, ROUNDS + 1):
            terms.append(peer.leads(turn))
            if turn == 1:
                leaders = iter(sidekeeper.observe_leader(path=path, endpoint=endpoints[0]))
            assert peer.leader() == ("java:é", True)
            hears(leaders, "java:é", terms[-1])
            value = f"ours:é-{turn}"
            campaign = sidekeeper.leader(path=path, value=value, endpoint=endpoints[turn % 2])
            leads = pool.submit(campaign.__enter__)
            eventually("our candidate waits", lambda: len(fleet.tree.client.get_children(path)) == 2)
            assert not leads.done()
            peer.command("leave")
            terms.append(leads.result(PATIENCE).term)
            # Curator and we read the same, also while its next candidate waits behind ours.
            peer.command("stand")
            eventually("Curator's candidate waits", lambda: len(fleet.tree.client.get_children(path)) == 2)
            assert peer.leader() == (value, True)
            hears(leaders, value, terms[-1])
            assert len(peer.events("leads")) == turn
            campaign.__exit__(None, None, None)
        terms.append(peer.leads(ROUNDS + 1))
        peer.command("leave")
        eventually("nothing is left", lambda: fleet.tree.client.get_children(path) == [])
    assert terms == sorted(set(terms))
    assert len(terms) == 2 * ROUNDS + 1


def test_s12_the_latch_of_a_job_is_no_election(fleet: MixedFleet, binary: Path) -> None:
    endpoint = serving(fleet, binary, 1)
    path = f"/{fleet.namespace}/{JOB}/leader/election/latch"
    with pytest.raises(sidekeeper.ElectionError, match=r"election\.path") as refused:
        sidekeeper.leader(path=path, endpoint=endpoint).__enter__()
    assert refused.value.code == "INVALID_ARGUMENT"
    with pytest.raises(sidekeeper.ElectionError, match=r"election\.path"):
        next(iter(sidekeeper.observe_leader(path=path, endpoint=endpoint)))
    assert not fleet.tree.client.exists(path)
