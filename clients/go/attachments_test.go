package sidekeeper_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	"github.com/sidekeeper/sidekeeper/clients/go/internal/script"
	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

func TestCallbacksAreToldInOrder(t *testing.T) {
	sidecar := script.Start(t)
	events := make(chan any, 16)
	job := orderSync(ignore)
	job.OnLeadership = func(_ context.Context, one sidekeeper.Leadership) { events <- one }
	job.OnSession = func(_ context.Context, one sidekeeper.SessionChange) { events <- one }
	job.OnJobChanged = func(_ context.Context, one sidekeeper.JobChange) { events <- one }
	serving(t, sidecar, job)
	stream := sidecar.Stream(t)
	stream.Send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_LeadershipChanged{
		LeadershipChanged: &sidekeeperv1.LeadershipChanged{Leader: true},
	}})
	stream.Send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_SessionChanged{
		SessionChanged: &sidekeeperv1.SessionChanged{
			State:          sidekeeperv1.SessionState_SESSION_STATE_SUSPENDED,
			RemainingLease: durationpb.New(4 * time.Second),
		},
	}})
	stream.Send(&sidekeeperv1.AttachResponse{}) // an event of a newer sidecar
	stream.Send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_JobChanged{
		JobChanged: &sidekeeperv1.JobChanged{
			Configuration: &sidekeeperv1.JobConfiguration{ShardingTotalCount: 6, Cron: "0 0 * * * ?"},
			Problems:      []*sidekeeperv1.Problem{{Path: "/orderSync/config", Message: "odd"}},
		},
	}})
	equal(t, "leadership", script.Receive(t, "leadership", events),
		any(sidekeeper.Leadership{JobName: "orderSync", InstanceID: stream.InstanceID, Leader: true}))
	session := script.Receive(t, "session", events).(sidekeeper.SessionChange)
	equal(t, "state", session.State, sidekeeper.SessionSuspended)
	equal(t, "lease", *session.RemainingLease, 4*time.Second)
	change := script.Receive(t, "job", events).(sidekeeper.JobChange)
	equal(t, "cron", change.Configuration.Cron, "0 0 * * * ?")
	equal(t, "problem", change.Problems[0], sidekeeper.Problem{Path: "/orderSync/config", Message: "odd"})
}

func TestTheOnceListenerIsAnswered(t *testing.T) {
	sidecar := script.Start(t)
	deadline := time.Now().Add(time.Minute)
	job := orderSync(ignore)
	job.OnBeforeFirst = func(ctx context.Context, round sidekeeper.Round) error {
		if told, limited := ctx.Deadline(); !limited || !told.Equal(round.Deadline) || !told.Equal(deadline) {
			t.Errorf("deadline: %v", told)
		}
		if !round.ScheduledTime.Equal(script.ScheduledTime) {
			t.Errorf("scheduled: %v", round.ScheduledTime)
		}
		return errors.New("not today")
	}
	serving(t, sidecar, job)
	stream := sidecar.Stream(t)
	at, until := timestamppb.New(script.ScheduledTime), timestamppb.New(deadline)
	stream.Send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_BeforeFirst{
		BeforeFirst: &sidekeeperv1.BeforeFirst{CallId: "one", ScheduledTime: at, Deadline: until, JobName: "orderSync"},
	}})
	report := script.Receive(t, "an answer", sidecar.ListenerReports)
	equal(t, "call", report.GetCallId(), "one")
	equal(t, "outcome", report.GetOutcome(), sidekeeperv1.ListenerOutcome_LISTENER_OUTCOME_FAILURE)
	equal(t, "message", report.GetFailureMessage(), "not today")
	stream.Send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_AfterLast{
		AfterLast: &sidekeeperv1.AfterLast{CallId: "two", ScheduledTime: at, Deadline: until, JobName: "orderSync"},
	}})
	report = script.Receive(t, "an answer", sidecar.ListenerReports)
	equal(t, "call", report.GetCallId(), "two")
	equal(t, "outcome of what has no callback", report.GetOutcome(), sidekeeperv1.ListenerOutcome_LISTENER_OUTCOME_SUCCESS)
}

func TestItAttachesAgainAfterEachEnd(t *testing.T) {
	sidecar := script.Start(t)
	serving(t, sidecar, orderSync(ignore))
	sidecar.Request(t).End(codes.Unavailable, "no registry")
	second := sidecar.Stream(t)
	second.Send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_Draining{Draining: &sidekeeperv1.Draining{}}})
	second.Execute(0)
	sidecar.Result(t)
	second.End(codes.OK, "")
	third := sidecar.Stream(t)
	third.End(codes.InvalidArgument, "only a refusal before the instance is registered is final")
	fourth := sidecar.Stream(t)
	fourth.Execute(0)
	equal(t, "attachment", sidecar.Report(t).GetAttachmentId(), fourth.AttachmentID)
}

