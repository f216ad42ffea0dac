package sidekeeper

import (
	"context"
	"log/slog"
	"time"
)

// executionKey is under which an execution's context has the execution.
type executionKey struct{}

// ExecutionFrom returns the execution that a context belongs to, at any depth of calls. False: it is no handler's.
func ExecutionFrom(ctx context.Context) (*Execution, bool) {
	execution, ok := ctx.Value(executionKey{}).(*Execution)
	return execution, ok
}

// FencingToken returns the token of the execution that a context belongs to. False: it is no handler's.
func FencingToken(ctx context.Context) (int64, bool) {
	if execution, ok := ExecutionFrom(ctx); ok {
		return execution.FencingToken, true
	}
	return 0, false
}

// Logger returns the application's logger with the fields job, item and execution_id of the execution that a context
// belongs to. It is [slog.Default] if the context is no handler's.
func Logger(ctx context.Context) *slog.Logger {
	if execution, ok := ExecutionFrom(ctx); ok {
		return execution.Logger()
	}
	return slog.Default()
}

// NewContext returns a context that belongs to an execution, for tests of handlers and for what wraps them.
func NewContext(ctx context.Context, execution *Execution) context.Context {
	return context.WithValue(ctx, executionKey{}, execution)
}

// executionContext is the context of one handler's run. Its deadline is the execution's, which reports of progress
// extend; it is cancelled when the execution is to stop, with a [*CancelledError] as its cause.
type executionContext struct {
	context.Context // can be cancelled
	execution       *Execution
}

func (c *executionContext) Deadline() (time.Time, bool) {
	return c.execution.Deadline()
}

// Err is that of a deadline if the deadline has passed, also if the sidecar noticed it first.
func (c *executionContext) Err() error {
	err := c.Context.Err()
	if err != nil {
		if reason, cancelled := c.execution.Cancelled(); cancelled && reason == CancelDeadline {
			return context.DeadlineExceeded
		}
	}
	return err
}

func (c *executionContext) Value(key any) any {
	if key == (executionKey{}) {
		return c.execution
	}
	return c.Context.Value(key)
}
