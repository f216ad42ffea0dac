package sidekeeper_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	"github.com/sidekeeper/sidekeeper/clients/go/internal/script"
	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// handlers run until they are let go, and tell what became of them.
type handlers struct {
	started   chan *sidekeeper.Execution
	cancelled chan sidekeeper.CancelReason
	release   chan struct{}
}

func graceful(t *testing.T, sidecar *script.Sidecar, grace time.Duration) (*handlers, *sidekeeper.Application, <-chan error) {
	h := &handlers{make(chan *sidekeeper.Execution, 8), make(chan sidekeeper.CancelReason, 8), make(chan struct{})}
	job := orderSync(func(ctx context.Context, execution *sidekeeper.Execution) error {
		h.started <- execution
		select {
		case <-h.release:
			return nil
		case <-ctx.Done():
			h.cancelled <- reasonOf(ctx)
			return ctx.Err()
		}
	})
	sidecar.TellGrace(grace)
	job.InstanceName = "worker-0"
	app, ended := serving(t, sidecar, job)
	return h, app, ended
}

func resumed(id string) func(*sidekeeperv1.Execute) {
	return func(message *sidekeeperv1.Execute) { message.ExecutionId, message.Resumed = id, true }
}

// never leaves reports unanswered, and says so.
func never(reached chan<- struct{}) func(context.Context, *sidekeeperv1.ReportCompletionRequest) error {
	return func(ctx context.Context, _ *sidekeeperv1.ReportCompletionRequest) error {
		select {
		case reached <- struct{}{}:
		default:
		}
		<-ctx.Done()
		return ctx.Err()
	}
}

func TestAHandlerGoesOnAndItsResultIsReportedToTheNextStream(t *testing.T) {
	sidecar := script.Start(t)
	h, _, _ := graceful(t, sidecar, time.Hour)
	first := sidecar.Stream(t)
	id := first.Execute(2)
	execution := script.Receive(t, "the handler begins", h.started)
	first.Break(t)
	second := sidecar.Request(t)
	equal(t, "application", second.Request.GetApplicationId(), first.Request.GetApplicationId())
	second.Attach(id)
	second.Assign(1, attached, 2)
	second.Execute(2, resumed(id))
	second.Execute(3)
	equal(t, "item", script.Receive(t, "what follows", h.started).Item, 3)
	if _, cancelled := execution.Cancelled(); cancelled {
		t.Error("it was cancelled")
	}
	sidecar.AnswerProgress(&sidekeeperv1.ReportProgressResponse{})
	if _, err := execution.Progress(context.Background(), []byte("x")); err != nil {
		t.Fatal(err)
	}
	equal(t, "progress at", script.Receive(t, "progress", sidecar.Progress).GetAttachmentId(), second.AttachmentID)
	close(h.release)
	outcomes := map[string]sidekeeperv1.ExecutionOutcome{}
	for len(outcomes) < 2 {
		report := sidecar.Report(t)
		equal(t, "attachment", report.GetAttachmentId(), second.AttachmentID)
		for _, result := range report.GetResults() {
			outcomes[result.GetExecutionId()] = result.GetOutcome()
		}
	}
	equal(t, "outcome", outcomes[id], success)
	nothing(t, "it began again", h.started)
}

func TestResultsOfTheMeantimeAreReportedToTheNextStream(t *testing.T) {
	sidecar := script.Start(t)
	h, _, _ := graceful(t, sidecar, time.Hour)
	reached := make(chan struct{}, 1)
	first := sidecar.Stream(t)
	ids := []string{first.Execute(2), first.Execute(3)}
	for range 2 {
		script.Receive(t, "the handler begins", h.started)
	}
	sidecar.AnswerReports(never(reached))
	close(h.release)
	script.Receive(t, "a report", reached) // its answer is lost with the stream
	first.Break(t)
	second := sidecar.Request(t)
	sidecar.AnswerReports(nil)
	for len(sidecar.Reports) > 0 {
		<-sidecar.Reports
	}
	second.Attach(ids...)
	second.Assign(1, attached, 2, 3)
	second.Execute(2, resumed(ids[0]))
	second.Execute(3, resumed(ids[1]))
	reported := map[string]bool{}
	for len(reported) < 2 {
		report := sidecar.Report(t)
		equal(t, "attachment", report.GetAttachmentId(), second.AttachmentID)
		for _, result := range report.GetResults() {
			reported[result.GetExecutionId()] = true
		}
	}
	if !reported[ids[0]] || !reported[ids[1]] {
		t.Errorf("reported: %v", reported)
	}
	nothing(t, "it began again", h.started)
}

