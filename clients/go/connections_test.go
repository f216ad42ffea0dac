package sidekeeper_test

import (
	"context"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	"github.com/sidekeeper/sidekeeper/clients/go/internal/script"
	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// hub is a sidecar that grants everything at once, and notes on which connection it was asked.
type hub struct {
	sidekeeperv1.UnimplementedLockServiceServer
	sidekeeperv1.UnimplementedElectionServiceServer
	endpoint string
	server   *grpc.Server
	// ended has a value for each connection that has ended.
	ended chan struct{}

	mu       sync.Mutex
	peers    []string
	failures []error
	released map[string]chan struct{}
	broken   chan struct{}
}

func startHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{
		endpoint: "127.0.0.1:0", ended: make(chan struct{}, 100),
		released: map[string]chan struct{}{}, broken: make(chan struct{}),
	}
	h.start(t)
	t.Cleanup(func() { h.server.Stop() })
	return h
}

// start serves, always at the same address.
func (h *hub) start(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("tcp", h.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	h.endpoint = listener.Addr().String()
	h.server = grpc.NewServer(grpc.StatsHandler(h))
	sidekeeperv1.RegisterLockServiceServer(h.server, h)
	sidekeeperv1.RegisterElectionServiceServer(h.server, h)
	server := h.server
	go func() { _ = server.Serve(listener) }()
}

func (h *hub) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (h *hub) HandleRPC(context.Context, stats.RPCStats)                         {}
func (h *hub) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (h *hub) HandleConn(_ context.Context, event stats.ConnStats) {
	if _, ended := event.(*stats.ConnEnd); ended {
		h.ended <- struct{}{}
	}
}

// called notes the client's address, which is another one for each connection.
func (h *hub) called(ctx context.Context) {
	from, _ := peer.FromContext(ctx)
	h.peers = append(h.peers, from.Addr.String())
}

// begin begins a stream, or fails it as the test wants.
func (h *hub) begin(ctx context.Context) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.called(ctx)
	if len(h.failures) > 0 {
		err := h.failures[0]
		h.failures = h.failures[1:]
		return "", err
	}
	name := strconv.Itoa(len(h.released))
	h.released[name] = make(chan struct{})
	return name, nil
}

func (h *hub) wait(ctx context.Context, name string) error {
	h.mu.Lock()
	released, broken := h.released[name], h.broken
	h.mu.Unlock()
	select {
	case <-released:
		return nil
	case <-broken:
		return grpcstatus.Error(codes.Unavailable, "the test has broken the stream")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *hub) release(ctx context.Context, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.called(ctx)
	close(h.released[name])
}

func (h *hub) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures = append(h.failures, err)
}

// breakStreams ends all streams as a sidecar does that is killed.
func (h *hub) breakStreams() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.broken)
	h.broken = make(chan struct{})
}

// used returns how many calls there were, on how many connections.
func (h *hub) used() (int, int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	different := slices.Clone(h.peers)
	slices.Sort(different)
	return len(h.peers), len(slices.Compact(different))
}

func (h *hub) Hold(_ *sidekeeperv1.HoldRequest, out sidekeeperv1.LockService_HoldServer) error {
	name, err := h.begin(out.Context())
	if err != nil {
		return err
	}
	started := &sidekeeperv1.HoldResponse_Started{Started: &sidekeeperv1.HoldStarted{HoldId: name}}
	acquired := &sidekeeperv1.HoldResponse_Acquired{Acquired: &sidekeeperv1.LockAcquired{FencingToken: 1, Lease: long()}}
	if err := out.Send(&sidekeeperv1.HoldResponse{Event: started}); err != nil {
		return err
	}
	if err := out.Send(&sidekeeperv1.HoldResponse{Event: acquired}); err != nil {
		return err
	}
	return h.wait(out.Context(), name)
}

func (h *hub) Release(ctx context.Context, request *sidekeeperv1.ReleaseRequest) (*sidekeeperv1.ReleaseResponse, error) {
	h.release(ctx, request.GetHoldId())
	return &sidekeeperv1.ReleaseResponse{}, nil
}

func (h *hub) Campaign(_ *sidekeeperv1.CampaignRequest, out sidekeeperv1.ElectionService_CampaignServer) error {
	name, err := h.begin(out.Context())
	if err != nil {
		return err
	}
	started := &sidekeeperv1.CampaignResponse_Started{Started: &sidekeeperv1.CampaignStarted{CampaignId: name}}
	leading := &sidekeeperv1.CampaignResponse_Leading{Leading: &sidekeeperv1.Leading{Term: 1, Lease: long()}}
	if err := out.Send(&sidekeeperv1.CampaignResponse{Event: started}); err != nil {
		return err
	}
	if err := out.Send(&sidekeeperv1.CampaignResponse{Event: leading}); err != nil {
		return err
	}
	return h.wait(out.Context(), name)
}

func (h *hub) Resign(ctx context.Context, request *sidekeeperv1.ResignRequest) (*sidekeeperv1.ResignResponse, error) {
	h.release(ctx, request.GetCampaignId())
	return &sidekeeperv1.ResignResponse{}, nil
}

func (h *hub) Observe(_ *sidekeeperv1.ObserveRequest, out sidekeeperv1.ElectionService_ObserveServer) error {
	if _, err := h.begin(out.Context()); err != nil {
		return err
	}
	return out.Send(&sidekeeperv1.ObserveResponse{})
}

func long() *sidekeeperv1.LockLease {
	return &sidekeeperv1.LockLease{RemainingLease: durationpb.New(time.Hour)}
}

func (h *hub) lock(t *testing.T) *sidekeeper.Lock {
	t.Helper()
	return hold(t, context.Background(), sidekeeper.LockRequest{Name: "bill", Endpoint: h.endpoint})
}

