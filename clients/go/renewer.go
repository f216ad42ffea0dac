package sidekeeper

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// renewalIntervalMin is the shortest time between two requests, also if the sidecar asks for less: a call costs both of
// them something.
const renewalIntervalMin = 50 * time.Millisecond

// renewer asks the sidecar how long its session is surely alive, for an application that shares no clock with it; one
// call at a time for one attachment.
//
// The time of an answer counts from when the request was sent. So what request and answer take makes a lease shorter,
// and an answer that this process reads late gives nothing that is over by then.
type renewer struct {
	log          *slog.Logger
	client       sidekeeperv1.ParticipantServiceClient
	attachmentID string
	interval     time.Duration
	// Told each answer, and when its request was sent, by boottime.
	renewed func(response *sidekeeperv1.RenewLeaseResponse, sent time.Duration)
	due     chan struct{}
}

// ask asks now, or when the call in flight is over; and from then on each interval.
func (r *renewer) ask() {
	wake(r.due)
}

// run asks when it is to, until the context is done or the sidecar cannot answer.
func (r *renewer) run(ctx context.Context) {
	timer := time.NewTimer(r.interval)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-r.due:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		timer.Reset(r.interval)
		if !r.renew(ctx) {
			return
		}
	}
}

// renew asks once. False: it is not to ask any more.
func (r *renewer) renew(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, r.interval)
	defer cancel()
	sent := boottime()
	response, err := r.client.RenewLease(ctx, &sidekeeperv1.RenewLeaseRequest{AttachmentId: r.attachmentID})
	if err == nil {
		r.renewed(response, sent)
		return true
	}
	code := status.Code(err)
	r.log.Debug("lease not renewed: " + codeName(code))
	// The sidecar is older than this call, and its stream has to do; or it does not know the attachment any more, and
	// the stream ends.
	return code != codes.Unimplemented && code != codes.NotFound
}
