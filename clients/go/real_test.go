package sidekeeper_test

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	"github.com/sidekeeper/sidekeeper/clients/go/internal/script"
	"github.com/sidekeeper/sidekeeper/clients/go/sidekeepertest"
)

// The clients' conformance suite says what has to happen beside a real sidecar; this is for who has only Go at hand.

func TestBesideARealSidecar(t *testing.T) {
	sidecar := sidekeepertest.StartProcess(t)
	executed := make(chan *sidekeeper.Execution, 8)
	events := make(chan sidekeeper.AssignmentEvent)
	job := orderSync(func(_ context.Context, execution *sidekeeper.Execution) error {
		executed <- execution
		return nil
	})
	job.Configuration.ShardingItemParameters = "0=Beijing,1=Shanghai"
	job.Assignments = events
	app := &sidekeeper.Application{Endpoint: sidecar.Endpoint, Jobs: []sidekeeper.Job{job}}
	ended := run(t, app)
	for owned := 0; owned < 6; {
		event := script.Receive(t, "all items", events)
		owned = len(event.Assignment.Items)
		event.Done()
	}
	result, err := sidekeeper.Trigger(context.Background(), "orderSync", sidekeeper.WithEndpoint(sidecar.Endpoint))
	if err != nil || len(result.TriggeredInstanceIDs) != 1 {
		t.Fatalf("triggered: %v, %v", result, err)
	}
	parameters := map[int]string{}
	for range 6 {
		execution := script.Receive(t, "an execution", executed)
		equal(t, "source", execution.Source, sidekeeper.SourceTrigger)
		parameters[execution.Item] = execution.ItemParameter
	}
	if len(parameters) != 6 || parameters[0] != "Beijing" || parameters[1] != "Shanghai" || parameters[2] != "" {
		t.Errorf("executed: %v", parameters)
	}
	app.Stop()
	event := script.Receive(t, "the end", events)
	equal(t, "reason", event.Assignment.Reason, sidekeeper.AssignmentDetached)
	event.Done()
	equal(t, "Run", script.Receive(t, "Run returns", ended), error(nil))
}

func TestARealSidecarRefusesAConfiguration(t *testing.T) {
	sidecar := sidekeepertest.StartProcess(t)
	job := orderSync(ignore)
	job.Configuration.Cron = "whenever"
	_, ended := serving(t, &script.Sidecar{Endpoint: sidecar.Endpoint}, job)
	var refused *sidekeeper.AttachError
	if err := script.Receive(t, "Run returns", ended); !errors.As(err, &refused) || refused.Code != codes.InvalidArgument {
		t.Errorf("error: %v", err)
	}
}
