package sidekeepertest

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

const (
	// electionRoot is where the elections with names are.
	electionRoot = "/test-sidekeeper/@-@locks/elections"
	// valueBytesMax is the limit of a sidecar.
	valueBytesMax = 4096

	noRegistry = "the registry does not answer; the sidecar waits until it does"
)

// elections is the election service in memory.
type elections struct {
	sidekeeperv1.UnimplementedElectionServiceServer
	// changed is called after each change.
	changed func()

	mu sync.Mutex
	// Candidates of all elections, in their order.
	candidates   []*campaign
	observations []*observation
	count        int64
	suspended    bool
	lease        time.Duration
}

func newElections(changed func()) *elections {
	return &elections{changed: changed, lease: lockLease}
}

// campaign is one candidate. Its fields need the mutex of the elections.
type campaign struct {
	id        string
	path      string
	request   *sidekeeperv1.CampaignRequest
	candidate *sidekeeperv1.ElectionLeader
	leads     bool
	// keepsPlace says that it makes no way for a successor.
	keepsPlace bool
	// Its place and the leader, as it has heard of them.
	position int
	leader   *sidekeeperv1.ElectionLeader

	outbox[sidekeeperv1.CampaignResponse]
}

// observation is one observer of an election.
type observation struct {
	path string
	told *sidekeeperv1.ObserveResponse

	outbox[sidekeeperv1.ObserveResponse]
}

// Campaign is the election service's.
func (e *elections) Campaign(request *sidekeeperv1.CampaignRequest, out grpc.ServerStreamingServer[sidekeeperv1.CampaignResponse]) error {
	one, err := e.enter(proto.CloneOf(request))
	if err != nil {
		return err
	}
	defer e.leave(one)
	return one.deliver(&e.mu, out)
}

// Resign is the election service's.
func (e *elections) Resign(_ context.Context, request *sidekeeperv1.ResignRequest) (*sidekeeperv1.ResignResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, one := range e.candidates {
		if one.id != request.GetCampaignId() {
			continue
		}
		if successor := request.GetSuccessor(); successor != "" {
			if err := e.makeWay(one, successor); err != nil {
				return nil, err
			}
		}
		one.send(&sidekeeperv1.CampaignResponse{Event: &sidekeeperv1.CampaignResponse_Resigned{Resigned: &sidekeeperv1.Resigned{}}})
		e.end(one, nil)
		return &sidekeeperv1.ResignResponse{}, nil
	}
	return nil, refusal(codes.NotFound, "HOLD_UNKNOWN",
		fmt.Sprintf("this sidecar has no hold `%s`: it has ended, or another sidecar has it", request.GetCampaignId()))
}

// Observe is the election service's.
func (e *elections) Observe(request *sidekeeperv1.ObserveRequest, out grpc.ServerStreamingServer[sidekeeperv1.ObserveResponse]) error {
	path, err := electionPath(request.GetElection())
	if err != nil {
		return err
	}
	one := &observation{path: path, outbox: newOutbox[sidekeeperv1.ObserveResponse]()}
	e.mu.Lock()
	e.observations = append(e.observations, one)
	one.tell(e.state(path))
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.observations = slices.DeleteFunc(e.observations, func(other *observation) bool { return other == one })
	}()
	return one.deliver(&e.mu, out)
}

// find returns the leader of an election and the candidates that wait.
func (e *elections) find(election *sidekeeperv1.LockId) (*sidekeeperv1.ObserveResponse, error) {
	path, err := electionPath(election)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen(path), nil
}

// takeAway takes the leadership from the leader.
func (e *elections) takeAway(election *sidekeeperv1.LockId, loss LockLoss) error {
	path, err := electionPath(election)
	if err != nil {
		return err
	}
	if loss == LockHoldTimeout {
		var wrong violations
		wrong.add("loss", "HOLD_TIMEOUT", "LockLeaseLost, LockRevoked or LockDraining")
		return wrong.status()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	leader := e.leader(path)
	if leader == nil {
		return refusal(codes.NotFound, "LOCK_FREE", fmt.Sprintf("nobody leads the election %s", path))
	}
	leader.send(&sidekeeperv1.CampaignResponse{
		Event: &sidekeeperv1.CampaignResponse_Lost{Lost: &sidekeeperv1.LeadershipLost{Reason: sidekeeperv1.LockLossReason(loss)}},
	})
	if loss == LockDraining || leader.request.GetEndsWhenLost() {
		e.end(leader, refusal(codes.Aborted, "LOCK_LOST", fmt.Sprintf("the lock %s is lost: %s", path, whyLost[loss])))
		return nil
	}
	e.standAgain(leader)
	e.settle(path)
	return nil
}

// suspend acts as a registry that does not answer.
func (e *elections) suspend() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.suspended = true
	for _, one := range e.candidates {
		if one.leads {
			one.send(&sidekeeperv1.CampaignResponse{Event: &sidekeeperv1.CampaignResponse_Suspended{Suspended: e.leaseNow()}})
		} else {
			one.tellSilence()
		}
	}
	for _, one := range e.observations {
		one.tell(e.state(one.path))
	}
}

