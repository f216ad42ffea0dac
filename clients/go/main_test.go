package sidekeeper_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	"github.com/sidekeeper/sidekeeper/clients/go/internal/script"
	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

const (
	success    = sidekeeperv1.ExecutionOutcome_EXECUTION_OUTCOME_SUCCESS
	failure    = sidekeeperv1.ExecutionOutcome_EXECUTION_OUTCOME_FAILURE
	interrupts = sidekeeperv1.ExecutionOutcome_EXECUTION_OUTCOME_INTERRUPTED
	rejects    = sidekeeperv1.ExecutionOutcome_EXECUTION_OUTCOME_REJECTED

	resharded = sidekeeperv1.AssignmentReason_ASSIGNMENT_REASON_RESHARDED
	attached  = sidekeeperv1.AssignmentReason_ASSIGNMENT_REASON_ATTACHED
)

func TestMain(m *testing.M) {
	for _, name := range []string{sidekeeper.EndpointVariable, sidekeeper.TokenVariable, sidekeeper.InstanceNameVariable} {
		os.Unsetenv(name)
	}
	if len(os.Args) > 1 && os.Args[1] == stoppable {
		runStoppable()
		return
	}
	goleak.VerifyTestMain(withoutIdleConnections{m})
}

// withoutIdleConnections runs tests, and closes the connections that are kept for a while.
type withoutIdleConnections struct {
	*testing.M
}

func (w withoutIdleConnections) Run() int {
	defer sidekeeper.CloseIdleConnections()
	return w.M.Run()
}

// records keeps what is logged.
type records struct {
	mu   sync.Mutex
	text strings.Builder
}

func (r *records) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(line)
}

func (r *records) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// logging gives an application a logger that is printed if the test fails.
func logging(t *testing.T, app *sidekeeper.Application) *records {
	kept := &records{}
	app.Logger = slog.New(slog.NewTextHandler(kept, &slog.HandlerOptions{Level: slog.LevelDebug}))
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(kept.String())
		}
	})
	return kept
}

// run runs an application beside the test, which ends it; the channel has what Run returned.
func run(t *testing.T, app *sidekeeper.Application) <-chan error {
	t.Helper()
	if app.Logger == nil {
		logging(t, app)
	}
	result, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		result <- app.Run(context.Background())
	}()
	t.Cleanup(func() {
		app.Stop(sidekeeper.Immediately())
		select {
		case <-ended:
		case <-time.After(script.Patience):
			t.Errorf("the application has not ended")
		}
	})
	return result
}

// orderSync is a job of six items.
func orderSync(handler sidekeeper.Handler) sidekeeper.Job {
	return sidekeeper.Job{
		Name:          "orderSync",
		Configuration: &sidekeeper.JobConfiguration{ShardingTotalCount: 6},
		Handler:       handler,
	}
}

// serving runs an application of one job against a sidecar.
func serving(t *testing.T, sidecar *script.Sidecar, job sidekeeper.Job) (*sidekeeper.Application, <-chan error) {
	t.Helper()
	app := &sidekeeper.Application{Endpoint: sidecar.Endpoint, Jobs: []sidekeeper.Job{job}}
	return app, run(t, app)
}

func ignore(context.Context, *sidekeeper.Execution) error { return nil }

// nothing fails if something comes that must not have come by now.
func nothing[T any](t *testing.T, what string, channel <-chan T) {
	t.Helper()
	select {
	case value := <-channel:
		t.Fatalf("%s: %v", what, value)
	default:
	}
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// reasonOf is the typed cause of a handler's context.
func reasonOf(ctx context.Context) sidekeeper.CancelReason {
	var cancelled *sidekeeper.CancelledError
	if !errors.As(context.Cause(ctx), &cancelled) {
		return sidekeeper.CancelUnspecified
	}
	return cancelled.Reason
}
