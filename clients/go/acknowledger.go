package sidekeeper

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// noteTimeout is how long a call may take that writes nothing but a note.
const noteTimeout = 10 * time.Second

// acknowledger confirms an assignment to the sidecar, once no work on revoked items is left.
//
// Only the last assignment matters: acknowledging it says as much of those before it.
type acknowledger struct {
	lock         sync.Locker
	log          *slog.Logger
	client       sidekeeperv1.ParticipantServiceClient
	attachmentID string
	// Whether an item is worked on; with the lock.
	isBusy func(owned map[int]bool) bool

	last *Assignment // with the lock
	wake chan struct{}
}

// noted says that the callbacks for an assignment have returned. With the lock.
func (a *acknowledger) noted(assignment *Assignment) {
	a.last = assignment
	wake(a.wake)
}

// executionEnded says that work on an item has ended. With the lock.
func (a *acknowledger) executionEnded() {
	if a.last != nil {
		wake(a.wake)
	}
}

// run acknowledges until the context is done.
func (a *acknowledger) run(ctx context.Context) {
	for {
		select {
		case <-a.wake:
		case <-ctx.Done():
			return
		}
		if assignment := a.due(); assignment != nil {
			a.acknowledge(ctx, assignment)
		}
	}
}

// due takes the assignment that can be acknowledged. Nil: none can.
func (a *acknowledger) due() *Assignment {
	a.lock.Lock()
	defer a.lock.Unlock()
	assignment := a.last
	if assignment == nil {
		return nil
	}
	owned := make(map[int]bool, len(assignment.Items))
	for _, item := range assignment.Items {
		owned[item.Item] = true
	}
	if a.isBusy(owned) {
		return nil
	}
	a.last = nil
	return assignment
}

// isOutdated returns whether a newer assignment is due, which says more.
func (a *acknowledger) isOutdated() bool {
	a.lock.Lock()
	defer a.lock.Unlock()
	return a.last != nil
}

// whatNext decides about a call that has failed.
func whatNext(code codes.Code) string {
	if isRefusal(code) {
		return "given up"
	}
	return "trying again"
}

func (a *acknowledger) acknowledge(ctx context.Context, assignment *Assignment) {
	request := &sidekeeperv1.AcknowledgeAssignmentRequest{AttachmentId: a.attachmentID, Generation: assignment.Generation}
	waits := newBackoff()
	for !a.isOutdated() {
		callCtx, cancel := context.WithTimeout(ctx, noteTimeout)
		_, err := a.client.AcknowledgeAssignment(callCtx, request)
		cancel()
		if err == nil || ctx.Err() != nil {
			return
		}
		told := status.Convert(err)
		a.log.Warn(fmt.Sprintf("acknowledgement of generation %d: %s: %s; %s", assignment.Generation,
			codeName(told.Code()), told.Message(), whatNext(told.Code())))
		if isRefusal(told.Code()) || pause(ctx, waits.next()) != nil {
			return
		}
	}
}