// resume acts as a registry that answers again.
func (e *elections) resume() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.suspended = false
	paths := map[string]struct{}{}
	for _, one := range e.candidates {
		paths[one.path] = struct{}{}
		if one.leads {
			one.send(&sidekeeperv1.CampaignResponse{Event: &sidekeeperv1.CampaignResponse_Resumed{Resumed: e.leaseNow()}})
		}
	}
	for _, one := range e.observations {
		paths[one.path] = struct{}{}
	}
	for path := range paths {
		e.settle(path)
	}
}

func (e *elections) setLease(lease time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lease = lease
}

// enter takes a candidate into the queue of its election.
func (e *elections) enter(request *sidekeeperv1.CampaignRequest) (*campaign, error) {
	path, err := checkCampaign(request)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	queue := e.queue(path)
	for _, one := range queue {
		if id := request.GetApplicationId(); id != "" && one.request.GetApplicationId() == id {
			return nil, refusal(codes.FailedPrecondition, "LOCK_HELD_ALREADY", fmt.Sprintf(
				"this application holds the lock %s already, or waits for it: it would wait for itself; release that hold first", path))
		}
	}
	if len(queue) >= queueMax {
		return nil, refusal(codes.ResourceExhausted, "TOO_MANY", fmt.Sprintf(
			"the lock %s has %d contenders, which is the most; try later, or use several locks", path, len(queue)))
	}
	one := &campaign{id: rand.Text(), path: path, request: request, outbox: newOutbox[sidekeeperv1.CampaignResponse]()}
	e.create(one)
	one.send(&sidekeeperv1.CampaignResponse{
		Event: &sidekeeperv1.CampaignResponse_Started{Started: &sidekeeperv1.CampaignStarted{CampaignId: one.id, Path: path}},
	})
	if e.suspended {
		one.tellSilence()
	}
	e.settle(path)
	return one, nil
}

// leave is called when the stream has ended.
func (e *elections) leave(one *campaign) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.end(one, nil)
}

// All of the following needs the mutex.

// create gives a candidate its place at the end of the queue.
func (e *elections) create(one *campaign) {
	e.count++
	one.candidate = &sidekeeperv1.ElectionLeader{
		Value:    one.request.GetValue(),
		Term:     e.count,
		NodeName: fmt.Sprintf("_c_%s-latch-%010d", rand.Text(), e.count),
	}
	one.position = 0
	e.candidates = append(e.candidates, one)
}

func (e *elections) standAgain(one *campaign) {
	e.remove(one)
	e.create(one)
}

func (e *elections) remove(one *campaign) bool {
	index := slices.Index(e.candidates, one)
	if index < 0 {
		return false
	}
	e.candidates = slices.Delete(e.candidates, index, index+1)
	one.leads = false
	return true
}

func (e *elections) queue(path string) []*campaign {
	var queue []*campaign
	for _, one := range e.candidates {
		if one.path == path {
			queue = append(queue, one)
		}
	}
	return queue
}

func (e *elections) leader(path string) *campaign {
	for _, one := range e.queue(path) {
		if one.leads {
			return one
		}
	}
	return nil
}

// seen returns an election as the registry has it.
func (e *elections) seen(path string) *sidekeeperv1.ObserveResponse {
	seen := &sidekeeperv1.ObserveResponse{}
	for _, one := range e.queue(path) {
		if one.leads {
			seen.Leader = one.candidate
		} else {
			seen.Candidates = append(seen.Candidates, one.candidate)
		}
	}
	return seen
}

// state returns an election as the sidecar sees it.
func (e *elections) state(path string) *sidekeeperv1.ObserveResponse {
	if e.suspended {
		return &sidekeeperv1.ObserveResponse{StaleReason: noRegistry}
	}
	return e.seen(path)
}

