"""The ensemble can be cut as networks are: then its servers do what ZooKeeper's do."""

from __future__ import annotations

from ensemble import Ensemble
from harness import eventually


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
