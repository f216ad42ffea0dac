package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
)

// behaviour is what an execution does.
type behaviour struct {
	Behaviour string  `json:"behaviour"`
	Message   string  `json:"message"`
	Seconds   float64 `json:"seconds"`

	checkpoint string
}

// running is an execution whose handler has begun.
type running struct {
	execution *sidekeeper.Execution
	behaviour behaviour
	once      sync.Once
	released  chan struct{}
}

func (r *running) release() {
	r.once.Do(func() { close(r.released) })
}

// tell tells something of the execution.
func (r *running) tell(event string, more fields) {
	more["job"], more["item"], more["execution_id"] = r.execution.JobName, r.execution.Item, r.execution.ExecutionID
	tell(event, more)
}

func (r *running) tellProgress(progress sidekeeper.Progress) {
	r.tell("progress", fields{
		"deadline":   orNull(progress.Deadline),
		"cancelled":  progress.Cancelled,
		"superseded": progress.Superseded,
	})
}

// handle is the handler of all jobs.
func (d *driven) handle(ctx context.Context, execution *sidekeeper.Execution) error {
	one := &running{execution: execution, behaviour: d.behaviourOf(execution), released: make(chan struct{})}
	d.mu.Lock()
	d.running = append(d.running, one)
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.running = slices.DeleteFunc(d.running, func(other *running) bool { return other == one })
	}()
	one.begin(ctx)
	switch one.behaviour.Behaviour {
	case "hold", "slow", "ignore_cancel":
		if err := one.wait(ctx); err != nil {
			one.tell("ended", fields{"outcome": "failure"})
			return err
		}
	case "checkpoint_and_fail":
		progress, err := execution.Progress(ctx, []byte(one.behaviour.checkpoint))
		if err != nil {
			return err
		}
		one.tellProgress(progress)
	}
	return one.end()
}

// begin tells that it has begun, with all that the handler sees.
func (r *running) begin(ctx context.Context) {
	execution := r.execution
	var checkpoint any
	if execution.Checkpoint != nil {
		checkpoint = string(execution.Checkpoint)
	}
	deadline, _ := ctx.Deadline()
	r.tell("started", fields{
		"parameter":     textOrNull(execution.ItemParameter),
		"job_parameter": execution.JobParameter,
		"total":         execution.ShardingTotalCount,
		"task_id":       execution.TaskID,
		"source":        execution.Source.String(),
		"scheduled":     orNull(execution.ScheduledTime),
		"fired":         orNull(execution.FireTime),
		"deadline":      orNull(deadline),
		"token":         execution.FencingToken,
		"attempt":       execution.Attempt,
		"checkpoint":    checkpoint,
		"traceparent":   execution.Traceparent,
	})
	sidekeeper.Logger(ctx).Info("handling")
}

// wait waits until it is released, or until it is told to stop and obeys.
func (r *running) wait(ctx context.Context) error {
	if r.behaviour.Behaviour == "slow" {
		timer := time.AfterFunc(time.Duration(r.behaviour.Seconds*float64(time.Second)), r.release)
		defer timer.Stop()
	}
	select {
	case <-r.released:
		return nil
	case <-ctx.Done():
	}
	var reason any
	var cancelled *sidekeeper.CancelledError
	if errors.As(context.Cause(ctx), &cancelled) {
		reason = cancelled.Reason.String()
	}
	r.tell("cancelled", fields{"reason": reason})
	if r.behaviour.Behaviour != "ignore_cancel" {
		return ctx.Err()
	}
	<-r.released
	return nil
}

// end ends as the behaviour says, whatever it has waited for.
func (r *running) end() error {
	switch r.behaviour.Behaviour {
	case "reject":
		r.tell("ended", fields{"outcome": "rejected"})
		return sidekeeper.Reject(r.behaviour.Message)
	case "fail", "checkpoint_and_fail":
		r.tell("ended", fields{"outcome": "failure"})
		return errors.New(r.behaviour.Message)
	case "panic":
		r.tell("ended", fields{"outcome": "failure"})
		mistake(r.execution)
	}
	r.tell("ended", fields{"outcome": "success"})
	return nil
}

// mistake is a programmer's.
func mistake(execution *sidekeeper.Execution) {
	var none []int
	_ = none[execution.Item]
}

// statusNames are the statuses that the client's errors have, as the protocol spells them.
var statusNames = map[codes.Code]string{
	codes.Canceled:           "CANCELLED",
	codes.Unknown:            "UNKNOWN",
	codes.InvalidArgument:    "INVALID_ARGUMENT",
	codes.DeadlineExceeded:   "DEADLINE_EXCEEDED",
	codes.NotFound:           "NOT_FOUND",
	codes.AlreadyExists:      "ALREADY_EXISTS",
	codes.PermissionDenied:   "PERMISSION_DENIED",
	codes.FailedPrecondition: "FAILED_PRECONDITION",
	codes.ResourceExhausted:  "RESOURCE_EXHAUSTED",
	codes.Aborted:            "ABORTED",
	codes.Unimplemented:      "UNIMPLEMENTED",
	codes.Unavailable:        "UNAVAILABLE",
	codes.Unauthenticated:    "UNAUTHENTICATED",
}
