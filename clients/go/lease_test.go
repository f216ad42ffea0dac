package sidekeeper_test

import (
	"context"
	"strings"
	"testing"
	"time"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	"github.com/sidekeeper/sidekeeper/clients/go/internal/script"
	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

const (
	connected = sidekeeperv1.SessionState_SESSION_STATE_CONNECTED
	suspended = sidekeeperv1.SessionState_SESSION_STATE_SUSPENDED
)

func TestHandlersAreToldToStopWhenTheSidecarFallsSilent(t *testing.T) {
	sidecar := script.Start(t)
	begun := make(chan struct{}, 2)
	states := make(chan sidekeeper.SessionState, 4)
	job := orderSync(func(ctx context.Context, execution *sidekeeper.Execution) error {
		if execution.Item > 2 {
			return nil
		}
		begun <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	job.Concurrency = 2
	job.OnSession = func(_ context.Context, change sidekeeper.SessionChange) { states <- change.State }
	serving(t, sidecar, job)
	stream := sidecar.Stream(t)
	stream.Send(lease(500*time.Millisecond, connected))
	told := time.Now()
	for item := range uint32(3) { // the last one finds no room, and does not begin any more
		stream.Execute(item)
	}
	script.Receive(t, "the first begins", begun)
	script.Receive(t, "the second begins", begun)
	messages := map[string]int{}
	for count := 0; count < 3; {
		for _, result := range sidecar.Report(t).GetResults() {
			messages[result.GetFailureMessage()]++
			count++
		}
	}
	if time.Since(told) < 400*time.Millisecond {
		t.Error("it was too early")
	}
	equal(t, "stopped", messages["cancelled: LEASE_LOST"], 2)
	equal(t, "never begun", messages["cancelled before it began: LEASE_LOST"], 1)
	equal(t, "state", script.Receive(t, "silence", states), sidekeeper.SessionSilent)
	// The sidecar is back, in the same session or in another one.
	stream.Send(lease(30*time.Second, connected))
	equal(t, "state", script.Receive(t, "word", states), sidekeeper.SessionConnected)
	stream.Execute(3)
	equal(t, "outcome", sidecar.Result(t).GetOutcome(), success)
	nothing(t, "the stream has ended", stream.Closed)
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