// settle lets the first candidate lead, and tells the others and the observers.
func (e *elections) settle(path string) {
	defer e.changed()
	if e.suspended {
		return
	}
	queue := e.queue(path)
	for position, one := range queue {
		switch {
		case position == 0 && !one.leads:
			e.lead(one)
		case one.position != position:
			one.position = position
			one.send(following(&sidekeeperv1.Following{Position: uint32(position)}))
		}
	}
	for _, one := range queue {
		if leader := queue[0].candidate; one.leader != leader {
			one.leader = leader
			one.send(&sidekeeperv1.CampaignResponse{
				Event: &sidekeeperv1.CampaignResponse_LeaderChanged{LeaderChanged: &sidekeeperv1.LeaderChanged{Leader: leader}},
			})
		}
	}
	for _, one := range e.observations {
		if one.path == path {
			one.tell(e.state(path))
		}
	}
}

func (e *elections) lead(one *campaign) {
	one.leads, one.position = true, 0
	one.send(&sidekeeperv1.CampaignResponse{Event: &sidekeeperv1.CampaignResponse_Leading{Leading: &sidekeeperv1.Leading{
		Term:     one.candidate.GetTerm(),
		NodePath: one.path + "/" + one.candidate.GetNodeName(),
		Lease:    e.leaseNow(),
	}}})
}

// makeWay has the candidates before the successor stand again, behind it.
func (e *elections) makeWay(leader *campaign, successor string) error {
	path := leader.path
	if !leader.leads {
		return refusal(codes.FailedPrecondition, "NOT_LEADER", fmt.Sprintf(
			"this candidate does not lead the election %s, and cannot name a successor; resign without one", path))
	}
	if e.suspended {
		return refusal(codes.Unavailable, "REGISTRY_AWAY", fmt.Sprintf("election %s: %s; the leader leads on", path, noRegistry))
	}
	waiting := slices.DeleteFunc(e.queue(path), func(one *campaign) bool { return one.leads })
	place := slices.IndexFunc(waiting, func(one *campaign) bool {
		return one.candidate.GetNodeName() == successor || one.candidate.GetValue() == successor
	})
	if place < 0 {
		return refusal(codes.NotFound, "CANDIDATE_UNKNOWN", fmt.Sprintf(
			"the election %s has no candidate with the value or node name `%s` that waits; the leader leads on", path, successor))
	}
	var staying *campaign
	for _, one := range waiting[:place] {
		switch {
		case !one.keepsPlace:
			e.standAgain(one)
		case staying == nil:
			staying = one
		}
	}
	if staying == nil {
		return nil
	}
	e.settle(path)
	return refusal(codes.FailedPrecondition, "CANDIDATE_IN_THE_WAY", fmt.Sprintf(
		"candidate `%s` of the election %s stands before the successor, and has not made way; candidates of other programs than "+
			"sidecars never do; the leader leads on", staying.candidate.GetNodeName(), path))
}

// end ends a campaign that has not ended, behind its events.
func (e *elections) end(one *campaign, err error) {
	if e.remove(one) {
		one.close(err)
		e.settle(one.path)
	}
}

func (e *elections) leaseNow() *sidekeeperv1.LockLease {
	return &sidekeeperv1.LockLease{RemainingLease: durationpb.New(e.lease)}
}

// tellSilence tells a candidate that waits once that the registry does not answer.
func (c *campaign) tellSilence() {
	c.position = 0
	c.send(following(&sidekeeperv1.Following{Reason: noRegistry}))
}

// tell tells a state, if it is another one.
func (o *observation) tell(state *sidekeeperv1.ObserveResponse) {
	if o.told == nil || !proto.Equal(o.told, state) {
		o.told = state
		o.send(state)
	}
}

func following(place *sidekeeperv1.Following) *sidekeeperv1.CampaignResponse {
	return &sidekeeperv1.CampaignResponse{Event: &sidekeeperv1.CampaignResponse_Following{Following: place}}
}

// checkCampaign refuses what a sidecar refuses. It returns the election's path.
func checkCampaign(request *sidekeeperv1.CampaignRequest) (string, error) {
	var wrong violations
	path := pathOf("election", request.GetElection(), electionRoot, &wrong)
	if value := request.GetValue(); len(value) > valueBytesMax {
		wrong.add("value", value, "at most 4096 bytes")
	}
	checkApplicationID(request.GetApplicationId(), &wrong)
	return path, wrong.status()
}

// electionPath returns the path of an election.
func electionPath(election *sidekeeperv1.LockId) (string, error) {
	var wrong violations
	path := pathOf("election", election, electionRoot, &wrong)
	return path, wrong.status()
}