func TestAHandlerThatEndsBetweenTwoStreamsIsReportedToTheSecond(t *testing.T) {
	sidecar := script.Start(t)
	job := orderSync(nil)
	begun, release := make(chan struct{}, 2), make(chan struct{})
	job.Handler = func(context.Context, *sidekeeper.Execution) error {
		begun <- struct{}{}
		<-release
		return nil
	}
	sidecar.TellGrace(time.Hour)
	app := &sidekeeper.Application{Endpoint: sidecar.Endpoint, Jobs: []sidekeeper.Job{job}}
	kept := logging(t, app)
	run(t, app)
	first := sidecar.Stream(t)
	id := first.Execute(2)
	script.Receive(t, "the handler begins", begun)
	first.Break(t)
	second := sidecar.Request(t)
	close(release)
	for deadline := time.Now().Add(script.Patience); !strings.Contains(kept.String(), "execution ended"); {
		if time.Now().After(deadline) {
			t.Fatal("the handler has not ended")
		}
		time.Sleep(time.Millisecond)
	}
	second.Attach(id)
	second.Assign(1, attached, 2)
	second.Execute(2, resumed(id))
	report := sidecar.Report(t)
	equal(t, "attachment", report.GetAttachmentId(), second.AttachmentID)
	equal(t, "execution", report.GetResults()[0].GetExecutionId(), id)
	nothing(t, "it began again", begun)
}

func TestTheNextStreamIsToldWhatIsOpen(t *testing.T) {
	sidecar := script.Start(t)
	h, _, _ := graceful(t, sidecar, time.Hour)
	first := sidecar.Stream(t)
	equal(t, "open at first", len(first.Request.GetOpenExecutions()), 0)
	deadline := timestamppb.New(time.Now().Add(time.Hour).Truncate(time.Millisecond))
	source := sidekeeperv1.ExecutionSource_EXECUTION_SOURCE_FAILOVER
	running := first.Execute(2, func(message *sidekeeperv1.Execute) {
		message.FencingToken, message.Attempt, message.Deadline, message.Source = 77, 3, deadline, source
	})
	lost, stopped := first.Execute(3), first.Execute(4)
	for range 3 {
		script.Receive(t, "the handler begins", h.started)
	}
	reached := make(chan struct{}, 1)
	sidecar.AnswerReports(never(reached))
	first.Cancel(lost, sidekeeperv1.CancelReason_CANCEL_REASON_LEASE_LOST)
	first.Cancel(stopped, sidekeeperv1.CancelReason_CANCEL_REASON_OPERATOR)
	for range 2 {
		script.Receive(t, "the handler is cancelled", h.cancelled)
	}
	script.Receive(t, "a report", reached)
	first.Break(t)
	sidecar.AnswerReports(nil)
	second := sidecar.Request(t)
	told := map[string]*sidekeeperv1.OpenExecution{}
	for _, one := range second.Request.GetOpenExecutions() {
		told[one.GetExecutionId()] = one
	}
	if len(told) != 2 || told[running] == nil || told[stopped] == nil {
		t.Fatalf("open: %v", second.Request.GetOpenExecutions())
	}
	want := &sidekeeperv1.OpenExecution{
		ExecutionId: running, FencingToken: 77, ScheduledTime: timestamppb.New(script.ScheduledTime),
		Source: source, Attempt: 3, Deadline: deadline,
	}
	if !proto.Equal(told[running], want) {
		t.Errorf("got %v\nwant %v", told[running], want)
	}
	equal(t, "reason", told[stopped].GetCancelReason(), sidekeeperv1.CancelReason_CANCEL_REASON_OPERATOR)
}

