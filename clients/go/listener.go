package sidekeeper

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"google.golang.org/grpc/status"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// listenerReporter reports how the once-listener's calls of one attachment have ended.
type listenerReporter struct {
	lock         sync.Locker
	log          *slog.Logger
	client       sidekeeperv1.ParticipantServiceClient
	attachmentID string

	ended []*sidekeeperv1.ReportListenerRequest // with the lock; at most one call is open at a time, so it stays short
	wake  chan struct{}
}

// add says that a call has ended, with the error of its callback. With the lock.
func (l *listenerReporter) add(callID string, err error) {
	request := &sidekeeperv1.ReportListenerRequest{
		AttachmentId: l.attachmentID,
		CallId:       callID,
		Outcome:      sidekeeperv1.ListenerOutcome_LISTENER_OUTCOME_SUCCESS,
	}
	if err != nil {
		request.Outcome = sidekeeperv1.ListenerOutcome_LISTENER_OUTCOME_FAILURE
		request.FailureMessage = head(err.Error(), maxFailureBytes)
	}
	l.ended = append(l.ended, request)
	wake(l.wake)
}

// run reports until the context is done.
func (l *listenerReporter) run(ctx context.Context) {
	for {
		select {
		case <-l.wake:
		case <-ctx.Done():
			return
		}
		for _, request := range l.take() {
			l.report(ctx, request)
		}
	}
}

func (l *listenerReporter) take() []*sidekeeperv1.ReportListenerRequest {
	l.lock.Lock()
	defer l.lock.Unlock()
	taken := l.ended
	l.ended = nil
	return taken
}

func (l *listenerReporter) report(ctx context.Context, request *sidekeeperv1.ReportListenerRequest) {
	waits := newBackoff()
	for {
		callCtx, cancel := context.WithTimeout(ctx, noteTimeout)
		response, err := l.client.ReportListener(callCtx, request)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			if !response.GetInTime() {
				l.log.Warn("call " + request.GetCallId() + " was answered too late")
			}
			return
		}
		told := status.Convert(err)
		l.log.Warn(fmt.Sprintf("outcome of call %s: %s: %s; %s", request.GetCallId(), codeName(told.Code()),
			told.Message(), whatNext(told.Code())))
		if isRefusal(told.Code()) || pause(ctx, waits.next()) != nil {
			return
		}
	}
}
