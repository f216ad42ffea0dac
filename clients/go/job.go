package sidekeeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

const (
	// DefaultConcurrency is how many items of a job are executed at once in one process, unless the job says otherwise.
	DefaultConcurrency = 8
	// InstanceNameVariable is the environment variable that names the process's instances.
	InstanceNameVariable = "SIDEKEEPER_INSTANCE_NAME"
)

// Handler executes one item. Returning nil is success; [Reject] says that the item was not begun; any other error is a
// failure, and so is a panic, which is reported with its stack.
//
// The context is cancelled when the execution is to stop, and [context.Cause] then is a [*CancelledError]: the item may
// belong to another instance from then on. Its deadline is the execution's. A handler that returns nil all the same has
// succeeded.
type Handler func(ctx context.Context, execution *Execution) error

// Middleware wraps handlers: it is called once for each job, and the handler that it returns for each execution.
type Middleware func(next Handler) Handler

// ItemsFunc gets items that this instance owns, or does not own any more. The context is done when the application was
// stopped immediately.
type ItemsFunc func(ctx context.Context, change ItemsChange) error

// Job is a job as the application registers it.
//
// A job's callbacks are called one at a time, so one that never returns holds up its job. An error of a callback, or a
// panic in it, is logged.
type Job struct {
	// Name is the job's name, the same in all its instances. Required.
	Name string
	// Handler executes items. Required, unless the job is of continuous ownership (property "sidekeeper.ownership").
	Handler Handler
	// Configuration is used if the registry has none yet, or if it sets Overwrite. Nil: the sidecar or the registry must
	// have the job's configuration.
	Configuration *JobConfiguration
	// Concurrency is how many items are executed at once in this process; further ones wait in order. Zero:
	// [DefaultConcurrency].
	Concurrency int
	// Weight is how many items this instance gets in proportion to others, 1 to 1000, when all instances are sidecars'.
	// Zero: 1.
	Weight int
	// Labels are labels that items may ask for (property "sidekeeper.item-labels").
	Labels []string
	// InstanceName is the instance's name, the same after each restart, such as the name of a pod in a StatefulSet: it
	// then owns its items again, if it is back within the job's "sidekeeper.grace". 1 to 64 characters of
	// [A-Za-z0-9_.-], one of them a letter; no two instances of a job may have the same. Empty: the environment variable
	// SIDEKEEPER_INSTANCE_NAME, else none.
	InstanceName string

	// OnAssigned is called with items that this instance owns from now on, or whose token, parameter or status has
	// changed. Executions of a new item begin after it has returned.
	OnAssigned ItemsFunc
	// OnRevoked is called with items that the sidecar takes away in good order, and when the application stops. The next
	// owner may be waiting: the assignment is acknowledged when all callbacks for it have returned without an error and
	// no execution of these items is open. When the application stops, executions that wait for their turn still begin
	// after it.
	OnRevoked ItemsFunc
	// OnLost is called with items that are lost at once: the session with the registry was lost, the stream to the
	// sidecar has ended, or the sidecar has not renewed the lease in time. Other instances may own them already. None of
	// the three callbacks replaces another.
	OnLost ItemsFunc
	// Assignments gets each whole assignment, also an empty one with the reason [AssignmentDetached] when the stream
	// ends, after the callbacks for it have returned. Answer each event with its Done, which counts as returning. The
	// library never closes the channel; nothing is sent after Run has returned.
	Assignments chan<- AssignmentEvent

	// OnLeadership is called when this instance begins or ceases to lead the job.
	OnLeadership func(ctx context.Context, leadership Leadership)
	// OnSession is called when the sidecar's session with the registry changes.
	OnSession func(ctx context.Context, change SessionChange)
	// OnJobChanged is called when the job's configuration or its problems change.
	OnJobChanged func(ctx context.Context, change JobChange)
	// OnBeforeFirst acts once for the whole job before the first item of a fire is executed, if the property
	// "sidekeeper.once-listener" is "true": it is called in one instance, and all of them wait for it. If it fails, or
	// has not returned by the deadline, which is the context's, this instance executes nothing of that fire; the others
	// do. It may be called again, in another instance, if this one crashes meanwhile.
	OnBeforeFirst func(ctx context.Context, round Round) error
	// OnAfterLast acts once for the whole job after the last item of a fire was executed. It is called in one instance,
	// not always the one of OnBeforeFirst, under the same conditions.
	OnAfterLast func(ctx context.Context, round Round) error
}

// continuousProperty says that items are owned all the time and never executed at fires.
const continuousProperty = "sidekeeper.ownership"

// One without a letter could be a process id, by which ElasticJob's own instances are known.
var (
	instanceNameForm = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
	letter           = regexp.MustCompile(`[A-Za-z]`)
)

// registered is a job that has been checked, with its defaults filled in.
type registered struct {
	Job
	configuration *sidekeeperv1.JobConfiguration
}

// register checks a job.
func register(job Job, middleware []Middleware) (*registered, error) {
	refused := func(format string, arguments ...any) (*registered, error) {
		return nil, fmt.Errorf("job %q: %w", job.Name, fmt.Errorf(format, arguments...))
	}
	if job.Name == "" {
		return nil, errors.New("a job has no name")
	}
	if job.Concurrency < 0 {
		return refused("concurrency: %d is negative", job.Concurrency)
	}
	if job.Concurrency == 0 {
		job.Concurrency = DefaultConcurrency
	}
	if job.Weight < 0 || job.Weight > 1000 {
		return refused("weight: %d is out of range; allowed are 1 to 1000", job.Weight)
	}
	source := "instance name"
	if job.InstanceName == "" {
		source, job.InstanceName = InstanceNameVariable, os.Getenv(InstanceNameVariable)
	}
	if name := job.InstanceName; name != "" && (!instanceNameForm.MatchString(name) || !letter.MatchString(name)) {
		return refused("%s: %q is not 1 to 64 characters of [A-Za-z0-9_.-], one of them a letter", source, name)
	}
	if job.Handler == nil {
		if job.Configuration != nil && job.Configuration.Props[continuousProperty] != "continuous" {
			return refused("it has no handler")
		}
		job.Handler = func(context.Context, *Execution) error { return Reject("this application has no handler") }
	}
	for index := len(middleware) - 1; index >= 0; index-- {
		job.Handler = middleware[index](job.Handler)
	}
	configuration, err := job.Configuration.toProto()
	if err != nil {
		return refused("%w", err)
	}
	return &registered{Job: job, configuration: configuration}, nil
}