func TestASidecarThatStartsLateAndRestartsIsFound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	run(t, &sidekeeper.Application{Endpoint: "unix://" + path, Jobs: []sidekeeper.Job{orderSync(ignore)}})
	for range 2 {
		sidecar := script.StartAt(t, path)
		sidecar.Stream(t).Execute(0)
		sidecar.Result(t)
		sidecar.Stop()
	}
}

// warnings are the texts of the warnings that were logged.
func warnings(kept *records) []string {
	var texts []string
	for line := range strings.Lines(kept.String()) {
		if _, rest, isWarning := strings.Cut(line, "level=WARN msg="); isWarning {
			text, _, _ := strings.Cut(rest, " job=")
			if unquoted, err := strconv.Unquote(text); err == nil {
				text = unquoted
			}
			texts = append(texts, text)
		}
	}
	return texts
}

func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: got %q, want %q", what, got, want)
	}
}

func wait(stream *script.Stream, reasons ...string) {
	for _, reason := range reasons {
		stream.Send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_Waiting{
			Waiting: &sidekeeperv1.Waiting{Reason: reason},
		}})
	}
}

func TestWhatIsWaitedForIsSaidOnce(t *testing.T) {
	sidecar := script.Start(t)
	app := &sidekeeper.Application{Endpoint: sidecar.Endpoint, Jobs: []sidekeeper.Job{orderSync(ignore)}}
	kept := logging(t, app)
	run(t, app)
	first := sidecar.Request(t)
	wait(first, "the registry does not answer", "somebody has the name", "the registry does not answer")
	first.End(codes.ResourceExhausted, "broken")
	second := sidecar.Request(t)
	wait(second, "the registry does not answer")
	second.Send(&sidekeeperv1.AttachResponse{}) // an event of a newer sidecar
	second.Attach()
	second.Assign(1, attached, 0)
	equal(t, "attachment", sidecar.Acknowledgement(t).GetAttachmentId(), second.AttachmentID)
	want := []string{
		"not attached to job orderSync yet: the registry does not answer",
		"not attached to job orderSync yet: somebody has the name",
		"the stream has ended: RESOURCE_EXHAUSTED: broken; attaching again",
	}
	same(t, "warnings", warnings(kept), want...)
	// Another time it is news again.
	second.End(codes.ResourceExhausted, "broken")
	third := sidecar.Request(t)
	wait(third, "somebody has the name")
	third.Attach()
	third.Assign(1, attached, 0)
	sidecar.Acknowledgement(t)
	same(t, "warnings", warnings(kept), append(want, want[2], want[1])...)
}

func TestWhoWaitsIsNotRefusedForBeingLate(t *testing.T) {
	before := sidekeeper.SetFirstEventTimeout(300 * time.Millisecond)
	t.Cleanup(func() { sidekeeper.SetFirstEventTimeout(before) })
	sidecar := script.Start(t)
	serving(t, sidecar, orderSync(ignore))
	silent := sidecar.Request(t)
	script.Receive(t, "the stream of a sidecar that says nothing is left", silent.Closed)
	waiting := sidecar.Request(t)
	wait(waiting, "somebody has the name")
	time.Sleep(500 * time.Millisecond) // the time that it would have had
	waiting.Attach()
	waiting.Assign(1, attached, 0)
	equal(t, "attachment", sidecar.Acknowledgement(t).GetAttachmentId(), waiting.AttachmentID)
}

func TestEachProblemIsSaidOnce(t *testing.T) {
	sidecar := script.Start(t)
	changes := make(chan sidekeeper.JobChange, 1)
	job := orderSync(ignore)
	job.OnJobChanged = func(_ context.Context, change sidekeeper.JobChange) { changes <- change }
	app := &sidekeeper.Application{Endpoint: sidecar.Endpoint, Jobs: []sidekeeper.Job{job}}
	kept := logging(t, app)
	run(t, app)
	odd := &sidekeeperv1.Problem{Path: "/orderSync/config", Message: "odd"}
	clock := &sidekeeperv1.Problem{Message: "the clocks differ", Code: "CLOCK_SKEW"}
	tell := func(stream *script.Stream, problems ...*sidekeeperv1.Problem) {
		stream.Send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_JobChanged{
			JobChanged: &sidekeeperv1.JobChanged{Problems: problems},
		}})
		equal(t, "problems", len(script.Receive(t, "the job has changed", changes).Problems), len(problems))
	}
	stream := sidecar.Stream(t)
	tell(stream, odd)
	tell(stream, odd, clock)
	same(t, "warnings", warnings(kept), "/orderSync/config: odd", "registry: the clocks differ (CLOCK_SKEW)")
	stream.End(codes.ResourceExhausted, "broken")
	stream = sidecar.Stream(t)
	tell(stream, odd, clock)
	equal(t, "warnings, and that the stream has ended", len(warnings(kept)), 3)
	tell(stream, clock)
	tell(stream, clock, odd)
	same(t, "new warnings", warnings(kept)[3:], "/orderSync/config: odd")
}

