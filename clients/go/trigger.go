package sidekeeper

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// triggerTimeout is how long a call may take: the sidecar writes to its registry before it answers.
const triggerTimeout = 30 * time.Second

// TriggerResult is who fires, or which items are executed.
type TriggerResult struct {
	// TriggeredInstanceIDs are the instances that this call triggered, ascending. Together with the pending ones, all that are
	// online; none [WithItems] or [WithParameter].
	TriggeredInstanceIDs []string
	// PendingInstanceIDs are the instances that had not taken up an earlier trigger yet, ascending; they fire once for
	// both.
	PendingInstanceIDs []string
	// TriggeredItems are the items that are executed [WithItems] or [WithParameter], ascending.
	TriggeredItems []uint32
}

// TriggerOption says what is triggered, and how the sidecar is reached.
type TriggerOption func(*triggerSettings)

type triggerSettings struct {
	endpoint, token string
	dial            []grpc.DialOption
	items           []uint32
	parameter       *string
}

// WithItems executes only these items, each of them once. It is refused for a job with Java instances or sidecars of earlier
// versions online.
func WithItems(items ...uint32) TriggerOption {
	return func(settings *triggerSettings) { settings.items = items }
}

// WithParameter gives the text that these executions get as [Execution].JobParameter, in place of the job's own; at most 4096 bytes.
// Without [WithItems] it is for all items that are enabled. It is refused as [WithItems].
func WithParameter(parameter string) TriggerOption {
	return func(settings *triggerSettings) { settings.parameter = &parameter }
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
// Its error is a [*TriggerError], or that the endpoint cannot be read. With the code [codes.Unimplemented] the sidecar is of an
// earlier version than [WithItems] and [WithParameter], and has triggered all items with the job's own parameter.
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
	answer, err := sidekeeperv1.NewJobServiceClient(connection).TriggerJob(ctx, &sidekeeperv1.TriggerJobRequest{
		JobName: job, Items: settings.items, Parameter: settings.parameter,
	})
	if err != nil {
		told := status.Convert(err)
		details := told.Message()
		if nobodyAnswers(told) {
			details = fmt.Sprintf("%s (%s)", noSidecar(to.endpoint), details)
		}
		return TriggerResult{}, &TriggerError{JobName: job, Code: told.Code(), Details: details, Reason: reasonOf(told)}
	}
	if (len(settings.items) > 0 || settings.parameter != nil) && len(answer.GetTriggeredItems()) == 0 {
		details := "the sidecar is of an earlier version, and has triggered all items with the job's own parameter"
		return TriggerResult{}, &TriggerError{JobName: job, Code: codes.Unimplemented, Details: details}
	}
	return TriggerResult{
		TriggeredInstanceIDs: answer.GetTriggeredInstanceIds(),
		PendingInstanceIDs:   answer.GetPendingInstanceIds(),
		TriggeredItems:       answer.GetTriggeredItems(),
	}, nil
}
