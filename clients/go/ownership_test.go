package sidekeeper_test

import (
	"context"
	"errors"
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

// owning is a job that tells what it is told of ownership as text: "assigned [0 1] ATTACHED".
func owning() (sidekeeper.Job, chan string) {
	told := make(chan string, 64)
	tell := func(kind string) sidekeeper.ItemsFunc {
		return func(_ context.Context, change sidekeeper.ItemsChange) error {
			var items []string
			for _, item := range change.Items {
				items = append(items, fmt.Sprintf("%d:%d", item.Item, item.FencingToken))
			}
			told <- fmt.Sprintf("%s %s %v", kind, strings.Join(items, ","), change.Reason)
			return nil
		}
	}
	job := orderSync(ignore)
	job.OnAssigned, job.OnRevoked, job.OnLost = tell("assigned"), tell("revoked"), tell("lost")
	return job, told
}

func expect(t *testing.T, told <-chan string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		equal(t, "told", script.Receive(t, line, told), line)
	}
}

func TestEachOfTheThreeIsToldOfItsOwn(t *testing.T) {
	sidecar := script.Start(t)
	job, told := owning()
	serving(t, sidecar, job)
	stream := sidecar.Stream(t, 0, 1)
	expect(t, told, "assigned 0:100,1:101 ATTACHED")
	stream.Assign(2, resharded, 1, 2)
	expect(t, told, "revoked 0:100 RESHARDED", "assigned 2:102 RESHARDED")
	stream.Assign(3, resharded, 1, 2) // nothing is different
	stream.Assign(4, resharded, 1)
	expect(t, told, "revoked 2:102 RESHARDED")
	stream.Told(5, sidekeeperv1.AssignmentReason_ASSIGNMENT_REASON_ITEM_CHANGED,
		&sidekeeperv1.AssignedItem{Item: 1, FencingToken: 101, Disabled: true})
	expect(t, told, "assigned 1:101 ITEM_CHANGED")
	stream.Assign(5, sidekeeperv1.AssignmentReason_ASSIGNMENT_REASON_SESSION_LOST)
	expect(t, told, "lost 1:101 SESSION_LOST")
	stream.Assign(6, resharded, 3)
	expect(t, told, "assigned 3:103 RESHARDED")
	stream.Break(t)
	expect(t, told, "lost 3:103 DETACHED")
	sidecar.Stream(t, 3)
	expect(t, told, "assigned 3:103 ATTACHED")
	nothing(t, "more was told", told)
}

func TestNoneOfTheThreeStandsInForAnother(t *testing.T) {
	sidecar := script.Start(t)
	job, told := owning()
	job.OnLost = nil
	assignments := make(chan sidekeeper.AssignmentEvent)
	job.Assignments = assignments
	serving(t, sidecar, job)
	stream := sidecar.Stream(t, 0)
	script.Receive(t, "the assignment", assignments).Done()
	stream.Break(t)
	event := script.Receive(t, "the end", assignments)
	equal(t, "reason", event.Assignment.Reason, sidekeeper.AssignmentDetached)
	equal(t, "items", len(event.Assignment.Items), 0)
	equal(t, "revoked", fmt.Sprint(event.Assignment.Revoked), "[0]")
	event.Done()
	event.Done()
	expect(t, told, "assigned 0:100 ATTACHED")
	nothing(t, "the other callbacks were called", told)
}

func TestAGapThatAGraceHasBridged(t *testing.T) {
	sidecar := script.Start(t)
	sidecar.TellGrace(time.Hour)
	job, told := owning()
	serving(t, sidecar, job)
	first := sidecar.Stream(t, 0, 1, 2)
	expect(t, told, "assigned 0:100,1:101,2:102 ATTACHED")
	first.Break(t)
	second := sidecar.Request(t)
	second.Attach()
	second.Told(2, attached,
		&sidekeeperv1.AssignedItem{Item: 0, ItemParameter: ptr("p0"), FencingToken: 100}, // stayed
		&sidekeeperv1.AssignedItem{Item: 1, ItemParameter: ptr("p1"), FencingToken: 201}) // has been away, 2 is gone
	expect(t, told, "lost 1:101,2:102 ATTACHED", "assigned 1:201 ATTACHED")
	nothing(t, "more was told", told)
}

func TestSilenceLosesItemsAndWordGivesThemBack(t *testing.T) {
	sidecar := script.Start(t)
	job, told := owning()
	serving(t, sidecar, job)
	stream := sidecar.Stream(t, 0)
	expect(t, told, "assigned 0:100 ATTACHED")
	stream.Send(lease(200*time.Millisecond, sidekeeperv1.SessionState_SESSION_STATE_CONNECTED))
	expect(t, told, "lost 0:100 SILENT")
	stream.Send(lease(time.Hour, sidekeeperv1.SessionState_SESSION_STATE_CONNECTED))
	expect(t, told, "assigned 0:100 ATTACHED")
}

