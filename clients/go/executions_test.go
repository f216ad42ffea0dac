package sidekeeper_test

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	"github.com/sidekeeper/sidekeeper/clients/go/internal/script"
	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

func TestTheAttachmentSaysWhoWantsWhat(t *testing.T) {
	sidecar := script.Start(t)
	parameters, err := sidekeeper.ItemParameters(map[int]string{1: "Shanghai", 0: "Beijing"})
	if err != nil {
		t.Fatal(err)
	}
	run(t, &sidekeeper.Application{Endpoint: sidecar.Endpoint, Jobs: []sidekeeper.Job{
		{
			Name: "orderSync", Handler: ignore, Weight: 3, Labels: []string{"gpu"}, InstanceName: "worker-0",
			Configuration: &sidekeeper.JobConfiguration{
				ShardingTotalCount: 6, Cron: "0/2 * * * * ?", ShardingItemParameters: parameters,
				MaxTimeDiff: sidekeeper.Ptr(3 * time.Second), ReconcileInterval: sidekeeper.Ptr(time.Minute),
				Failover: sidekeeper.Ptr(true), Misfire: sidekeeper.Ptr(false),
				Props: map[string]string{"sidekeeper.handoff": "drained"},
			},
		},
		{Name: "byName", Handler: ignore},
	}})
	requests := map[string]*sidekeeperv1.AttachRequest{}
	for range 2 {
		request := sidecar.Stream(t).Request
		requests[request.GetJobName()] = request
	}
	request, byName := requests["orderSync"], requests["byName"]
	want := &sidekeeperv1.AttachRequest{
		JobName: "orderSync",
		Configuration: &sidekeeperv1.JobConfiguration{
			ShardingTotalCount: 6, Cron: "0/2 * * * * ?", ShardingItemParameters: "0=Beijing,1=Shanghai",
			MaxTimeDiff: request.Configuration.MaxTimeDiff, ReconcileInterval: request.Configuration.ReconcileInterval,
			Failover: proto.Bool(true), Misfire: proto.Bool(false), Props: map[string]string{"sidekeeper.handoff": "drained"},
		},
		ApplicationId: request.GetApplicationId(), Client: "sidekeeper-go/" + sidekeeper.Version, Weight: 3,
		Labels: []string{"gpu"}, InstanceName: "worker-0", ApiLevel: proto.Uint32(2), SidecarApiLevelMin: 1,
	}
	if !proto.Equal(request, want) {
		t.Errorf("got %v\nwant %v", request, want)
	}
	equal(t, "max_time_diff", request.Configuration.GetMaxTimeDiff().AsDuration(), 3*time.Second)
	equal(t, "reconcile_interval", request.Configuration.GetReconcileInterval().AsDuration(), time.Minute)
	equal(t, "length of the application's id", len(request.GetApplicationId()), 32)
	equal(t, "application's id", byName.GetApplicationId(), request.GetApplicationId())
	if byName.Configuration != nil {
		t.Errorf("a job by name brings a configuration: %v", byName.Configuration)
	}
}

func TestAHandlerGetsEverything(t *testing.T) {
	sidecar := script.Start(t)
	deadline := time.Now().Add(time.Hour).Truncate(time.Millisecond).UTC()
	seen := make(chan *sidekeeper.Execution, 1)
	checked := make(chan error, 1)
	serving(t, sidecar, orderSync(func(ctx context.Context, execution *sidekeeper.Execution) error {
		inner, cancel := context.WithCancel(ctx)
		defer cancel()
		told, limited := inner.Deadline()
		found, _ := sidekeeper.ExecutionFrom(inner)
		token, _ := sidekeeper.FencingToken(inner)
		if !limited || !told.Equal(deadline) || found != execution || token != 4711 || ctx.Err() != nil {
			checked <- errors.New("the context does not have it all")
		} else {
			checked <- nil
		}
		seen <- execution
		return nil
	}))
	stream := sidecar.Stream(t)
	id := stream.Execute(3, func(message *sidekeeperv1.Execute) {
		message.ItemParameter = proto.String("Shenzhen")
		message.JobParameter = "all"
		message.TaskId = "orderSync@-@3@-@READY@-@10.0.0.1@-@1"
		message.Source = sidekeeperv1.ExecutionSource_EXECUTION_SOURCE_FAILOVER
		message.FencingToken, message.LockToken = 4711, 815
		message.Traceparent, message.Tracestate = "00-1-2-01", "a=b"
		message.Attempt, message.Checkpoint = 3, []byte("row 7")
		message.Deadline = timestamppb.New(deadline)
	})
	report := sidecar.Report(t)
	equal(t, "attachment", report.GetAttachmentId(), stream.AttachmentID)
	equal(t, "results", len(report.GetResults()), 1)
	equal(t, "execution", report.GetResults()[0].GetExecutionId(), id)
	equal(t, "outcome", report.GetResults()[0].GetOutcome(), success)
	if err := script.Receive(t, "the handler", checked); err != nil {
		t.Error(err)
	}
	execution := script.Receive(t, "the handler", seen)
	told := map[string]any{}
	value := reflect.ValueOf(execution).Elem()
	for index := range value.NumField() {
		if field := value.Type().Field(index); field.IsExported() {
			told[field.Name] = value.Field(index).Interface()
		}
	}
	want := map[string]any{
		"JobName": "orderSync", "InstanceID": stream.InstanceID, "ExecutionID": id, "Item": 3, "ItemParameter": "Shenzhen",
		"JobParameter": "all", "ShardingTotalCount": 6, "TaskID": "orderSync@-@3@-@READY@-@10.0.0.1@-@1",
		"Source": sidekeeper.SourceFailover, "ScheduledTime": script.ScheduledTime,
		"FireTime": script.ScheduledTime.Add(12 * time.Millisecond), "FencingToken": int64(4711), "LockToken": int64(815),
		"Traceparent": "00-1-2-01", "Tracestate": "a=b", "Attempt": 3, "Checkpoint": []byte("row 7"),
	}
	if !reflect.DeepEqual(told, want) {
		t.Errorf("got %v\nwant %v", told, want)
	}
}

