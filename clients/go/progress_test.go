package sidekeeper_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	"github.com/sidekeeper/sidekeeper/clients/go/internal/script"
	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

func status(code codes.Code, details string) error { return grpcstatus.Error(code, details) }

func ptr[T any](value T) *T { return &value }

type told struct {
	progress sidekeeper.Progress
	err      error
	deadline time.Time
}

// reporting runs an execution whose handler reports progress once.
func reporting(t *testing.T, sidecar *script.Sidecar, checkpoint []byte, options ...sidekeeper.ProgressOption) (*script.Stream, string, told) {
	t.Helper()
	seen := make(chan told, 1)
	serving(t, sidecar, orderSync(func(ctx context.Context, execution *sidekeeper.Execution) error {
		progress, err := execution.Progress(ctx, checkpoint, options...)
		deadline, _ := ctx.Deadline()
		seen <- told{progress, err, deadline}
		return nil
	}))
	stream := sidecar.Stream(t)
	id := stream.Execute(0)
	one := script.Receive(t, "progress", seen)
	equal(t, "outcome", sidecar.Result(t).GetOutcome(), success)
	return stream, id, one
}

func TestProgressIsReportedAndMovesTheDeadline(t *testing.T) {
	sidecar := script.Start(t)
	deadline := time.Now().Add(time.Hour).Truncate(time.Millisecond).UTC()
	sidecar.AnswerProgress(&sidekeeperv1.ReportProgressResponse{Deadline: timestamppb.New(deadline)})
	stream, id, one := reporting(t, sidecar, []byte("row 7"))
	want := &sidekeeperv1.ReportProgressRequest{
		AttachmentId: stream.AttachmentID, ExecutionId: id, ExtendDeadline: true, Checkpoint: []byte("row 7"),
	}
	if got := script.Receive(t, "progress", sidecar.Progress); !proto.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	equal(t, "progress", one, told{sidekeeper.Progress{Deadline: deadline}, nil, deadline})
}

func TestWhatTheSidecarAnswersIsTold(t *testing.T) {
	sidecar := script.Start(t)
	sidecar.AnswerProgress(&sidekeeperv1.ReportProgressResponse{Cancelled: true, Superseded: true})
	_, _, one := reporting(t, sidecar, nil, sidekeeper.KeepDeadline())
	got := script.Receive(t, "progress", sidecar.Progress)
	if got.GetExtendDeadline() || got.Checkpoint != nil {
		t.Errorf("got %v", got)
	}
	equal(t, "progress", one.progress, sidekeeper.Progress{Cancelled: true, Superseded: true})
}

func TestARegistryThatIsAwayIsWaitedFor(t *testing.T) {
	sidecar := script.Start(t)
	sidecar.AnswerProgress(status(codes.Unavailable, "away"), &sidekeeperv1.ReportProgressResponse{})
	_, _, one := reporting(t, sidecar, []byte{})
	if one.err != nil {
		t.Fatal(one.err)
	}
	first, second := <-sidecar.Progress, <-sidecar.Progress
	if !proto.Equal(first, second) || first.Checkpoint == nil {
		t.Errorf("got %v, then %v", first, second)
	}
}

func TestAnExecutionThatIsOverIsAnError(t *testing.T) {
	sidecar := script.Start(t)
	sidecar.AnswerProgress(status(codes.FailedPrecondition, "it is over"))
	_, id, one := reporting(t, sidecar, nil)
	var failed *sidekeeper.ProgressError
	if !errors.As(one.err, &failed) {
		t.Fatalf("no ProgressError: %v", one.err)
	}
	equal(t, "error", *failed, sidekeeper.ProgressError{ExecutionID: id, Code: codes.FailedPrecondition, Details: "it is over"})
}

func TestACheckpointThatIsTooLargeIsNotSent(t *testing.T) {
	sidecar := script.Start(t)
	_, _, one := reporting(t, sidecar, bytes.Repeat([]byte{0}, sidekeeper.MaxCheckpointBytes+1))
	if one.err == nil || !strings.Contains(one.err.Error(), "65537 bytes, at most 65536") {
		t.Errorf("error: %v", one.err)
	}
	nothing(t, "sent", sidecar.Progress)
}

func TestACheckpointCanBeWrittenAfterTheCancel(t *testing.T) {
	sidecar := script.Start(t)
	begun := make(chan struct{})
	failures := make(chan error, 2)
	serving(t, sidecar, orderSync(func(ctx context.Context, execution *sidekeeper.Execution) error {
		close(begun)
		<-ctx.Done()
		_, err := execution.Progress(ctx, []byte("never sent"))
		failures <- err
		_, err = execution.Progress(context.WithoutCancel(ctx), []byte("row 9"))
		failures <- err
		return ctx.Err()
	}))
	stream := sidecar.Stream(t)
	id := stream.Execute(0)
	script.Receive(t, "the handler begins", begun)
	stream.Cancel(id, sidekeeperv1.CancelReason_CANCEL_REASON_DEADLINE)
	var failed *sidekeeper.ProgressError
	if err := script.Receive(t, "progress", failures); !errors.As(err, &failed) {
		t.Errorf("with a context that is done: %v", err)
	}
	if err := script.Receive(t, "progress", failures); err != nil {
		t.Error(err)
	}
	equal(t, "checkpoint", string(script.Receive(t, "progress", sidecar.Progress).GetCheckpoint()), "row 9")
}

func TestWithoutItsStreamAnExecutionReportsNothing(t *testing.T) {
	sidecar := script.Start(t)
	failures := make(chan error, 1)
	begun := make(chan struct{})
	serving(t, sidecar, orderSync(func(ctx context.Context, execution *sidekeeper.Execution) error {
		close(begun)
		<-ctx.Done()
		_, err := execution.Progress(context.WithoutCancel(ctx), []byte("late"))
		failures <- err
		return err
	}))
	stream := sidecar.Stream(t)
	stream.Execute(0)
	script.Receive(t, "the handler begins", begun)
	stream.End(codes.DeadlineExceeded, "not reported in time")
	var failed *sidekeeper.ProgressError
	if err := script.Receive(t, "progress", failures); !errors.As(err, &failed) || failed.Code != codes.Aborted {
		t.Errorf("progress: %v", err)
	}
	sidecar.Stream(t) // it comes back: that end is no reason to stay away
}

func TestAnExecutionOfNoSidecarSaysSo(t *testing.T) {
	_, err := (&sidekeeper.Execution{ExecutionID: "x-1"}).Progress(context.Background(), nil)
	if err == nil || !strings.Contains(err.Error(), "did not come from a sidecar") {
		t.Errorf("error: %v", err)
	}
}
