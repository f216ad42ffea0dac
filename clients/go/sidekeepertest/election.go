package sidekeepertest

import (
	"fmt"
	"time"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// ElectionState is an election at one moment.
type ElectionState struct {
	// Leader is the candidate that leads. Nil: nobody leads.
	Leader *sidekeeper.Leader
	// Waiting are the candidates that wait, in their order, each as the leader that it may become.
	Waiting []sidekeeper.Leader
}

// Candidate is a candidate of the test, which stands until it leaves.
type Candidate struct {
	elections *elections
	campaign  *campaign
}

// Election returns which candidate leads, and which wait. A name that begins with "/" is a path, here as in all methods for
// elections.
func (s *Sidecar) Election(election string) ElectionState {
	s.t.Helper()
	found, err := s.elections.find(lockID(election))
	s.must(err)
	var state ElectionState
	if leader := found.GetLeader(); leader != nil {
		told := leaderOf(leader)
		state.Leader = &told
	}
	for _, one := range found.GetCandidates() {
		state.Waiting = append(state.Waiting, leaderOf(one))
	}
	return state
}

// WaitElection waits until so many candidates lead (0 or 1), and so many wait.
func (s *Sidecar) WaitElection(election string, leaders, waiting int) ElectionState {
	s.t.Helper()
	var state ElectionState
	s.within(fmt.Sprintf("election %q has %d leaders, and %d candidates that wait", election, leaders, waiting), func() bool {
		state = s.Election(election)
		return (state.Leader != nil) == (leaders == 1) && len(state.Waiting) == waiting
	})
	return state
}

// LoseLeadership takes the leadership from the leader, which is told so. The next candidate leads.
func (s *Sidecar) LoseLeadership(election string, loss LockLoss) {
	s.t.Helper()
	s.must(s.elections.takeAway(lockID(election), loss))
}

// AddCandidate has another program stand, at the end of the queue. It leads at once if nobody else stands.
func (s *Sidecar) AddCandidate(election, value string) *Candidate {
	s.t.Helper()
	campaign, err := s.elections.enter(&sidekeeperv1.CampaignRequest{Election: lockID(election), Value: value})
	s.must(err)
	return &Candidate{elections: s.elections, campaign: campaign}
}

// SuspendElections acts as a registry that does not answer: leaders are told so, and nobody comes to lead until
// ResumeElections.
func (s *Sidecar) SuspendElections() {
	s.elections.suspend()
}

// ResumeElections acts as a registry that answers again: leaders are told so, with a new lease.
func (s *Sidecar) ResumeElections() {
	s.elections.resume()
}

// SetElectionLease sets the lease of the leaderships that begin or are resumed from now on. It is not renewed: with a short
// one a test sees how the application acts beside a silent sidecar.
func (s *Sidecar) SetElectionLease(lease time.Duration) {
	s.elections.setLease(lease)
}

// Leads says whether the candidate leads.
func (c *Candidate) Leads() bool {
	c.elections.mu.Lock()
	defer c.elections.mu.Unlock()
	return c.campaign.leads
}

// Term is the candidate's term, if it leads or comes to lead.
func (c *Candidate) Term() int64 {
	c.elections.mu.Lock()
	defer c.elections.mu.Unlock()
	return c.campaign.candidate.GetTerm()
}

// KeepPlace says that the candidate makes no way for a successor that a leader names, as one of another program than a sidecar.
func (c *Candidate) KeepPlace() {
	c.elections.mu.Lock()
	defer c.elections.mu.Unlock()
	c.campaign.keepsPlace = true
}

// Leave says that the candidate does not stand any more. It can be called again.
func (c *Candidate) Leave() {
	c.elections.leave(c.campaign)
}

func leaderOf(one *sidekeeperv1.ElectionLeader) sidekeeper.Leader {
	return sidekeeper.Leader{Value: one.GetValue(), Term: one.GetTerm(), NodeName: one.GetNodeName()}
}
