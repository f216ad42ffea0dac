package sidekeeper_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	"github.com/sidekeeper/sidekeeper/clients/go/internal/script"
	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

const (
	connected = sidekeeperv1.SessionState_SESSION_STATE_CONNECTED
	suspended = sidekeeperv1.SessionState_SESSION_STATE_SUSPENDED
)

// busy is a job that executes two items until they are cancelled; further items succeed.
func busy() (sidekeeper.Job, <-chan struct{}) {
	begun := make(chan struct{}, 2)
	job := orderSync(func(ctx context.Context, execution *sidekeeper.Execution) error {
		if execution.Item >= 2 {
			return nil
		}
		begun <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	job.Concurrency = 2
	return job, begun
}

func TestRunningExecutionsAreInterruptedWhenTheSidecarFallsSilentAndWaitingOnesWait(t *testing.T) {
	for level, outcome := range map[uint32]sidekeeperv1.ExecutionOutcome{1: failure, 2: interrupts} {
		t.Run(fmt.Sprintf("level %d", level), func(t *testing.T) {
			sidecar := script.Start(t)
			job, begun := busy()
			states := make(chan sidekeeper.SessionState, 4)
			job.OnSession = func(_ context.Context, change sidekeeper.SessionChange) { states <- change.State }
			serving(t, sidecar, job)
			stream := sidecar.Request(t)
			stream.APILevel = level
			stream.Attach()
			stream.Assign(1, attached, 0, 1, 2)
			stream.Send(lease(500*time.Millisecond, connected))
			told := time.Now()
			stream.Execute(0)
			stream.Execute(1)
			script.Receive(t, "the first begins", begun)
			script.Receive(t, "the second begins", begun)
			waiting := stream.Execute(2) // finds no room
			for count := 0; count < 2; {
				for _, result := range sidecar.Report(t).GetResults() {
					equal(t, "outcome", result.GetOutcome(), outcome)
					equal(t, "message", result.GetFailureMessage(), "cancelled: LEASE_LOST")
					count++
				}
			}
			if time.Since(told) < 400*time.Millisecond {
				t.Error("it was too early")
			}
			equal(t, "state", script.Receive(t, "silence", states), sidekeeper.SessionSilent)
			// The sidecar is back in the same session.
			stream.Send(lease(30*time.Second, connected))
			equal(t, "state", script.Receive(t, "word", states), sidekeeper.SessionConnected)
			result := sidecar.Result(t)
			equal(t, "execution", result.GetExecutionId(), waiting)
			equal(t, "outcome", result.GetOutcome(), success)
			nothing(t, "the stream has ended", stream.Closed)
		})
	}
}

func TestAWaitingExecutionIsNotBegunIfTheSessionWasLostInTheSilence(t *testing.T) {
	sidecar := script.Start(t)
	job, begun := busy()
	serving(t, sidecar, job)
	stream := sidecar.Stream(t)
	stream.Send(lease(500*time.Millisecond, connected))
	stream.Execute(0)
	stream.Execute(1)
	script.Receive(t, "the first begins", begun)
	script.Receive(t, "the second begins", begun)
	waiting := stream.Execute(2)
	for count := 0; count < 2; {
		count += len(sidecar.Report(t).GetResults())
	}
	stream.Cancel(waiting, sidekeeperv1.CancelReason_CANCEL_REASON_LEASE_LOST)
	result := sidecar.Result(t)
	equal(t, "execution", result.GetExecutionId(), waiting)
	equal(t, "outcome", result.GetOutcome(), interrupts)
	equal(t, "message", result.GetFailureMessage(), "cancelled before it began: LEASE_LOST")
}

func TestALeaseThatIsRenewedOrNotKnownEndsNothing(t *testing.T) {
	sidecar := script.Start(t)
	goOn := make(chan struct{})
	states := make(chan sidekeeper.SessionState, 8)
	job := orderSync(func(ctx context.Context, _ *sidekeeper.Execution) error {
		select {
		case <-goOn:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	job.OnSession = func(_ context.Context, change sidekeeper.SessionChange) { states <- change.State }
	serving(t, sidecar, job)
	stream := sidecar.Stream(t)
	stream.Execute(0)
	for range 5 {
		stream.Send(lease(time.Second, connected))
		time.Sleep(300 * time.Millisecond) // a part of the lease has to pass
	}
	stream.Send(lease(300*time.Millisecond, suspended))
	stream.Send(lease(0, connected)) // no end is known
	time.Sleep(600 * time.Millisecond)
	close(goOn)
	equal(t, "outcome", sidecar.Result(t).GetOutcome(), success)
	// What only renews the lease is no change.
	equal(t, "state", script.Receive(t, "a state", states), sidekeeper.SessionSuspended)
	equal(t, "state", script.Receive(t, "a state", states), sidekeeper.SessionConnected)
	nothing(t, "another state", states)
}

func TestALeaseIsCountedFromWhenItIsReadIfItsEndIsNotKnown(t *testing.T) {
	remaining := sidekeeper.RemainingLease
	equal(t, "without an end", *remaining(lease(30*time.Second, connected).GetSessionChanged()), 30*time.Second)
	boot, namespace, _ := strings.Cut(sidekeeper.BoottimeClock(), "/")
	for _, clock := range []string{boot + "/time:[1]", "00000000-0000-0000-0000-000000000000/" + namespace, ""} {
		change := lease(30*time.Second, connected).GetSessionChanged()
		change.LeaseEndBoottimeNs, change.BoottimeClock = 1, clock
		equal(t, "by the clock "+clock, *remaining(change), 30*time.Second)
	}
	if left := remaining(&sidekeeperv1.SessionChanged{LeaseEndBoottimeNs: 1}); left != nil {
		t.Errorf("%v are left of a lease that has no end", *left)
	}
}

// watched is a job that tells each change of session and leadership, and each begin; its handlers go on until
// they are let go.
func watched() (job sidekeeper.Job, told chan any, begun chan int, release chan struct{}) {
	told, begun, release = make(chan any, 16), make(chan int, 16), make(chan struct{})
	job = orderSync(func(ctx context.Context, execution *sidekeeper.Execution) error {
		begun <- execution.Item
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	job.OnSession = func(_ context.Context, change sidekeeper.SessionChange) { told <- change.State }
	job.OnLeadership = func(_ context.Context, change sidekeeper.Leadership) { told <- change.Leader }
	return job, told, begun, release
}

func renewed(remaining time.Duration, state sidekeeperv1.SessionState) *sidekeeperv1.RenewLeaseResponse {
	return &sidekeeperv1.RenewLeaseResponse{State: state, RemainingLease: durationpb.New(remaining)}
}

var leads = &sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_LeadershipChanged{
	LeadershipChanged: &sidekeeperv1.LeadershipChanged{Leader: true},
}}

func TestWhoSharesNoClockAsksAndWhatIsAnsweredCounts(t *testing.T) {
	sidecar := script.Start(t)
	job, told, _, release := watched()
	sidecar.TellRenewal(100 * time.Millisecond)
	sidecar.AnswerRenewals(renewed(30*time.Second, connected))
	serving(t, sidecar, job)
	stream := sidecar.Stream(t)
	stream.Send(lease(300*time.Millisecond, connected))
	id := stream.Execute(0)
	if waits := script.Receive(t, "a request for the lease", sidecar.Renewals); waits >= 200*time.Millisecond { // 100 ms, which gRPC may round up on the way
		t.Errorf("it waits %v for the answer", waits)
	}
	sidecar.Asked(t, 4) // by then what the stream has said would be over
	// Nor does the stream take back what was answered.
	stream.Send(lease(time.Millisecond, connected))
	stream.Send(leads)
	equal(t, "told", script.Receive(t, "what follows", told), any(true))
	sidecar.Asked(t, 1)
	close(release)
	result := sidecar.Result(t)
	equal(t, "execution", result.GetExecutionId(), id)
	equal(t, "message", result.GetFailureMessage(), "")
	nothing(t, "a state", told)
}

func TestWithoutAnswersTheLeaseEndsAndOnlyAnAnswerGivesItBack(t *testing.T) {
	for name, silence := range map[string]any{
		"no answer": status(codes.Unavailable, "away"),
		"lost":      renewed(0, sidekeeperv1.SessionState_SESSION_STATE_LOST),
	} {
		t.Run(name, func(t *testing.T) {
			sidecar := script.Start(t)
			job, told, begun, release := watched()
			owned := make(chan string, 16)
			note := func(kind string) sidekeeper.ItemsFunc {
				return func(_ context.Context, change sidekeeper.ItemsChange) error {
					owned <- fmt.Sprintf("%s %d", kind, len(change.Items))
					return nil
				}
			}
			job.OnAssigned, job.OnLost = note("assigned"), note("lost")
			sidecar.TellRenewal(100 * time.Millisecond)
			sidecar.AnswerRenewals(renewed(500*time.Millisecond, connected))
			serving(t, sidecar, job)
			stream := sidecar.Stream(t, 0, 1)
			expect(t, owned, "assigned 2")
			stream.Send(lease(30*time.Second, connected))
			stream.Execute(0)
			equal(t, "item", script.Receive(t, "the first begins", begun), 0)
			sidecar.Asked(t, 2) // so the first answer was read
			sidecar.AnswerRenewals(silence)
			equal(t, "message", sidecar.Result(t).GetFailureMessage(), "cancelled: LEASE_LOST")
			equal(t, "told", script.Receive(t, "silence", told), any(sidekeeper.SessionSilent))
			expect(t, owned, "lost 2")
			// Who knows how long this has waited?
			stream.Send(lease(30*time.Second, connected))
			id := stream.Execute(1)
			stream.Send(leads)
			equal(t, "told", script.Receive(t, "what follows", told), any(true))
			nothing(t, "it has begun", begun)
			nothing(t, "it was told", owned)
			sidecar.AnswerRenewals(renewed(30*time.Second, connected))
			equal(t, "told", script.Receive(t, "word", told), any(sidekeeper.SessionConnected))
			expect(t, owned, "assigned 2")
			equal(t, "item", script.Receive(t, "the second begins", begun), 1)
			close(release)
			equal(t, "execution", sidecar.Result(t).GetExecutionId(), id)
		})
	}
}

func TestASidecarThatCannotAnswerIsAskedOnce(t *testing.T) {
	for _, code := range []codes.Code{codes.Unimplemented, codes.NotFound} {
		sidecar := script.Start(t)
		job, told, begun, _ := watched()
		sidecar.TellRenewal(100 * time.Millisecond)
		sidecar.AnswerRenewals(status(code, "as the test says"))
		serving(t, sidecar, job)
		stream := sidecar.Stream(t)
		stream.Send(lease(30*time.Second, connected))
		stream.Execute(0)
		script.Receive(t, "the handler begins", begun)
		sidecar.Asked(t, 1)
		stream.Send(lease(400*time.Millisecond, connected)) // what the stream says counts
		equal(t, "message", sidecar.Result(t).GetFailureMessage(), "cancelled: LEASE_LOST")
		equal(t, "told", script.Receive(t, "silence", told), any(sidekeeper.SessionSilent))
		stream.Send(lease(30*time.Second, connected))
		equal(t, "told", script.Receive(t, "word", told), any(sidekeeper.SessionConnected))
		nothing(t, "it has asked again", sidecar.Renewals)
	}
}
