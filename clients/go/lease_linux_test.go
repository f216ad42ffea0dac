package sidekeeper_test

// Where processes share a clock there is no excuse for not reading it: these tests are for Linux only, and never skipped.

import (
	"context"
	"math"
	"testing"
	"time"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	"github.com/sidekeeper/sidekeeper/clients/go/internal/script"
	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// ending returns word of a lease that lasts so long when it is told, and of which so much is left by the shared clock.
func ending(t *testing.T, remaining, left time.Duration) *sidekeeperv1.AttachResponse {
	clock := sidekeeper.BoottimeClock()
	if clock == "" {
		t.Fatal("it is not known which clock this kernel's CLOCK_BOOTTIME is: a lease would count from when it is read")
	}
	message := lease(remaining, connected)
	change := message.GetSessionChanged()
	change.LeaseEndBoottimeNs = uint64(sidekeeper.Boottime() + left)
	change.BoottimeClock = clock
	return message
}

func TestALeaseThatWasOverBeforeItWasReadIsOverAtOnce(t *testing.T) {
	sidecar := script.Start(t)
	begun := make(chan int, 8)
	states := make(chan sidekeeper.SessionState, 8)
	job := orderSync(func(ctx context.Context, execution *sidekeeper.Execution) error {
		begun <- execution.Item
		if execution.Item > 1 {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	})
	job.OnSession = func(_ context.Context, change sidekeeper.SessionChange) { states <- change.State }
	serving(t, sidecar, job)
	stream := sidecar.Stream(t)
	stream.Send(ending(t, 30*time.Second, 30*time.Second))
	first := stream.Execute(0)
	equal(t, "item", script.Receive(t, "the first begins", begun), 0)
	// What waits for an application that was stopped. It begins nothing of that, and does not answer it.
	var late []string
	for item := range uint32(3) {
		stream.Send(ending(t, 30*time.Second, -time.Millisecond))
		late = append(late, stream.Execute(item+1))
	}
	stream.Cancel(late[0], sidekeeperv1.CancelReason_CANCEL_REASON_LEASE_LOST)
	messages := map[string]string{}
	results := func(count int) {
		for len(messages) < count {
			for _, result := range sidecar.Report(t).GetResults() {
				messages[result.GetExecutionId()] = result.GetFailureMessage()
			}
		}
	}
	results(2)
	equal(t, "stopped", messages[first], "cancelled: LEASE_LOST")
	equal(t, "never begun", messages[late[0]], "cancelled before it began: LEASE_LOST")
	equal(t, "state", script.Receive(t, "silence", states), sidekeeper.SessionSilent)
	nothing(t, "another state", states)
	nothing(t, "another begins", begun)
	// The sidecar lives, and the others are still to be executed.
	stream.Send(ending(t, 30*time.Second, 30*time.Second))
	results(4)
	equal(t, "the second", messages[late[1]], "")
	equal(t, "the third", messages[late[2]], "")
	equal(t, "state", script.Receive(t, "word", states), sidekeeper.SessionConnected)
	nothing(t, "another state", states)
}

func TestALeaseIsNeverLongerThanEitherWayToCountIt(t *testing.T) {
	remaining := func(message *sidekeeperv1.AttachResponse) time.Duration {
		return *sidekeeper.RemainingLease(message.GetSessionChanged())
	}
	left := remaining(ending(t, 30*time.Second, 5*time.Second))
	if left <= 4*time.Second || left > 5*time.Second {
		t.Errorf("%v are left of 5 s", left)
	}
	equal(t, "of a far end", remaining(ending(t, 5*time.Second, time.Hour)), 5*time.Second)
	equal(t, "of an end that is past", remaining(ending(t, 30*time.Second, -time.Second)), 0)
	beyond := ending(t, 5*time.Second, 0)
	beyond.GetSessionChanged().LeaseEndBoottimeNs = math.MaxUint64
	equal(t, "of an end beyond all bounds", remaining(beyond), 5*time.Second)
}

func TestWhoSharesTheClockDoesNotAsk(t *testing.T) {
	sidecar := script.Start(t)
	job, _, _, _ := watched()
	sidecar.TellRenewal(100 * time.Millisecond)
	sidecar.AnswerRenewals(renewed(30*time.Second, connected))
	serving(t, sidecar, job)
	stream := sidecar.Stream(t)
	stream.Send(ending(t, 400*time.Millisecond, 400*time.Millisecond))
	stream.Execute(0)
	equal(t, "message", sidecar.Result(t).GetFailureMessage(), "cancelled: LEASE_LOST")
	nothing(t, "it has asked", sidecar.Renewals)
}
