package sidekeeper

import (
	"context"
	"errors"
	"io"
	"iter"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// CampaignRequest says in which election a program stands, and how others see it.
type CampaignRequest struct {
	// Name is the election's name. This or Path is required.
	Name string
	// Path is the path of an election that other programs use, with Curator's LeaderLatch.
	Path string
	// Value is the text that others see of this candidate, usually its address: at most 4096 bytes.
	Value string
	// ApplicationID lets a second campaign of the same election by the same id be refused.
	ApplicationID string
	// Endpoint and Token are those of the sidecar. Empty: as for [Application].
	Endpoint, Token string
	// DialOptions are further settings of the connection to the sidecar.
	DialOptions []grpc.DialOption
}

// Campaign is a candidate that leads. Call [Campaign.Resign] when the work is done, also after a loss. A campaign that has lost
// the leadership has ended; a program that wants to lead again calls [Lead] again.
//
// docs/elections.md says what an election promises and what it cannot. The store refuses late writes by the term.
type Campaign struct {
	// Term is the fencing token: greater than the term of each earlier leader.
	Term int64
	// NodePath is the node that proves the leadership, for a check in a ZooKeeper transaction.
	NodePath string

	contender
	client sidekeeperv1.ElectionServiceClient
	stream sidekeeperv1.ElectionService_CampaignClient
}

// Lead stands for election, and returns when this program leads. While it waits, the context ends the waiting. Its error is an
// [*ElectionError], the context's, or that the endpoint cannot be read.
func Lead(ctx context.Context, request CampaignRequest) (*Campaign, error) {
	campaign := &Campaign{contender: contender{turn: "leadership", fail: electionError(request.Name + request.Path)}}
	to := address{endpoint: request.Endpoint, token: request.Token, further: request.DialOptions}
	enter := func(ctx context.Context) error { return campaign.stand(ctx, request) }
	if err := campaign.contend(ctx, to, enter, campaign.take); err != nil {
		return nil, err
	}
	return campaign, nil
}

// Context is done when the leadership is lost, with an [*ElectionError] as its cause; when the context of [Lead] is done; or
// after [Campaign.Resign] and [Campaign.ResignTo].
func (c *Campaign) Context() context.Context {
	return c.ctx
}

// Suspended says that the registry does not answer. This program leads until its lease ends.
func (c *Campaign) Suspended() bool {
	return c.isSuspended()
}

// Resign gives the leadership to the next candidate. Its error is an [*ElectionError] if the leadership was lost before. It can
// be called again.
func (c *Campaign) Resign() error {
	return c.leave(func(ctx context.Context) error { return c.resign(ctx, "") })
}

// ResignTo gives the leadership to the candidate with this value, or with this name of its node. Its error is an
// [*ElectionError]: the leadership was lost before, or the successor cannot lead next (CANDIDATE_UNKNOWN,
// CANDIDATE_IN_THE_WAY). Then this program leads on, and [Campaign.Resign] is still to be called.
func (c *Campaign) ResignTo(successor string) error {
	c.mutex.Lock()
	released, lost := c.released, c.lost
	c.mutex.Unlock()
	if released || lost != nil {
		return lost
	}
	if err := c.call(func(ctx context.Context) error { return c.resign(ctx, successor) }); err != nil {
		return c.refused(err)
	}
	c.release()
	return c.Resign()
}

func (c *Campaign) stand(ctx context.Context, request CampaignRequest) error {
	election, err := lockID(request.Name, request.Path)
	if err != nil {
		return err
	}
	message := &sidekeeperv1.CampaignRequest{
		Election: election, Value: request.Value, ApplicationId: request.ApplicationID, EndsWhenLost: true,
	}
	c.client = sidekeeperv1.NewElectionServiceClient(c.connection)
	if c.stream, err = c.client.Campaign(ctx, message); err != nil {
		return err
	}
	for {
		event, err := c.stream.Recv()
		if err != nil {
			return err
		}
		if started := event.GetStarted(); started != nil {
			c.id = started.GetCampaignId()
		}
		if leading := event.GetLeading(); leading != nil {
			c.Term, c.NodePath = leading.GetTerm(), leading.GetNodePath()
			c.renew(leading.GetLease())
			return nil
		}
	}
}

// take reads an event of a leader.
func (c *Campaign) take() error {
	event, err := c.stream.Recv()
	if err != nil {
		return err
	}
	if lost := event.GetLost(); lost != nil {
		c.reported(lost.GetReason())
	}
	if event.GetResigned() != nil {
		c.release()
	}
	c.renew(event.GetLeaseRenewed())
	c.suspend(event.GetSuspended() != nil, event.GetResumed())
	return nil
}

func (c *Campaign) resign(ctx context.Context, successor string) error {
	_, err := c.client.Resign(ctx, &sidekeeperv1.ResignRequest{CampaignId: c.id, Successor: successor})
	return err
}

// Leader is the leader of an election, as the registry shows it.
type Leader struct {
	// Value is its value, often its address.
	Value string
	// Term is its term: greater than that of each earlier leader.
	Term int64
	// NodeName is the name of its node.
	NodeName string
}

// ObserveRequest says which election is observed.
type ObserveRequest struct {
	// Name is the election's name. This or Path is required.
	Name string
	// Path is the path of an election that other programs use, with Curator's LeaderLatch.
	Path string
	// Endpoint and Token are those of the sidecar. Empty: as for [Application].
	Endpoint, Token string
	// DialOptions are further settings of the connection to the sidecar.
	DialOptions []grpc.DialOption
}

// ObserveLeader tells the leaders of an election, without standing for it: the one of now first, and then each other one. Nil:
// nobody leads. Leaders that follow one another quickly may be left out, and terms never go back. While the registry does not
// answer, the last leader stands. The last pair has the error: the context's, or an [*ElectionError] when the sidecar stops or
// does not answer; then observe again.
func ObserveLeader(ctx context.Context, request ObserveRequest) iter.Seq2[*Leader, error] {
	return func(yield func(*Leader, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if err := observe(ctx, request, func(leader *Leader) bool { return yield(leader, nil) }); err != nil {
			yield(nil, err)
		}
	}
}

// observe gives each other leader to a function, until that returns false.
func observe(ctx context.Context, request ObserveRequest, tell func(*Leader) bool) error {
	fail := electionError(request.Name + request.Path)
	election, err := lockID(request.Name, request.Path)
	if err != nil {
		return fail(codes.InvalidArgument, status.Convert(err).Message(), "")
	}
	seen := leaderSeen{tell: tell}
	for {
		connection, endpoint, err := connect(ctx, request.Endpoint, request.Token, request.DialOptions)
		if err != nil {
			return err
		}
		again, err := seen.follow(ctx, connection, election)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, io.EOF):
			return fail(codes.Unavailable, "the sidecar has ended the stream of the election", "")
		case !again:
			details, told := refusal(err, endpoint)
			return fail(told.Code(), details, reasonOf(told))
		}
	}
}