func TestStoppingRevokesBeforeItLeaves(t *testing.T) {
	sidecar := script.Start(t)
	sidecar.TellGrace(time.Hour)
	job, told := owning()
	gate, entered := make(chan struct{}), make(chan struct{})
	revoked := job.OnRevoked
	job.OnRevoked = func(ctx context.Context, change sidekeeper.ItemsChange) error {
		close(entered)
		<-gate
		return revoked(ctx, change)
	}
	app, ended := serving(t, sidecar, job)
	stream := sidecar.Stream(t, 0)
	expect(t, told, "assigned 0:100 ATTACHED")
	app.Stop()
	script.Receive(t, "the callback", entered)
	equal(t, "drained before", len(sidecar.Drained), 1)
	nothing(t, "it has left", stream.Closed)
	nothing(t, "it has said that it leaves", sidecar.Detached)
	close(gate)
	equal(t, "Run", script.Receive(t, "Run returns", ended), error(nil))
	equal(t, "detached", script.Receive(t, "detach", sidecar.Detached).GetAttachmentId(), stream.AttachmentID)
	expect(t, told, "revoked 0:100 DETACHED")
	nothing(t, "more was told", told)
}

func TestAcknowledgedAfterTheCallbacksAndTheWorkOnRevokedItems(t *testing.T) {
	sidecar := script.Start(t)
	called, leave, begun, gate := make(chan int64, 4), make(chan struct{}), make(chan int, 4), make(chan struct{})
	job := orderSync(func(_ context.Context, execution *sidekeeper.Execution) error {
		begun <- execution.Item
		if execution.Item == 0 {
			<-gate
		}
		return nil
	})
	job.OnAssigned = func(_ context.Context, change sidekeeper.ItemsChange) error {
		called <- change.Generation
		<-leave
		return nil
	}
	serving(t, sidecar, job)
	stream := sidecar.Stream(t, 0, 1)
	stream.Execute(0)
	script.Receive(t, "the callback", called)
	nothing(t, "it began before the callback has returned", begun)
	nothing(t, "it was acknowledged", sidecar.Acknowledgements)
	close(leave)
	acknowledged := sidecar.Acknowledgement(t)
	equal(t, "attachment", acknowledged.GetAttachmentId(), stream.AttachmentID)
	equal(t, "generation", acknowledged.GetGeneration(), int64(1))
	equal(t, "begun", script.Receive(t, "the handler begins", begun), 0)
	stream.Assign(2, resharded, 1)
	other := stream.Execute(1)
	equal(t, "result", sidecar.Result(t).GetExecutionId(), other) // so what is told of the second has been told
	nothing(t, "acknowledged while it is executed", sidecar.Acknowledgements)
	close(gate)
	equal(t, "generation", sidecar.Acknowledgement(t).GetGeneration(), int64(2))
}

func TestACallbackThatFailsIsNotAcknowledged(t *testing.T) {
	sidecar := script.Start(t)
	job := orderSync(ignore)
	job.OnAssigned = func(_ context.Context, change sidekeeper.ItemsChange) error {
		switch change.Generation {
		case 1:
			return errors.New("not this one")
		case 2:
			panic("nor this one")
		}
		return nil
	}
	app := &sidekeeper.Application{Endpoint: sidecar.Endpoint, Jobs: []sidekeeper.Job{job}}
	kept := logging(t, app)
	run(t, app)
	stream := sidecar.Stream(t, 0)
	stream.Assign(2, resharded, 1)
	stream.Assign(3, resharded, 2)
	equal(t, "generation", sidecar.Acknowledgement(t).GetGeneration(), int64(3))
	for _, text := range []string{"a callback failed: not this one", "a callback failed: panic: nor this one"} {
		if !strings.Contains(kept.String(), text) {
			t.Errorf("no %q", text)
		}
	}
}

func TestTheChannelHasToBeAnswered(t *testing.T) {
	sidecar := script.Start(t)
	job := orderSync(ignore)
	assignments := make(chan sidekeeper.AssignmentEvent, 1)
	job.Assignments = assignments
	serving(t, sidecar, job)
	stream := sidecar.Stream(t, 0)
	stream.Execute(0)
	event := script.Receive(t, "the assignment", assignments)
	equal(t, "items", fmt.Sprint(event.Assignment.Items), "[{0 p0 100 false}]")
	nothing(t, "acknowledged", sidecar.Acknowledgements)
	nothing(t, "executed", sidecar.Reports)
	event.Done()
	equal(t, "generation", sidecar.Acknowledgement(t).GetGeneration(), int64(1))
	equal(t, "outcome", sidecar.Result(t).GetOutcome(), success)
}

func TestWhoIsStoppedAtOnceWaitsForNobodyAtTheChannel(t *testing.T) {
	sidecar := script.Start(t)
	job := orderSync(ignore)
	job.Assignments = make(chan sidekeeper.AssignmentEvent)
	app, ended := serving(t, sidecar, job)
	stream := sidecar.Stream(t, 0)
	app.Stop(sidekeeper.Immediately())
	equal(t, "Run", script.Receive(t, "Run returns", ended), error(nil))
	script.Receive(t, "the stream ends", stream.Closed)
}

func TestAnEndByTheSidecarIsALoss(t *testing.T) {
	for _, code := range []codes.Code{codes.OK, codes.DeadlineExceeded} {
		sidecar := script.Start(t)
		sidecar.TellGrace(time.Hour)
		job, told := owning()
		serving(t, sidecar, job)
		sidecar.Stream(t, 0).End(code, "")
		expect(t, told, "assigned 0:100 ATTACHED", "lost 0:100 DETACHED")
	}
}

func lease(remaining time.Duration, state sidekeeperv1.SessionState) *sidekeeperv1.AttachResponse {
	change := &sidekeeperv1.SessionChanged{State: state}
	if remaining > 0 {
		change.RemainingLease = durationpb.New(remaining)
	}
	return &sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_SessionChanged{SessionChanged: change}}
}
