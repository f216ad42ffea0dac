package sidekeeper_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	"github.com/sidekeeper/sidekeeper/clients/go/internal/script"
	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
	"github.com/sidekeeper/sidekeeper/clients/go/sidekeepertest"
)

func chief(sidecar *sidekeepertest.Process, value string) sidekeeper.CampaignRequest {
	return sidekeeper.CampaignRequest{Name: "chief", Value: value, Endpoint: sidecar.Endpoint}
}

func lead(t *testing.T, ctx context.Context, request sidekeeper.CampaignRequest) *sidekeeper.Campaign {
	t.Helper()
	campaign, err := sidekeeper.Lead(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = campaign.Resign() })
	return campaign
}

func refusedElection(t *testing.T, err error) *sidekeeper.ElectionError {
	t.Helper()
	var refused *sidekeeper.ElectionError
	if !errors.As(err, &refused) {
		t.Fatalf("not an ElectionError: %v", err)
	}
	return refused
}

func dial(t *testing.T, sidecar *sidekeepertest.Process) *grpc.ClientConn {
	t.Helper()
	connection, err := grpc.NewClient(sidecar.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return connection
}

// stand has a candidate more, and returns when the sidecar has seen it. The channel has the campaign when it leads.
func stand(t *testing.T, sidecar *sidekeepertest.Process, value string) <-chan *sidekeeper.Campaign {
	t.Helper()
	waiting, cancel := context.WithCancel(context.Background())
	leads, ended := make(chan *sidekeeper.Campaign, 1), make(chan struct{})
	go func() {
		defer close(ended)
		campaign, err := sidekeeper.Lead(waiting, chief(sidecar, value))
		if err == nil {
			leads <- campaign
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	ctx, end := context.WithTimeout(context.Background(), script.Patience)
	defer end()
	id := &sidekeeperv1.LockId{Id: &sidekeeperv1.LockId_Name{Name: "chief"}}
	states, err := sidekeeperv1.NewElectionServiceClient(dial(t, sidecar)).Observe(ctx, &sidekeeperv1.ObserveRequest{Election: id})
	if err != nil {
		t.Fatal(err)
	}
	for {
		state, err := states.Recv()
		if err != nil {
			t.Fatalf("no candidate %s: %v", value, err)
		}
		if slices.ContainsFunc(state.GetCandidates(), func(one *sidekeeperv1.ElectionLeader) bool { return one.GetValue() == value }) {
			return leads
		}
	}
}

// deleteLeader deletes the leader's node, as an operator does.
func deleteLeader(t *testing.T, sidecar *sidekeepertest.Process, election string) {
	t.Helper()
	for leader, err := range sidekeeper.ObserveLeader(context.Background(), sidekeeper.ObserveRequest{Path: election, Endpoint: sidecar.Endpoint}) {
		if err != nil {
			t.Fatal(err)
		}
		if leader == nil {
			continue // the observation is behind
		}
		id := &sidekeeperv1.LockId{Id: &sidekeeperv1.LockId_Path{Path: election}}
		request := &sidekeeperv1.BreakLockRequest{Lock: id, NodeName: leader.NodeName}
		if _, err := sidekeeperv1.NewLockServiceClient(dial(t, sidecar)).BreakLock(context.Background(), request); err != nil {
			t.Fatal(err)
		}
		return
	}
}

func TestCandidatesLeadOneAfterTheOther(t *testing.T) {
	sidecar := sidekeepertest.StartProcess(t)
	ctx := context.Background()
	own := chief(sidecar, "A")
	own.ApplicationID = "app"
	first := lead(t, ctx, own)
	_, err := sidekeeper.Lead(ctx, own)
	equal(t, "reason", refusedElection(t, err).Reason, "LOCK_HELD_ALREADY")
	waiting, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := sidekeeper.Lead(waiting, chief(sidecar, "A")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error of a context that is done: %v", err)
	}
	leads := stand(t, sidecar, "B")
	equal(t, "Resign", first.Resign(), nil)
	equal(t, "Resign again", first.Resign(), nil)
	if first.Context().Err() == nil {
		t.Error("the context lasts after the resignation")
	}
	second := script.Receive(t, "the next leader", leads)
	if second.Term <= first.Term {
		t.Errorf("terms: %d, then %d", first.Term, second.Term)
	}
	equal(t, "Resign", second.Resign(), nil)
	for _, wrong := range []sidekeeper.CampaignRequest{{Name: "a/b", Endpoint: sidecar.Endpoint}, {Endpoint: sidecar.Endpoint}} {
		_, err = sidekeeper.Lead(ctx, wrong)
		equal(t, "code", refusedElection(t, err).Code, codes.InvalidArgument)
	}
}

func TestALeaderNamesItsSuccessor(t *testing.T) {
	sidecar := sidekeepertest.StartProcess(t)
	first := lead(t, context.Background(), chief(sidecar, "A"))
	b, c := stand(t, sidecar, "B"), stand(t, sidecar, "C")
	equal(t, "reason", refusedElection(t, first.ResignTo("nobody")).Reason, "CANDIDATE_UNKNOWN")
	equal(t, "the leader leads on", first.Context().Err(), nil)
	equal(t, "ResignTo", first.ResignTo("C"), nil)
	if first.Context().Err() == nil {
		t.Error("the context lasts after the resignation")
	}
	chosen := script.Receive(t, "the chosen leader", c)
	nothing(t, "the other candidate leads", b)
	equal(t, "ResignTo again", first.ResignTo("B"), nil)
	equal(t, "Resign", chosen.Resign(), nil)
	last := script.Receive(t, "the last leader", b)
	if chosen.Term <= first.Term || last.Term <= chosen.Term {
		t.Errorf("terms: %d, %d, %d", first.Term, chosen.Term, last.Term)
	}
	equal(t, "Resign", last.Resign(), nil)
}

func TestTheContextOfALostLeadershipIsDone(t *testing.T) {
	sidecar := sidekeepertest.StartProcess(t)
	request := sidekeeper.CampaignRequest{Path: "/locks/chief", Endpoint: sidecar.Endpoint}
	campaign := lead(t, context.Background(), request)
	deleteLeader(t, sidecar, request.Path)
	<-campaign.Context().Done()
	equal(t, "reason", refusedElection(t, context.Cause(campaign.Context())).Reason, "LOCK_LOST")
	// Without `ends_when_lost` the lost campaign would stand again, and lead before this one.
	second := lead(t, context.Background(), request)
	if second.Term <= campaign.Term {
		t.Errorf("terms: %d, then %d", campaign.Term, second.Term)
	}
	equal(t, "reason", refusedElection(t, campaign.ResignTo("B")).Reason, "LOCK_LOST")
	equal(t, "reason", refusedElection(t, campaign.Resign()).Reason, "LOCK_LOST")
	sidecar.Kill()
	<-second.Context().Done()
	equal(t, "reason", refusedElection(t, second.Resign()).Reason, "LOCK_LOST")
}

func TestAnObserverSeesEachLeaderOnce(t *testing.T) {
	sidecar := sidekeepertest.StartProcess(t)
	ctx, cancel := context.WithTimeout(context.Background(), script.Patience)
	defer cancel()
	request := sidekeeper.ObserveRequest{Name: "chief", Endpoint: sidecar.Endpoint}
	var campaign, next *sidekeeper.Campaign
	var leads <-chan *sidekeeper.Campaign
	var seen []string
	for leader, err := range sidekeeper.ObserveLeader(ctx, request) {
		switch {
		case err != nil:
			seen = append(seen, refusedElection(t, err).Code.String())
		case leader == nil:
			seen = append(seen, "nobody")
			campaign = lead(t, ctx, chief(sidecar, "A"))
		case leader.Value == "A":
			seen = append(seen, leader.Value)
			equal(t, "term", leader.Term, campaign.Term)
			// A candidate more is no other leader.
			leads = stand(t, sidecar, "B")
			equal(t, "Resign", campaign.Resign(), nil)
		default:
			seen = append(seen, leader.Value)
			next = script.Receive(t, "the next leader", leads)
			equal(t, "term", leader.Term, next.Term)
			sidecar.Kill()
		}
	}
	if !slices.Equal(seen, []string{"nobody", "A", "B", "Unavailable"}) {
		t.Errorf("seen: %v", seen)
	}
	_ = next.Resign()
	for _, err := range sidekeeper.ObserveLeader(ctx, sidekeeper.ObserveRequest{Endpoint: sidecar.Endpoint}) {
		equal(t, "code", refusedElection(t, err).Code, codes.InvalidArgument)
	}
	sidecar.Restart(t)
	ctx, end := context.WithCancel(ctx)
	defer end()
	for _, err := range sidekeeper.ObserveLeader(ctx, request) {
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the error of a context that is done: %v", err)
		}
		end()
	}
	for leader, err := range sidekeeper.ObserveLeader(context.Background(), request) {
		equal(t, "error", err, nil)
		equal(t, "leader", leader, nil)
		break
	}
}

func TestALeadershipEndsWithItsLeaseIfTheSidecarIsSilent(t *testing.T) {
	sidecar := sidekeepertest.Run(t, nil)
	sidecar.SetElectionLease(50 * time.Millisecond)
	campaign := lead(t, sidecar.Context(), sidekeeper.CampaignRequest{Name: "chief"})
	<-campaign.Context().Done()
	lost := refusedElection(t, context.Cause(campaign.Context()))
	equal(t, "code", lost.Code, codes.DeadlineExceeded)
	equal(t, "reason", lost.Reason, "LOCK_LOST")
	equal(t, "Resign", campaign.Resign(), error(lost))
}
