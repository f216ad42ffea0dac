// Package sidekeepertest is a sidecar in memory, to test handlers and callbacks without a process, a port or a registry.
//
//	func TestSync(t *testing.T) {
//		sidecar := sidekeepertest.Run(t, &sidekeeper.Application{Jobs: []sidekeeper.Job{job}})
//		result := sidecar.Execute(sidekeepertest.Execution{Job: "orderSync", Item: 3, ItemParameter: "Shenzhen"})
//		if result.Outcome != sidekeepertest.Success {
//			t.Error(result.Message)
//		}
//	}
//
// The application runs as it does beside a real sidecar, with the whole client in between: contexts are cancelled,
// panics become failures, callbacks come before executions. What a test waits for ends the test if it does not come
// within [Patience].
//
// Locks and elections are in memory, too: [sidekeeper.HoldLock], [sidekeeper.Lead] and [sidekeeper.ObserveLeader] ask this
// sidecar in the contexts of handlers and in [Sidecar.Context].
package sidekeepertest

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/test/bufconn"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	"github.com/sidekeeper/sidekeeper/clients/go/internal/memory"
	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// Patience is how long anything may take before the test has failed.
const Patience = 10 * time.Second

// connectionBytes is how much may be under way in each direction.
const connectionBytes = 1 << 20

// Sidecar is a sidecar in memory that one application is attached to. Its methods may be called from any goroutine, but
// those that can end the test only from the test's own.
type Sidecar struct {
	t         testing.TB
	ctx       context.Context
	app       *sidekeeper.Application
	ended     chan struct{}
	result    error
	service   *service
	locks     *locks
	elections *elections
}

// Run runs an application beside a sidecar in memory, until the test ends. It returns when all jobs are attached, own all
// of their items, and have returned from the callbacks for that. A job without a configuration has one item.
//
// The application's endpoint and its settings of the connection are replaced. A nil application is for programs that have
// locks and elections, and no jobs.
func Run(t testing.TB, app *sidekeeper.Application) *Sidecar {
	t.Helper()
	service := newService()
	locks, elections := newLocks(service.changed), newElections(service.changed)
	listener := bufconn.Listen(connectionBytes)
	server := grpc.NewServer()
	sidekeeperv1.RegisterParticipantServiceServer(server, service)
	sidekeeperv1.RegisterLockServiceServer(server, locks)
	sidekeeperv1.RegisterElectionServiceServer(server, elections)
	go func() { _ = server.Serve(listener) }()

	dialer := func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }
	ctx := memory.With(context.Background(), grpc.WithContextDialer(dialer))
	s := &Sidecar{
		t: t, ctx: ctx, app: app, ended: make(chan struct{}), service: service, locks: locks, elections: elections,
	}
	if app == nil {
		t.Cleanup(server.Stop)
		return s
	}
	app.Endpoint, app.Token = sidekeeper.DefaultEndpoint, ""
	app.DialOptions = memory.DialOptions(ctx)
	go func() {
		defer close(s.ended)
		s.result = app.Run(ctx)
	}()
	t.Cleanup(func() {
		app.Stop(sidekeeper.Immediately())
		select {
		case <-s.ended:
		case <-time.After(Patience):
			t.Errorf("the application has not ended within %v", Patience)
		}
		server.Stop()
	})
	for _, job := range app.Jobs {
		s.attached(job.Name)
	}
	return s
}

// Stop stops the application in order, and returns the result of its Run.
func (s *Sidecar) Stop(options ...sidekeeper.StopOption) error {
	s.t.Helper()
	if s.app == nil {
		s.t.Fatal("there is no application to stop")
	}
	s.app.Stop(options...)
	select {
	case <-s.ended:
		return s.result
	case <-time.After(Patience):
		s.t.Fatalf("the application has not ended within %v", Patience)
		return nil
	}
}

// Assign has the application own exactly these items of a job, and returns when its callbacks have returned and nothing is
// executed on the others. Further ones are revoked.
func (s *Sidecar) Assign(job string, items ...int) {
	s.t.Helper()
	s.assign(job, sidekeeperv1.AssignmentReason_ASSIGNMENT_REASON_RESHARDED, items)
}

// LoseSession acts as a sidecar that has lost its session with the registry: executions are cancelled with
// [sidekeeper.CancelLeaseLost], and all items are lost. It returns when the callbacks have returned.
func (s *Sidecar) LoseSession(job string) {
	s.t.Helper()
	stream := s.attached(job)
	stream.send(sessionChanged(sidekeeperv1.SessionState_SESSION_STATE_LOST))
	for _, running := range stream.openExecutions() {
		running.Cancel(sidekeeper.CancelLeaseLost)
	}
	s.assign(job, sidekeeperv1.AssignmentReason_ASSIGNMENT_REASON_SESSION_LOST, nil)
}

// Disconnect breaks the stream of a job, as a sidecar does that is restarted, and returns when the application is attached
// again.
func (s *Sidecar) Disconnect(job string) {
	s.t.Helper()
	stream := s.attached(job)
	stream.end(codes.Unavailable, "the test has broken the stream")
	s.within("the application is attached again", func() bool { return s.service.stream(job) != stream })
	s.attached(job)
}

// Acknowledged returns the generation of the assignment that the application has acknowledged last.
func (s *Sidecar) Acknowledged(job string) int64 {
	s.t.Helper()
	return s.attached(job).acknowledgedGeneration()
}

func (s *Sidecar) assign(job string, reason sidekeeperv1.AssignmentReason, items []int) {
	s.t.Helper()
	stream := s.attached(job)
	generation := stream.assign(reason, items)
	s.within(fmt.Sprintf("the assignment of job %q is acknowledged; a callback may have failed", job), func() bool {
		return stream.acknowledgedGeneration() >= generation
	})
}

// attached waits until a job is attached, and its first assignment acknowledged.
func (s *Sidecar) attached(job string) *stream {
	s.t.Helper()
	var found *stream
	s.within(fmt.Sprintf("job %q is attached, and has acknowledged its items", job), func() bool {
		found = s.service.stream(job)
		return found != nil && found.acknowledgedGeneration() > 0
	})
	return found
}

// within waits until something has happened.
func (s *Sidecar) within(what string, happened func() bool) {
	s.t.Helper()
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	for {
		changed := s.service.changes()
		if happened() {
			return
		}
		select {
		case <-changed:
		case <-s.ended:
			s.t.Fatalf("the application has ended (%v) before: %s", s.result, what)
		case <-timer.C:
			s.t.Fatalf("not within %v: %s", Patience, what)
		}
	}
}

// notifier wakes all waiting goroutines after a change.
type notifier struct {
	mu      sync.Mutex
	channel chan struct{}
}

// changes is closed at the next change.
func (n *notifier) changes() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.channel == nil {
		n.channel = make(chan struct{})
	}
	return n.channel
}

func (n *notifier) changed() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.channel != nil {
		close(n.channel)
		n.channel = nil
	}
}