func TestAnOddStreamIsLeftAndAttachedAgain(t *testing.T) {
	for name, odd := range map[string]func(*script.Stream){
		"nothing":     func(stream *script.Stream) { stream.End(codes.OK, "") },
		"no attached": func(stream *script.Stream) { stream.Assign(1, attached, 0) },
		"an execution twice": func(stream *script.Stream) {
			stream.Attach()
			same := func(message *sidekeeperv1.Execute) { message.ExecutionId = "x" }
			stream.Execute(0, same)
			stream.Execute(0, same)
		},
		"a time out of range": func(stream *script.Stream) {
			stream.Attach()
			stream.Execute(0, func(message *sidekeeperv1.Execute) { message.ScheduledTime.Seconds = 1e15 })
		},
	} {
		t.Run(name, func(t *testing.T) {
			sidecar := script.Start(t)
			app := &sidekeeper.Application{Endpoint: sidecar.Endpoint, Jobs: []sidekeeper.Job{
				orderSync(func(ctx context.Context, _ *sidekeeper.Execution) error {
					<-ctx.Done()
					return ctx.Err()
				}),
			}}
			kept := logging(t, app)
			run(t, app)
			first := sidecar.Request(t)
			odd(first)
			sidecar.Stream(t)
			script.Receive(t, "the stream is left", first.Closed)
			if !strings.Contains(kept.String(), "the sidecar does not follow the protocol") {
				t.Error("nothing is said of it")
			}
		})
	}
}

func TestARefusalEndsTheApplicationWhenTheOthersHaveFinished(t *testing.T) {
	for _, code := range []codes.Code{
		codes.InvalidArgument, codes.FailedPrecondition, codes.NotFound, codes.Unauthenticated, codes.PermissionDenied,
		codes.Unimplemented,
	} {
		t.Run(code.String(), func(t *testing.T) {
			sidecar := script.Start(t)
			begun, gate, stopping := make(chan struct{}, 2), make(chan struct{}), make(chan struct{})
			ended := run(t, &sidekeeper.Application{Endpoint: sidecar.Endpoint, Jobs: []sidekeeper.Job{
				{Name: "good", Concurrency: 1, Handler: func(context.Context, *sidekeeper.Execution) error {
					begun <- struct{}{}
					<-gate
					return nil
				}, OnRevoked: func(context.Context, sidekeeper.ItemsChange) error {
					close(stopping)
					return nil
				}},
				{Name: "bad", Handler: ignore},
			}})
			streams := map[string]*script.Stream{}
			for range 2 {
				stream := sidecar.Request(t)
				streams[stream.Request.GetJobName()] = stream
			}
			good := streams["good"]
			good.Attach()
			good.Assign(1, attached, 0, 1)
			good.Execute(0)
			good.Execute(1)
			script.Receive(t, "the handler begins", begun)
			streams["bad"].Refuse(code, "cron: 'x' is not a schedule", "INVALID_REQUEST")
			script.Receive(t, "the good one stops", stopping)
			nothing(t, "it has returned", ended)
			close(gate)
			succeed(t, sidecar, 2)
			err := script.Receive(t, "Run returns", ended)
			var refused *sidekeeper.AttachError
			if !errors.As(err, &refused) {
				t.Fatalf("no AttachError: %v", err)
			}
			equal(t, "error", *refused, sidekeeper.AttachError{
				JobName: "bad", Code: code, Details: "cron: 'x' is not a schedule", Reason: "INVALID_REQUEST",
			})
			script.Receive(t, "the good one leaves", good.Closed)
		})
	}
}

func TestASidecarFromBeforeLevelsIsRefused(t *testing.T) {
	sidecar := script.Start(t)
	_, ended := serving(t, sidecar, orderSync(ignore))
	stream := sidecar.Request(t)
	stream.APILevel = 0
	stream.Attach()
	err := script.Receive(t, "Run returns", ended)
	var refused *sidekeeper.AttachError
	if !errors.As(err, &refused) || refused.Code != codes.FailedPrecondition || !strings.Contains(refused.Details, "upgrade the sidecar") {
		t.Fatalf("error: %v", err)
	}
	equal(t, "reason", refused.Reason, "SIDECAR_TOO_OLD")
}

