package sidekeeper

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// MaxCheckpointBytes is the largest checkpoint; the sidecar refuses larger ones.
const MaxCheckpointBytes = 64 * 1024

// progressTimeout is how long a report of progress may take: a checkpoint waits until the registry answers.
const progressTimeout = 30 * time.Second

// Progress is the sidecar's answer to a report of progress.
type Progress struct {
	// Deadline is the deadline now. Zero: no limit, or the execution was cancelled.
	Deadline time.Time
	// Cancelled is whether the execution was cancelled; its deadline is not extended any more.
	Cancelled bool
	// Superseded is whether the checkpoint was not recorded, because a newer one was reported before it was.
	Superseded bool
}

// progressReporter reports the progress of one attachment's executions; used from any goroutine.
type progressReporter struct {
	client sidekeeperv1.ParticipantServiceClient

	mu           sync.Mutex
	attachmentID string
	ended        bool
}

func newProgressReporter(client sidekeeperv1.ParticipantServiceClient, attachmentID string) *progressReporter {
	return &progressReporter{client: client, attachmentID: attachmentID}
}

// move: the executions continue with another attachment; retries of calls go there.
func (p *progressReporter) move(attachmentID string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attachmentID = attachmentID
}

// end says that the attachment has ended: nothing can be reported any more.
func (p *progressReporter) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
}

// attachment returns where to report. Empty: nowhere any more.
func (p *progressReporter) attachment() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return ""
	}
	return p.attachmentID
}

// report reports, and retries a call that may succeed later, until the context is done.
func (p *progressReporter) report(ctx context.Context, executionID string, checkpoint []byte, extend bool) (Progress, error) {
	ctx, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	waits := newBackoff()
	for {
		attachment := p.attachment()
		if attachment == "" {
			details := "the stream to the sidecar has ended, and this instance has left"
			return Progress{}, &ProgressError{executionID, codes.Aborted, details}
		}
		answer, err := p.client.ReportProgress(ctx, &sidekeeperv1.ReportProgressRequest{
			AttachmentId:   attachment,
			ExecutionId:    executionID,
			ExtendDeadline: extend,
			Checkpoint:     checkpoint,
		})
		if err == nil {
			progress := Progress{Cancelled: answer.GetCancelled(), Superseded: answer.GetSuperseded()}
			if answer.GetDeadline() != nil {
				progress.Deadline = answer.GetDeadline().AsTime()
			}
			return progress, nil
		}
		told := status.Convert(err)
		if !mayPass(told.Code()) || pause(ctx, waits.next()) != nil {
			return Progress{}, &ProgressError{executionID, told.Code(), told.Message()}
		}
	}
}

// mayPass returns whether a call that failed so may go better when it is tried again.
func mayPass(code codes.Code) bool {
	switch code {
	case codes.Unavailable, codes.Unknown, codes.Canceled, codes.Aborted:
		return true
	default:
		return false
	}
}
