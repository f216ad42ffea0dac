package sidekeeper

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// ExecutionSource is what made an execution start. The values are those of the protocol.
type ExecutionSource int

const (
	// SourceUnspecified is of a newer sidecar.
	SourceUnspecified ExecutionSource = 0
	// SourceSchedule is the job's schedule.
	SourceSchedule ExecutionSource = 1
	// SourceTrigger is a trigger.
	SourceTrigger ExecutionSource = 2
	// SourceMisfire is a misfire re-run: one execution for all missed fires of the item.
	SourceMisfire ExecutionSource = 3
	// SourceFailover is another instance that crashed while it executed the item.
	SourceFailover ExecutionSource = 4
)

var executionSources = map[ExecutionSource]string{
	SourceUnspecified: "UNSPECIFIED",
	SourceSchedule:    "SCHEDULE",
	SourceTrigger:     "TRIGGER",
	SourceMisfire:     "MISFIRE",
	SourceFailover:    "FAILOVER",
}

func (s ExecutionSource) String() string { return named(executionSources, s) }

// CancelReason is why an execution is to stop. Positive values are those of the protocol.
type CancelReason int

const (
	// CancelUnspecified is of a newer sidecar.
	CancelUnspecified CancelReason = 0
	// CancelLeaseLost says that the session with the registry is lost or about to be, or that the sidecar does not say
	// in time that it is not: another instance may own the item from now on.
	CancelLeaseLost CancelReason = 1
	// CancelDeadline says that the execution's deadline has passed.
	CancelDeadline CancelReason = 2
	// CancelDrainTimeout says that the sidecar, or this application, stops and its drain timeout has passed.
	CancelDrainTimeout CancelReason = 3
	// CancelOperator says that an operator asked for it.
	CancelOperator CancelReason = 4
	// CancelItemLockLost says that the lock of the item is lost: another execution may hold it from now on.
	CancelItemLockLost CancelReason = 5
	// CancelDetached says that the stream to the sidecar has ended: this instance has left, and another one may own the
	// item from now on.
	CancelDetached CancelReason = -1
	// CancelStopped says that this application was stopped immediately.
	CancelStopped CancelReason = -2
)

var cancelReasons = map[CancelReason]string{
	CancelUnspecified:  "UNSPECIFIED",
	CancelLeaseLost:    "LEASE_LOST",
	CancelDeadline:     "DEADLINE",
	CancelDrainTimeout: "DRAIN_TIMEOUT",
	CancelOperator:     "OPERATOR",
	CancelItemLockLost: "ITEM_LOCK_LOST",
	CancelDetached:     "DETACHED",
	CancelStopped:      "STOPPED",
}

func (r CancelReason) String() string { return named(cancelReasons, r) }

// Execution is one execution of one item: the handler's argument. A test of a handler can make one of its own.
type Execution struct {
	// JobName is the job.
	JobName string
	// InstanceID is the instance in the registry that executes the item: {ipv4}@-@{unique}.
	InstanceID string
	// ExecutionID names this execution; unique, and never used again.
	ExecutionID string
	// Item is the item, from 0 to ShardingTotalCount-1.
	Item int
	// ItemParameter is the item's parameter. Empty: it has none.
	ItemParameter string
	// JobParameter is the job's parameter. Empty: none.
	JobParameter string
	// ShardingTotalCount is into how many items the job is split.
	ShardingTotalCount int
	// TaskID is the task in ElasticJob's form, as Java peers trace it.
	TaskID string
	// Source is what made it start.
	Source ExecutionSource
	// ScheduledTime is for which instant of the schedule; for a trigger, when it was seen; for a misfire, the newest
	// fire that it makes up for.
	ScheduledTime time.Time
	// FireTime is when the sidecar started it.
	FireTime time.Time
	// FencingToken grows with each execution and each owner of the item. A store that keeps the highest token it saw can
	// refuse a late writer.
	FencingToken int64
	// LockToken is the token of the lock that it holds for its item: greater than that of each earlier holder, also of
	// other jobs and deployments that share the lock. 0: the job has no sidekeeper.item-lock.
	LockToken int64
	// Traceparent is the W3C trace context of the sidecar's span. Empty: the sidecar does not trace.
	Traceparent string
	// Tracestate is the W3C trace context of the sidecar's span.
	Tracestate string
	// Attempt is which attempt this is; 1 is the first.
	Attempt int
	// Checkpoint is the last checkpoint of the earlier attempt, or of the crashed instance. Nil: there is
	// none.
	Checkpoint []byte

	log *slog.Logger

	mu        sync.Mutex
	deadline  time.Time
	cancelled bool
	reason    CancelReason
	progress  *progressReporter
	// How many reports of progress are under way that ask for a later deadline.
	extending int
	// Moves the timer that stands in for the sidecar. Nil: there is none.
	moveTimer func(time.Time)
}

// Deadline returns when the execution has to be over; reporting progress extends it. False: no limit.
func (e *Execution) Deadline() (time.Time, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.deadline, !e.deadline.IsZero()
}

// Cancelled returns why the execution is to stop, and whether it is to.
func (e *Execution) Cancelled() (CancelReason, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.reason, e.cancelled
}

// Logger returns the application's logger with the fields job, item and execution_id.
func (e *Execution) Logger() *slog.Logger {
	log := e.log
	if log == nil {
		log = slog.Default().With(jobField, e.JobName)
	}
	return log.With(itemField, e.Item, executionField, e.ExecutionID)
}

