package sidekeeper

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

const (
	// reportTimeout is how long one call may take. The sidecar answers when the registry has recorded the results, which
	// takes longer than this only while the registry does not answer; then the report is repeated.
	reportTimeout = 30 * time.Second
	// maxBatch is the most results in one call; the protocol allows 10 000.
	maxBatch = 1000
	// maxBatchBytes is the most text in one call; below the 4 MiB that gRPC servers accept by default.
	maxBatchBytes = 2 * 1024 * 1024
)

// isRefusal returns whether an answer does not change when the same call is made again.
func isRefusal(code codes.Code) bool {
	switch code {
	case codes.FailedPrecondition, codes.InvalidArgument, codes.NotFound, codes.OutOfRange, codes.PermissionDenied,
		codes.Unauthenticated, codes.Unimplemented:
		return true
	default:
		return false
	}
}

// result is one to be reported.
type result struct {
	keptResult
	message *sidekeeperv1.ExecutionResult
}

// reporter reports how the executions of one attachment ended: at most one call in flight, and what ends meanwhile
// travels together in the next.
//
// A report is repeated with the same content until the sidecar answers; the protocol makes that safe. Results that the
// sidecar refuses for good are dropped with a log line: they cannot be reported elsewhere.
type reporter struct {
	lock         sync.Locker
	log          *slog.Logger
	client       sidekeeperv1.ParticipantServiceClient
	attachmentID string
	apiLevel     uint32 // the sidecar's

	// With the lock. Bounded by the attachment's open executions.
	waiting  []result
	inFlight []result
	flushed  event
	wake     chan struct{}
}

func newReporter(
	lock sync.Locker, log *slog.Logger, client sidekeeperv1.ParticipantServiceClient, attached *sidekeeperv1.Attached,
) *reporter {
	return &reporter{
		lock: lock, log: log, client: client,
		attachmentID: attached.GetAttachmentId(), apiLevel: attached.GetApiLevel(),
		flushed: newEvent(), wake: make(chan struct{}, 1),
	}
}

// add takes a result. With the lock.
func (r *reporter) add(ended keptResult) {
	told := ended.outcome.forLevel(r.apiLevel)
	r.waiting = append(r.waiting, result{ended, &sidekeeperv1.ExecutionResult{
		ExecutionId:    ended.execution.ExecutionID,
		Outcome:        told.kind,
		FailureMessage: told.message,
	}})
	r.flushed.clear()
	wake(r.wake)
}

// unreported takes the results without an answer, when run has returned. With the lock.
func (r *reporter) unreported() []result {
	rest := append(r.inFlight, r.waiting...)
	r.inFlight, r.waiting = nil, nil
	return rest
}

// run reports until the context is done.
func (r *reporter) run(ctx context.Context) {
	for {
		select {
		case <-r.wake:
		case <-ctx.Done():
			return
		}
		for batch := r.take(); batch != nil; batch = r.take() {
			if r.report(ctx, batch) != nil {
				return
			}
		}
	}
}

// take begins a batch; nil: everything has been answered.
func (r *reporter) take() []result {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.inFlight = nil
	if len(r.waiting) == 0 {
		r.waiting = nil
		r.flushed.set()
		return nil
	}
	room, count := maxBatchBytes, 0
	for count < len(r.waiting) && count < maxBatch {
		room -= proto.Size(r.waiting[count].message)
		if count > 0 && room < 0 {
			break
		}
		count++
	}
	r.inFlight = append(r.inFlight, r.waiting[:count]...)
	r.waiting = append([]result(nil), r.waiting[count:]...)
	return r.inFlight
}

// answered removes a result that was in flight.
func (r *reporter) answered(one result) {
	r.lock.Lock()
	defer r.lock.Unlock()
	for index := range r.inFlight {
		if r.inFlight[index].execution == one.execution {
			r.inFlight = append(append([]result(nil), r.inFlight[:index]...), r.inFlight[index+1:]...)
			return
		}
	}
}

// report reports a batch, again and again until it is answered; its error is that the context is done.
func (r *reporter) report(ctx context.Context, batch []result) error {
	request := &sidekeeperv1.ReportCompletionRequest{
		AttachmentId: r.attachmentID,
		Results:      make([]*sidekeeperv1.ExecutionResult, len(batch)),
	}
	for index := range batch {
		request.Results[index] = batch[index].message
	}
	waits := newBackoff()
	for {
		callCtx, cancel := context.WithTimeout(ctx, reportTimeout)
		response, err := r.client.ReportCompletion(callCtx, request)
		cancel()
		if err == nil {
			r.recorded(ctx, batch, response)
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		told := status.Convert(err)
		if isRefusal(told.Code()) {
			return r.refused(ctx, batch, told)
		}
		wait := waits.next()
		r.log.Warn(fmt.Sprintf("report of %d results: %s: %s; again in %v", len(batch), codeName(told.Code()),
			told.Message(), wait.Round(time.Millisecond)))
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

// refused: a report is refused as a whole for the sake of one result, so the others get their own.
func (r *reporter) refused(ctx context.Context, batch []result, why *status.Status) error {
	if len(batch) == 1 {
		r.log.LogAttrs(ctx, slog.LevelWarn, "result dropped: "+codeName(why.Code())+": "+why.Message(), about(batch[0].execution))
		return nil
	}
	for _, one := range batch {
		if err := r.report(ctx, []result{one}); err != nil {
			return err
		}
		r.answered(one)
	}
	return nil
}

func (r *reporter) recorded(ctx context.Context, batch []result, response *sidekeeperv1.ReportCompletionResponse) {
	became := make(map[string]sidekeeperv1.CompletionStatus, len(response.GetRecords()))
	for _, record := range response.GetRecords() {
		became[record.GetExecutionId()] = record.GetStatus()
	}
	for _, one := range batch {
		switch became[one.execution.ExecutionID] {
		case sidekeeperv1.CompletionStatus_COMPLETION_STATUS_LEASE_LOST:
			r.log.LogAttrs(ctx, slog.LevelWarn, "result not recorded: the lease was lost while the item was executed, "+
				"and another instance may have executed it", about(one.execution))
		case sidekeeperv1.CompletionStatus_COMPLETION_STATUS_UNSPECIFIED:
			r.log.LogAttrs(ctx, slog.LevelWarn, "the sidecar does not say what became of the result", about(one.execution))
		default:
			r.log.LogAttrs(ctx, slog.LevelDebug, "result recorded", about(one.execution))
		}
	}
}