// observe returns the error of an observation. Nil: it has told a leader, or that there is none.
func (h *hub) observe() error {
	for _, err := range sidekeeper.ObserveLeader(context.Background(), sidekeeper.ObserveRequest{Name: "chief", Endpoint: h.endpoint}) {
		return err
	}
	return nil
}

func TestAllLocksAndElectionsShareOneConnection(t *testing.T) {
	h := startHub(t)
	var group sync.WaitGroup
	for range 8 {
		group.Add(1)
		go func() {
			defer group.Done()
			for range 3 {
				lock, err := sidekeeper.HoldLock(context.Background(), sidekeeper.LockRequest{Name: "bill", Endpoint: h.endpoint})
				if err != nil {
					t.Error(err)
					return
				}
				if err := h.observe(); err != nil {
					t.Error(err)
				}
				campaign, err := sidekeeper.Lead(context.Background(), sidekeeper.CampaignRequest{Name: "chief", Endpoint: h.endpoint})
				if err != nil {
					t.Error(err)
					return
				}
				if err := campaign.Resign(); err != nil {
					t.Error(err)
				}
				if err := lock.Release(); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	group.Wait()
	calls, connections := h.used()
	equal(t, "calls", calls, 8*3*5)
	equal(t, "connections", connections, 1)
	equal(t, "a token more", hold(t, context.Background(), sidekeeper.LockRequest{Name: "bill", Endpoint: h.endpoint, Token: "x"}).Release(), nil)
	own := sidekeeper.LockRequest{Name: "bill", Endpoint: h.endpoint, DialOptions: []grpc.DialOption{grpc.WithUserAgent("x")}}
	for range 2 {
		equal(t, "Release", hold(t, context.Background(), own).Release(), nil)
		script.Receive(t, "the end of a connection of its own", h.ended)
	}
	_, connections = h.used()
	equal(t, "connections", connections, 4)
	nothing(t, "a shared connection ends", h.ended)
	sidekeeper.CloseIdleConnections()
	for range 2 {
		script.Receive(t, "the end of a connection without users", h.ended)
	}
}

func TestASidecarThatWasRestartedIsReachedAtOnce(t *testing.T) {
	h := startHub(t)
	equal(t, "Release", h.lock(t).Release(), nil)
	for range 5 {
		h.server.Stop()
		h.start(t)
		equal(t, "Release", h.lock(t).Release(), nil)
	}
	_, connections := h.used()
	equal(t, "connections", connections, 6)
}

func TestAConnectionThatBreaksBeforeTheAnswerIsReplaced(t *testing.T) {
	h := startHub(t)
	gone := grpcstatus.Error(codes.Unavailable, "the test wants it")
	old := h.lock(t)
	h.fail(gone)
	lock := h.lock(t)
	calls, connections := h.used()
	equal(t, "calls", calls, 3)
	equal(t, "connections", connections, 2)
	equal(t, "Release", lock.Release(), nil)
	// The one that has failed serves its users to their end.
	equal(t, "error", old.Context().Err(), nil)
	equal(t, "Release", old.Release(), nil)
	script.Receive(t, "the end of the connection that has failed", h.ended)
	h.fail(gone)
	equal(t, "observe", h.observe(), nil)
	calls, connections = h.used()
	equal(t, "calls", calls, 7)
	equal(t, "connections", connections, 3)
	script.Receive(t, "the end of the connection that has failed", h.ended)
}

func TestARefusalIsNotTriedAgain(t *testing.T) {
	h := startHub(t)
	request := sidekeeper.LockRequest{Name: "bill", Endpoint: h.endpoint}
	gone := grpcstatus.Error(codes.Unavailable, "the test wants it")
	for range 2 { // nobody has ever answered on these connections
		h.fail(gone)
		_, err := sidekeeper.HoldLock(context.Background(), request)
		equal(t, "code", refusedLock(t, err).Code, codes.Unavailable)
	}
	calls, connections := h.used()
	equal(t, "calls", calls, 2)
	equal(t, "connections", connections, 2)
	equal(t, "Release", h.lock(t).Release(), nil)
	h.fail(grpcstatus.Error(codes.FailedPrecondition, "the test wants it"))
	_, err := sidekeeper.HoldLock(context.Background(), request)
	equal(t, "code", refusedLock(t, err).Code, codes.FailedPrecondition)
	h.fail(grpcstatus.Error(codes.FailedPrecondition, "the test wants it"))
	equal(t, "code", refusedElection(t, h.observe()).Code, codes.FailedPrecondition)
	calls, connections = h.used()
	equal(t, "calls", calls, 6)
	equal(t, "connections", connections, 3)
}

func TestAConnectionWhoseStreamHasBrokenGetsNoFurtherUser(t *testing.T) {
	h := startHub(t)
	lock := h.lock(t)
	h.breakStreams()
	<-lock.Context().Done()
	equal(t, "Release", h.lock(t).Release(), nil)
	equal(t, "code", refusedLock(t, lock.Release()).Code, codes.Unavailable)
	_, connections := h.used()
	equal(t, "connections", connections, 2)
	script.Receive(t, "the end of the connection that has failed", h.ended)
}

func TestAConnectionWithoutUsersIsClosedAfterAWhile(t *testing.T) {
	before := sidekeeper.SetConnectionIdle(10 * time.Millisecond)
	t.Cleanup(func() { sidekeeper.SetConnectionIdle(before) })
	h := startHub(t)
	lock := h.lock(t)
	nothing(t, "the connection ends while it has a user", h.ended)
	equal(t, "Release", lock.Release(), nil)
	script.Receive(t, "the end of the connection", h.ended)
	equal(t, "Release", h.lock(t).Release(), nil)
}