func TestWhatWasStoppedBecauseTheLeaseIsOverIsNotClaimed(t *testing.T) {
	sidecar := script.Start(t)
	h, _, _ := graceful(t, sidecar, time.Hour)
	first := sidecar.Stream(t)
	first.Send(lease(500*time.Millisecond, sidekeeperv1.SessionState_SESSION_STATE_CONNECTED))
	first.Execute(2)
	script.Receive(t, "the handler begins", h.started)
	sidecar.Stop()
	script.Receive(t, "the handler is cancelled", h.cancelled)
	sidecar.Serve(t, strings.TrimPrefix(sidecar.Endpoint, "http://"))
	equal(t, "open", len(sidecar.Request(t).Request.GetOpenExecutions()), 0)
}

func TestAnExecutionOfAnotherProcessIsExecuted(t *testing.T) {
	sidecar := script.Start(t)
	h, _, _ := graceful(t, sidecar, time.Hour)
	close(h.release)
	stream := sidecar.Request(t)
	stream.Attach("of-another-1")
	stream.Assign(1, attached, 4)
	stream.Execute(4, resumed("of-another-1"))
	equal(t, "begun", script.Receive(t, "the handler begins", h.started).ExecutionID, "of-another-1")
	equal(t, "result", sidecar.Result(t).GetExecutionId(), "of-another-1")
}

func TestWhatTheNextStreamDoesNotHaveIsToldToStop(t *testing.T) {
	sidecar := script.Start(t)
	h, _, _ := graceful(t, sidecar, time.Hour)
	first := sidecar.Stream(t)
	first.Execute(2)
	script.Receive(t, "the handler begins", h.started)
	first.Break(t)
	second := sidecar.Stream(t) // a sidecar that was started again knows of nothing
	equal(t, "reason", script.Receive(t, "the handler is cancelled", h.cancelled), sidekeeper.CancelDetached)
	second.Execute(3)
	script.Receive(t, "the next one begins", h.started)
	nothing(t, "reported", sidecar.Reports)
}

func TestWhenTheGraceIsOverEverythingIsToldToStop(t *testing.T) {
	sidecar := script.Start(t)
	h, _, _ := graceful(t, sidecar, 300*time.Millisecond)
	first := sidecar.Stream(t)
	first.Execute(2)
	execution := script.Receive(t, "the handler begins", h.started)
	first.Break(t)
	nothing(t, "it was cancelled at once", h.cancelled)
	equal(t, "reason", script.Receive(t, "the handler is cancelled", h.cancelled), sidekeeper.CancelDetached)
	_, err := execution.Progress(context.Background(), nil)
	var failed *sidekeeper.ProgressError
	if !errors.As(err, &failed) || failed.Code != codes.Aborted {
		t.Errorf("progress: %v", err)
	}
}

func TestAStreamThatComesAfterTheGraceGetsWhatWasInterruptedAndWhatHasNotBegun(t *testing.T) {
	sidecar := script.Start(t)
	started, cancelled := make(chan string, 2), make(chan struct{}, 1)
	job := orderSync(func(ctx context.Context, execution *sidekeeper.Execution) error {
		started <- execution.ExecutionID
		if execution.Item == 3 {
			return nil
		}
		<-ctx.Done()
		cancelled <- struct{}{}
		return ctx.Err()
	})
	job.Concurrency = 1
	sidecar.TellGrace(300 * time.Millisecond)
	serving(t, sidecar, job)
	first := sidecar.Stream(t)
	running, waiting := first.Execute(2), first.Execute(3)
	equal(t, "execution", script.Receive(t, "the first begins", started), running)
	first.Break(t)
	second := sidecar.Request(t)
	script.Receive(t, "the end of the grace", cancelled)
	second.Attach(running, waiting)
	second.Assign(1, attached, 2, 3)
	second.Execute(2, resumed(running))
	second.Execute(3, resumed(waiting))
	equal(t, "execution", script.Receive(t, "the second begins", started), waiting)
	outcomes := map[string]sidekeeperv1.ExecutionOutcome{}
	for len(outcomes) < 2 {
		for _, result := range sidecar.Report(t).GetResults() {
			outcomes[result.GetExecutionId()] = result.GetOutcome()
		}
	}
	equal(t, "the running one", outcomes[running], interrupts)
	equal(t, "the waiting one", outcomes[waiting], success)
}

