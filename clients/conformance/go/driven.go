package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
)

// command is what the driver says; which fields it has depends on the command.
type command struct {
	Command string `json:"command"`
	behaviour
	Job            string     `json:"job"`
	Item           int        `json:"item"`
	Items          *[]int     `json:"items"`
	Checkpoint     *string    `json:"checkpoint"`
	ExtendDeadline *bool      `json:"extend_deadline"`
	Kinds          []string   `json:"kinds"`
	Immediately    bool       `json:"immediately"`
	ForGood        bool       `json:"for_good"`
	Jobs           []jobGiven `json:"jobs"`
	DrainTimeout   *float64   `json:"drain_timeout"`
	Value          string     `json:"value"`
	Successor      string     `json:"successor"`
	Lingers        bool       `json:"lingers"`
	lockGiven
}

// concerns returns whether a command is about an item.
func (c command) concerns(item int) bool {
	return c.Items == nil || slices.Contains(*c.Items, item)
}

type jobGiven struct {
	Name          string         `json:"name"`
	Configuration *configuration `json:"configuration"`
	Concurrency   int            `json:"concurrency"`
	Weight        int            `json:"weight"`
	Labels        []string       `json:"labels"`
	InstanceName  string         `json:"instance_name"`
	Callbacks     *bool          `json:"callbacks"`
}

// configuration has the fields of JobConfiguration in the proto's names.
type configuration struct {
	ShardingTotalCount      int               `json:"sharding_total_count"`
	Cron                    string            `json:"cron"`
	TimeZone                string            `json:"time_zone"`
	ShardingItemParameters  string            `json:"sharding_item_parameters"`
	JobParameter            string            `json:"job_parameter"`
	MonitorExecution        *bool             `json:"monitor_execution"`
	Failover                *bool             `json:"failover"`
	Misfire                 *bool             `json:"misfire"`
	JobShardingStrategyType string            `json:"job_sharding_strategy_type"`
	StaticSharding          *bool             `json:"static_sharding"`
	Disabled                *bool             `json:"disabled"`
	Overwrite               *bool             `json:"overwrite"`
	JobClass                string            `json:"job_class"`
	Description             string            `json:"description"`
	Label                   string            `json:"label"`
	Props                   map[string]string `json:"props"`
}

// driven is the application, and what the driver has asked for.
type driven struct {
	mu         sync.Mutex
	app        *sidekeeper.Application
	behaviours []rule // the last one that fits counts
	running    []*running
	held       map[string]chan struct{}
	locks      []*underLock
	candidates []*candidate
}

// rule is what executions of some items of some jobs do.
type rule struct {
	given     command
	behaviour behaviour
}

func newDriven() *driven {
	return &driven{held: map[string]chan struct{}{}}
}

// started notes the application that runs.
func (d *driven) started(app *sidekeeper.Application) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.app = app
}

// job returns a job as it is registered.
func (d *driven) job(given jobGiven) sidekeeper.Job {
	job := sidekeeper.Job{
		Name: given.Name, Handler: d.handle, Concurrency: given.Concurrency, Weight: given.Weight,
		Labels: given.Labels, InstanceName: given.InstanceName,
	}
	if c := given.Configuration; c != nil {
		job.Configuration = &sidekeeper.JobConfiguration{
			ShardingTotalCount: c.ShardingTotalCount, Cron: c.Cron, TimeZone: c.TimeZone,
			ShardingItemParameters: c.ShardingItemParameters, JobParameter: c.JobParameter,
			MonitorExecution: c.MonitorExecution, Failover: c.Failover, Misfire: c.Misfire,
			JobShardingStrategyType: c.JobShardingStrategyType, StaticSharding: c.StaticSharding,
			Disabled: c.Disabled, Overwrite: c.Overwrite, JobClass: c.JobClass, Description: c.Description,
			Label: c.Label, Props: c.Props,
		}
	}
	if given.Callbacks != nil && !*given.Callbacks {
		return job
	}
	items := func(kind string) sidekeeper.ItemsFunc {
		return func(ctx context.Context, change sidekeeper.ItemsChange) error {
			tellItems(kind, change)
			d.waitReleased(ctx, kind)
			return nil
		}
	}
	job.OnAssigned, job.OnRevoked, job.OnLost = items("assigned"), items("revoked"), items("lost")
	assignments := make(chan sidekeeper.AssignmentEvent)
	job.Assignments = assignments
	go func() {
		for event := range assignments {
			tellAssignment(event.Assignment)
			event.Done()
		}
	}()
	job.OnLeadership = func(_ context.Context, one sidekeeper.Leadership) {
		tell("leadership", fields{"job": one.JobName, "leader": one.Leader})
	}
	job.OnSession = func(_ context.Context, one sidekeeper.SessionChange) {
		tell("session", fields{"job": one.JobName, "state": one.State.String()})
	}
	return job
}