// causeAPanic has a name that a stack shows.
func causeAPanic(items []int) int { return items[7] }

func TestHowAHandlerEnds(t *testing.T) {
	for name, one := range map[string]struct {
		handler  sidekeeper.Handler
		outcome  sidekeeperv1.ExecutionOutcome
		messages []string
	}{
		"nil": {ignore, success, []string{""}},
		"an error": {func(context.Context, *sidekeeper.Execution) error {
			return errors.New("no order 5")
		}, failure, []string{"no order 5"}},
		"a rejection, wrapped": {func(context.Context, *sidekeeper.Execution) error {
			return errors.Join(errors.New("today"), sidekeeper.Reject("no disk"))
		}, rejects, []string{"no disk"}},
		"a panic": {func(context.Context, *sidekeeper.Execution) error {
			causeAPanic(nil)
			return nil
		}, failure, []string{"panic: runtime error: index out of range [7]", "causeAPanic", "executions_test.go"}},
		"a long panic": {func(context.Context, *sidekeeper.Execution) error {
			panic(strings.Repeat("x", 1<<20))
		}, failure, []string{"panic: xxx", "executions_test.go"}},
		"runtime.Goexit": {func(context.Context, *sidekeeper.Execution) error {
			runtime.Goexit()
			return nil
		}, failure, []string{"the handler has ended its goroutine without returning"}},
		"cancelled by itself": {func(context.Context, *sidekeeper.Execution) error {
			return context.Canceled
		}, failure, []string{"context canceled"}},
		"no UTF-8": {func(context.Context, *sidekeeper.Execution) error {
			return errors.New("caf\xe9")
		}, failure, []string{"caf?"}},
	} {
		t.Run(name, func(t *testing.T) {
			sidecar := script.Start(t)
			serving(t, sidecar, orderSync(one.handler))
			stream := sidecar.Stream(t)
			for range 2 { // the item is free again
				stream.Execute(5)
				result := sidecar.Result(t)
				equal(t, "outcome", result.GetOutcome(), one.outcome)
				for _, message := range one.messages {
					if !strings.Contains(result.GetFailureMessage(), message) {
						t.Errorf("no %q in %q", message, result.GetFailureMessage())
					}
				}
				if len(result.GetFailureMessage()) > 16*1024 {
					t.Errorf("%d bytes", len(result.GetFailureMessage()))
				}
			}
		})
	}
}

