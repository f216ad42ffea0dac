package sidekeepertest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	"github.com/sidekeeper/sidekeeper/clients/go/sidekeepertest"
)

// lead leads until the test ends.
func lead(t *testing.T, sidecar *sidekeepertest.Sidecar, request sidekeeper.CampaignRequest) *sidekeeper.Campaign {
	t.Helper()
	campaign, err := sidekeeper.Lead(sidecar.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = campaign.Resign() })
	return campaign
}

// standing stands in a goroutine, and sends the campaign when it leads.
func standing(t *testing.T, sidecar *sidekeepertest.Sidecar, value string) <-chan *sidekeeper.Campaign {
	leads := make(chan *sidekeeper.Campaign, 1)
	go func() {
		campaign, err := sidekeeper.Lead(sidecar.Context(), sidekeeper.CampaignRequest{Name: "chief", Value: value})
		if err != nil {
			t.Error(err)
		}
		leads <- campaign
	}()
	return leads
}

func electionError(t *testing.T, err error) *sidekeeper.ElectionError {
	t.Helper()
	var failed *sidekeeper.ElectionError
	if !errors.As(err, &failed) {
		t.Fatalf("not an ElectionError: %v", err)
	}
	return failed
}

// values are those of the leader and of the candidates that wait.
func values(sidecar *sidekeepertest.Sidecar) string {
	var all []string
	state := sidecar.Election("chief")
	if state.Leader != nil {
		all = append(all, state.Leader.Value)
	}
	for _, one := range state.Waiting {
		all = append(all, one.Value)
	}
	return strings.Join(all, " ")
}

func TestCandidatesLeadInTheirOrder(t *testing.T) {
	sidecar := sidekeepertest.Run(t, nil)
	var programs []<-chan *sidekeeper.Campaign
	for number := range 4 {
		programs = append(programs, standing(t, sidecar, fmt.Sprint(number)))
		sidecar.WaitElection("chief", 1, number)
	}
	equal(t, "candidates", values(sidecar), "0 1 2 3")
	var term int64
	for number, program := range programs {
		campaign := receive(t, "the leadership", program)
		if campaign.Term <= term {
			t.Errorf("term %d after %d", campaign.Term, term)
		}
		term = campaign.Term
		for _, later := range programs[number+1:] {
			equal(t, "later leaders", len(later), 0)
		}
		equal(t, "Resign", campaign.Resign(), nil)
	}
	sidecar.WaitElection("chief", 0, 0)
}

func TestElectionsHaveNamesAndPathsApartFromLocks(t *testing.T) {
	sidecar := sidekeepertest.Run(t, nil)
	named := lead(t, sidecar, sidekeeper.CampaignRequest{Name: "chief"})
	placed := lead(t, sidecar, sidekeeper.CampaignRequest{Path: "/latch"})
	hold(t, sidecar, sidekeeper.LockRequest{Name: "chief"})
	if !strings.HasPrefix(named.NodePath, "/test-sidekeeper/@-@locks/elections/chief/_c_") || !strings.HasPrefix(placed.NodePath, "/latch/_c_") {
		t.Errorf("nodes: %s, %s", named.NodePath, placed.NodePath)
	}
	leader := sidecar.Election("/latch").Leader
	equal(t, "leader", *leader, sidekeeper.Leader{Term: placed.Term, NodeName: strings.TrimPrefix(placed.NodePath, "/latch/")})
}

func TestACampaignThatASidecarRefusesIsRefused(t *testing.T) {
	sidecar := sidekeepertest.Run(t, nil)
	own := sidekeeper.CampaignRequest{Name: "own", ApplicationID: "a"}
	lead(t, sidecar, own)
	_, err := sidekeeper.Lead(sidecar.Context(), own)
	equal(t, "code", electionError(t, err).Code, codes.FailedPrecondition)
	equal(t, "reason", electionError(t, err).Reason, "LOCK_HELD_ALREADY")
	for field, request := range map[string]sidekeeper.CampaignRequest{
		"election.name: given `a/b`": {Name: "a/b"},
		"election.name: given `@-@":  {Name: "@-@x"},
		"election.path: given `latc": {Path: "latch"},
		"value: given `ää":           {Name: "chief", Value: strings.Repeat("ä", 2049)},
		"application_id":             {Name: "chief", ApplicationID: "a b"},
	} {
		_, err := sidekeeper.Lead(sidecar.Context(), request)
		wrong := electionError(t, err)
		if wrong.Code != codes.InvalidArgument || wrong.Reason != "INVALID_REQUEST" || !strings.HasPrefix(wrong.Details, field) {
			t.Errorf("%q: %v", field, wrong)
		}
	}
	equal(t, "candidates", values(sidecar), "")
}

