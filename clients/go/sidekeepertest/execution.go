package sidekeepertest

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// Execution is an execution of a test. Zero values get a sidecar's usual values.
type Execution struct {
	// Job is the job. Required.
	Job string
	// Item is the item.
	Item int
	// ItemParameter is the item's parameter.
	ItemParameter string
	// JobParameter is the job's. Empty: that of its configuration.
	JobParameter string
	// Source is what made it start. Zero: the schedule.
	Source sidekeeper.ExecutionSource
	// ScheduledTime is for which instant. Zero: now.
	ScheduledTime time.Time
	// Timeout is the time after which it is cancelled; each report of progress starts it anew. Zero: never.
	Timeout time.Duration
	// FencingToken is its token. Zero: one higher than the last.
	FencingToken int64
	// Attempt is which attempt it is. Zero: the first.
	Attempt int
	// Checkpoint is the checkpoint from which it continues.
	Checkpoint []byte
	// Traceparent is the trace context.
	Traceparent string
}

// Outcome is how an execution ended.
type Outcome string

const (
	// Success says that the handler has returned nil.
	Success Outcome = "success"
	// Failure says that it has returned an error or panicked.
	Failure Outcome = "failure"
	// Rejected says that the item was not begun.
	Rejected Outcome = "rejected"
	// Interrupted says that it was stopped or not begun because another instance might have owned the item.
	Interrupted Outcome = "interrupted"
)

// Result is the reported result of an execution.
type Result struct {
	// Outcome is how it ended.
	Outcome Outcome
	// Message is why it failed, was rejected or was interrupted.
	Message string
	// Checkpoint is the last one that it reported. Nil: none.
	Checkpoint []byte
}

// Running is an execution that a test has started.
type Running struct {
	// ID is the execution's id.
	ID string

	sidecar *Sidecar
	stream  *stream
	item    uint32
	timeout time.Duration

	mu         sync.Mutex
	result     *Result
	checkpoint []byte
	cancelled  bool
	deadline   *time.Timer
}

// Execute has an item executed, and waits for the result.
func (s *Sidecar) Execute(execution Execution) Result {
	s.t.Helper()
	return s.Start(execution).Wait()
}

// Start has an item executed, and does not wait.
func (s *Sidecar) Start(execution Execution) *Running {
	s.t.Helper()
	stream := s.attached(execution.Job)
	number := s.service.next()
	running := &Running{
		ID:      fmt.Sprintf("test-%d", number),
		sidecar: s, stream: stream, item: uint32(execution.Item), timeout: execution.Timeout,
	}
	scheduled := execution.ScheduledTime
	if scheduled.IsZero() {
		scheduled = time.Now()
	}
	message := &sidekeeperv1.Execute{
		ExecutionId:        running.ID,
		Item:               running.item,
		JobParameter:       cmp.Or(execution.JobParameter, stream.configuration.GetJobParameter()),
		ShardingTotalCount: stream.configuration.GetShardingTotalCount(),
		TaskId:             fmt.Sprintf("%s@-@%d@-@READY@-@%s", execution.Job, execution.Item, stream.instanceID),
		Source:             sidekeeperv1.ExecutionSource(cmp.Or(execution.Source, sidekeeper.SourceSchedule)),
		ScheduledTime:      timestamppb.New(scheduled),
		FireTime:           timestamppb.Now(),
		FencingToken:       cmp.Or(execution.FencingToken, number),
		Traceparent:        execution.Traceparent,
		JobName:            execution.Job,
		Attempt:            uint32(cmp.Or(execution.Attempt, 1)),
		Checkpoint:         execution.Checkpoint,
	}
	if execution.ItemParameter != "" {
		message.ItemParameter = proto.String(execution.ItemParameter)
	}
	if deadline := running.extend(); deadline != nil {
		message.Deadline = deadline
	}
	stream.open(running)
	stream.send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_Execute{Execute: message}})
	return running
}

// Cancel cancels the execution.
func (r *Running) Cancel(reason sidekeeper.CancelReason) {
	r.mu.Lock()
	r.cancelled = true
	r.mu.Unlock()
	r.stream.send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_Cancel{Cancel: &sidekeeperv1.Cancel{
		ExecutionId: r.ID, Item: r.item, Reason: sidekeeperv1.CancelReason(reason),
	}}})
}

// Checkpoint returns the last checkpoint that the execution has reported so far. Nil: none.
func (r *Running) Checkpoint() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.checkpoint
}

// Wait waits until the execution has ended, and returns the reported result.
func (r *Running) Wait() Result {
	r.sidecar.t.Helper()
	r.sidecar.within(fmt.Sprintf("execution %s of item %d is reported", r.ID, r.item), func() bool {
		return r.reported() != nil
	})
	return *r.reported()
}

func (r *Running) reported() *Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.result
}

// extend starts the execution's timeout anew. Nil: it has none, or was cancelled.
func (r *Running) extend() *timestamppb.Timestamp {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timeout == 0 || r.cancelled {
		return nil
	}
	if r.deadline == nil {
		r.deadline = time.AfterFunc(r.timeout, func() { r.Cancel(sidekeeper.CancelDeadline) })
	} else {
		r.deadline.Reset(r.timeout)
	}
	return timestamppb.New(time.Now().Add(r.timeout))
}

// progress takes a report of progress.
func (r *Running) progress(request *sidekeeperv1.ReportProgressRequest) *sidekeeperv1.ReportProgressResponse {
	response := &sidekeeperv1.ReportProgressResponse{}
	if request.GetExtendDeadline() {
		response.Deadline = r.extend()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if request.Checkpoint != nil {
		r.checkpoint = request.GetCheckpoint()
	}
	response.Cancelled = r.cancelled
	return response
}

// end takes the result.
func (r *Running) end(result *sidekeeperv1.ExecutionResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.deadline != nil {
		r.deadline.Stop()
	}
	outcome := Failure
	switch result.GetOutcome() {
	case sidekeeperv1.ExecutionOutcome_EXECUTION_OUTCOME_SUCCESS:
		outcome = Success
	case sidekeeperv1.ExecutionOutcome_EXECUTION_OUTCOME_REJECTED:
		outcome = Rejected
	case sidekeeperv1.ExecutionOutcome_EXECUTION_OUTCOME_INTERRUPTED:
		outcome = Interrupted
	}
	r.result = &Result{Outcome: outcome, Message: result.GetFailureMessage(), Checkpoint: r.checkpoint}
}