func TestAnOperatorsStopIsObeyed(t *testing.T) {
	for _, end := range []func(*script.Stream){
		func(stream *script.Stream) { stream.End(codes.FailedPrecondition, "removed") }, // an older sidecar
		func(stream *script.Stream) { stream.Refuse(codes.FailedPrecondition, "removed", "STOPPED_BY_OPERATOR") },
		func(stream *script.Stream) { stream.Refuse(codes.FailedPrecondition, "removed", "JOB_REMOVED") },
	} {
		sidecar := script.Start(t)
		_, ended := serving(t, sidecar, orderSync(ignore))
		end(sidecar.Stream(t))
		equal(t, "Run", script.Receive(t, "Run returns", ended), error(nil))
		nothing(t, "it has attached again", sidecar.Streams)
	}
}

func TestAnotherReasonIsARefusalAlsoAfterTheStreamWasAttached(t *testing.T) {
	sidecar := script.Start(t)
	_, ended := serving(t, sidecar, orderSync(ignore))
	sidecar.Stream(t).Refuse(codes.FailedPrecondition, "its class is another", "JOB_CLASS_CONFLICT")
	var refused *sidekeeper.AttachError
	if err := script.Receive(t, "Run returns", ended); !errors.As(err, &refused) {
		t.Fatalf("no AttachError: %v", err)
	}
	equal(t, "error", *refused, sidekeeper.AttachError{
		JobName: "orderSync", Code: codes.FailedPrecondition, Details: "its class is another", Reason: "JOB_CLASS_CONFLICT",
	})
}

// presenceLog tells the records that say whether there is a sidecar, as they come.
type presenceLog struct {
	slog.Handler
	said chan slog.Record
}

func (r *presenceLog) WithAttrs([]slog.Attr) slog.Handler { return r }

func (r *presenceLog) Handle(_ context.Context, record slog.Record) error {
	if strings.Contains(record.Message, "sidecar answers at") || strings.Contains(record.Message, "no sidecar at") {
		r.said <- record
	}
	return nil
}

func TestThatNoSidecarAnswersIsSaidOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	endpoint := "unix://" + path
	billing := orderSync(ignore)
	billing.Name = "billing"
	app := &sidekeeper.Application{Endpoint: endpoint, Jobs: []sidekeeper.Job{orderSync(ignore), billing}}
	text := slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug})
	said := make(chan slog.Record, 64)
	app.Logger = slog.New(&presenceLog{text, said})
	run(t, app)
	for range 2 {
		level, want := slog.LevelWarn, "no sidecar answers at "+endpoint+": is `sidekeeper serve` running there? (UNAVAILABLE: "
		for range 4 {
			record := script.Receive(t, "a record", said)
			equal(t, "level", record.Level, level)
			if !strings.HasPrefix(record.Message, want) {
				t.Errorf("got %q, want %q", record.Message, want)
			}
			level, want = slog.LevelDebug, "still no sidecar at "+endpoint+": UNAVAILABLE: "
		}
		sidecar := script.StartAt(t, path)
		// A refusal is an answer, too.
		sidecar.Request(t).Refuse(codes.Unavailable, "the registry does not answer", "REGISTRY_AWAY")
		record := script.Receive(t, "a record", said)
		for record.Level == slog.LevelDebug {
			record = script.Receive(t, "a record", said)
		}
		equal(t, "found", record.Level.String()+" "+record.Message, "INFO a sidecar answers at "+endpoint)
		sidecar.Stream(t)
		sidecar.Stream(t)
		sidecar.Acknowledgement(t)
		nothing(t, "another record", said)
		sidecar.Stop()
	}
}