func (d *driven) stop(given command) {
	d.mu.Lock()
	app := d.app
	d.mu.Unlock()
	if app == nil {
		return
	}
	var options []sidekeeper.StopOption
	if given.Immediately {
		options = append(options, sidekeeper.Immediately())
	}
	if given.ForGood {
		options = append(options, sidekeeper.ForGood())
	}
	app.Stop(options...)
}

func (d *driven) behave(given command) {
	d.mu.Lock()
	defer d.mu.Unlock()
	one := given.behaviour
	if given.Checkpoint != nil {
		one.checkpoint = *given.Checkpoint
	}
	d.behaviours = append(d.behaviours, rule{given, one})
}

// behaviourOf returns what an execution is to do.
func (d *driven) behaviourOf(execution *sidekeeper.Execution) behaviour {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range slices.Backward(d.behaviours) {
		if (one.given.Job == "" || one.given.Job == execution.JobName) && one.given.concerns(execution.Item) {
			return one.behaviour
		}
	}
	return behaviour{Behaviour: "succeed"}
}

func (d *driven) release(given command) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.running {
		if given.concerns(one.execution.Item) {
			one.release()
		}
	}
}

// progress reports the progress of an execution that is open, beside its handler.
func (d *driven) progress(given command) {
	d.mu.Lock()
	defer d.mu.Unlock()
	index := slices.IndexFunc(d.running, func(one *running) bool { return one.execution.Item == given.Item })
	if index < 0 {
		slog.Error("progress of an item that is not executed", "asked", given.Item)
		os.Exit(exitOther)
	}
	one := d.running[index]
	var checkpoint []byte
	if given.Checkpoint != nil {
		checkpoint = []byte(*given.Checkpoint)
	}
	var options []sidekeeper.ProgressOption
	if given.ExtendDeadline != nil && !*given.ExtendDeadline {
		options = append(options, sidekeeper.KeepDeadline())
	}
	go func() {
		progress, err := one.execution.Progress(context.Background(), checkpoint, options...)
		var failure *sidekeeper.ProgressError
		switch {
		case err == nil:
			one.tellProgress(progress)
		case errors.As(err, &failure):
			one.tell("progress_failed", fields{"code": codeName(failure.Code)})
		default:
			slog.Error(err.Error())
		}
	}()
}

func (d *driven) holdCallbacks(kinds []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, kind := range kinds {
		if d.held[kind] == nil {
			d.held[kind] = make(chan struct{})
		}
	}
}

func (d *driven) releaseCallbacks() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for kind, released := range d.held {
		close(released)
		delete(d.held, kind)
	}
}

// waitReleased waits while callbacks of this kind are held.
func (d *driven) waitReleased(ctx context.Context, kind string) {
	d.mu.Lock()
	released := d.held[kind]
	d.mu.Unlock()
	if released == nil {
		return
	}
	select {
	case <-released:
	case <-ctx.Done():
	}
}