func TestCancelReachesAHandlerWithItsReason(t *testing.T) {
	sidecar := script.Start(t)
	begun := make(chan struct{}, 1)
	ended := make(chan error, 2)
	serving(t, sidecar, orderSync(func(ctx context.Context, execution *sidekeeper.Execution) error {
		child, cancel := context.WithCancel(ctx)
		defer cancel()
		begun <- struct{}{}
		<-child.Done()
		ended <- context.Cause(child)
		ended <- ctx.Err()
		if reason, cancelled := execution.Cancelled(); !cancelled || reason != reasonOf(ctx) {
			t.Errorf("the execution says %v, %t", reason, cancelled)
		}
		return ctx.Err()
	}))
	stream := sidecar.Stream(t)
	for reason, want := range map[sidekeeperv1.CancelReason]struct {
		cancelled sidekeeper.CancelReason
		err       error
		outcome   sidekeeperv1.ExecutionOutcome
	}{
		sidekeeperv1.CancelReason_CANCEL_REASON_LEASE_LOST:     {sidekeeper.CancelLeaseLost, context.Canceled, interrupts},
		sidekeeperv1.CancelReason_CANCEL_REASON_ITEM_LOCK_LOST: {sidekeeper.CancelItemLockLost, context.Canceled, failure},
		sidekeeperv1.CancelReason_CANCEL_REASON_OPERATOR:       {sidekeeper.CancelOperator, context.Canceled, failure},
		sidekeeperv1.CancelReason_CANCEL_REASON_DEADLINE:       {sidekeeper.CancelDeadline, context.DeadlineExceeded, failure},
		99: {sidekeeper.CancelUnspecified, context.Canceled, failure},
	} {
		id := stream.Execute(0)
		script.Receive(t, "the handler begins", begun)
		stream.Cancel("some other execution", reason)
		stream.Cancel(id, reason)
		stream.Cancel(id, sidekeeperv1.CancelReason_CANCEL_REASON_DRAIN_TIMEOUT) // the first one counts
		cause := script.Receive(t, "the handler ends", ended)
		var cancelled *sidekeeper.CancelledError
		if !errors.As(cause, &cancelled) || cancelled.Reason != want.cancelled || !errors.Is(cause, want.err) {
			t.Errorf("cause: %v", cause)
		}
		equal(t, "Err", script.Receive(t, "the handler ends", ended), want.err)
		result := sidecar.Result(t)
		equal(t, "outcome", result.GetOutcome(), want.outcome)
		equal(t, "message", result.GetFailureMessage(), "cancelled: "+want.cancelled.String())
	}
}

func TestAHandlerThatFinishesAllTheSameHasSucceeded(t *testing.T) {
	sidecar := script.Start(t)
	begun := make(chan struct{}, 1)
	serving(t, sidecar, orderSync(func(ctx context.Context, _ *sidekeeper.Execution) error {
		begun <- struct{}{}
		<-ctx.Done()
		return nil
	}))
	stream := sidecar.Stream(t)
	id := stream.Execute(0)
	script.Receive(t, "the handler begins", begun)
	stream.Cancel(id, sidekeeperv1.CancelReason_CANCEL_REASON_DEADLINE)
	equal(t, "outcome", sidecar.Result(t).GetOutcome(), success)
}

func TestADeadlineHoldsWithoutTheSidecar(t *testing.T) {
	sidecar := script.Start(t)
	serving(t, sidecar, orderSync(func(ctx context.Context, _ *sidekeeper.Execution) error {
		<-ctx.Done()
		return ctx.Err()
	}))
	stream := sidecar.Stream(t)
	deadline := time.Now().Add(50 * time.Millisecond)
	stream.Execute(0, func(message *sidekeeperv1.Execute) { message.Deadline = timestamppb.New(deadline) })
	equal(t, "message", sidecar.Result(t).GetFailureMessage(), "cancelled: DEADLINE")
	if time.Now().Before(deadline) {
		t.Error("it was stopped before its deadline")
	}
}

func TestProgressMovesTheDeadlineThatTheClientKeeps(t *testing.T) {
	sidecar := script.Start(t)
	later := time.Now().Add(time.Hour)
	sidecar.AnswerProgress(&sidekeeperv1.ReportProgressResponse{Deadline: timestamppb.New(later)})
	goOn := make(chan struct{})
	reported := make(chan error, 1)
	serving(t, sidecar, orderSync(func(ctx context.Context, execution *sidekeeper.Execution) error {
		_, err := execution.Progress(ctx, nil)
		reported <- err
		select {
		case <-goOn:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}))
	stream := sidecar.Stream(t)
	deadline := time.Now().Add(300 * time.Millisecond)
	stream.Execute(0, func(message *sidekeeperv1.Execute) { message.Deadline = timestamppb.New(deadline) })
	if err := script.Receive(t, "progress", reported); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(deadline) + 200*time.Millisecond) // nothing tells that a timer has not fired
	close(goOn)
	equal(t, "outcome", sidecar.Result(t).GetOutcome(), success)
}

