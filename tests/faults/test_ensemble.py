"""The ensemble can be cut as networks are: then its servers do what ZooKeeper's do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from faults.ensemble import Ensemble
from support.processes import ROOT, eventually, free_port, reservations


def test_a_follower_that_is_cut_off_from_its_leader_stops_serving(ensemble: Ensemble) -> None:
    leader, follower = ensemble.leader(), ensemble.follower()
    ensemble.cut(leader, follower)
    assert follower.mode, "it has not noticed yet, and clients reach it"
    eventually("the follower notices", lambda: not follower.mode)
    assert leader.mode == "leader"
    ensemble.heal()
    ensemble.wait_serving()


def test_another_server_leads_when_the_leader_is_cut_off(ensemble: Ensemble) -> None:
    former = ensemble.leader()
    others = [server for server in ensemble.servers if server is not former]
    ensemble.cut_off(former)
    eventually("another leader", lambda: [server for server in others if server.mode == "leader"])
    eventually("the former leader notices", lambda: not former.mode)
    ensemble.heal()
    ensemble.wait_serving()
    assert former.mode == "follower"


def test_a_server_that_ends_at_its_start_is_named_with_its_log(ensemble: Ensemble) -> None:
    server = ensemble.follower()
    good = server.configuration.read_text()
    server.kill()
    server.configuration.write_text(f"{good}clientPort=none\n")
    server.start()
    with pytest.raises(AssertionError, match=f"(?s){server.name} ended with status [1-9].*NumberFormatException"):
        ensemble.wait_serving()
    server.configuration.write_text(good)
    server.start()
    ensemble.wait_serving()


def test_no_port_is_given_twice() -> None:
    port = free_port()
    assert not reservations.reserve(port)
    other = f"from support.processes import reservations; print(reservations.reserve({port}))"
    answer = subprocess.run(
        [sys.executable, "-c", other], cwd=ROOT / "tests", capture_output=True, text=True, check=True
    )
    assert answer.stdout == "False\n", "another process gets the port"
