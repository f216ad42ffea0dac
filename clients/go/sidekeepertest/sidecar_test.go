package sidekeepertest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	"github.com/sidekeeper/sidekeeper/clients/go/sidekeepertest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func application(handler sidekeeper.Handler) *sidekeeper.Application {
	return &sidekeeper.Application{Jobs: []sidekeeper.Job{{
		Name: "orderSync", Handler: handler,
		Configuration: &sidekeeper.JobConfiguration{ShardingTotalCount: 3, JobParameter: "all"},
	}}}
}

func TestAHandlerIsExecuted(t *testing.T) {
	var seen *sidekeeper.Execution
	sidecar := sidekeepertest.Run(t, application(func(ctx context.Context, execution *sidekeeper.Execution) error {
		seen = execution
		switch execution.ItemParameter {
		case "reject":
			return sidekeeper.Reject("no disk")
		case "fail":
			return errors.New("no luck")
		case "panic":
			panic("oh")
		}
		return nil
	}))
	for parameter, want := range map[string]sidekeepertest.Result{
		"":       {Outcome: sidekeepertest.Success},
		"reject": {Outcome: sidekeepertest.Rejected, Message: "no disk"},
		"fail":   {Outcome: sidekeepertest.Failure, Message: "no luck"},
		"panic":  {Outcome: sidekeepertest.Failure, Message: "panic: oh\n"},
	} {
		result := sidecar.Execute(sidekeepertest.Execution{Job: "orderSync", Item: 2, ItemParameter: parameter})
		if result.Outcome != want.Outcome || !strings.HasPrefix(result.Message, want.Message) {
			t.Errorf("%q: %+v", parameter, result)
		}
	}
	if seen.JobParameter != "all" || seen.ShardingTotalCount != 3 || seen.Item != 2 || seen.FencingToken == 0 {
		t.Errorf("got %+v", seen)
	}
}

func TestACancelAndADeadlineReachAHandler(t *testing.T) {
	begun := make(chan struct{}, 1)
	sidecar := sidekeepertest.Run(t, application(func(ctx context.Context, execution *sidekeeper.Execution) error {
		begun <- struct{}{}
		<-ctx.Done()
		return context.Cause(ctx)
	}))
	running := sidecar.Start(sidekeepertest.Execution{Job: "orderSync"})
	<-begun
	running.Cancel(sidekeeper.CancelOperator)
	if result := running.Wait(); result.Message != "cancelled: OPERATOR" {
		t.Errorf("got %+v", result)
	}
	running = sidecar.Start(sidekeepertest.Execution{Job: "orderSync", Timeout: 20 * time.Millisecond})
	<-begun
	if result := running.Wait(); result.Message != "cancelled: DEADLINE" {
		t.Errorf("got %+v", result)
	}
}

func TestACheckpointIsHandedToTheNextAttempt(t *testing.T) {
	sidecar := sidekeepertest.Run(t, application(func(ctx context.Context, execution *sidekeeper.Execution) error {
		if execution.Attempt == 2 && string(execution.Checkpoint) == "row 7" {
			return nil
		}
		if _, err := execution.Progress(ctx, []byte("row 7")); err != nil {
			return err
		}
		return errors.New("again")
	}))
	first := sidecar.Execute(sidekeepertest.Execution{Job: "orderSync", Timeout: time.Hour})
	if first.Message != "again" || string(first.Checkpoint) != "row 7" {
		t.Errorf("got %+v", first)
	}
	second := sidecar.Execute(sidekeepertest.Execution{Job: "orderSync", Attempt: 2, Checkpoint: first.Checkpoint})
	if second.Outcome != sidekeepertest.Success {
		t.Errorf("got %+v", second)
	}
}

func TestWhatWasStartedIsExecutedAfterTheStop(t *testing.T) {
	begun, gate := make(chan struct{}, 2), make(chan struct{})
	revoked := make(chan struct{})
	app := application(func(context.Context, *sidekeeper.Execution) error {
		begun <- struct{}{}
		<-gate
		return nil
	})
	app.Jobs[0].Concurrency = 1
	app.Jobs[0].OnRevoked = func(context.Context, sidekeeper.ItemsChange) error {
		close(revoked)
		return nil
	}
	sidecar := sidekeepertest.Run(t, app)
	all := []*sidekeepertest.Running{
		sidecar.Start(sidekeepertest.Execution{Job: "orderSync", Item: 0}),
		sidecar.Start(sidekeepertest.Execution{Job: "orderSync", Item: 1}),
	}
	<-begun
	app.Stop()
	<-revoked
	close(gate)
	for _, running := range all {
		if result := running.Wait(); result.Outcome != sidekeepertest.Success {
			t.Errorf("got %+v", result)
		}
	}
	if err := sidecar.Stop(); err != nil {
		t.Error(err)
	}
}

func TestOwnershipIsTold(t *testing.T) {
	told := make(chan string, 16)
	tell := func(kind string) sidekeeper.ItemsFunc {
		return func(_ context.Context, change sidekeeper.ItemsChange) error {
			var items []int
			for _, item := range change.Items {
				items = append(items, item.Item)
			}
			told <- fmt.Sprint(kind, items, change.Reason)
			return nil
		}
	}
	app := application(func(ctx context.Context, _ *sidekeeper.Execution) error {
		<-ctx.Done()
		return ctx.Err()
	})
	app.Jobs[0].OnAssigned, app.Jobs[0].OnRevoked, app.Jobs[0].OnLost = tell("assigned"), tell("revoked"), tell("lost")
	sidecar := sidekeepertest.Run(t, app)
	sidecar.Assign("orderSync", 1, 2)
	running := sidecar.Start(sidekeepertest.Execution{Job: "orderSync", Item: 1})
	sidecar.LoseSession("orderSync")
	if result := running.Wait(); !strings.HasSuffix(result.Message, "LEASE_LOST") {
		t.Errorf("got %+v", result)
	}
	sidecar.Assign("orderSync", 0)
	sidecar.Disconnect("orderSync")
	if err := sidecar.Stop(); err != nil {
		t.Error(err)
	}
	close(told)
	var all []string
	for one := range told {
		all = append(all, one)
	}
	want := "assigned[0 1 2] ATTACHED revoked[0] RESHARDED lost[1 2] SESSION_LOST assigned[0] RESHARDED " +
		"lost[0] DETACHED assigned[0 1 2] ATTACHED revoked[0 1 2] DETACHED"
	if got := strings.Join(all, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