func TestNoMoreThanTheConcurrencyAndInOrder(t *testing.T) {
	sidecar := script.Start(t)
	begun := make(chan int, 6)
	gates := make([]chan struct{}, 6)
	for index := range gates {
		gates[index] = make(chan struct{})
	}
	told := make(chan struct{}, 1)
	job := orderSync(func(_ context.Context, execution *sidekeeper.Execution) error {
		begun <- execution.Item
		<-gates[execution.Item]
		return nil
	})
	job.Concurrency = 2
	job.OnLeadership = func(context.Context, sidekeeper.Leadership) { told <- struct{}{} }
	serving(t, sidecar, job)
	stream := sidecar.Stream(t)
	ids := map[uint32]string{}
	for _, item := range []uint32{4, 2, 5, 1, 0} {
		ids[item] = stream.Execute(item)
	}
	stream.Send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_LeadershipChanged{
		LeadershipChanged: &sidekeeperv1.LeadershipChanged{Leader: true},
	}})
	script.Receive(t, "what follows the executions", told)
	first := map[int]bool{script.Receive(t, "first", begun): true, script.Receive(t, "second", begun): true}
	if !first[4] || !first[2] {
		t.Fatalf("began: %v", first)
	}
	nothing(t, "a third one began", begun)
	close(gates[2])
	equal(t, "ended", sidecar.Result(t).GetExecutionId(), ids[2])
	equal(t, "next", script.Receive(t, "next", begun), 5)
	nothing(t, "a third one began", begun)
	stream.Cancel(ids[1], sidekeeperv1.CancelReason_CANCEL_REASON_DEADLINE) // one that waits
	result := sidecar.Result(t)
	equal(t, "cancelled", result.GetExecutionId(), ids[1])
	equal(t, "outcome", result.GetOutcome(), rejects)
	equal(t, "message", result.GetFailureMessage(), "cancelled before it began: DEADLINE")
	close(gates[4])
	equal(t, "ended", sidecar.Result(t).GetExecutionId(), ids[4])
	equal(t, "last", script.Receive(t, "last", begun), 0)
	close(gates[5])
	close(gates[0])
}

func TestAnItemIsNotExecutedTwiceAtOnce(t *testing.T) {
	sidecar := script.Start(t)
	begun, gate := make(chan string, 2), make(chan struct{})
	serving(t, sidecar, orderSync(func(_ context.Context, execution *sidekeeper.Execution) error {
		begun <- execution.ExecutionID
		if execution.Item == 0 {
			<-gate // whatever it is told
		}
		return nil
	}))
	first := sidecar.Stream(t)
	old := first.Execute(0)
	equal(t, "begun", script.Receive(t, "the handler begins", begun), old)
	first.Break(t)
	second := sidecar.Stream(t)
	following := second.Execute(0)
	other := second.Execute(1)
	equal(t, "begun", script.Receive(t, "another item begins", begun), other)
	equal(t, "result", sidecar.Result(t).GetExecutionId(), other) // which was told after the one that waits
	nothing(t, "the item began twice", begun)
	close(gate)
	equal(t, "begun", script.Receive(t, "the item begins again", begun), following)
	equal(t, "result", sidecar.Result(t).GetExecutionId(), following) // and not the first stream's
}

func TestMiddlewareWrapsHandlersAndContextsCarryValues(t *testing.T) {
	sidecar := script.Start(t)
	type key struct{}
	var order []string
	wrap := func(name string) sidekeeper.Middleware {
		return func(next sidekeeper.Handler) sidekeeper.Handler {
			return func(ctx context.Context, execution *sidekeeper.Execution) error {
				order = append(order, name)
				return next(ctx, execution)
			}
		}
	}
	app := &sidekeeper.Application{
		Endpoint:   sidecar.Endpoint,
		Middleware: []sidekeeper.Middleware{wrap("outer"), wrap("inner")},
		Jobs: []sidekeeper.Job{orderSync(func(ctx context.Context, _ *sidekeeper.Execution) error {
			value, _ := ctx.Value(key{}).(string)
			return errors.New(value)
		})},
	}
	logging(t, app)
	ctx, stop := context.WithCancel(context.WithValue(context.Background(), key{}, "carried"))
	ended := make(chan error, 1)
	go func() { ended <- app.Run(ctx) }()
	sidecar.Stream(t).Execute(0)
	equal(t, "message", sidecar.Result(t).GetFailureMessage(), "carried")
	stop()
	equal(t, "Run", script.Receive(t, "Run returns", ended), error(nil))
	if !reflect.DeepEqual(order, []string{"outer", "inner"}) {
		t.Errorf("called: %v", order)
	}
}

func TestRecordsHaveJobItemAndExecution(t *testing.T) {
	sidecar := script.Start(t)
	app := &sidekeeper.Application{Endpoint: sidecar.Endpoint, Jobs: []sidekeeper.Job{
		orderSync(func(ctx context.Context, _ *sidekeeper.Execution) error {
			sidekeeper.Logger(ctx).Info("handling")
			return errors.New("no luck")
		}),
	}}
	kept := logging(t, app)
	run(t, app)
	id := sidecar.Stream(t).Execute(2)
	sidecar.Result(t)
	for _, message := range []string{"msg=handling", `msg="execution did not succeed: no luck"`} {
		want := message + " job=orderSync item=2 execution_id=" + id
		if !strings.Contains(kept.String(), want) {
			t.Errorf("no %q", want)
		}
	}
}