func TestAStreamThatWasEndedLeavesNothingToGoOnWith(t *testing.T) {
	for _, code := range []codes.Code{codes.OK, codes.DeadlineExceeded} {
		sidecar := script.Start(t)
		h, _, _ := graceful(t, sidecar, time.Hour)
		first := sidecar.Stream(t)
		first.Execute(2)
		script.Receive(t, "the handler begins", h.started)
		first.End(code, "")
		equal(t, "reason", script.Receive(t, "the handler is cancelled", h.cancelled), sidekeeper.CancelDetached)
	}
}

func TestWhoStopsSaysSoIfItWouldBeWaitedFor(t *testing.T) {
	for _, one := range []struct {
		grace   time.Duration
		options []sidekeeper.StopOption
		told    int
		forGood bool
	}{
		{time.Hour, nil, 1, false},
		{time.Hour, []sidekeeper.StopOption{sidekeeper.ForGood()}, 1, true},
		{0, nil, 0, false},
	} {
		sidecar := script.Start(t)
		_, app, ended := graceful(t, sidecar, one.grace)
		stream := sidecar.Stream(t)
		sidecar.Acknowledgement(t)
		equal(t, "instance name", stream.Request.GetInstanceName(), "worker-0")
		app.Stop(one.options...)
		equal(t, "Run", script.Receive(t, "Run returns", ended), error(nil))
		drain := script.Receive(t, "drain", sidecar.Drained)
		equal(t, "drained", drain.GetAttachmentId(), stream.AttachmentID)
		equal(t, "for good", drain.GetForGood(), one.forGood)
		equal(t, "detached", len(sidecar.Detached), one.told)
		if one.told > 0 {
			equal(t, "for good", (<-sidecar.Detached).GetForGood(), one.forGood)
		}
	}
}

func TestTheGraceIsWhatTheSidecarSaysAndNotTheProperty(t *testing.T) {
	sidecar := script.Start(t)
	job := orderSync(ignore)
	job.Configuration.Props = map[string]string{"sidekeeper.grace": "1h"}
	app, ended := serving(t, sidecar, job)
	equal(t, "property", sidecar.Stream(t).Request.GetConfiguration().GetProps()["sidekeeper.grace"], "1h")
	sidecar.Acknowledgement(t)
	app.Stop()
	equal(t, "Run", script.Receive(t, "Run returns", ended), error(nil))
	nothing(t, "it has detached", sidecar.Detached)
}

func TestAGraceThatChangesCountsFromThenOn(t *testing.T) {
	for _, one := range []struct {
		before, after time.Duration
		told          int
	}{{0, time.Hour, 1}, {time.Hour, 0, 0}} {
		sidecar := script.Start(t)
		sidecar.TellGrace(one.before)
		changed := make(chan sidekeeper.JobChange, 1)
		job := orderSync(ignore)
		job.OnJobChanged = func(_ context.Context, change sidekeeper.JobChange) { changed <- change }
		app, ended := serving(t, sidecar, job)
		message := &sidekeeperv1.JobChanged{}
		if one.after > 0 {
			message.Grace = durationpb.New(one.after)
		}
		sidecar.Stream(t).Send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_JobChanged{JobChanged: message}})
		script.Receive(t, "the job has changed", changed)
		app.Stop()
		equal(t, "Run", script.Receive(t, "Run returns", ended), error(nil))
		equal(t, "detached", len(sidecar.Detached), one.told)
	}
}
