package sidekeeper

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// triggerTimeout is how long a call may take: the sidecar writes to its registry before it answers.
const triggerTimeout = 30 * time.Second

// TriggerResult is who fires. Both together are all instances that are online.
type TriggerResult struct {
	// TriggeredInstanceIDs are the instances that this call triggered, ascending.
	TriggeredInstanceIDs []string
	// PendingInstanceIDs are the instances that had not taken up an earlier trigger yet, ascending; they fire once for
	// both.
	PendingInstanceIDs []string
}

// TriggerOption says how the sidecar is reached.
type TriggerOption func(*triggerSettings)

type triggerSettings struct {
	endpoint, token string
	dial            []grpc.DialOption
}

// WithEndpoint names the sidecar to ask; any one of the fleet will do. Otherwise it is found as by an [Application].
func WithEndpoint(endpoint string) TriggerOption {
	return func(settings *triggerSettings) { settings.endpoint = endpoint }
}

// WithToken gives the token that the sidecar asks for.
func WithToken(token string) TriggerOption {
	return func(settings *triggerSettings) { settings.token = token }
}

// WithDialOptions adds settings of the connection to the sidecar.
func WithDialOptions(options ...grpc.DialOption) TriggerOption {
	return func(settings *triggerSettings) { settings.dial = append(settings.dial, options...) }
}

// Trigger makes each online instance of a job fire once, now, whatever the job's schedule; also Java instances. It
// returns when all of them have been asked, and does not wait for the executions. The calling process need not be an
// instance of the job. Unless the context is done sooner, it takes 30 s at most.
//
// Its error is a [*TriggerError], or that the endpoint cannot be read.
func Trigger(ctx context.Context, job string, options ...TriggerOption) (TriggerResult, error) {
	var settings triggerSettings
	for _, option := range options {
		option(&settings)
	}
	to := placeOf(settings.endpoint)
	connection, err := openChannel(to, resolve(settings.token, TokenVariable, ""), settings.dial)
	if err != nil {
		return TriggerResult{}, err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(ctx, triggerTimeout)
	defer cancel()
	answer, err := sidekeeperv1.NewJobServiceClient(connection).TriggerJob(ctx, &sidekeeperv1.TriggerJobRequest{JobName: job})
	if err != nil {
		told := status.Convert(err)
		details := told.Message()
		if nobodyAnswers(told) {
			details = fmt.Sprintf("%s (%s)", noSidecar(to.endpoint), details)
		}
		return TriggerResult{}, &TriggerError{JobName: job, Code: told.Code(), Details: details, Reason: reasonOf(told)}
	}
	return TriggerResult{
		TriggeredInstanceIDs: answer.GetTriggeredInstanceIds(),
		PendingInstanceIDs:   answer.GetPendingInstanceIds(),
	}, nil
}