// leaderSeen is the leader that was seen last.
type leaderSeen struct {
	tell func(*Leader) bool
	last *Leader
	any  bool
}

// follow tells each other leader until the stream ends, or until nobody listens any more: then without an error. It returns
// whether a new connection may do better.
func (s *leaderSeen) follow(ctx context.Context, connection *connection, election *sidekeeperv1.LockId) (bool, error) {
	defer connection.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client := sidekeeperv1.NewElectionServiceClient(connection)
	states, err := client.Observe(ctx, &sidekeeperv1.ObserveRequest{Election: election})
	if err != nil {
		return connection.failed(err) && !s.any, err
	}
	for {
		state, err := states.Recv()
		if err != nil {
			return connection.failed(err) && !s.any, err
		}
		connection.answers()
		if state.GetStaleReason() != "" {
			continue // the same as before, or less
		}
		var leader *Leader
		if found := state.GetLeader(); found != nil {
			leader = &Leader{Value: found.GetValue(), Term: found.GetTerm(), NodeName: found.GetNodeName()}
		}
		if s.any && (leader == s.last || leader != nil && s.last != nil && *leader == *s.last) {
			continue
		}
		s.any, s.last = true, leader
		if !s.tell(leader) {
			return false, nil
		}
	}
}

func electionError(election string) func(codes.Code, string, string) error {
	return func(code codes.Code, details, reason string) error {
		return &ElectionError{Election: election, Code: code, Details: details, Reason: reason}
	}
}