func TestTriggering(t *testing.T) {
	sidecar := script.Start(t)
	sidecar.AnswerTriggers(&sidekeeperv1.TriggerJobResponse{
		TriggeredInstanceIds: []string{"a", "b"}, PendingInstanceIds: []string{"c"},
	})
	result, err := sidekeeper.Trigger(context.Background(), "orderSync", sidekeeper.WithEndpoint(sidecar.Endpoint))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "triggered", strings.Join(result.TriggeredInstanceIDs, ","), "a,b")
	equal(t, "pending", strings.Join(result.PendingInstanceIDs, ","), "c")
	equal(t, "job", script.Receive(t, "a trigger", sidecar.Triggered), "orderSync")

	sidecar.AnswerTriggers(script.Refused(codes.NotFound, "nobody has configured it", "JOB_NOT_CONFIGURED"))
	_, err = sidekeeper.Trigger(context.Background(), "orderSync", sidekeeper.WithEndpoint(sidecar.Endpoint))
	var failed *sidekeeper.TriggerError
	if !errors.As(err, &failed) {
		t.Fatalf("no TriggerError: %v", err)
	}
	equal(t, "error", *failed, sidekeeper.TriggerError{
		JobName: "orderSync", Code: codes.NotFound, Details: "nobody has configured it", Reason: "JOB_NOT_CONFIGURED",
	})

	sidecar.AnswerTriggers(script.Refused(codes.Unavailable, "the registry does not answer", "REGISTRY_AWAY"))
	_, err = sidekeeper.Trigger(context.Background(), "orderSync", sidekeeper.WithEndpoint(sidecar.Endpoint))
	if !errors.As(err, &failed) || failed.Details != "the registry does not answer" {
		t.Fatalf("a sidecar that is there: %v", err)
	}
	sidecar.Stop()
	_, err = sidekeeper.Trigger(context.Background(), "orderSync", sidekeeper.WithEndpoint(sidecar.Endpoint))
	want := "UNAVAILABLE: no sidecar answers at " + sidecar.Endpoint + ": is `sidekeeper serve` running there? ("
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("no sidecar: %v", err)
	}
}

func TestItemsAndAParameterAreSentAndTheItemsReturned(t *testing.T) {
	sidecar := script.Start(t)
	sidecar.AnswerTriggers(&sidekeeperv1.TriggerJobResponse{TriggeredItems: []uint32{1, 4}})
	endpoint := sidekeeper.WithEndpoint(sidecar.Endpoint)
	result, err := sidekeeper.Trigger(context.Background(), "orderSync", endpoint, sidekeeper.WithItems(4, 1), sidekeeper.WithParameter(""))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "triggered", fmt.Sprint(result.TriggeredItems), "[1 4]")
	sent := sidecar.LastTrigger()
	equal(t, "items", fmt.Sprint(sent.GetItems()), "[4 1]")
	equal(t, "whether there is a parameter", sent.Parameter != nil, true)

	// A sidecar of an earlier version ignores both.
	sidecar.AnswerTriggers(&sidekeeperv1.TriggerJobResponse{TriggeredInstanceIds: []string{"a"}})
	_, err = sidekeeper.Trigger(context.Background(), "orderSync", endpoint, sidekeeper.WithItems(1))
	var failed *sidekeeper.TriggerError
	if !errors.As(err, &failed) || failed.Code != codes.Unimplemented {
		t.Fatalf("an earlier version: %v", err)
	}
}

func TestTheTokenGoesWithEachCallAndUnixSocketsAreCalledLocalhost(t *testing.T) {
	sidecar := script.StartAt(t, filepath.Join(t.TempDir(), "s.sock"))
	t.Setenv(sidekeeper.EndpointVariable, sidecar.Endpoint)
	trigger := func(options ...sidekeeper.TriggerOption) (string, string) {
		if _, err := sidekeeper.Trigger(context.Background(), "orderSync", options...); err != nil {
			t.Fatal(err)
		}
		headers := <-sidecar.Headers
		return strings.Join(headers.Get(":authority"), " "), strings.Join(headers.Get("authorization"), " ")
	}
	authority, token := trigger()
	equal(t, "authority", authority, "localhost")
	equal(t, "no token", token, "")
	t.Setenv(sidekeeper.TokenVariable, "secret")
	_, token = trigger()
	equal(t, "token", token, "Bearer secret")
	_, token = trigger(sidekeeper.WithToken("other"))
	equal(t, "token", token, "Bearer other")
}

func TestACallbackThatPanicsEndsNothing(t *testing.T) {
	sidecar := script.Start(t)
	job := orderSync(ignore)
	job.OnLeadership = func(context.Context, sidekeeper.Leadership) { panic("oh") }
	app := &sidekeeper.Application{Endpoint: sidecar.Endpoint, Jobs: []sidekeeper.Job{job}}
	kept := logging(t, app)
	run(t, app)
	stream := sidecar.Stream(t)
	stream.Send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_LeadershipChanged{
		LeadershipChanged: &sidekeeperv1.LeadershipChanged{Leader: true},
	}})
	stream.Execute(0)
	equal(t, "outcome", sidecar.Result(t).GetOutcome(), success)
	if !strings.Contains(kept.String(), "a callback failed: panic: oh") {
		t.Error("nothing is said of it")
	}
}