func TestTheWorkOfALeaderThatLosesIsCancelled(t *testing.T) {
	for loss, word := range map[sidekeepertest.LockLoss]string{
		sidekeepertest.LockLeaseLost: "LEASE_LOST", sidekeepertest.LockRevoked: "REVOKED", sidekeepertest.LockDraining: "DRAINING",
	} {
		sidecar := sidekeepertest.Run(t, nil)
		campaign := lead(t, sidecar, sidekeeper.CampaignRequest{Name: "chief", Value: "A"})
		other := sidecar.AddCandidate("chief", "B")
		equal(t, "the other leads", other.Leads(), false)
		equal(t, "error", campaign.Context().Err(), nil)
		sidecar.LoseLeadership("chief", loss)
		// The campaign ends with the loss, not with the client's stream.
		equal(t, "candidates that wait", len(sidecar.Election("chief").Waiting), 0)
		equal(t, "the other leads", other.Leads(), true)
		receive(t, "the loss", campaign.Context().Done())
		lost := electionError(t, context.Cause(campaign.Context()))
		equal(t, "code", lost.Code, codes.Aborted)
		equal(t, "reason", lost.Reason, "LOCK_LOST")
		equal(t, "details", lost.Details, "the sidecar has reported the loss: "+word)
		equal(t, "ResignTo", electionError(t, campaign.ResignTo("B")), lost)
		equal(t, "Resign", electionError(t, campaign.Resign()), lost)
		if other.Term() <= campaign.Term {
			t.Errorf("terms: %d, then %d", campaign.Term, other.Term())
		}
	}
}

func TestACandidateThatHasLostStandsAgainBehindTheOthers(t *testing.T) {
	sidecar := sidekeepertest.Run(t, nil)
	first, second := sidecar.AddCandidate("chief", "A"), sidecar.AddCandidate("chief", "B")
	term := first.Term()
	sidecar.LoseLeadership("chief", sidekeepertest.LockLeaseLost)
	equal(t, "candidates", values(sidecar), "B A")
	if first.Leads() || first.Term() <= second.Term() || second.Term() <= term {
		t.Errorf("terms: %d, then %d and %d", term, second.Term(), first.Term())
	}
	second.Leave()
	second.Leave()
	equal(t, "the first leads again", first.Leads(), true)
	sidecar.LoseLeadership("chief", sidekeepertest.LockDraining)
	equal(t, "candidates", values(sidecar), "")
	first.Leave()
	equal(t, "the first leads", first.Leads(), false)
}

func TestALeaderThatResignsNamesItsSuccessor(t *testing.T) {
	sidecar := sidekeepertest.Run(t, nil)
	campaign := lead(t, sidecar, sidekeeper.CampaignRequest{Name: "chief", Value: "A"})
	others := map[string]*sidekeepertest.Candidate{}
	for _, value := range []string{"B", "C", "D", "E"} {
		others[value] = sidecar.AddCandidate("chief", value)
	}
	unknown := electionError(t, campaign.ResignTo("nobody"))
	equal(t, "code", unknown.Code, codes.NotFound)
	equal(t, "reason", unknown.Reason, "CANDIDATE_UNKNOWN")
	others["B"].KeepPlace()
	stays := electionError(t, campaign.ResignTo("D"))
	equal(t, "code", stays.Code, codes.FailedPrecondition)
	equal(t, "reason", stays.Reason, "CANDIDATE_IN_THE_WAY")
	equal(t, "the leader leads on", campaign.Context().Err(), nil)
	equal(t, "candidates", values(sidecar), "A B D E C")
	others["B"].Leave()
	equal(t, "ResignTo", campaign.ResignTo(sidecar.Election("chief").Waiting[1].NodeName), nil)
	equal(t, "candidates", values(sidecar), "E C D")
	equal(t, "ResignTo again", campaign.ResignTo("C"), nil)
}