// ProgressOption changes what a report of progress asks for.
type ProgressOption func(*progressRequest)

type progressRequest struct {
	keepDeadline bool
}

// KeepDeadline has a report of progress leave the deadline as it is.
func KeepDeadline() ProgressOption {
	return func(request *progressRequest) { request.keepDeadline = true }
}

// Progress reports progress: the deadline starts anew, and a checkpoint is recorded, from where another attempt can
// continue, in the application's own format; at most [MaxCheckpointBytes]. Nil: only the deadline is extended.
//
// It returns when the registry has the checkpoint. If this execution fails or its process crashes, the next execution
// for the same instant gets the last one as Checkpoint. It retries while the registry does not answer, until the context
// is done, or for 30 s if that is sooner. A checkpoint can be recorded after the execution was cancelled, with a context
// that is not done: [context.WithoutCancel].
//
// An error is a [*ProgressError]; a checkpoint that is too large is not sent.
func (e *Execution) Progress(ctx context.Context, checkpoint []byte, options ...ProgressOption) (Progress, error) {
	var request progressRequest
	for _, option := range options {
		option(&request)
	}
	if len(checkpoint) > MaxCheckpointBytes {
		return Progress{}, fmt.Errorf("checkpoint: %d bytes, at most %d are allowed", len(checkpoint), MaxCheckpointBytes)
	}
	e.mu.Lock()
	reporter := e.progress
	if reporter == nil {
		e.mu.Unlock()
		return Progress{}, &ProgressError{e.ExecutionID, codes.Aborted, "this execution did not come from a sidecar"}
	}
	if !request.keepDeadline {
		e.extending++
	}
	e.mu.Unlock()
	progress, err := reporter.report(ctx, e.ExecutionID, checkpoint, !request.keepDeadline)
	e.mu.Lock()
	if !request.keepDeadline {
		e.extending--
	}
	move := e.moveTimer
	if err == nil && !progress.Deadline.IsZero() {
		e.deadline = progress.Deadline
	} else {
		move = nil
	}
	e.mu.Unlock()
	if move != nil {
		move(progress.Deadline)
	}
	return progress, err
}

// cancel records the first reason, and returns whether this is it; later ones change nothing.
func (e *Execution) cancel(reason CancelReason) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cancelled {
		return false
	}
	e.cancelled, e.reason = true, reason
	return true
}

// isExtending returns whether the sidecar has been asked for a later deadline, and has not answered yet.
func (e *Execution) isExtending() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.extending > 0
}

// goesOn says that the execution belongs to another attachment from now on.
func (e *Execution) goesOn(progress *progressReporter) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.progress != nil {
		e.progress.move(progress.attachment()) // for calls that wait
	}
	e.progress = progress
}

func executionFromProto(message *sidekeeperv1.Execute, instance string, log *slog.Logger, progress *progressReporter) (*Execution, error) {
	scheduled, err := instant("scheduled_time", message.GetScheduledTime())
	if err != nil {
		return nil, err
	}
	fired, err := instant("fire_time", message.GetFireTime())
	if err != nil {
		return nil, err
	}
	var deadline time.Time
	if message.GetDeadline() != nil {
		if deadline, err = instant("deadline", message.GetDeadline()); err != nil {
			return nil, err
		}
	}
	return &Execution{
		JobName:            message.GetJobName(),
		InstanceID:         instance,
		ExecutionID:        message.GetExecutionId(),
		Item:               int(message.GetItem()),
		ItemParameter:      message.GetItemParameter(),
		JobParameter:       message.GetJobParameter(),
		ShardingTotalCount: int(message.GetShardingTotalCount()),
		TaskID:             message.GetTaskId(),
		Source:             known(executionSources, ExecutionSource(message.GetSource())),
		ScheduledTime:      scheduled,
		FireTime:           fired,
		FencingToken:       message.GetFencingToken(),
		LockToken:          message.GetLockToken(),
		Traceparent:        message.GetTraceparent(),
		Tracestate:         message.GetTracestate(),
		Attempt:            max(int(message.GetAttempt()), 1), // an older sidecar does not say
		Checkpoint:         message.Checkpoint,
		log:                log,
		deadline:           deadline,
		progress:           progress,
	}, nil
}

// toProto returns the execution for a restarted sidecar, which resumes it.
func (e *Execution) toProto() *sidekeeperv1.OpenExecution {
	message := &sidekeeperv1.OpenExecution{
		ExecutionId:   e.ExecutionID,
		FencingToken:  e.FencingToken,
		ScheduledTime: timestamppb.New(e.ScheduledTime),
		Source:        sidekeeperv1.ExecutionSource(e.Source),
		Attempt:       uint32(e.Attempt),
	}
	if deadline, limited := e.Deadline(); limited {
		message.Deadline = timestamppb.New(deadline)
	}
	if reason, cancelled := e.Cancelled(); cancelled && reason > 0 {
		message.CancelReason = sidekeeperv1.CancelReason(reason)
	}
	return message
}

func instant(field string, timestamp *timestamppb.Timestamp) (time.Time, error) {
	if timestamp == nil {
		return time.Time{}, nil
	}
	if err := timestamp.CheckValid(); err != nil {
		return time.Time{}, protocolErrorf("execute: %s: %v", field, err)
	}
	return timestamp.AsTime(), nil
}