func TestASuspensionIsToldAndNobodyComesToLead(t *testing.T) {
	sidecar := sidekeepertest.Run(t, nil)
	campaign := lead(t, sidecar, sidekeeper.CampaignRequest{Name: "chief"})
	next := sidecar.AddCandidate("chief", "B")
	equal(t, "suspended", campaign.Suspended(), false)
	sidecar.SuspendElections()
	eventually(t, "the suspension is told", campaign.Suspended)
	other := standing(t, sidecar, "C")
	sidecar.WaitElection("chief", 1, 2)
	away := electionError(t, campaign.ResignTo("B"))
	equal(t, "code", away.Code, codes.Unavailable)
	equal(t, "reason", away.Reason, "REGISTRY_AWAY")
	sidecar.ResumeElections()
	eventually(t, "the resumption is told", func() bool { return !campaign.Suspended() })
	equal(t, "the leader leads on", campaign.Context().Err(), nil)
	sidecar.SuspendElections()
	equal(t, "Resign", campaign.Resign(), nil)
	sidecar.WaitElection("chief", 0, 2)
	sidecar.ResumeElections()
	equal(t, "the next one leads", next.Leads(), true)
	next.Leave()
	equal(t, "Resign", receive(t, "the last leader", other).Resign(), nil)
}

func TestALeadershipIsLostByTheClock(t *testing.T) {
	sidecar := sidekeepertest.Run(t, nil)
	sidecar.SetElectionLease(20 * time.Millisecond)
	campaign := lead(t, sidecar, sidekeeper.CampaignRequest{Name: "chief"})
	receive(t, "the end of the lease", campaign.Context().Done())
	lost := electionError(t, campaign.Resign())
	equal(t, "code", lost.Code, codes.DeadlineExceeded)
	equal(t, "reason", lost.Reason, "LOCK_LOST")
	sidecar.WaitElection("chief", 0, 0)
}

func TestAnObserverHearsOfEachLeader(t *testing.T) {
	sidecar := sidekeepertest.Run(t, nil)
	ctx, cancel := context.WithCancel(sidecar.Context())
	defer cancel()
	var candidate *sidekeepertest.Candidate
	var seen []string
	for leader, err := range sidekeeper.ObserveLeader(ctx, sidekeeper.ObserveRequest{Name: "chief"}) {
		switch {
		case errors.Is(err, context.Canceled):
			seen = append(seen, "cancelled")
		case err != nil:
			t.Fatal(err)
		case candidate == nil:
			equal(t, "leader", leader, nil)
			candidate = sidecar.AddCandidate("chief", "A")
		case leader != nil && leader.Value == "A":
			equal(t, "term", leader.Term, candidate.Term())
			seen = append(seen, "A")
			// The observer hears nothing new of a registry that does not answer, nor of a candidate that waits.
			sidecar.SuspendElections()
			sidecar.AddCandidate("chief", "B")
			sidecar.ResumeElections()
			sidecar.LoseLeadership("chief", sidekeepertest.LockRevoked)
		case leader != nil:
			seen = append(seen, leader.Value)
			cancel()
		}
	}
	if !slices.Equal(seen, []string{"A", "B", "cancelled"}) {
		t.Errorf("seen: %v", seen)
	}
	for _, err := range sidekeeper.ObserveLeader(sidecar.Context(), sidekeeper.ObserveRequest{Name: "a/b"}) {
		equal(t, "code", electionError(t, err).Code, codes.InvalidArgument)
	}
}

func TestAHandlerLeads(t *testing.T) {
	leads := make(chan struct{}, 2)
	app := application(func(ctx context.Context, _ *sidekeeper.Execution) error {
		campaign, err := sidekeeper.Lead(ctx, sidekeeper.CampaignRequest{Name: "chief", Endpoint: "nowhere:1"})
		if err != nil {
			return err
		}
		leads <- struct{}{}
		<-campaign.Context().Done()
		return campaign.Resign()
	})
	sidecar := sidekeepertest.Run(t, app)
	lost := sidecar.Start(sidekeepertest.Execution{Job: "orderSync", Item: 1})
	sidecar.WaitElection("chief", 1, 0)
	cancelled := sidecar.Start(sidekeepertest.Execution{Job: "orderSync", Item: 2})
	sidecar.WaitElection("chief", 1, 1)
	sidecar.LoseLeadership("chief", sidekeepertest.LockRevoked)
	if result := lost.Wait(); !strings.Contains(result.Message, "REVOKED") {
		t.Errorf("got %+v", result)
	}
	sidecar.WaitElection("chief", 1, 0)
	for range 2 {
		receive(t, "the handler leads", leads)
	}
	cancelled.Cancel(sidekeeper.CancelOperator)
	equal(t, "outcome", cancelled.Wait().Outcome, sidekeepertest.Success)
	sidecar.WaitElection("chief", 0, 0)
}
